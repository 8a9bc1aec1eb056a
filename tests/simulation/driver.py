"""One group in one life of a process: the real group, machine, clock and Raft, driven as `GroupActor` drives them under
trio. Implements `queen_node.groups.Actor`.

What the groups of a process share (log, wheel, snapshots, network) stands in `process`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from queen_node import commands, queries
from queen_node.applier import begin
from queen_node.calls import PendingRead
from queen_node.events import (
    ALARM,
    AskAlso,
    Due,
    Event,
    Heard,
    HeardClock,
    SnapshotEnded,
    SnapshotFlipped,
    SnapshotWhole,
    Tick,
    Wake,
    Written,
)
from queen_node.group_actor import LATE_CALLS_EVERY_S
from queen_node.group_events import take
from queen_node.inbox import Inbox
from queen_node.keeper import release_log
from queen_node.opening import CELL_LIFE, open_clock
from queen_node.sleeper import Sleeper
from queen_node.snapshots import carry_out
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.tenants import Tenant, tenants
from raft import laggards
from raft.configurations import decode_configuration
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import Entry, HardState
from raft.snapshot_start import log_was_told, start_behind_flip
from raft.wal import RecoveredGroup, Wal
from tests.simulation.slots import CallSlot
from tests.simulation.world import SECOND, Broken

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.rules import Rules

TURNS_MAX: Final = 20_000  # a start applies its whole log in one go, in some runs an entry a turn
READ_BYTES: Final = 4 << 20
INBOX_BOUND: Final = 1 << 20  # clients here are few, and each has one call at a time
NEVER_US: Final = 1 << 62
ROUNDED_S: Final = 0.001  # of two alarms closer than that the sooner is found by their µs
MARKS_OF_TALLIES: Final = (
    ("dead_letters", "dead letter"), ("duplicates", "duplicate push"), ("handed_back", "lease handed back"),
    ("leases_expired", "lease ran out"), ("timer_duplicates", "timer met a message with its id"),
    ("timer_failures", "a fire failed for good"), ("timer_failures_transient", "a fire failed for the moment"),
    ("timer_dead_letters", "a timer ended as a dead letter"),
)


class DriverInbox(Inbox[Event]):
    """Its reader is told by a call, and takes everything once what happens now is through."""

    __slots__ = ("_wake",)

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(INBOX_BOUND)
        self._wake = wake

    def put(self, event: Event) -> None:
        """See `Inbox`."""
        if not self._events:
            self._wake()
        self._events.append(event)

    def take_nowait(self) -> list[Event]:
        """Everything that waits."""
        events, self._events = self._events, []
        return events


class GroupDriver:
    """began_behind: the entry (index, term) of a flip that the log did not know of when the process began."""

    def __init__(
        self, process: Process, life: int, row: TenantRow | None, members: MembersRow, rules: Rules,
    ) -> None:
        """row: of the tenant; None: it is group 0. members: as it says."""
        self.process, self.node_id, self.life = process, process.node_id, life
        self._world, self._rules = process.world, rules
        self.on_tenants: Callable[[Sequence[Tenant]], None] | None = None
        parts, hardware = process.parts, process.hardware
        self._clocks = hardware.clocks
        self.began_behind: tuple[int, int] | None = None
        self.machine = parts.new_machine(
            parts.new_store(hardware.engine, life=life, incarnation=process.incarnations.current(life)))
        self.durable_index = self.machine.applied_index
        self.raft = self._open_group(process.recovered.groups.get(life), row, members)
        self.core = self.raft.core
        self.group = parts.new_group(self.raft, self.machine, process.group_settings)
        self.sleeper = Sleeper(self.group)
        self.inbox = DriverInbox(self._wake)
        self._armed_us: int | None = -1
        self._alarm_at_us, self._alarm_s = NEVER_US, inf
        self._place = self.node_id, life
        rules.booted(self)
        self._wake()

    def _open_group(
        self, group: RecoveredGroup | None, row: TenantRow | None, members: MembersRow,
    ) -> RaftGroup:
        process, clocks, meta = self.process, self._clocks, self.machine.store.meta
        parts = process.parts
        if group is None:
            log, hard_state = Log(), HardState()
        else:
            log = Log.restore((group.previous_index, group.previous_term), _entries(process.wal, self.life, group))
            hard_state = parts.read_hard_state(group.hard_state)
        clock = open_clock(clocks, group, meta.stamp_us, row, parts.new_clock)
        if group is not None:
            is_reboot = group.reading.boot_id != clocks.boot_id
            self._world.reached("clock guessed across a reboot" if is_reboot else "clock kept over a restart")
        flipped = process.incarnations.flipped(self.life)
        if flipped is not None and not log_was_told(group, *flipped):
            self._world.reached("crash between a flip and the log's word of it")
            self.began_behind = flipped
            log, hard_state = start_behind_flip(group, *flipped)
        core = parts.new_core(
            node_id=self.node_id,
            configuration=decode_configuration(meta.configuration) if meta.configuration else parts.first_members(
                self.node_id, process.hardware.identity, process.founders, row, members),
            log=log, hard_state=hard_state, applied_index=meta.applied_index, settings=process.shape.raft,
            random=self._world.dice(f"core {self.node_id} {process.number} {self.life}"),
            directory_id=process.hardware.identity)
        return parts.new_raft_group(
            life=self.life, core=core, clock=clock, stamp_of=commands.stamp_of,
            offset=(meta.offset_term, meta.offset_us))

    def refuse_everything(self) -> None:
        """The log has stopped: nothing that waits will ever be written."""
        self.group.stop("retry")

    def _wake(self) -> None:
        self.process.ready.append(self)

    # --- a turn, as the actor makes it

    def drain(self) -> None:
        """Take in all that waits, and do what follows."""
        self._world.driving = self._place
        events = self.inbox.take_nowait()
        if not (events and len(events) <= 2 and type(events[-1]) is Tick and self._passes(events)):
            self._turn(events)
        self._world.driving = None

    def _turn(self, events: Sequence[Event]) -> None:
        group = self.group
        now_s, now_us = self.process.now_s, self.raft.clock.now_us()
        group.now_s = now_s
        slept = self.sleeper.sleeps
        if slept:
            self.sleeper.stir(events)
        for event in events:
            self._take(event, now_us)
        if slept:
            self.sleeper.stand_if_called()
            self._note_waking(events)
        goes_on = group.unavailable is None
        if goes_on:
            if events:
                now_us = self.raft.clock.now_us()  # what came may have told the clock
            group.tell_the_time(now_s, now_us)
            now_us = self._work(now_us)
        if group.outgoing:
            for node, call in group.outgoing:
                self.process.tell(node, self.life, call)
            group.outgoing.clear()
        self._falls_asleep(goes_on)
        if goes_on:
            self._set_alarm(now_s, now_us)
            self._arm_wheel()

    def _work(self, now_us: int) -> int:
        """Propose, write, apply and answer until nothing is left to do. Returns what the group's clock shows then."""
        group, rules, core = self.group, self._rules, self.core
        for _ in range(TURNS_MAX):
            for read in group.take_servable_reads(now_us):
                self._serve(read)
            group.propose(now_us)
            group.ask_for_read_indexes()
            pumped = self.raft.pump()
            rules.looked(self)
            if pumped is None:
                break
            for write in pumped.writes:
                rules.submitted(self, write)
                self.process.log.submit(write)
            for message in pumped.send:
                rules.sends(self, message)
                self.process.tell(message.receiver, self.life, message)
            for peer, next_index in pumped.left_behind:
                self._supply(peer, next_index)
            for request, index in pumped.reads:
                group.read_confirmed(request, index)
            for entry in pumped.to_apply:
                self._apply(entry)
                now_us = self.raft.clock.now_us()
            if not (pumped.to_apply or pumped.reads or core.has_ready()):
                break  # another round would find what this one left: nothing
        else:
            raise Broken("liveness", f"node {self.node_id} turns without end")
        return now_us

    def _passes(self, events: Sequence[Event]) -> bool:
        """Whether these were nothing but a tick, perhaps with its leader's clock, after which there is mostly nothing
        to do. A third of a run's time went into such turns. What time itself brings comes by the alarm and the wheel.
        """
        if self.sleeper.sleeps:
            return False
        if len(events) == 2:
            if type(events[0]) is not HeardClock:
                return False
            self.raft.hear_boottime(events[0].node, events[0].boottime_us)
        core = self.core
        before = core.role, core.term, core.leader
        self.sleeper.takes(events[-1], self.raft.clock.now_us())
        if before != (core.role, core.term, core.leader) or core.has_ready():
            self._turn(())
        elif self._falls_asleep(self.group.unavailable is None):
            self._arm_wheel()
        return True

    def _falls_asleep(self, goes_on: bool) -> bool:
        slept = self.sleeper.sleeps
        self.sleeper.settle(goes_on)
        falls_asleep = self.sleeper.sleeps and not slept
        if falls_asleep:
            self._world.reached("a group slept")
        return falls_asleep

    def _note_waking(self, events: Sequence[Event]) -> None:
        """Of a group that slept when these came."""
        awake, world = not self.sleeper.sleeps, self._world
        for event in events:
            if isinstance(event, AskAlso) and not awake:
                world.reached("a node that came back was asked to sleep too")
            elif isinstance(event, Due) and awake:
                world.reached("a group woke for a due timer")
            elif isinstance(event, Wake) and not event.stands:
                world.reached("a group that slept on one side only was woken")
            elif isinstance(event, Wake):
                due_us, now_us = self.group.deadline_us, self.raft.clock.now_us()
                woken_by = "a due timer" if due_us is not None and due_us <= now_us else "its turn"
                world.reached(f"{woken_by} woke a group without a leader")

    def _take(self, event: Event, now_us: int) -> None:
        if type(event) is Heard:  # the most of what comes
            if not self.sleeper.takes(event, now_us):
                take(self.group, event, now_us)
            return
        match event:
            case Written(write):
                self._rules.written(self, write)
                self.raft.written(write)
                if write.group_write.restart_after is not None:
                    self.process.transfers.log_told(self.life, write.group_write.restart_after)
            case Due():
                self._armed_us = -1
                self.group.due()
            case SnapshotEnded() | SnapshotWhole() | SnapshotFlipped():
                carry_out(self.group, event, self.process.transfers.room, self.process.now_s)
                if isinstance(event, SnapshotFlipped):
                    self._world.reached("a snapshot was installed")
                    self._rules.restored(self)
                    if self.on_tenants is not None:
                        self.on_tenants(list(tenants(self.machine.store.committed())))
            case _:
                if not self.sleeper.takes(event, now_us):
                    take(self.group, event, now_us)

    def _supply(self, peer: int, next_index: int) -> None:
        if laggards.supply(self.raft, self.process.wal, peer, next_index):
            self._world.reached("laggard served from the disk")
        else:
            self.process.transfers.send_to(self.life, peer)

    def _apply(self, entry: Entry) -> None:
        machine = self.machine
        application = begin(machine, entry)
        results: list[tuple[bytes, int, Any]] = []
        while not application.finished:
            results.append(application.apply_next())
        machine.commit(application)
        self.raft.applied(entry.index)
        self._rules.applied(self, entry, application.step.now_us)
        self.group.applied(application, results, self.raft.clock.now_us())
        for tally in self.group.tallies:
            for figure, mark in MARKS_OF_TALLIES:
                if getattr(tally, figure):
                    self._world.reached(mark)
        self.group.tallies.clear()
        if application.step.tenants and self.on_tenants is not None:
            self.process.rules.appeared(application.step.tenants)
            self.on_tenants(application.step.tenants)

    def _serve(self, read: PendingRead) -> None:
        slot = read.slot
        if isinstance(slot, CallSlot):
            self._rules.serves_read(self, slot.committed_before)
        reader = queries.reader(self.machine.store.committed(read.now_us), read.query)
        while True:
            try:
                next(reader)
            except StopIteration as finished:
                slot.answer(finished.value)
                return

    # --- what the process does for all groups

    def release(self, wal: Wal) -> None:
        """The store was flushed: what the log holds of what it stands for is needed no longer."""
        self.durable_index = self.machine.applied_index
        if self._rules.disks.hard_state(self.node_id).term:  # else the log has no record of the group
            previous_index, _ = wal.span(self.life)
            release_log(wal, self.process.incarnations, self.life, self.durable_index)
            if wal.span(self.life)[0] > previous_index:
                self._world.reached("log released")

    def _set_alarm(self, now_s: float, now_us: int) -> None:
        group = self.group
        alarm_s = group.next_alarm(now_s, now_us)
        if group.has_calls:
            late_s = now_s + LATE_CALLS_EVERY_S
            alarm_s = late_s if alarm_s is None else min(alarm_s, late_s)
        if alarm_s is not None and alarm_s < self._alarm_s + ROUNDED_S:
            delay_us = self._clocks.virtual_delay_us(round(alarm_s * SECOND))
            if self._world.now_us + delay_us < self._alarm_at_us:
                self._alarm_at_us, self._alarm_s = self._world.now_us + delay_us, alarm_s
                self.process.later(delay_us, self._ring, self._alarm_at_us)

    def _ring(self, at_us: int) -> None:
        if at_us == self._alarm_at_us:
            self._alarm_at_us, self._alarm_s = NEVER_US, inf
            self.inbox.put(ALARM)

    def _arm_wheel(self) -> None:
        clock = self.raft.clock
        deadline_us = self.group.deadline_us if self.sleeper.sleeps or clock.offset_us is not None else None
        if deadline_us != self._armed_us:
            self._armed_us = deadline_us
            self.process.arm(self.life, None if deadline_us is None else clock.boottime_at(deadline_us))

    def __str__(self) -> str:
        core = self.core
        name = "group 0" if self.life == CELL_LIFE else f"{self.life}"
        return (f"{name} {core.role.value} term {core.term} last {core.log.last_index} "
                f"commit {core.commit_index} applied {core.applied_index}")


def _entries(wal: Wal, life: int, group: RecoveredGroup) -> list[Entry]:
    entries: list[Entry] = []
    while group.previous_index + len(entries) < group.last_index:
        entries += wal.read(life, group.first_index + len(entries), group.last_index, READ_BYTES)
    return entries
