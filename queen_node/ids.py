"""Identifiers minted at the door, before a command is built (README 2 of the contract: nothing random in apply)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_POOL_BYTES = 4096  # one system call serves 400 ids: os.urandom(10) alone costs as much as the rest of minting


class IdMint:
    """Mints UUIDv7 (RFC 9562) and request ids. One a node; `wall_ns` and `random_bytes` are passed in for tests."""

    __slots__ = ("_pool", "_position", "_random_bytes", "_wall_ns")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._wall_ns, self._random_bytes = wall_ns, random_bytes
        self._pool, self._position = b"", 0

    def uuid7(self) -> bytes:
        """16 bytes: milliseconds of the wall clock, then 74 random bits. Nobody may rely on their order (PU-15)."""
        position = self._position
        if position + 10 > len(self._pool):
            self._pool, position = self._random_bytes(_POOL_BYTES), 0
        self._position = position + 10
        noise = self._pool[position : position + 10]
        return (
            (self._wall_ns() // 1_000_000).to_bytes(6, "big")
            + bytes((0x70 | noise[0] & 0x0F, noise[1], 0x80 | noise[2] & 0x3F))
            + noise[3:]
        )


def uuid_text(raw: bytes) -> str:
    """The canonical text of 16 bytes, lower case."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
