"""The node's side of the channel to one door process: its frames become events of the group's inbox.

What the pipeline does in the task of a call, one task does here for all calls of a door: no task, scope or timer a
call. It never waits for the group, so that a question after the node's health is answered whatever the group does
(AD-8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import trio

from queen_node.broker import Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.disk_gate import Gates
from queen_node.doorway import frames
from queen_node.doorway.channel import Channel
from queen_node.doorway.frames import HEAD, Kind
from queen_node.doorway.report import Sums, pack_response, unpack_question
from queen_node.events import LET_POPS_GO, Event, HandBack, Pop, Withdraw
from queen_node.groups import Sinks
from queen_node.http.failures import answer_for
from queen_node.http.messages import Request
from queen_node.http.routes import Handler
from queen_node.parked_pops import WaitingPop
from queen_node.pipeline import INBOX_STEP_S, waiting_pop
from raft.invariants import must

AT_ONCE = frozenset(("health", "metrics", "prometheus"))  # answered without waiting for anything


class CallSlot:
    """Where the group puts the result of one call of a door. Implements `slots.ResultSlot`."""

    __slots__ = ("_call", "_link", "answered")

    def __init__(self, link: DoorLink, call: int) -> None:
        self._link, self._call = link, call
        self.answered = False

    def answer(self, result: bytes | Unavailable) -> None:
        """Send the result. The first counts: a call that was given up may still be decided later."""
        if not self.answered:
            self.answered = True
            self._link.answer(self._call, result)


class DoorLink:
    """One door's calls on their way to the group and back.

    operations: what answers questions after the node, by the names of the routes; sums: takes what the door counted;
    margin_s: a pop closer to its deadline claims nothing (PA-22). Runs until the door ends its side.
    """

    def __init__(
        self, channel: Channel, sinks: Sinks, operations: Mapping[str, Handler], sums: Sums, *, margin_s: float,
    ) -> None:
        self._channel, self._sinks = channel, sinks
        self._operations, self._sums, self._margin_s = operations, sums, margin_s
        self._pops: dict[int, tuple[bytes, WaitingPop]] = {}  # not answered yet, with their tenants
        self._parts: list[Event] = []  # of a call whose last part is still to come
        # By tenant, as one whose inbox is full is not to hold up another's calls: give up at, events that go together.
        self._held: dict[bytes, deque[tuple[float, list[Event]]]] = {}
        self._hold = trio.Event()
        self._draining = False
        self._now_s = 0.0  # of the monotonic clock, when the frames came that are being taken
        self._take: Mapping[int, Callable[[int, bytes], None]] = {
            Kind.HELLO: self._take_hello,
            Kind.WRITE: self._take_write,
            Kind.WRITE_MORE: self._take_write_more,
            Kind.READ: self._take_read,
            Kind.POP: self._take_pop,
            Kind.WITHDRAW: self._take_withdraw,
            Kind.HAND_BACK: self._take_hand_back,
            Kind.REPORT: lambda _call, report: self._sums.add(report),
        }

    async def run(self) -> None:
        """Until the door ends, or cancelled. Raises InvariantBroken for a frame that no door of this release sends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._channel.write_out)
            nursery.start_soon(self._put_held)
            while received := await self._channel.receive():
                self._now_s = trio.current_time()
                for kind, call, body in received:
                    if kind == Kind.ASK:
                        name, request = unpack_question(body)
                        if name in AT_ONCE:
                            await self._answer_about_node(call, name, request)
                        else:
                            nursery.start_soon(self._answer_about_node, call, name, request)
                    else:
                        take = self._take.get(kind)
                        must(take is not None, "a door says what no node understands", kind=kind)
                        take(call, body)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
        for tenant, pop in self._pops.values():
            self._sinks.sink(tenant).put(Withdraw(pop))

    def serve(self, gates: Gates) -> None:
        """Let the door accept clients."""
        self.tell_gates(gates)
        self._channel.send(frames.frame(Kind.SERVE))

    def tell_gates(self, gates: Gates) -> None:
        """What is refused from now on."""
        self._channel.send(frames.gates(gates))

    def drain(self) -> None:
        """Let the door finish. It hears of it before the answers of the pops that are let go now (CL-131)."""
        self._draining = True
        self._channel.send(frames.frame(Kind.DRAIN))
        self._sinks.let_pops_go()

    def answer(self, call: int, result: bytes | Unavailable) -> None:
        """Send what became of a call."""
        self._pops.pop(call, None)
        if isinstance(result, Unavailable):
            self._channel.send(frames.frame(Kind.UNAVAILABLE, call, result.code.encode()))
        else:
            self._channel.send(HEAD.pack(len(result), Kind.ANSWER, call) + result)

    # --- what a door says

    def _take_hello(self, version: int, _body: bytes) -> None:
        must(version == frames.VERSION, "a door of another release", version=version)

    def _take_write(self, call: int, body: bytes) -> None:
        tenant, command, lane, timeout_ms, places = frames.read_write(body)
        give_up_at_s = self._now_s + timeout_ms / 1000
        command = self._sinks.as_written(command)
        event = lane, Pending(command, CallSlot(self, call), give_up_at_s=give_up_at_s, places=places)
        if self._parts:
            parts, self._parts = self._parts, []
            self._put(tenant, [*parts, event], give_up_at_s)
        else:
            sink = self._sinks.sink(tenant)
            if self._held or sink.full:
                self._put(tenant, [event], give_up_at_s)
            else:
                sink.put(event)

    def _take_write_more(self, call: int, body: bytes) -> None:
        _tenant, command, lane, timeout_ms, places = frames.read_write(body)
        give_up_at_s = self._now_s + timeout_ms / 1000
        command = self._sinks.as_written(command)
        self._parts.append((lane, Pending(command, CallSlot(self, call), give_up_at_s=give_up_at_s, places=places)))

    def _take_read(self, call: int, body: bytes) -> None:
        tenant, query, timeout_ms = frames.read_read(body)
        give_up_at_s = self._now_s + timeout_ms / 1000
        self._put(tenant, [PendingRead(query, CallSlot(self, call), give_up_at_s=give_up_at_s)], give_up_at_s)

    def _take_pop(self, call: int, body: bytes) -> None:
        tenant, command, lease_id, queue, group, partition, wait_ms = frames.read_pop(body)
        pop, give_up_at_s = waiting_pop(
            self._sinks.as_written(command), lease_id=lease_id, queue=queue, reader=(group, partition), wait_ms=wait_ms,
            slot=CallSlot(self, call), now_s=trio.current_time(), margin_s=self._margin_s)
        self._pops[call] = tenant, pop
        self._put(tenant, [Pop(pop)], give_up_at_s)
        if self._draining:  # it was under way when the others were let go
            self._sinks.sink(tenant).put(LET_POPS_GO)

    def _take_withdraw(self, call: int, _body: bytes) -> None:
        waiting = self._pops.get(call)
        if waiting is not None:  # else it has just been answered, and the door hands back what it cannot deliver
            tenant, pop = waiting
            self._put(tenant, [Withdraw(pop)], pop.answer_by_s)

    def _take_hand_back(self, _call: int, body: bytes) -> None:
        tenant, lease_id = frames.read_hand_back(body)
        self._sinks.sink(tenant).put(HandBack(lease_id))

    async def _answer_about_node(self, call: int, name: str, request: Request) -> None:
        handler = self._operations.get(name)
        must(handler is not None, "a question that no node answers", name=name)
        if handler is not None:
            try:
                response = await handler(request)
            except Exception as error:  # of one client's question: it ends neither this link nor the node
                response = answer_for(error, request)
            self.answer(call, pack_response(response))

    # --- backpressure: what an inbox has no room for waits here, in order, and is refused at its deadline

    def _put(self, tenant: bytes, events: list[Event], give_up_at_s: float) -> None:
        sink = self._sinks.sink(tenant)
        if tenant in self._held or sink.full:
            self._held.setdefault(tenant, deque()).append((give_up_at_s, events))
            self._hold.set()
            return
        for event in events:
            sink.put(event)

    async def _put_held(self) -> None:
        while True:
            await self._hold.wait()
            self._hold = trio.Event()
            while self._held:
                now_s = trio.current_time()
                for tenant, held in list(self._held.items()):
                    self._put_what_fits(tenant, held)
                    _refuse_late(held, now_s)
                    if not held:
                        del self._held[tenant]
                await trio.sleep(INBOX_STEP_S)

    def _put_what_fits(self, tenant: bytes, held: deque[tuple[float, list[Event]]]) -> None:
        sink = self._sinks.sink(tenant)
        while held and not sink.full:
            for event in held.popleft()[1]:
                sink.put(event)


def _refuse_late(held: deque[tuple[float, list[Event]]], now_s: float) -> None:
    for _ in range(len(held)):
        give_up_at_s, events = held.popleft()
        if give_up_at_s <= now_s:
            for event in events:
                _refuse(event)
        else:
            held.append((give_up_at_s, events))


def _refuse(event: Event) -> None:
    """The answer to what was never proposed: surely not applied."""
    refusal = Unavailable("no_leader")
    match event:
        case (_, Pending() as pending):
            pending.slot.answer(refusal)
        case PendingRead():
            event.slot.answer(refusal)
        case Pop(pop):
            pop.slot.answer(refusal)
        case _:
            return  # a withdrawal: its pop was refused before it
