"""Both ends of the channel between a door and the node, over a socket pair: what a door asks becomes events of the
group's inbox, and results find the calls that wait."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from queen_node import commands, packed
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.commands import AckStatus
from queen_node.disk_gate import OPEN, Gates
from queen_node.doorway import frames
from queen_node.doorway.channel import RECEIVE_BYTES, Channel
from queen_node.doorway.frames import Kind
from queen_node.doorway.link import DoorLink
from queen_node.doorway.remote_broker import RemoteBroker
from queen_node.doorway.report import Sums, pack_question, unpack_response
from queen_node.events import Event, HandBack, LetPopsGo, Pop, Withdraw
from queen_node.http.messages import Request, Response
from queen_node.inbox import Inbox
from queen_node.metrics import Metrics
from queen_node.pass_end import PassEnd
from raft.invariants import InvariantBroken
from tests.support.one_inbox import TENANT, OneInbox

NAMES = {"lease_id": b"lease", "queue": b"q", "group": b"g", "partition": None}
INBOX_BOUND = 4


async def health(request: Request) -> Response:
    return Response(503, b"settling", headers=((b"Retry-After", b"1"),))


async def status(request: Request) -> Response:
    raise RecursionError("a question nested too deeply")


class Ends:
    """A door's end, the node's, and the inbox behind it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.door_channel, self.node_channel = (Channel(end, PassEnd(), gathered_max=2) for end in (ours, theirs))
        self.metrics = Metrics(0.0)
        self.broker = RemoteBroker(
            self.door_channel, Metrics(0.0), admit_max_bytes=1000, admit_hold_s=1.0, jitter=lambda: 0.5)
        self.inbox: Inbox[Event] = Inbox(INBOX_BOUND)
        self.sinks = OneInbox(self.inbox)
        self.link = DoorLink(
            self.node_channel, self.sinks, {"health": health, "status": status}, Sums(self.metrics),
            margin_s=0.05)

    async def event(self) -> Event:
        (event,) = await self.inbox.take_all()
        return event

    async def pop_event(self) -> Pop:
        event = await self.event()
        assert isinstance(event, Pop)
        return event


@asynccontextmanager
async def joined() -> AsyncIterator[Ends]:
    ends = Ends()
    async with trio.open_nursery() as nursery:
        for run in (ends.link.run, ends.broker.listen, ends.door_channel.write_out):
            nursery.start_soon(run)
        yield ends
        nursery.cancel_scope.cancel()
    ends.door_channel.close()
    ends.node_channel.close()


def pending_of(event: Event) -> Pending:
    assert isinstance(event, tuple)
    return event[1]


async def test_a_write_and_its_result() -> None:
    async with joined() as ends, trio.open_nursery() as nursery:
        got: list[bytes] = []

        async def write() -> None:
            got.append(await ends.broker.write(
                TENANT, b"command", timeout_ms=5000, lane=Lane.PUSHES, places=(b"q", b"q")))

        nursery.start_soon(write)
        event = await ends.event()
        pending = pending_of(event)
        assert isinstance(event, tuple) and event[0] is Lane.PUSHES
        assert (pending.command, pending.places) == (b"command", (b"q", b"q"))
        pending.slot.answer(b"result")
        pending.slot.answer(b"another, too late")
        nursery.cancel_scope.deadline = trio.current_time() + 5
        await trio.testing.wait_all_tasks_blocked()
    assert got == [b"result"]


async def test_unavailable_crosses_with_its_code() -> None:
    async with joined() as ends, trio.open_nursery() as nursery:
        async def answer() -> None:
            event = await ends.event()
            assert isinstance(event, PendingRead) and event.query == b"query"
            event.slot.answer(Unavailable("retry"))

        nursery.start_soon(answer)
        with pytest.raises(Unavailable) as unavailable:
            await ends.broker.read(TENANT, b"query", timeout_ms=5000)
        assert unavailable.value.code == "retry"


async def test_the_parts_of_a_call_go_in_together_and_in_order() -> None:
    """PU-43, also when they are many times what the channel's buffers hold."""
    parts = [(b"%d" % number * 400_000, (b"q",)) for number in range(4)]
    async with joined() as ends, trio.open_nursery() as nursery:
        async def answer() -> None:
            events = await ends.inbox.take_all()
            assert [pending_of(event).command for event in events] == [command for command, _ in parts]
            for number, event in reversed(list(enumerate(events))):
                pending_of(event).slot.answer(b"%d" % number)

        nursery.start_soon(answer)
        assert await ends.broker.write_all(TENANT, parts, timeout_ms=5000, lane=Lane.PUSHES) == [b"0", b"1", b"2", b"3"]


async def test_an_earlier_member_is_given_no_packed_command() -> None:
    """CL-132: whatever a door sends."""
    packed_ack = commands.ack(b"i" * 16, b"g", [(b"t", 1, AckStatus.COMPLETED, b"", None)])
    spread = packed.spread_out(packed_ack)
    async with joined() as ends, trio.open_nursery() as nursery:
        ends.sinks.packs = False

        async def answer() -> None:
            write = pending_of(await ends.event())
            write.slot.answer(b"")
            parts = [pending_of(event) for event in await ends.inbox.take_all()]
            for part in parts:
                part.slot.answer(b"")
            pop = (await ends.pop_event()).pop
            pop.slot.answer(b"")
            sent = [write.command, *[part.command for part in parts], pop.command]
            assert sent == [spread] * 4 != [packed_ack] * 4

        nursery.start_soon(answer)
        await ends.broker.write(TENANT, packed_ack, timeout_ms=5000)
        await ends.broker.write_all(TENANT, [(packed_ack, ())] * 2, timeout_ms=5000, lane=Lane.PUSHES)
        await ends.broker.pop(TENANT, packed_ack, wait_ms=None, client_gone=None, **NAMES)  # type: ignore[arg-type]


async def test_a_poll_whose_client_leaves_is_withdrawn() -> None:
    """PA-23."""
    async with joined() as ends, trio.open_nursery() as nursery:
        gone = trio.Event()

        async def node() -> None:
            pop = (await ends.pop_event()).pop
            assert (pop.lease_id, pop.queue, pop.reader, pop.waits) == (b"lease", b"q", (b"g", None), True)
            gone.set()
            event = await ends.event()
            assert isinstance(event, Withdraw) and event.pop is pop
            pop.slot.answer(b"nothing")

        nursery.start_soon(node)
        assert await ends.broker.pop(TENANT, b"pop", wait_ms=9000, client_gone=gone.wait, **NAMES) == b"nothing"  # type: ignore[arg-type]


async def test_a_poll_that_is_cancelled_is_withdrawn() -> None:
    async with joined() as ends:
        async with trio.open_nursery() as nursery:
            async def poll() -> None:
                await ends.broker.pop(TENANT, b"pop", wait_ms=9000, client_gone=trio.sleep_forever, **NAMES)  # type: ignore[arg-type]

            nursery.start_soon(poll)
            pop = (await ends.pop_event()).pop
            nursery.cancel_scope.cancel()
        event = await ends.event()
        assert isinstance(event, Withdraw) and event.pop is pop


async def test_polls_of_a_door_that_ends_are_withdrawn() -> None:
    async with joined() as ends, trio.open_nursery() as nursery:
        async def poll() -> None:
            await ends.broker.pop(TENANT, b"pop", wait_ms=9000, client_gone=None, **NAMES)  # type: ignore[arg-type]

        nursery.start_soon(poll)
        pop = (await ends.pop_event()).pop
        ends.door_channel._connected.shutdown(socket.SHUT_RDWR)
        event = await ends.event()
        assert isinstance(event, Withdraw) and event.pop is pop
        nursery.cancel_scope.cancel()


async def test_a_drain_lets_go_also_of_the_poll_that_was_under_way() -> None:
    """CL-131: the door hears of the end before the empty answers, and no poll parks behind them."""
    async with joined() as ends, trio.open_nursery() as nursery:
        ends.link.drain()
        assert isinstance(await ends.event(), LetPopsGo)
        await ends.broker.told_to_drain.wait()

        async def poll() -> None:
            await ends.broker.pop(TENANT, b"pop", wait_ms=9000, client_gone=None, **NAMES)  # type: ignore[arg-type]

        nursery.start_soon(poll)
        pop, let_go = await ends.inbox.take_all()
        assert isinstance(pop, Pop) and isinstance(let_go, LetPopsGo)
        nursery.cancel_scope.cancel()


async def test_a_full_inbox_holds_calls_and_refuses_them_at_their_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Backpressure; the node's health is answered meanwhile (AD-8)."""
    async with joined() as ends, trio.open_nursery() as nursery:
        for _ in range(INBOX_BOUND):
            ends.inbox.put(HandBack(b"filler"))
        with pytest.raises(Unavailable) as unavailable:
            await ends.broker.write(TENANT, b"late", timeout_ms=500)
        assert unavailable.value.code == "no_leader"
        assert (await unasked(ends)).status == 503

        async def answer() -> None:
            await trio.sleep(0.1)
            await ends.inbox.take_all()
            pending_of(await ends.event()).slot.answer(b"done")

        nursery.start_soon(answer)
        assert await ends.broker.write(TENANT, b"in time", timeout_ms=500) == b"done"


async def unasked(ends: Ends) -> Response:
    return unpack_response(await ends.broker.ask(pack_question("health", Request("GET", b"/health")), b""))


async def test_a_question_after_the_node() -> None:
    async with joined() as ends:
        response = await unasked(ends)
        assert (response.status, response.body, response.headers) == (503, b"settling", ((b"Retry-After", b"1"),))


async def test_a_question_that_fails_is_an_answer_and_the_node_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    async with joined() as ends:
        raw = await ends.broker.ask(pack_question("status", Request("GET", b"/status")), b"")
        assert unpack_response(raw).status == 500 and "handler failed" in "".join(capfd.readouterr())
        assert (await unasked(ends)).body == b"settling"


async def test_gates_decide_at_the_door() -> None:
    """CL-127."""
    async with joined() as ends:
        assert ends.broker.admits(10)
        assert ends.broker.takes_changes()
        ends.link.serve(Gates(storage_full=True, drains_only=True))
        await ends.broker.told_to_serve.wait()
        assert not ends.broker.admits(10) and not ends.broker.takes_changes()
        ends.link.tell_gates(OPEN)
        with trio.fail_after(60):
            while not ends.broker.admits(10):
                await trio.lowlevel.checkpoint()


async def test_what_the_kernel_does_not_take_at_once_arrives_in_order() -> None:
    ends = Ends()
    bodies = [bytes([number]) * (RECEIVE_BYTES * 2) for number in range(5)]
    got: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.door_channel.write_out)
        for body in bodies:
            ends.door_channel.send(frames.frame(Kind.REPORT, 0, body))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            while len(got) < len(bodies):
                got += [body for kind, _, body in await ends.node_channel.receive() if kind == Kind.REPORT]
        nursery.cancel_scope.cancel()
    assert got == bodies, [len(body) for body in got]


async def test_what_the_kernel_takes_bit_by_bit_is_not_copied_bit_by_bit() -> None:
    """M-51: a body of 64 MiB on its way to the node was copied some 300 times, which held the door for seconds."""
    ours, theirs = socket.socketpair()
    channel, size = Channel(ours, PassEnd(), gathered_max=2), 8 << 20
    theirs.setblocking(False)

    async def discard() -> None:
        left = size
        while left:
            await trio.lowlevel.wait_readable(theirs)
            left -= len(theirs.recv(RECEIVE_BYTES))

    frame = bytes(size)
    tracemalloc.start()
    try:
        channel.send(frame)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(discard)
            nursery.start_soon(channel.flush)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        channel.close()
        theirs.close()
    assert peak < size // 2


async def test_what_is_sent_to_a_stream_that_ends_is_for_nobody() -> None:
    """Answers can come in the pass in which a door's channel is closed."""
    ends = Ends()
    ends.node_channel.send(frames.frame(Kind.SERVE))
    ends.node_channel.close()
    for _ in range(3):
        ends.node_channel.send(frames.frame(Kind.SERVE))
    with trio.fail_after(60):
        assert await ends.door_channel.receive() == []
    ends.door_channel.close()


async def test_what_no_release_says_is_our_own_fault() -> None:
    ends = Ends()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.door_channel.write_out)
        ends.door_channel.send(frames.frame(Kind.DRAIN))  # only the node says this
        with pytest.raises(ExceptionGroup) as raised:
            await ends.link.run()
        assert raised.group_contains(InvariantBroken)
        nursery.cancel_scope.cancel()
