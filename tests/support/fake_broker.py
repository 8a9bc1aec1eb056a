"""A node without consensus for the tests of handlers: each command is an entry of its own, applied at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from queen_node import commands, packed, queries
from queen_node.answers import NOTHING, pack
from queen_node.broker import Lane, Unavailable
from queen_node.state import consume
from queen_node.state.machine import Answer, Machine
from queen_node.state.store import Store
from tests.support.memory_engine import MemoryEngine

FIRE = commands.fire(at_most=256, max_bytes=4 << 20, rules=commands.RulesOfFire())


class FakeBroker:
    """Implements `broker.Broker` over the memory twin of the store.

    now_us: the group clock; it stands still unless the test moves it, and nothing fires but by `fire`. unavailable: a
    code that every call from now on fails with; unavailable_after: the same, but the command is applied first.
    refuse_admission: what `admit` raises. writes: the commands that came in, decoded.
    """

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = now_us
        self.machine = Machine(Store(MemoryEngine(), life=1))
        self.writes: list[list[object]] = []
        self.lanes: list[Lane] = []
        self.timeouts_ms: list[int] = []
        self.handed_back: list[bytes] = []
        self.admitted_bytes: list[int] = []
        self.unavailable: str | None = None
        self.unavailable_after: str | None = None
        self.refuse_admission: Exception | None = None
        self.lets_change = self.lets_grow = True

    def apply(self, *raw_commands: bytes) -> list[Answer]:
        """One entry with these commands; their answers."""
        index = self.machine.applied_index + 1
        applied = self.machine.apply_entry(index=index, term=1, data=commands.entry(self.now_us, raw_commands))
        return [answer for _request_id, _kind, answer in applied]

    def fire(self, fire: bytes = FIRE) -> int:
        """Fire what is due now, in as many entries as it takes; how many entries."""
        entries = 1
        while self.apply(fire)[0] == (True,):
            entries += 1
        return entries

    async def write(
        self, tenant: bytes, command: bytes, *, timeout_ms: int, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> bytes:
        """Apply the command and pack its answer."""
        self.writes.append(packed.fields_of(command))
        self.lanes.append(lane)
        self.timeouts_ms.append(timeout_ms)
        self._fail(self.unavailable)
        answer = self.apply(command)[0]
        self._fail(self.unavailable_after)
        return pack(answer)

    async def write_all(
        self, tenant: bytes, parts: Sequence[tuple[bytes, tuple[bytes, ...]]], *, timeout_ms: int, lane: Lane,
    ) -> list[bytes]:
        """Apply the commands one after the other."""
        return [
            await self.write(tenant, command, timeout_ms=timeout_ms, lane=lane, places=places)
            for command, places in parts]

    async def read(self, tenant: bytes, query: bytes, *, timeout_ms: int) -> bytes:
        """Run the reader to its end over what is applied."""
        self.timeouts_ms.append(timeout_ms)
        self._fail(self.unavailable)
        reader = queries.reader(self.machine.store.committed(self.now_us), query)
        try:
            while True:
                next(reader)
        except StopIteration as end:
            result: bytes = end.value
            return result

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]] | None,
    ) -> bytes:
        """One try; empty at once when nothing can be delivered, however long the call would wait."""
        self._fail(self.unavailable)
        store = self.machine.store
        if consume.can_serve(store, queue=queue, group=group, partition=partition, now_us=self.now_us) is not True:
            return NOTHING
        answer = self.apply(command)[0]
        self._fail(self.unavailable_after)
        return pack(answer) if consume.claimed(answer) else NOTHING

    async def hand_back(self, tenant: bytes, lease_id: bytes) -> None:
        """Give the lease back."""
        self.handed_back.append(lease_id)
        self.apply(commands.hand_back(lease_id))

    def admits(self, body_bytes: int, *, grows: bool = True) -> bool:
        """Let in at once, unless a test wants `admit` to be asked."""
        if self.refuse_admission is not None:
            return False
        self.admitted_bytes.append(body_bytes)
        return True

    def takes_changes(self) -> bool:
        """As a test wants it."""
        return self.lets_change

    def takes_growth(self) -> bool:
        """As a test wants it."""
        return self.lets_grow

    async def admit(self, body_bytes: int, *, grows: bool = True) -> None:
        """Take a permit, or raise what the test wants raised."""
        if self.refuse_admission is not None:
            raise self.refuse_admission
        self.admitted_bytes.append(body_bytes)

    @staticmethod
    def _fail(code: str | None) -> None:
        if code is not None:
            raise Unavailable(code)
