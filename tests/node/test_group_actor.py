"""The actor around a group: it applies in slices, waits out a busy store, and only refuses once an entry poisons it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from queen_node import commands, queries
from queen_node.answers import NOTHING, read_result
from queen_node.answers.push import push_results
from queen_node.answers.timers import render_timers
from queen_node.applier import Applier
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending
from queen_node.commands import PayloadFlag
from queen_node.crash_points import passes
from queen_node.debt import Debt
from queen_node.disk_gate import OPEN
from queen_node.errors import Refused
from queen_node.events import DUE, HandBack, Heard, SnapshotEvent, SnapshotFlipped
from queen_node.group import Group
from queen_node.group_actor import GroupActor, LogSink
from queen_node.ids import IdMint
from queen_node.metrics import Metrics
from queen_node.peer_calls import Forward, NotTaken, PeerCall
from queen_node.pipeline import Pipeline
from queen_node.queries import Query, Reader, query
from queen_node.slots import Slot
from queen_node.state.machine import Machine
from queen_node.state.messages import message_key
from queen_node.state.step import Tally
from queen_node.state.store import CommittedStore, Store, StoreBusy
from queen_node.state.tenants import Tenant
from raft import log_writer
from raft.clock import GroupClock, SystemTime
from raft.core import Core
from raft.group import RaftGroup
from raft.log import Log
from raft.log_writer import LogWriter
from raft.messages import HardState, Message
from raft.quorum import Configuration
from raft.settings import Settings
from raft.wal import GroupWrite, LogFailed
from raft.wal_hand import InlineHand
from tests.support.fake_disk import FakeDisk
from tests.support.memory_engine import MemoryEngine
from tests.support.one_inbox import TENANT, OneInbox
from tests.unit.group.driver import SETTINGS
from tests.unit.wal.model import clock, open_wal

IDS = IdMint()
ROOMY = replace(SETTINGS, batch_max_commands=256, batch_max_bytes=1 << 20)


class Disk:
    """A log that is fsynced at once, or when a test opens the gate again."""

    def __init__(self) -> None:
        self.works, self.has_failed = True, False
        self._held: list[Callable[[], None]] = []

    async def submit(self, write: GroupWrite, report: Callable[[], None]) -> None:
        if self.has_failed:
            raise LogFailed("the test ended this log")
        if self.works:
            report()
        else:
            self._held.append(report)

    def catch_up(self) -> None:
        self.works = True
        held, self._held = self._held, []
        for report in held:
            report()


class Parts:
    """What a test may reach into."""

    def __init__(self, engine: MemoryEngine, log_sink: LogSink | None = None) -> None:
        self.engine, self.disk, self.metrics = engine, Disk(), Metrics(0.0)
        self.tallies: list[Tally] = []
        source = SystemTime()
        core = Core(
            node_id=1, configuration=Configuration((1,)), log=Log(), hard_state=HardState(0, 0, 0), applied_index=0,
            settings=Settings(), random=random.Random(1))
        machine = Machine(Store(engine, life=1))
        self.actor = GroupActor(
            Group(
                RaftGroup(life=1, core=core, clock=GroupClock.first_ever(source), stamp_of=commands.stamp_of),
                machine, ROOMY),
            Applier(machine, life=1, reached=passes, count_slow=lambda: None, slow_command_ms=1000, skips={}),
            log_sink or self.disk, arm=lambda _at_us: None, count=self.tallies.append, debt=Debt(), inbox_bound=4)
        self.pipeline = Pipeline(
            OneInbox(self.actor.inbox), self.metrics, admit_max_bytes=1000, admit_hold_s=1.0, margin_s=0.05,
            gates=lambda: OPEN, jitter=lambda: 0.5)

    async def push(self, *bodies: bytes, timeout_ms: int = 5000) -> int:
        """How many were answered."""
        items = [(b"q", b"Default", body, IDS.uuid7(), b"1", PayloadFlag.JSON, None, None) for body in bodies]
        raw = await self.pipeline.write(
            TENANT, commands.push(IDS.request_id(), items), timeout_ms=timeout_ms, lane=Lane.PUSHES, places=(b"q",))
        return len(push_results(raw))


@asynccontextmanager
async def running(engine: MemoryEngine | None = None) -> AsyncIterator[Parts]:
    parts = Parts(engine or MemoryEngine())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.actor.run)
        await parts.actor.wait_leading()
        yield parts
        nursery.cancel_scope.cancel()


def pop_command(lease_id: bytes) -> bytes:
    return commands.pop(
        IDS.request_id(), lease_id=lease_id, queue=b"q", partition=None, group=b"__QUEUE_MODE__", mode="all", from_us=0,
        batch=1, partitions=1, lease_ms=None, commit_on_delivery=False, max_bytes=1 << 20)


class Stalling(MemoryEngine):
    """Refuses the next `refusals` writes."""

    refusals = 0

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreBusy("would stall")
        super().write(prefix, batch)


async def test_a_busy_store_delays_and_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """M-4: the same batch is tried again, the loop goes on meanwhile."""
    engine = Stalling()
    async with running(engine) as parts:
        engine.refusals = 3
        began_s = trio.current_time()
        assert await parts.push(b"1") == 1
        assert trio.current_time() - began_s >= 3 * 0.005
        assert engine.refusals == 0


class Turns(trio.abc.Instrument):
    """How many rows the open batch held, whenever the loop came round while it held any.

    No task sees that: the loop runs those of one turn in random order.
    """

    def __init__(self, store: Store) -> None:
        self.row_counts: list[int] = []
        self.seen_early: list[bytes] = []  # what readers saw of an entry that was half applied
        self._store = store

    def before_io_wait(self, timeout: float) -> None:
        if self._store.batch_count:
            self.row_counts.append(self._store.batch_count)
            row = self._store.committed().get(message_key(1, 1))
            self.seen_early += [] if row is None else [row]


async def test_the_loop_breathes_while_a_long_entry_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """M-50: apply returns to the loop between commands, and nobody sees the half of an entry."""
    monkeypatch.setattr("queen_node.applier.SLICE_S", 0.0)  # after each command, however fast this machine is
    async with running() as parts:
        await parts.push(b"before")
        machine = parts.actor.group.machine
        turns = Turns(machine.store)
        for number in range(4):  # at once, so that they are one entry
            parts.actor.inbox.put((Lane.PUSHES, _pending(b"%d" % number)))
        trio.lowlevel.add_instrument(turns)
        while machine.applied_index < 3:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(turns)
        assert len(set(turns.row_counts)) == 4, "the loop got no turn after each of the entry's four commands"
        assert turns.seen_early == []
        assert machine.store.committed().get(message_key(1, 1)) is not None


class Broken(MemoryEngine):
    """Fails for good, as a damaged store does."""

    is_broken = False

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        if self.is_broken:
            raise OSError("block checksum mismatch")
        super().write(prefix, batch)


async def test_an_entry_that_cannot_be_applied_stops_the_group_and_not_the_node() -> None:
    """README 22: its callers get 503, later calls too; the poison line names entry and reason."""
    engine = Broken()
    async with running(engine) as parts:
        assert await parts.push(b"1") == 1
        engine.is_broken = True
        for _ in range(2):
            with pytest.raises(Unavailable) as refused:
                await parts.push(b"2")
            assert refused.value.code == "retry"
        assert parts.actor.poison is not None and "block checksum mismatch" in parts.actor.poison.error
        assert parts.actor.group.machine.applied_index == 2


class Told:
    """Keeps what other nodes are told. Implements `Peers`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, PeerCall]] = []

    def send(self, messages: Sequence[Message]) -> None:
        assert not messages

    def tell(self, node: int, call: PeerCall) -> None:
        self.calls.append((node, call))


def forward(request_id: bytes) -> Heard:
    """A push of node 2's client."""
    item = (b"q", b"Default", b"1", IDS.uuid7(), b"1", PayloadFlag.JSON, None, None)
    return Heard(2, Forward(request_id, Lane.PUSHES, False, (b"q",), commands.push(request_id, [item])), bytes(16))


@pytest.mark.parametrize("what", ["an entry cannot be applied", "the log has failed"])
async def test_who_sent_a_call_to_a_group_that_stops_hears_of_it(what: str) -> None:
    """CL-36, README 22: the other node holds its client's call until it knows; the group's last word got lost."""
    engine = Broken()
    async with running(engine) as parts:
        told = parts.actor.peers = Told()
        under_way, later = IDS.request_id(), IDS.request_id()
        if what == "the log has failed":
            parts.disk.has_failed = True
        else:
            engine.is_broken = True
        parts.actor.inbox.put(forward(under_way))
        await trio.testing.wait_all_tasks_blocked()
        assert told.calls == [(2, NotTaken(under_way))]
        parts.actor.inbox.put(forward(later))
        await trio.testing.wait_all_tasks_blocked()
        assert told.calls[1:] == [(2, NotTaken(later))]


async def test_a_call_that_was_never_proposed_is_refused_as_such(autojump_clock: trio.testing.MockClock) -> None:
    """G-D5: `no_leader` is surely not applied; what was proposed and is not known is a `timeout`."""
    async with running() as parts:
        parts.disk.works = False
        outcomes: dict[bytes, str] = {}

        async def call(body: bytes) -> None:
            try:
                await parts.push(body, timeout_ms=1000)
            except Unavailable as refused:
                outcomes[body] = refused.code

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, b"proposed")
            await trio.sleep(0.01)
            nursery.start_soon(call, b"waiting")
        assert outcomes == {b"proposed": "timeout", b"waiting": "no_leader"}


async def test_a_full_inbox_holds_its_senders_and_then_refuses_them(autojump_clock: trio.testing.MockClock) -> None:
    """DESIGN: nothing is unbounded; senders wait, past a deadline they get an answer."""
    async with running() as parts:
        for number in range(4):
            parts.actor.inbox.put((Lane.PUSHES, _pending(b"%d" % number)))
        assert parts.actor.inbox.full
        assert await parts.push(b"waits") == 1
        assert parts.actor.inbox.peak >= 4


def _pending(body: bytes) -> Pending:
    item = (b"q", b"Default", body, IDS.uuid7(), b"1", PayloadFlag.JSON, None, None)
    return Pending(commands.push(IDS.request_id(), [item]), Slot(), give_up_at_s=trio.current_time() + 9)


async def test_admission_holds_and_then_refuses(autojump_clock: trio.testing.MockClock) -> None:
    """CL-34: 429 after the hold; one body larger than the whole budget goes alone."""
    async with running() as parts:
        await parts.pipeline.admit(5000)
        parts.pipeline.admission.bytes_under_way = 900
        began_s = trio.current_time()
        with pytest.raises(Refused) as refused:
            await parts.pipeline.admit(200)
        assert refused.value.refusal.code == "overloaded"
        assert 0.75 <= trio.current_time() - began_s <= 1.3
        assert parts.metrics.admit_total == {"admitted": 1, "held": 0, "refused": 1}


async def test_a_poll_whose_client_leaves_is_withdrawn() -> None:
    """PA-23, CL-33; FAULTS: a stopped consumer's open poll still took a message that waited out its lease."""
    async with running() as parts:
        gone = trio.Event()
        lease_id = IDS.uuid7()
        command = pop_command(lease_id)
        async with trio.open_nursery() as nursery:

            async def poll() -> None:
                raw = await parts.pipeline.pop(
                    TENANT, command, lease_id=lease_id, queue=b"q", group=b"__QUEUE_MODE__", partition=None,
                    wait_ms=60_000, client_gone=gone.wait)
                assert raw == NOTHING

            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            assert len(parts.actor.group.pops) == 1
            gone.set()
        assert len(parts.actor.group.pops) == 0
        assert await parts.push(b"1") == 1
        assert parts.actor.group.machine.store.counters().leases_live == 0


async def test_a_log_that_failed_stops_the_group_and_nothing_else() -> None:
    """CL-126: the actor lives on to refuse, whether its own proposal finds out first or the node tells it."""
    async with running() as parts:
        assert await parts.push(b"1") == 1
        parts.disk.has_failed = True
        with pytest.raises(Unavailable, match="retry"):
            await parts.push(b"2")
        parts.actor.inbox.put(DUE)
        parts.actor.inbox.put(HandBack(IDS.uuid7()))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Unavailable, match="retry"):
            await parts.push(b"3")
        with pytest.raises(Unavailable, match="retry"):
            await parts.pipeline.read(TENANT, query(Query.TIMER_PEEK, b"q", b"k"), timeout_ms=5000)


async def test_a_watched_poll_is_told_that_its_group_stopped() -> None:
    """AD-33: as a refusal, not as a group of errors that a door takes for a fault of ours (500)."""
    async with running() as parts:
        lease_id = IDS.uuid7()
        async with trio.open_nursery() as nursery:

            async def poll() -> None:
                with pytest.raises(Unavailable, match="retry"):
                    await parts.pipeline.pop(
                        TENANT, pop_command(lease_id), lease_id=lease_id, queue=b"q", group=b"__QUEUE_MODE__",
                        partition=None, wait_ms=60_000, client_gone=trio.sleep_forever)

            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            parts.actor.refuse_everything()


async def test_a_cancelled_poll_is_withdrawn_too() -> None:
    async with running() as parts:
        lease_id = IDS.uuid7()
        command = pop_command(lease_id)
        with trio.move_on_after(0) as scope:
            await parts.pipeline.pop(
                TENANT, command, lease_id=lease_id, queue=b"q", group=b"__QUEUE_MODE__", partition=None, wait_ms=60_000,
                client_gone=trio.sleep_forever)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert len(parts.actor.group.pops) == 0


async def test_a_read_beside_writes_sees_what_was_answered_before_it() -> None:
    """M-40, G-M12."""
    async with running() as parts:
        for number in range(20):
            key = b"k%d" % number
            operation = (0, b"q", key, 60_000, b"t", IDS.uuid7(), b"1", 0, b"Default", None)
            command = commands.timers(IDS.request_id(), [operation], firing=True)
            raw = await parts.pipeline.write(TENANT, command, timeout_ms=5000)
            assert render_timers(raw)[0] == 200
            peek = query(Query.TIMER_PEEK, b"q", key)
            status, body = read_result(await parts.pipeline.read(TENANT, peek, timeout_ms=5000))
            assert status == 200 and b'"found":true' in body


async def test_a_read_in_slices_begins_anew_when_a_snapshot_takes_the_place_of_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M-61: the rows that it read may be removed."""
    async with running() as parts:
        store = parts.actor.group.machine.store

        def read(_view: CommittedStore, _fields: list[object]) -> Reader:
            if store.incarnation == 1:
                yield
                store.reopen(2)
                yield
                raise AssertionError("it went on in a state that is gone")
            return b"of the new state"

        monkeypatch.setitem(queries.READERS, Query.TIMER_COUNT, read)
        counted = await parts.pipeline.read(TENANT, query(Query.TIMER_COUNT, b"q", b""), timeout_ms=5000)
        assert counted == b"of the new state"


class CellFlipped:
    """Stands for the node's snapshots: a flip brings a tenant."""

    def carry_out(self, group: Group, event: SnapshotEvent) -> None:
        machine = group.machine
        machine.apply_entry(
            index=machine.applied_index + 1, term=1,
            data=commands.entry(1, [commands.create_tenant(bytes(16), TENANT, at_most=5)]))

    def log_told(self, life: int, index: int) -> None:
        raise AssertionError("nothing was restarted")


async def test_tenants_that_came_with_a_state_get_their_groups() -> None:
    """M-61, M-70: no entry that makes them is ever applied here."""
    async with running() as parts:
        appeared: list[Tenant] = []
        told = trio.Event()

        def hear(tenants: Sequence[Tenant]) -> None:
            appeared.extend(tenants)
            told.set()

        parts.actor.on_tenants, parts.actor.snapshots = hear, CellFlipped()
        parts.actor.inbox.put(SnapshotFlipped(2, b""))
        await told.wait()
        assert [tenant.tenant for tenant in appeared] == [TENANT]


class FailingHand(InlineHand):
    async def done(self) -> None:
        await super().done()
        raise OSError("the test ended this disk")


@pytest.mark.parametrize("hand_kind", [InlineHand, FailingHand])
async def test_more_groups_than_the_log_has_room_for_write_in_one_pass(
    hand_kind: type[InlineHand], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DESIGN: full inbox = backpressure. Of 10,000 groups more may have a write than the log's inbox holds; whoever
    still waits for room when the log fails learns of it (CL-126)."""
    monkeypatch.setattr(log_writer, "BATCH_WRITES_MAX", 8)
    disk = FakeDisk()
    writer = LogWriter(open_wal(disk)[0], hand_kind(disk), clock, inbox_max=8)
    many = [Parts(MemoryEngine(), writer).actor for _ in range(50)]
    async with trio.open_nursery() as nursery:
        for actor in many:
            nursery.start_soon(actor.run)
        await trio.testing.wait_all_tasks_blocked()
        assert all(actor.group.raft.unwritten_count for actor in many) and writer.waiting_count == 8
        if hand_kind is FailingHand:
            with pytest.raises(LogFailed):
                await writer.run()
            await trio.testing.wait_all_tasks_blocked()
            in_batch = 8  # these the node tells
            assert [actor.group.unavailable for actor in many].count("retry") == 50 - in_batch
        else:
            nursery.start_soon(writer.run)
            for actor in many:
                await actor.wait_leading()
            writer.stop()
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
