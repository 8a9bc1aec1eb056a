"""From what the state machine answers to what the door sends: bytes, made once, on the node that answers.

A result is two bytes of HTTP status and the body. The door adds the head and nothing else, so that it shares no object
with the group and could be a process of its own.
"""

from __future__ import annotations


def result(status: int, body: bytes = b"") -> bytes:
    """A result as it crosses from a group to a door."""
    return status.to_bytes(2, "big") + body


def read_result(raw: bytes) -> tuple[int, bytes]:
    """(status, body) of a result."""
    return int.from_bytes(raw[:2], "big"), raw[2:]
