"""Judges of histories: what clients saw, held against the promises of the contract. One file a family of promises.

Pure functions, used by the fault tests (real processes) and by the simulation (virtual time) alike.
"""
