"""All groups of one node: how a tenant's group begins here, what waits for it, what reaches all (M-70)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from queen_node import commands, packed
from queen_node.answers.push import push_results
from queen_node.antechamber import Antechamber
from queen_node.applier import Applier
from queen_node.broker import Lane, Unavailable
from queen_node.closed_groups import Glance
from queen_node.commands import Kind, PayloadFlag
from queen_node.condition import condition
from queen_node.crash_points import passes
from queen_node.debt import Debt
from queen_node.disk_gate import OPEN
from queen_node.events import Heard, Wake
from queen_node.group import Group
from queen_node.group_actor import GroupActor
from queen_node.groups import STRANGERS_KEPT_S
from queen_node.host import Host
from queen_node.http.handlers.operations import ReadyLimits
from queen_node.ids import IdMint
from queen_node.metrics import Metrics
from queen_node.opening import CELL_LIFE
from queen_node.peer_calls import PeerCall, QuietCall
from queen_node.pipeline import Pipeline
from queen_node.sleepers import Sleepers
from queen_node.state.machine import Machine
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.store import Store, read_meta
from queen_node.versions import PACKED, QUIET
from raft.clock import GroupClock, SystemTime
from raft.core import Core, Role
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import HardState, Message, PreVote, PreVoteGranted, Vote, VoteGranted
from raft.peer_frames import NodeFrame
from raft.quorum import Configuration
from raft.settings import Settings
from tests.node.test_group_actor import ROOMY, Disk
from tests.support.memory_engine import MemoryEngine

IDS = IdMint()
A, B, C = (bytes(15) + bytes((number,)) for number in (1, 2, 3))


class Wire:
    """Implements `group_actor.Peers`: keeps what is said."""

    def __init__(self) -> None:
        self.said: list[Message] = []

    def send(self, messages: list[Message]) -> None:
        self.said += messages

    def tell(self, node: int, call: PeerCall) -> None:
        pass


class Node:
    """A host over the memory twin of the store. voters: of every group; founders are not asked for."""

    def __init__(
        self, node_id: int = 1, voters: tuple[int, ...] = (1,), engine: MemoryEngine | None = None,
        closed_log: Mapping[int, int] | None = None,
    ) -> None:
        """closed_log: by the life, where the log of a group ends that is not opened at the start; None: all are."""
        self.node_id, self.voters, self.engine = node_id, voters, engine or MemoryEngine()
        self.wires: dict[int, Wire] = {}
        self.armed: dict[int, int | None] = {}
        self.told: list[tuple[int, QuietCall]] = []
        antechamber = Antechamber(at_most_tenants=2, bound=8, mint=IDS.request_id)
        if closed_log is None:
            self.host = Host(node_id, self._open, antechamber)
        else:
            self.host = Host(
                node_id, self._open, antechamber, self._make_sleepers,
                glance=lambda life: Glance(read_meta(self.engine, life, 1).applied_index, closed_log[life]))
        self.pipeline = Pipeline(
            self.host, Metrics(0.0), admit_max_bytes=1000, admit_hold_s=1.0, margin_s=0.05, gates=lambda: OPEN,
            jitter=lambda: 0.5)

    def _make_sleepers(self, groups: Host) -> Sleepers:
        return Sleepers(
            self.node_id, groups, election_ticks=10, tick_s=0.1, boottime_us=lambda: 0,
            tell=lambda node, call: self.told.append((node, call)), put=groups.tell)

    def _open(self, life: int, founding: TenantRow | None, _members: MembersRow) -> GroupActor:
        assert (founding is None) == (life == CELL_LIFE)
        machine = Machine(Store(self.engine, life=life))
        core = Core(
            node_id=self.node_id, configuration=Configuration(self.voters), log=Log(), hard_state=HardState(0, 0, 0),
            applied_index=0, settings=Settings(), random=random.Random(1))
        raft = RaftGroup(life=life, core=core, clock=GroupClock.first_ever(SystemTime()), stamp_of=commands.stamp_of)
        actor = GroupActor(
            Group(raft, machine, ROOMY),
            Applier(machine, life=1, reached=passes, count_slow=lambda: None, slow_command_ms=1000, skips={}),
            Disk(), arm=partial(self.armed.__setitem__, life), count=lambda _tally: None, debt=Debt(), inbox_bound=8)
        if len(self.voters) > 1:
            actor.peers = self.wires[life] = Wire()  # type: ignore[assignment]
        return actor

    async def push(self, tenant: bytes, body: bytes) -> int:
        """How many were answered."""
        items = [(b"q", b"Default", body, IDS.uuid7(), b"1", PayloadFlag.JSON, None, None)]
        raw = await self.pipeline.write(
            tenant, commands.push(IDS.request_id(), items), timeout_ms=5000, lane=Lane.PUSHES, places=(b"q",))
        return len(push_results(raw))

    def create(self, *tenants: bytes) -> None:
        """What another node's leader had group 0 do, applied here."""
        cell = self.host.cell.group.machine
        application = cell.begin(index=cell.applied_index + 1, term=1, data=commands.entry(1, [
            commands.create_tenant(IDS.request_id(), tenant, at_most=9) for tenant in tenants]))
        while not application.finished:
            application.apply_next()
        cell.commit(application)
        assert self.host.cell.on_tenants is not None
        self.host.cell.on_tenants(application.step.tenants)


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.host.run)
        await trio.testing.wait_all_tasks_blocked()
        yield node
        nursery.cancel_scope.cancel()


async def test_a_tenants_first_write_makes_its_group() -> None:
    async with running(Node()) as node:
        assert list(node.host.groups) == [CELL_LIFE]
        assert await node.push(A, b"1") == 1
        assert await node.push(B, b"1") == 1
        assert list(node.host.groups) == [CELL_LIFE, 1, 2]
        assert await node.push(A, b"2") == 1
        pending = [node.host.groups[life].group.machine.store.counters().next_partition_id for life in (1, 2)]
        assert pending == [2, 2]  # one partition each: the same names are apart


async def test_calls_that_come_together_find_one_group() -> None:
    async with running(Node()) as node, trio.open_nursery() as nursery:
        async def push(body: bytes) -> None:
            assert await node.push(A, body) == 1

        for number in range(6):
            nursery.start_soon(push, b"%d" % number)
    assert list(node.host.groups) == [CELL_LIFE, 1]


async def test_groups_are_there_again_at_a_start() -> None:
    engine = MemoryEngine()
    async with running(Node(engine=engine)) as node:
        await node.push(A, b"1")
        await node.push(B, b"1")
    again = Node(engine=engine)
    assert list(again.host.groups) == [CELL_LIFE, 1, 2]
    assert again.host.sink(B) is again.host.groups[2].inbox


async def test_one_node_leads_a_new_group_first_and_stands_without_asking() -> None:
    """M-70: leaders are spread, and nobody is there whom the first election could disturb."""
    for node_id, stands in ((1, False), (2, True), (3, False)):
        async with running(Node(node_id, (1, 2, 3))) as node:
            node.create(A)  # life 1: the second of three voters
            await trio.testing.wait_all_tasks_blocked()
            said = [type(message) for message in node.wires[1].said]
            assert said == ([Vote, Vote] if stands else [])


async def test_who_finds_a_group_that_has_a_past_does_not_stand_at_once() -> None:
    """After a start the group may have a leader already."""
    async with running(Node(2, (1, 2, 3))) as node:
        node.create(A)
        await trio.testing.wait_all_tasks_blocked()
        node.host.groups[1].group.raft.core.term = 7
        asked = len(node.wires[1].said)
        assert not node.host._begins(node.host.groups[1], 1)
        assert len(node.wires[1].said) == asked


async def test_a_word_for_a_group_that_is_about_to_begin_is_kept() -> None:
    """M-70: the leader of a new group may be quicker than the entry that makes it known here."""
    async with running(Node(1, (1, 2, 3))) as node:
        node.host.hear(1, Heard(2, Vote(2, 1, 1, 0, 0, transfer=False), bytes(16)))
        node.create(A)
        await trio.testing.wait_all_tasks_blocked()
        assert [type(message) for message in node.wires[1].said] == [VoteGranted]


async def test_a_word_for_a_group_that_never_begins_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    async with running(Node(1, (1, 2, 3))) as node:
        node.host.hear(1, Heard(2, PreVote(2, 1, 1, 0, 0), bytes(16)))
        await trio.sleep(2 * STRANGERS_KEPT_S + 1)
        assert node.host._strangers_count == 0
        node.create(A)
        await trio.testing.wait_all_tasks_blocked()
        assert node.wires[1].said == []


async def test_only_groups_that_are_led_here_are_handed_over() -> None:
    async with running(Node()) as node:
        await node.push(A, b"1")
        leads = {life: actor.group.raft.core.role is Role.LEADER for life, actor in node.host.groups.items()}
        assert leads == {CELL_LIFE: True, 1: True}
    async with running(Node(1, (1, 2, 3))) as node:
        assert not node.host.hand_over(10)


def test_no_group_sleeps_with_others_before_all_of_them_know_the_words() -> None:
    """CL-132, M-31: until the cluster is of the format that they came with; what begins meanwhile sleeps later, too."""
    node = Node(voters=(1, 2, 3))

    def make_sleepers(groups: Host) -> Sleepers:
        groups.hear_version(QUIET - 1)
        return Sleepers(
            1, groups, election_ticks=10, tick_s=0.1, boottime_us=lambda: 0, tell=lambda _node, _call: None,
            put=groups.tell)

    host = node.host = Host(1, node._open, Antechamber(at_most_tenants=2, bound=8, mint=IDS.request_id), make_sleepers)
    host.hear_frame(2, NodeFrame(1, bytes(16), 7, 0, 0, 0, None))
    node.create(A)
    again = Host(1, node._open, Antechamber(at_most_tenants=2, bound=8, mint=IDS.request_id), make_sleepers)
    assert again.quiet_count == 0 and len(again.awake()) == 2, "not at a start either"
    for each in (host, again):
        each.hear_frame(2, NodeFrame(1, bytes(16), 7, 0, 0, 0, None))
        assert not each.live
        each.hear_version(QUIET)
        assert set(each.live) == {1, 2}
        assert each.groups[1].sleeper.bed is each


async def test_commands_go_out_packed_once_all_members_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """CL-132: a single write, the parts of a large one, a pop."""
    entry = commands.entry
    forms: list[tuple[int, bool]] = []

    def seen(now_us: int, batch: Sequence[bytes]) -> bytes:
        forms.extend((packed.fields_of(command)[0], packed.is_packed(command)) for command in batch)
        return entry(now_us, batch)

    monkeypatch.setattr(commands, "entry", seen)
    async with running(Node()) as node:
        assert await node.push(A, b"first") == 1
        for version in (PACKED - 1, PACKED):
            forms.clear()
            node.host.hear_version(version)
            assert await node.push(A, b"%d" % version) == 1
            parts = [(commands.ack(IDS.request_id(), b"g", []), ()) for _ in range(2)]
            await node.pipeline.write_all(A, parts, timeout_ms=5000, lane=Lane.DRAINING)
            lease_id = IDS.uuid7()
            await node.pipeline.pop(
                A, commands.pop(
                    IDS.request_id(), lease_id=lease_id, queue=b"q", partition=None, group=b"g", mode="all", from_us=0,
                    batch=1, partitions=1, lease_ms=None, commit_on_delivery=True, max_bytes=1000),
                lease_id=lease_id, queue=b"q", group=b"g", partition=None, wait_ms=None, client_gone=None)
            assert forms == [
                (kind, version >= PACKED) for kind in (Kind.PUSH, Kind.ACK, Kind.ACK, Kind.POP)]


async def started_again(closed_log: Mapping[int, int]) -> Node:
    """A node of three that had two tenants' groups before, as it starts."""
    engine = MemoryEngine()
    async with running(Node(engine=engine)) as before:
        await before.push(A, b"1")
        await before.push(B, b"1")
    return Node(1, (1, 2, 3), engine, closed_log)


LEVEL = {1: 2, 2: 2}


async def test_a_group_that_sleeps_since_the_start_is_opened_by_the_first_who_asks_for_it() -> None:
    """M-31: closed, it still answers candidates and takes calls; nobody else is opened for that."""
    async with running(await started_again(LEVEL)) as node:
        host = node.host
        assert host.quiet_count == len(host.groups) - 1 == 2 and list(host.groups.opened) == [CELL_LIFE]
        host.hear(1, Heard(2, PreVote(2, 1, 0, 2, 1), bytes(16)))
        await trio.testing.wait_all_tasks_blocked()
        assert [type(message) for message in node.wires[1].said] == [PreVoteGranted]
        assert list(host.groups.opened) == [CELL_LIFE, 1]
        sink = host.sink(B)
        assert sink is host.groups.opened[2].inbox
        assert not host.groups.closed_count and host.quiet_count == 1, "the call is not put yet, so its group sleeps"


async def test_a_group_whose_turn_it_is_to_wake_is_opened_and_stands() -> None:
    """M-32: without a leader nobody else would open it."""
    async with running(await started_again(LEVEL)) as node:
        node.host.tell(1, Wake(stands=True))
        await trio.testing.wait_all_tasks_blocked()
        assert [type(message) for message in node.wires[1].said] == [PreVote, PreVote]


async def test_the_other_groups_are_opened_once_the_node_serves(autojump_clock: trio.testing.MockClock) -> None:
    """M-32: the wheel holds the deadlines of all groups that sleep, and learns them from open ones."""
    async with running(await started_again(LEVEL)) as node:
        await trio.sleep(60)
        assert node.host.groups.closed_count == 2 and 1 not in node.armed
        node.host.serves.set()
        await trio.testing.wait_all_tasks_blocked()
        while node.host.groups.closed_count:
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert {1, 2} <= node.armed.keys() and node.host.quiet_count == 2


async def test_a_closed_group_that_has_to_catch_up_is_no_less_behind() -> None:
    """AD-7: storageReady means that replay reached the tail of every log, opened or not."""
    for log, behind in ((LEVEL, 0), ({1: 2, 2: 3}, 1)):
        async with running(await started_again(log)) as node:
            health = condition(
                node.host, stopped=False, is_damaged=False, quorum_silent_ms=None, limits=ReadyLimits(),
                caught_up_entries=0, skipped=())
            assert health.groups.hosted == 3 and health.groups.behind == behind
            assert health.storage_ready is not behind


async def test_a_group_opened_after_the_log_has_stopped_refuses_like_the_others() -> None:
    """CL-126."""
    async with running(await started_again(LEVEL)) as node:
        node.host.refuse_everything()
        with pytest.raises(Unavailable, match="retry"):
            await node.push(A, b"2")
        assert 1 in node.host.groups.opened
