"""From what the state machine answers to what a client reads.

A write's answer crosses from the group to the door packed, and becomes JSON there: the group's process has the most to
do, and a door may be a process of its own. What is read from the store is written as JSON where the store is; that
result is two bytes of HTTP status and the body.
"""

from __future__ import annotations

import msgspec

NOTHING = b""  # the packed answer of a pop that delivers nothing
Rendered = tuple[int, bytes]  # HTTP status, body

pack = msgspec.msgpack.Encoder().encode  # a write's answer as it crosses; the renderer of its kind unpacks it


def result(status: int, body: bytes = b"") -> bytes:
    """A read's result as it crosses."""
    return status.to_bytes(2, "big") + body


def read_result(raw: bytes) -> Rendered:
    """The same at the door."""
    return int.from_bytes(raw[:2], "big"), raw[2:]
