"""Where a message goes, as one byte string: what a door says of a command, so that pops that wait there can ride behind
it (M-41). It is a hint: what is really appended where is decided when the command applies.
"""

from __future__ import annotations


def place(queue: bytes, partition: bytes) -> bytes:
    """A queue, behind its length, and a partition of it."""
    return len(queue).to_bytes(2, "big") + queue + partition


def queue_and_partition(packed: bytes) -> tuple[bytes, bytes]:
    """What `place` was made of."""
    end = 2 + int.from_bytes(packed[:2], "big")
    return packed[2:end], packed[end:]
