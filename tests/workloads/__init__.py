"""Clients that are the same on real processes (`tests.faults`) and in virtual time (`tests.simulation`).

They know nodes by a `Road` only, and no clock. What they saw is judged by `tests.checkers`.
"""
