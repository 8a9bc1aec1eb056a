"""From the doors to the group that decides: admission, and the wait for the result.

Runs in the tasks of the calls and owns nothing but the admission. With several nodes it is also what hands a call to
the leader elsewhere. Calls of door processes come through `doorway.link` instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from queen_node.admission import Admission
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.disk_gate import Gates
from queen_node.events import Event, HandBack, Pop, Withdraw
from queen_node.groups import Sink, Sinks
from queen_node.metrics import Metrics
from queen_node.parked_pops import Reader, WaitingPop
from queen_node.slots import ResultSlot, Slot

SHORT_POP_TIMEOUT_S = 20.0  # PA-9: a pop that does not wait
INBOX_STEP_S = 0.002


class Pipeline:
    """Implements `broker.Broker` for the groups on this node.

    admit_max_bytes: write bytes that may be under way before new ones are held, 0 switches that off; admit_hold_s: how
    long they are held before 429 (CL-34). margin_s: a pop closer to its deadline claims nothing (PA-22).
    """

    def __init__(
        self, sinks: Sinks, metrics: Metrics, *, admit_max_bytes: int, admit_hold_s: float, margin_s: float,
        gates: Callable[[], Gates], jitter: Callable[[], float],
    ) -> None:
        self._sinks, self._margin_s = sinks, margin_s
        self.admission = Admission(
            metrics, max_bytes=admit_max_bytes, hold_s=admit_hold_s, gates=gates, jitter=jitter)
        self.admits, self.admit = self.admission.admits, self.admission.admit
        self.takes_changes, self.takes_growth = self.admission.takes_changes, self.admission.takes_growth

    async def write(
        self, tenant: bytes, command: bytes, *, timeout_ms: int, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> bytes:
        """See `broker.Broker`."""
        slot, size = Slot(), len(command)
        command = self._sinks.as_written(command)
        pending = Pending(command, slot, give_up_at_s=trio.current_time() + timeout_ms / 1000, places=places)
        await self._put(tenant, (lane, pending), pending.give_up_at_s)
        self.admission.bytes_under_way += size
        try:
            return await slot.wait()
        finally:
            self.admission.bytes_under_way -= size

    async def write_all(
        self, tenant: bytes, parts: Sequence[tuple[bytes, tuple[bytes, ...]]], *, timeout_ms: int, lane: Lane,
    ) -> list[bytes]:
        """Several commands of one call, adjacent and in order (PU-43): their results. Raises Unavailable if one is."""
        give_up_at_s = trio.current_time() + timeout_ms / 1000
        size = sum(len(command) for command, _ in parts)
        sink = await self._sink_with_room(tenant, give_up_at_s)
        slots = [Slot() for _ in parts]
        for (command, places), slot in zip(parts, slots, strict=True):
            command = self._sinks.as_written(command)
            sink.put((lane, Pending(command, slot, give_up_at_s=give_up_at_s, places=places)))
        self.admission.bytes_under_way += size
        try:
            return [await slot.wait() for slot in slots]
        finally:
            self.admission.bytes_under_way -= size

    async def read(self, tenant: bytes, query: bytes, *, timeout_ms: int) -> bytes:
        """See `broker.Broker`."""
        slot = Slot()
        read = PendingRead(query, slot, give_up_at_s=trio.current_time() + timeout_ms / 1000)
        await self._put(tenant, read, read.give_up_at_s)
        return await slot.wait()

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]] | None,
    ) -> bytes:
        """See `broker.Broker`."""
        slot = Slot()
        pop, give_up_at_s = waiting_pop(
            self._sinks.as_written(command), lease_id=lease_id, queue=queue, reader=(group, partition), wait_ms=wait_ms,
            slot=slot, now_s=trio.current_time(), margin_s=self._margin_s)
        await self._put(tenant, Pop(pop), give_up_at_s)
        try:
            if client_gone is None or not pop.waits:
                return await slot.wait()
            return await slot.wait_watching(client_gone, lambda: self._sinks.sink(tenant).put(Withdraw(pop)))
        finally:
            # Cancelled, alone or in a group with the watcher's: nobody will read what this pop is given.
            if not slot.answered:
                self._sinks.sink(tenant).put(Withdraw(pop))

    async def hand_back(self, tenant: bytes, lease_id: bytes) -> None:
        """See `broker.Broker`."""
        self._sinks.sink(tenant).put(HandBack(lease_id))

    async def _put(self, tenant: bytes, event: Event, give_up_at_s: float) -> None:
        sink = self._sinks.sink(tenant)
        if sink.full:
            sink = await self._sink_with_room(tenant, give_up_at_s)
        sink.put(event)

    async def _sink_with_room(self, tenant: bytes, give_up_at_s: float) -> Sink:
        """Backpressure: a full inbox holds its senders, and past their deadline refuses them."""
        while (sink := self._sinks.sink(tenant)).full:
            if trio.current_time() >= give_up_at_s:
                raise Unavailable("no_leader")  # never proposed: surely not applied
            await trio.sleep(INBOX_STEP_S)
        return sink


def waiting_pop(
    command: bytes, *, lease_id: bytes, queue: bytes, reader: Reader, wait_ms: int | None, slot: ResultSlot,
    now_s: float, margin_s: float,
) -> tuple[WaitingPop, float]:
    """A pop as a group takes it, and when its caller gives it up. margin_s: so much earlier it claims nothing (PA-22).
    """
    wait_s = SHORT_POP_TIMEOUT_S if wait_ms is None else wait_ms / 1000
    kept_s = 0.0 if wait_ms is None else min(margin_s, wait_s / 4)
    pop = WaitingPop(
        command, lease_id=lease_id, queue=queue, reader=reader, slot=slot, waits=wait_ms is not None,
        answer_by_s=now_s + wait_s - kept_s)
    return pop, now_s + wait_s
