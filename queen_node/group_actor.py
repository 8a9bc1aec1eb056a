"""The actor of one group: one inbox, one task, a loop around what `group.Group` decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import trio

from queen_node import queries
from queen_node.applier import Applier, Poison, Poisoned
from queen_node.broker import Unavailable
from queen_node.calls import PendingRead
from queen_node.debt import Debt
from queen_node.events import (
    ALARM,
    Due,
    Event,
    SnapshotEnded,
    SnapshotEvent,
    SnapshotFlipped,
    SnapshotWhole,
    Written,
)
from queen_node.group import Group
from queen_node.group_events import take
from queen_node.inbox import Inbox
from queen_node.peer_calls import PeerCall
from queen_node.queries import Reader
from queen_node.sleeper import Sleeper
from queen_node.state.step import Tally
from queen_node.state.tenants import Tenant, tenants
from raft.group import LogWrite
from raft.invariants import must
from raft.messages import Entry, Message
from raft.wal import GroupWrite, LogFailed

LATE_CALLS_EVERY_S = 0.5  # how late a call may learn that its time is over
READ_STEPS_A_TURN = 1  # a read that is not finished after this many slices goes on in a task of its own


class LogSink(Protocol):
    """The log writer, as a group sees it."""

    async def submit(self, write: GroupWrite, report: Callable[[], None]) -> None:
        """Queue a write, once there is room; `report` is called on the loop once it is fsynced. Raises LogFailed."""
        ...


class Peers(Protocol):
    """The other nodes, as a group sees them. Nothing here waits; what cannot be sent is lost, and sent again."""

    def send(self, messages: Sequence[Message]) -> None:
        """Raft's messages, each to its receiver."""
        ...

    def tell(self, node: int, call: PeerCall) -> None:
        """About a call."""
        ...


class SnapshotsOfNode(Protocol):
    """What the node does about snapshots, as a group sees it. Nothing here waits."""

    def carry_out(self, group: Group, event: SnapshotEvent) -> None:
        """What the event asks of the group, between two of its entries."""
        ...

    def log_told(self, life: int, index: int) -> None:
        """The group's log says on disk that it starts behind this entry."""
        ...


class Alone:
    """There is no other node. Implements `Peers`."""

    def send(self, messages: Sequence[Message]) -> None:
        """A lone voter says nothing to anybody."""
        must(not messages, "a message to nobody", messages=messages)

    def tell(self, node: int, call: PeerCall) -> None:
        """The same."""
        must(False, "a call to nobody", node=node)


def _nobody_is_behind(node: int, index: int) -> None:
    must(False, "nobody is behind a lone voter", node=node, index=index)


class GroupActor:
    """Runs one group. All that it decides is in `Group`, which awaits nothing.

    arm: tells the wheel the group's next deadline, in µs of BOOTTIME, or None. inbox_bound: commands that
    may wait before their senders must (QUEEN_RAFT_COMMAND_QUEUE_DEPTH).
    """

    def __init__(
        self, group: Group, applier: Applier, log_sink: LogSink, *, arm: Callable[[int | None], None],
        count: Callable[[Tally], None], debt: Debt, inbox_bound: int, supply: Callable[[int, int], None] | None = None,
    ) -> None:
        """supply: sends a member, by (node, index), what is no longer in memory."""
        self.group = group
        self.sleeper = Sleeper(group)
        self.inbox: Inbox[Event] = Inbox(inbox_bound)
        self.debt = debt
        self.poison: Poison | None = None
        self.replay_until = group.raft.core.log.last_index  # the tail of the log as the disk has it
        self._applier, self._log_sink, self._arm, self._count = applier, log_sink, arm, count
        self.peers: Peers = Alone()  # who has others sets this before `run`
        self.snapshots: SnapshotsOfNode | None = None  # who has others sets this before `run`
        self.on_tenants: Callable[[Sequence[Tenant]], None] | None = None  # of group 0: tenants that got a group
        self._supply = supply or _nobody_is_behind
        self._armed_us: int | None = -1
        self._alarm_scope = trio.CancelScope()
        self._leading = trio.Event()

    async def run(self) -> None:
        """Until cancelled, or until an entry cannot be applied: then the group only refuses (README 22)."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ring)
                core = self.group.raft.core
                if core.configuration.is_alone(core.node_id):
                    core.campaign()
                await self._turn(nursery)
                while True:
                    events = await self.inbox.take_all()
                    self.sleeper.stir(events)
                    self.group.now_s, now_us = trio.current_time(), self.group.raft.clock.now_us()
                    for event in events:
                        self._take(event, now_us)
                    self.sleeper.stand_if_called()
                    await self._turn(nursery)
        finally:
            self.group.stop("retry")

    async def wait_leading(self) -> None:
        """Return once this node leads the group and has applied an entry of its term (CL-24)."""
        await self._leading.wait()

    @property
    def is_replayed(self) -> bool:
        """Whether it has applied what its log held when the node started."""
        return self.group.raft.core.applied_index >= self.replay_until

    def refuse_everything(self) -> None:
        """The log has stopped: nothing that waits will ever be written."""
        self.group.stop("retry")

    def _take(self, event: Event, now_us: int) -> None:
        match event:
            case Written(write):
                self.group.raft.written(write)
                if write.group_write.restart_after is not None and self.snapshots is not None:
                    self.snapshots.log_told(self.group.raft.life, write.group_write.restart_after)
            case Due():
                self._armed_us = -1  # the wheel forgot the deadline when it told us: arm again, changed or not
                self.group.due()
            case SnapshotEnded() | SnapshotWhole() | SnapshotFlipped():
                self._take_snapshot(event)
            case _:
                if not self.sleeper.takes(event, now_us):
                    take(self.group, event, now_us)

    def _take_snapshot(self, event: SnapshotEvent) -> None:
        group = self.group
        if self.snapshots is None:
            return
        self.snapshots.carry_out(group, event)
        if isinstance(event, SnapshotFlipped) and self.on_tenants is not None:
            self.on_tenants(list(tenants(group.machine.store.committed())))

    async def _turn(self, nursery: trio.Nursery) -> None:
        """All that can be done without another event, and what other nodes must hear of it, also where it ends here."""
        goes_on = await self._work(nursery)
        for node, call in self.group.outgoing:
            self.peers.tell(node, call)
        self.group.outgoing.clear()
        self.sleeper.settle(goes_on)
        if goes_on:
            self._set_alarm(trio.current_time(), self.group.raft.clock.now_us())
            self._arm_wheel()

    async def _work(self, nursery: trio.Nursery) -> bool:
        """Propose, write, apply and answer until nothing is left to do. False: the group has stopped."""
        group, raft = self.group, self.group.raft
        now_us = raft.clock.now_us()
        group.tell_the_time(trio.current_time(), now_us)
        if group.unavailable is not None:
            return False  # the wheel and the hand-backs must propose nothing either
        while True:
            for read in group.take_servable_reads(now_us):
                self._serve(read, nursery)
            group.propose(now_us)
            group.ask_for_read_indexes()
            pumped = raft.pump()
            if pumped is None:
                break
            for write in pumped.writes:
                try:
                    await self._log_sink.submit(write.group_write, self._reporter(write))
                except LogFailed:  # the node tells why, and says so in /health (CL-126)
                    self.refuse_everything()
                    return False
            if pumped.send:
                self.peers.send(pumped.send)
            for peer, next_index in pumped.left_behind:
                self._supply(peer, next_index)
            for request, index in pumped.reads:
                group.read_confirmed(request, index)
            if pumped.to_apply:
                for entry in pumped.to_apply:
                    if not await self._apply_or_poison(entry, now_us):
                        return False
                now_us = raft.clock.now_us()
            if not self._leading.is_set() and raft.may_propose:
                self._leading.set()
        return True

    def _reporter(self, write: LogWrite) -> Callable[[], None]:
        return lambda: self.inbox.put(Written(write))

    # --- applying

    async def _apply_or_poison(self, entry: Entry, now_us: int) -> bool:
        group = self.group
        try:
            application, results = await self._applier.apply(entry)
        except Poisoned as error:
            self.poison = error.poison
            group.stop("retry")
            return False
        group.raft.applied(entry.index)
        group.applied(application, results, now_us)
        self.debt.add(len(results), len(entry.data))
        for tally in group.tallies:
            self._count(tally)
        group.tallies.clear()
        if application.step.tenants and self.on_tenants is not None:
            self.on_tenants(application.step.tenants)
        return True

    # --- reading

    def _serve(self, read: PendingRead, nursery: trio.Nursery) -> None:
        reader = self._reader(read)
        for _ in range(READ_STEPS_A_TURN):
            try:
                next(reader)
            except StopIteration as finished:
                read.slot.answer(finished.value)
                return
        nursery.start_soon(self._serve_in_slices, read, reader)

    def _reader(self, read: PendingRead) -> Reader:
        return queries.reader(self.group.machine.store.committed(read.now_us), read.query)

    async def _serve_in_slices(self, read: PendingRead, reader: Reader) -> None:
        store = self.group.machine.store
        incarnation = store.incarnation
        while not read.slot.answered:
            await trio.lowlevel.checkpoint()
            if read.give_up_at_s <= trio.current_time():
                read.slot.answer(Unavailable("timeout"))
                return
            if incarnation != store.incarnation:  # a snapshot took the place of the rows that it read: it begins anew
                incarnation, reader = store.incarnation, self._reader(read)
            try:
                next(reader)
            except StopIteration as finished:
                read.slot.answer(finished.value)

    # --- time

    def _set_alarm(self, now_s: float, now_us: int) -> None:
        alarm_s = self.group.next_alarm(now_s, now_us)
        deadline_s = inf if alarm_s is None else alarm_s
        if self.group.has_calls:
            deadline_s = min(deadline_s, now_s + LATE_CALLS_EVERY_S)
        if deadline_s < self._alarm_scope.deadline - 0.001:
            self._alarm_scope.deadline = deadline_s

    async def _ring(self) -> None:
        """Tells the actor when a moment has come that it asked for. Its scope's deadline is moved, not made anew."""
        while True:
            with trio.CancelScope() as self._alarm_scope:
                await trio.sleep_forever()
            self.inbox.put(ALARM)

    def _arm_wheel(self) -> None:
        """A leader's deadlines, and those of every group that sleeps: its leader's node may end (M-32)."""
        clock = self.group.raft.clock
        deadline_us = self.group.deadline_us if self.sleeper.sleeps or clock.offset_us is not None else None
        if deadline_us != self._armed_us:
            self._armed_us = deadline_us
            self._arm(None if deadline_us is None else clock.boottime_at(deadline_us))
