"""The broker as a door process sees it: questions go out as frames, answers come back to the calls that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from queen_node.admission import Admission
from queen_node.broker import Lane, Unavailable
from queen_node.disk_gate import OPEN
from queen_node.doorway import frames
from queen_node.doorway.channel import Channel
from queen_node.doorway.frames import Kind
from queen_node.metrics import Metrics
from queen_node.slots import Slot
from raft.invariants import must


class RemoteBroker:
    """Implements `broker.Broker` over a channel to the node.

    Every call is answered, at its deadline at the latest, by the node; when the node is gone this process ends.
    admit_max_bytes, admit_hold_s, jitter: of `Admission`, for this door's share of the calls.
    """

    def __init__(
        self, channel: Channel, metrics: Metrics, *, admit_max_bytes: int, admit_hold_s: float,
        jitter: Callable[[], float],
    ) -> None:
        self._channel = channel
        self._waiting: dict[int, Slot] = {}
        self._last_call = 0
        self._gates = OPEN  # as the node said last
        self._admission = Admission(
            metrics, max_bytes=admit_max_bytes, hold_s=admit_hold_s, gates=lambda: self._gates, jitter=jitter)
        self.admits, self.admit = self._admission.admits, self._admission.admit
        self.takes_changes, self.takes_growth = self._admission.takes_changes, self._admission.takes_growth
        self.told_to_serve, self.told_to_drain = trio.Event(), trio.Event()
        channel.send(frames.frame(Kind.HELLO, frames.VERSION))

    async def listen(self) -> None:
        """Hand out what the node says, until it says no more."""
        waiting, answer, unavailable = self._waiting, Kind.ANSWER, Kind.UNAVAILABLE
        while received := await self._channel.receive():
            for kind, call, body in received:
                if kind == answer:
                    waiting.pop(call).answer(body)
                elif kind == unavailable:
                    waiting.pop(call).answer(Unavailable(body.decode()))
                else:
                    self._take_order(kind, body)

    def _take_order(self, kind: int, body: bytes) -> None:
        if kind == Kind.GATES:
            self._gates = frames.read_gates(body)
        elif kind == Kind.SERVE:
            self.told_to_serve.set()
        else:
            must(kind == Kind.DRAIN, "the node says what no door understands", kind=kind)
            self.told_to_drain.set()

    def _new_call(self) -> tuple[int, Slot]:
        self._last_call = call = self._last_call + 1
        slot = self._waiting[call] = Slot()
        return call, slot

    async def write(
        self, tenant: bytes, command: bytes, *, timeout_ms: int, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> bytes:
        """See `broker.Broker`."""
        call, slot = self._new_call()
        self._channel.send(frames.write(Kind.WRITE, call, tenant, command, lane, timeout_ms, places))
        size, admission = len(command), self._admission
        admission.bytes_under_way += size
        try:
            return await slot.wait()
        finally:
            admission.bytes_under_way -= size

    async def write_all(
        self, tenant: bytes, parts: Sequence[tuple[bytes, tuple[bytes, ...]]], *, timeout_ms: int, lane: Lane,
    ) -> list[bytes]:
        """See `broker.Broker`."""
        must(bool(parts), "a call of no parts")
        slots = []
        for number, (command, places) in enumerate(parts, start=1):
            kind = Kind.WRITE if number == len(parts) else Kind.WRITE_MORE
            call, slot = self._new_call()
            slots.append(slot)
            self._channel.send(frames.write(kind, call, tenant, command, lane, timeout_ms, places))
        size, admission = sum(len(command) for command, _ in parts), self._admission
        admission.bytes_under_way += size
        try:
            return [await slot.wait() for slot in slots]
        finally:
            admission.bytes_under_way -= size

    async def read(self, tenant: bytes, query: bytes, *, timeout_ms: int) -> bytes:
        """See `broker.Broker`."""
        call, slot = self._new_call()
        self._channel.send(frames.read(call, tenant, query, timeout_ms))
        return await slot.wait()

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]] | None,
    ) -> bytes:
        """See `broker.Broker`."""
        call, slot = self._new_call()
        self._channel.send(frames.pop(
            call, tenant, command, lease_id=lease_id, queue=queue, group=group, partition=partition, wait_ms=wait_ms))
        try:
            if client_gone is None or wait_ms is None:
                return await slot.wait()
            return await slot.wait_watching(client_gone, lambda: self._withdraw(call))
        finally:
            # Cancelled, alone or in a group with the watcher's: nobody will read what this pop is given.
            if not slot.answered:
                self._withdraw(call)

    def _withdraw(self, call: int) -> None:
        self._channel.send(frames.frame(Kind.WITHDRAW, call))

    async def hand_back(self, tenant: bytes, lease_id: bytes) -> None:
        """See `broker.Broker`."""
        self._channel.send(frames.hand_back(tenant, lease_id))

    async def ask(self, question: bytes, report: bytes) -> bytes:
        """The node's own answer (`report.pack_response`) to `report.pack_question`; `report`: counted here by now."""
        call, slot = self._new_call()
        self.report(report)
        self._channel.send(frames.frame(Kind.ASK, call, question))
        return await slot.wait()

    def report(self, report: bytes) -> None:
        """Tell the node what was counted here since the last report (`report.Reporter`); empty: nothing."""
        if report:
            self._channel.send(frames.frame(Kind.REPORT, 0, report))
