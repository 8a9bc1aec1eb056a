"""Identifiers minted at the door, before a command is built (README 2 of the contract: nothing random in apply)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from struct import Struct

_POOL_BYTES = 4096  # one system call serves 400 ids: os.urandom(10) alone costs as much as the rest of minting
_NOISE_BYTES = 10
# Of each noise, the first byte gets the version and the third the variant: four and two bits.
_VERSION = bytes(0x70 | value & 0x0F for value in range(256))
_VARIANT = bytes(0x80 | value & 0x3F for value in range(256))
_UUID_PARTS = Struct("4s6s6s").unpack  # 8, three times 4, and 12 digits


class IdMint:
    """Mints UUIDv7 (RFC 9562) and request ids. One a node; `wall_ns` and `random_bytes` are passed in for tests."""

    __slots__ = ("_pool", "_position", "_random_bytes", "_request", "_wall_ns")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._wall_ns, self._random_bytes = wall_ns, random_bytes
        self._pool, self._position = b"", 0
        self._request = int.from_bytes(random_bytes(16), "big") >> 8  # room to count up without ever wrapping

    def uuid7(self) -> bytes:
        """16 bytes: milliseconds of the wall clock, then 74 random bits. Nobody may rely on their order (PU-15)."""
        position = self._take_noise(1)
        return (self._wall_ns() // 1_000_000).to_bytes(6, "big") + self._pool[position : position + _NOISE_BYTES]

    def uuid7s(self, count: int) -> list[bytes]:
        """So many of them, all of one millisecond: the clock is read once."""
        position = self._take_noise(count)
        moment, pool = (self._wall_ns() // 1_000_000).to_bytes(6, "big"), self._pool
        return [
            moment + pool[at : at + _NOISE_BYTES]
            for at in range(position, position + count * _NOISE_BYTES, _NOISE_BYTES)]

    def _take_noise(self, count: int) -> int:
        """Where in the pool the noise of `count` ids begins."""
        position, size = self._position, count * _NOISE_BYTES
        if position + size > len(self._pool):
            pool, position = bytearray(self._random_bytes(max(_POOL_BYTES, size))), 0
            pool[::_NOISE_BYTES] = pool[::_NOISE_BYTES].translate(_VERSION)
            pool[2::_NOISE_BYTES] = pool[2::_NOISE_BYTES].translate(_VARIANT)
            self._pool = bytes(pool)
        self._position = position + size
        return position

    def request_id(self) -> bytes:
        """16 bytes, unique to a call: a random beginning of this process, counted up (CL-27)."""
        self._request += 1
        return self._request.to_bytes(16, "big")


def uuid_text(raw: bytes) -> str:
    """The canonical text of 16 bytes, lower case."""
    first, middle, last = _UUID_PARTS(raw)
    return f"{first.hex()}-{middle.hex('-', 2)}-{last.hex()}"
