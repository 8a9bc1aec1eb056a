"""The actor of one group: one inbox, one task, a loop around what `group.Group` decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import trio

from queen_node import queries
from queen_node.applier import Applier, Poison, Poisoned
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.group import Group
from queen_node.inbox import Inbox
from queen_node.parked_pops import WaitingPop
from queen_node.peer_calls import PeerCall
from queen_node.queries import Reader
from queen_node.state.step import Tally
from raft.group import LogWrite
from raft.invariants import must
from raft.messages import Entry, Message
from raft.wal import GroupWrite, LogFailed

LATE_CALLS_EVERY_S = 0.5  # how late a call may learn that its time is over
REPLAY_COMMANDS_MAX = 20_000  # M-2
REPLAY_BYTES_MAX = 16 << 20
READ_STEPS_A_TURN = 1  # a read that is not finished after this many slices goes on in a task of its own


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop that a client sent."""

    pop: WaitingPop


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Its client has gone."""

    pop: WaitingPop


@dataclass(frozen=True, slots=True)
class HandBack:
    """Its answer could not be delivered."""

    lease_id: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """A write of the log is on the disk."""

    write: LogWrite


@dataclass(frozen=True, slots=True)
class Heard:
    """What the same group said on another node: Raft's words, or about calls."""

    node: int
    said: Message | PeerCall


@dataclass(frozen=True, slots=True)
class HeardClock:
    """A node's BOOTTIME when it said so, a moment ago (M-21)."""

    node: int
    boottime_us: int


class Tick:
    """Raft's unit of time has passed."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The node stops: somebody else should lead, who answered within so many ticks (CL-54)."""

    max_silent_ticks: int


class LetPopsGo:
    """The node stops: pops that wait are answered empty, so that their connections can close (CL-131)."""


class Due:
    """The wheel: a deadline may have passed."""


class Alarm:
    """The time that the group asked to be told of has come."""


DUE, ALARM, LET_POPS_GO, TICK = Due(), Alarm(), LetPopsGo(), Tick()
Event = (
    tuple[Lane, Pending] | PendingRead | Pop | Withdraw | HandBack | Written | Heard | HeardClock | Tick | Due | Alarm
    | LetPopsGo | HandOver
)


class LogSink(Protocol):
    """The log writer, as a group sees it."""

    def submit_nowait(self, write: GroupWrite, report: Callable[[], None]) -> None:
        """Queue a write; `report` is called on the loop once it is fsynced."""
        ...


class Peers(Protocol):
    """The other nodes, as a group sees them. Nothing here waits; what cannot be sent is lost, and sent again."""

    def send(self, messages: Sequence[Message]) -> None:
        """Raft's messages, each to its receiver."""
        ...

    def tell(self, node: int, call: PeerCall) -> None:
        """About a call."""
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


class Debt:
    """What would have to be replayed after a crash now: the keeper pays it with a flush (M-2).

    since_s: of the first write that is not flushed. began: there is one. full: it must be paid now.
    """

    __slots__ = ("began", "bytes", "commands", "full", "since_s")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Everything so far is about to be flushed."""
        self.commands = self.bytes = 0
        self.since_s = 0.0
        self.began, self.full = trio.Event(), trio.Event()

    def add(self, commands: int, size: int) -> None:
        """An entry was applied."""
        self.commands += commands
        self.bytes += size
        if not self.began.is_set():
            self.since_s = trio.current_time()
            self.began.set()
        if self.commands >= REPLAY_COMMANDS_MAX or self.bytes >= REPLAY_BYTES_MAX:
            self.full.set()


class GroupActor:
    """Runs one tenant's group. All that it decides is in `Group`, which awaits nothing.

    arm: tells the wheel the group's next deadline, in µs of BOOTTIME, or None. inbox_bound: commands that
    may wait before their senders must (QUEEN_RAFT_COMMAND_QUEUE_DEPTH).
    """

    def __init__(
        self, group: Group, applier: Applier, log_sink: LogSink, *, arm: Callable[[int | None], None],
        count: Callable[[Tally], None], debt: Debt, inbox_bound: int, supply: Callable[[int, int], None] | None = None,
    ) -> None:
        """supply: sends a member, by (node, index), what is no longer in memory."""
        self.group = group
        self.inbox: Inbox[Event] = Inbox(inbox_bound)
        self.debt = debt
        self.poison: Poison | None = None
        self._applier, self._log_sink, self._arm, self._count = applier, log_sink, arm, count
        self.peers: Peers = Alone()  # who has others sets this before `run`
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
                    self.group.now_s, now_us = trio.current_time(), self.group.raft.clock.now_us()
                    for event in events:
                        self._take(event, now_us)
                    await self._turn(nursery)
        finally:
            self.group.stop("retry")

    async def wait_leading(self) -> None:
        """Return once this node leads the group and has applied an entry of its term (CL-24)."""
        await self._leading.wait()

    def refuse_everything(self) -> None:
        """The log has stopped: nothing that waits will ever be written."""
        self.group.stop("retry")

    def _take(self, event: Event, now_us: int) -> None:
        group = self.group
        match event:
            case (lane, pending):
                group.submit(pending, lane)
            case Written(write):
                group.raft.written(write)
            case Pop(pop):
                group.pop(pop, now_us)
            case Heard(node, said):
                if isinstance(said, PeerCall):
                    group.hear(node, said, now_us)
                else:
                    group.raft.step(said)
            case HeardClock(node, boottime_us):
                group.raft.hear_boottime(node, boottime_us)
            case Tick():
                group.raft.core.tick()
            case HandOver(max_silent_ticks):
                group.hand_over(max_silent_ticks)
            case PendingRead():
                group.read(event)
            case Due():
                self._armed_us = -1  # the wheel forgot the deadline when it told us: arm again, changed or not
                group.due()
            case Withdraw(pop):
                group.withdraw(pop)
            case LetPopsGo():
                group.let_pops_go()
            case HandBack(lease_id):
                group.hand_back(lease_id)
            case Alarm():
                group.give_up_late_calls(trio.current_time(), now_us)

    async def _turn(self, nursery: trio.Nursery) -> None:
        """Propose, write, apply and answer until nothing is left to do without another event."""
        group, raft = self.group, self.group.raft
        now_s, now_us = trio.current_time(), raft.clock.now_us()
        group.tell_the_time(now_s, now_us)
        if group.unavailable is not None:
            return  # stopped: the wheel and the hand-backs must propose nothing either
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
                    self._log_sink.submit_nowait(write.group_write, self._reporter(write))
                except LogFailed:  # the node tells why, and says so in /health (CL-126)
                    self.refuse_everything()
                    return
            if pumped.send:
                self.peers.send(pumped.send)
            for peer, next_index in pumped.left_behind:
                self._supply(peer, next_index)
            for request, index in pumped.reads:
                group.read_confirmed(request, index)
            if pumped.to_apply:
                for entry in pumped.to_apply:
                    if not await self._apply_or_poison(entry, now_us):
                        return
                now_s, now_us = trio.current_time(), raft.clock.now_us()
            if not self._leading.is_set() and raft.may_propose:
                self._leading.set()
        for node, call in group.outgoing:
            self.peers.tell(node, call)
        group.outgoing.clear()
        self._set_alarm(now_s, now_us)
        self._arm_wheel()

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
        return True

    # --- reading

    def _serve(self, read: PendingRead, nursery: trio.Nursery) -> None:
        reader = queries.reader(self.group.machine.store.committed(), read.query)
        for _ in range(READ_STEPS_A_TURN):
            try:
                next(reader)
            except StopIteration as finished:
                read.slot.answer(finished.value)
                return
        nursery.start_soon(self._serve_in_slices, read, reader)

    async def _serve_in_slices(self, read: PendingRead, reader: Reader) -> None:
        while not read.slot.answered:
            await trio.lowlevel.checkpoint()
            if read.give_up_at_s <= trio.current_time():
                read.slot.answer(Unavailable("timeout"))
                return
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
        offset_us = self.group.raft.clock.offset_us
        deadline_us = self.group.deadline_us if offset_us is not None else None
        if deadline_us != self._armed_us:
            self._armed_us = deadline_us
            self._arm(None if deadline_us is None or offset_us is None else deadline_us - offset_us)
