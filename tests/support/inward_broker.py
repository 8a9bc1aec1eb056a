"""A door's broker over `Inward`: commands are applied one after the other and their answers packed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from queen_node import packed
from queen_node.answers import pack
from queen_node.broker import Lane, Unavailable
from tests.support.inward import Inward


class InwardBroker:
    """Implements `broker.Broker` for what goes in.

    writes: commands that came, decoded; calls: (timeout, lane, places) of each. unavailable: code that the next calls
    fail with, before anything is applied, or after `unavailable_after` more commands.
    """

    def __init__(self) -> None:
        self.node = Inward()
        self.writes: list[list[Any]] = []
        self.calls: list[tuple[int, Lane, tuple[bytes, ...]]] = []
        self.admitted: list[int] = []
        self.unavailable = ""
        self.unavailable_after = 0
        self.refuse_admission: Exception | None = None
        self.lets_change = True

    async def write(
        self, tenant: bytes, command: bytes, *, timeout_ms: int, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> bytes:
        """Apply and pack."""
        if self.unavailable and not self.unavailable_after:
            raise Unavailable(self.unavailable)
        self.unavailable_after -= bool(self.unavailable)
        self.writes.append(packed.fields_of(command))
        self.calls.append((timeout_ms, lane, places))
        return pack(self.node.apply(command)[0])

    async def write_all(
        self, tenant: bytes, parts: Sequence[tuple[bytes, tuple[bytes, ...]]], *, timeout_ms: int, lane: Lane,
    ) -> list[bytes]:
        """The same for several, in order."""
        return [
            await self.write(tenant, command, timeout_ms=timeout_ms, lane=lane, places=places)
            for command, places in parts]

    def admits(self, body_bytes: int, *, grows: bool = True) -> bool:
        """Let in at once, unless a test wants `admit` to be asked."""
        if self.refuse_admission is not None:
            return False
        self.admitted.append(body_bytes)
        return True

    def takes_changes(self) -> bool:
        """As a test wants it."""
        return self.lets_change

    def takes_growth(self) -> bool:
        """As a test wants it."""
        return self.lets_change

    async def admit(self, body_bytes: int, *, grows: bool = True) -> None:
        """Let in, or raise what the test wants raised."""
        if self.refuse_admission is not None:
            raise self.refuse_admission
        self.admitted.append(body_bytes)

    async def read(self, tenant: bytes, query: bytes, *, timeout_ms: int) -> NoReturn:
        """Nothing that goes in reads."""
        raise AssertionError("read")

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]] | None,
    ) -> NoReturn:
        """Nothing that goes in pops."""
        raise AssertionError("pop")

    async def hand_back(self, tenant: bytes, lease_id: bytes) -> NoReturn:
        """Nothing that goes in hands back."""
        raise AssertionError("hand_back")
