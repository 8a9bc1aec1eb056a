"""One life of a node's process: the real group, machine, clock and log, driven as `GroupActor` drives them under trio.

What starts and ends it, and what holds its events back while it is paused, stands in `node`; what it gives and takes of
snapshots in `transfers`. Transport has no place here: messages go as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import cbor2

from queen_node import commands, queries
from queen_node.answers.consume import render_ack, render_extend, render_pop
from queen_node.answers.push import render_configure, render_push
from queen_node.answers.timers import render_timers
from queen_node.applier import begin
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.commands import Kind
from queen_node.group import Group
from queen_node.group_actor import LATE_CALLS_EVERY_S
from queen_node.parked_pops import WaitingPop
from queen_node.peer_calls import PeerCall
from queen_node.snapshots import Snapshots
from queen_node.state.incarnations import Incarnations
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from queen_node.timer_wheel import TimerWheel
from raft import laggards
from raft.clock import GroupClock, estimate_after_restart, read_clocks
from raft.core import Core, Role
from raft.group import LogWrite, RaftGroup
from raft.log import Log
from raft.messages import Entry, HardState, Message
from raft.quorum import Configuration
from raft.snapshot_start import log_was_told, start_behind_flip
from raft.wal import RecoveredGroup, Wal
from tests.simulation.hardware import Hardware
from tests.simulation.log_hand import LogHand
from tests.simulation.rules import Rules
from tests.simulation.shape import Shape
from tests.simulation.slots import CallSlot
from tests.simulation.transfers import SnapshotWord, Transfers
from tests.simulation.world import MS, SECOND, Broken, World

LIFE: Final = 1  # of the one tenant whose group is simulated
FRAME_EVERY_US: Final = 100 * MS  # M-30
TURNS_MAX: Final = 1000
READ_BYTES: Final = 4 << 20
MARKS_OF_TALLIES: Final = (
    ("dead_letters", "dead letter"), ("duplicates", "duplicate push"), ("handed_back", "lease handed back"),
    ("leases_expired", "lease ran out"), ("timer_duplicates", "timer met a message with its id"),
)
DIRECTORY: Final = Path("log")
RENDERERS: Final = {
    Kind.ACK: render_ack, Kind.CONFIGURE: render_configure, Kind.EXTEND: render_extend, Kind.PUSH: render_push,
    Kind.TIMERS: render_timers,
}


class NodeFrame(NamedTuple):
    """What a node says of its clock to every other node (M-21, M-30)."""

    sender: int
    boottime_us: int


class Called(NamedTuple):
    """What a group says to itself on another node about calls."""

    sender: int
    call: PeerCall


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process is built of. Only the tests of the checkers put other parts in."""

    new_core: Callable[..., Core] = Core
    new_raft_group: Callable[..., RaftGroup] = RaftGroup
    new_group: Callable[..., Group] = Group
    new_clock: type[GroupClock] = GroupClock
    new_machine: Callable[[Store], Machine] = Machine
    new_store: Callable[..., Store] = Store
    new_snapshots: Callable[..., Snapshots] = Snapshots
    read_hard_state: Callable[[HardState], HardState] = lambda hard_state: hard_state


class Process:
    """send: puts a message on the network. began_behind: the entry (index, term) of a flip that the log did not know of
    when the process began.
    """

    def __init__(
        self, world: World, shape: Shape, hardware: Hardware, node_id: int, number: int, rules: Rules, parts: Parts, *,
        send: Callable[[int, Any], None],
    ) -> None:
        """Boot from what the disk holds. Raises Damaged."""
        self.node_id, self.number, self.alive, self.stopped = node_id, number, True, False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None  # None: not paused
        self._world, self._shape, self._hardware, self._rules = world, shape, hardware, rules
        self._send = send
        self.ids = hardware.mint()
        self.calls: set[CallSlot] = set()
        wal, recovered = Wal.open(
            DIRECTORY, hardware.disk, segment_bytes=shape.segment_bytes, identity=hardware.identity,
            must_exist=number > 1)
        if recovered.torn is not None:
            world.reached("torn tail cut")
        wal.keep_for_laggards(shape.log_budget_bytes)
        self.incarnations = Incarnations(hardware.engine)
        self.began_behind: tuple[int, int] | None = None
        self.machine = parts.new_machine(
            parts.new_store(hardware.engine, life=LIFE, incarnation=self.incarnations.current(LIFE)))
        self.durable_index = self.machine.applied_index
        self.raft = self._open_group(wal, recovered.groups.get(LIFE), parts)
        self.core = self.raft.core
        self.group = parts.new_group(self.raft, self.machine, shape.group)
        self.transfers = Transfers(world, self, parts.new_snapshots, hardware, shape.chunk_bytes, rules)
        self.wheel: TimerWheel[int] = TimerWheel(tick_us=shape.wheel_us, now_us=hardware.clocks.boottime_us())
        self._armed_us: int | None = -1
        self._wheel_turns_at_us = self._alarm_at_us = 1 << 62
        rules.booted(self)
        self._log = LogHand(world, hardware, wal, written=self._written, failed=self.stop, later=self.later)
        self.later(shape.tick_us, self._tick, 0)
        self.later(shape.flush_every_us, self._flush)
        self.transfers.start()
        self.turn()

    def _open_group(self, wal: Wal, group: RecoveredGroup | None, parts: Parts) -> RaftGroup:
        shape, clocks, meta = self._shape, self._hardware.clocks, self.machine.store.meta
        if group is None:
            log, hard_state = Log(), HardState()
            clock = parts.new_clock.first_ever(clocks)
        else:
            entries = _entries(wal, group)
            log = Log.restore((group.previous_index, group.previous_term), entries)
            hard_state = parts.read_hard_state(group.hard_state)
            estimate = estimate_after_restart(
                group.clock_us, group.clock_offset_us, group.reading, read_clocks(clocks))
            clock = parts.new_clock(clocks, estimate, meta.stamp_us)
            self._world.reached("clock guessed across a reboot" if estimate.is_weak else "clock kept over a restart")
        flipped = self.incarnations.flipped(LIFE)
        if flipped is not None and not log_was_told(group, *flipped):
            self._world.reached("crash between a flip and the log's word of it")
            self.began_behind = flipped
            log, hard_state = start_behind_flip(group, *flipped)
            clock.see_stamp(meta.stamp_us)
        core = parts.new_core(
            node_id=self.node_id, configuration=Configuration(shape.node_ids), log=log, hard_state=hard_state,
            applied_index=meta.applied_index, settings=shape.raft,
            random=self._world.dice(f"core {self.node_id} {self.number}"))
        return parts.new_raft_group(
            life=LIFE, core=core, clock=clock, stamp_of=commands.stamp_of, offset=(meta.offset_term, meta.offset_us))

    @property
    def now_s(self) -> float:
        """The monotonic clock that calls are timed by."""
        return self._hardware.clocks.boottime_us() / SECOND

    # --- time and life

    def later(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have something happen in this process in so long, if it lives then; once it goes on, if it is paused then."""
        self._world.after(delay_us, self.run, call, *arguments)

    def run(self, call: Callable[..., None], *arguments: Any) -> None:
        """An event of this process."""
        if not self.alive or self.stopped:
            return
        if self._backlog is None:
            call(*arguments)
        else:
            self._backlog.append((call, arguments))

    def pause(self) -> None:
        """SIGSTOP: the clocks go on, and what comes waits."""
        if self._backlog is None:
            self._backlog = []

    def go_on(self) -> None:
        """SIGCONT."""
        backlog, self._backlog = self._backlog, None
        for call, arguments in backlog or ():
            self.run(call, *arguments)

    def stop(self) -> None:
        """The disk failed: the process stays up and does nothing more (CL-126)."""
        self._world.reached("stopped by its disk")
        self.stopped = True
        self.group.stop("retry")

    def die(self) -> None:
        """End now, with every connection."""
        self.alive = False
        for slot in sorted(self.calls, key=lambda slot: slot.number):
            slot.connection_broke()

    # --- what comes in

    def hear(self, message: Message | NodeFrame | Called | SnapshotWord) -> None:
        """A message of another node."""
        self.group.now_s = self.now_s
        if isinstance(message, NodeFrame):
            self.raft.hear_boottime(*message)
            return
        if isinstance(message, SnapshotWord):
            self.transfers.hear(message)
            return
        if isinstance(message, Called):
            self.group.hear(message.sender, message.call, self.raft.clock.now_us())
        else:
            self.raft.step(message)
        self.turn()

    def accept(self, slot: CallSlot) -> None:
        """A client's call has come; it breaks when the process dies. One that is stopped answers at once."""
        self.calls.add(slot)
        slot.ended = self.calls.discard
        if self.stopped:
            slot.answer(Unavailable("no_leader"))

    def submit(self, command: bytes, slot: CallSlot, *, lane: Lane = Lane.DRAINING, places: tuple[bytes, ...] = (),
               timeout_us: int) -> None:
        """A client's command."""
        self.group.now_s = self.now_s
        slot.render = RENDERERS[cbor2.loads(command)[0]]
        give_up_at_s = self.now_s + timeout_us / SECOND
        self.group.submit(Pending(command, slot, give_up_at_s=give_up_at_s, places=places), lane)
        self.turn()

    def pop(self, slot: CallSlot, *, queue: bytes, group: bytes, batch: int, partitions: int, lease_ms: int,
            wait_us: int | None, commit_on_delivery: bool = False) -> None:
        """A client's pop."""
        self.group.now_s = self.now_s
        lease_id = self.ids.uuid7()
        command = commands.pop(
            self.ids.request_id(), lease_id=lease_id, queue=queue, partition=None, group=group, mode="all", from_us=0,
            batch=batch, partitions=partitions, lease_ms=lease_ms, commit_on_delivery=commit_on_delivery,
            max_bytes=8 << 20)
        answer_by_s = self.now_s + (2 if wait_us is None else wait_us / SECOND)
        pop = WaitingPop(
            command, lease_id=lease_id, queue=queue, reader=(group, None), slot=slot, waits=wait_us is not None,
            answer_by_s=answer_by_s)
        slot.render = render_pop
        slot.withdraw = lambda: self.run(self._withdraw, pop)
        slot.hand_back = lambda: self.run(self._hand_back, lease_id)
        self.group.pop(pop, self.raft.clock.now_us())
        self.turn()

    def read(self, query: bytes, slot: CallSlot, *, timeout_us: int) -> None:
        """A client's linearizable read."""
        slot.committed_before = self._rules.committed_index
        self.group.read(PendingRead(query, slot, give_up_at_s=self.now_s + timeout_us / SECOND))
        self.turn()

    def transfer_to(self, target: int) -> None:
        """An operator's wish."""
        if self.core.role is Role.LEADER:
            self.core.transfer_leadership(target)
            self._world.reached("leadership handed over by wish")
            self.turn()

    def _withdraw(self, pop: WaitingPop) -> None:
        self._world.reached("pop withdrawn")
        self.group.withdraw(pop)
        self.turn()

    def _hand_back(self, lease_id: bytes) -> None:
        self._world.reached("pop handed back")
        self.group.hand_back(lease_id)
        self.turn()

    # --- a turn, as the actor makes it

    def turn(self) -> None:
        """Propose, write, send, apply and answer until nothing is left to do without another event."""
        group, raft, rules = self.group, self.raft, self._rules
        now_us = raft.clock.now_us()
        group.tell_the_time(self.now_s, now_us)
        for _ in range(TURNS_MAX):
            for read in group.take_servable_reads(now_us):
                self._serve(read)
            group.propose(now_us)
            group.ask_for_read_indexes()
            pumped = raft.pump()
            rules.looked(self)
            if pumped is None:
                break
            for write in pumped.writes:
                rules.submitted(self, write)
                self._log.submit(write)
            for message in pumped.send:
                self.send(message)
            for peer, next_index in pumped.left_behind:
                if laggards.supply(raft, self._log.wal, peer, next_index):
                    self._world.reached("laggard served from the disk")
                else:
                    self.transfers.send_to(peer)
            for request, index in pumped.reads:
                group.read_confirmed(request, index)
            for entry in pumped.to_apply:
                self._apply(entry)
                now_us = raft.clock.now_us()
        else:
            raise Broken("liveness", f"node {self.node_id} turns without end")
        for node, call in group.outgoing:
            self._send(node, Called(self.node_id, call))
        group.outgoing.clear()
        self._set_alarm(now_us)
        self._arm_wheel()

    def send(self, message: Message) -> None:
        """A message leaves."""
        self._rules.sends(self, message)
        self._send(message.receiver, message)

    def tell_snapshot(self, peer: int, word: SnapshotWord) -> None:
        """A word about a snapshot leaves."""
        self._send(peer, word)

    def _written(self, batch: Sequence[LogWrite]) -> None:
        for write in batch:
            self._rules.written(self, write)
            self.raft.written(write)
            if write.group_write.restart_after is not None:
                self.transfers.log_told(write.group_write.restart_after)
        self.turn()

    def _apply(self, entry: Entry) -> None:
        machine = self.machine
        application = begin(machine, entry)
        results = []
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

    # --- time

    def _tick(self, since_frame_us: int) -> None:
        since_frame_us += self._shape.tick_us
        if since_frame_us >= FRAME_EVERY_US:
            since_frame_us = 0
            frame = NodeFrame(self.node_id, self._hardware.clocks.boottime_us())
            for peer in self._shape.node_ids:
                if peer != self.node_id:
                    self._send(peer, frame)
        self.later(self._shape.tick_us, self._tick, since_frame_us)
        self.core.tick()
        self.turn()

    def _flush(self) -> None:
        self._hardware.engine.flush()
        self.durable_index = self.machine.applied_index
        wal = self._log.wal
        if self._rules.disks.hard_state(self.node_id).term:  # else the log has no record of the group
            previous_index, _ = wal.span(LIFE)
            wal.release(LIFE, self.durable_index)
            if wal.span(LIFE)[0] > previous_index:
                self._world.reached("log released")
        self.later(self._shape.flush_every_us, self._flush)

    def _set_alarm(self, now_us: int) -> None:
        group, now_s = self.group, self.now_s
        alarm_s = group.next_alarm(now_s, now_us)
        if group.has_calls:
            late_s = now_s + LATE_CALLS_EVERY_S
            alarm_s = late_s if alarm_s is None else min(alarm_s, late_s)
        if alarm_s is not None:
            delay_us = self._hardware.clocks.virtual_delay_us(round(alarm_s * SECOND))
            if self._world.now_us + delay_us < self._alarm_at_us:
                self._alarm_at_us = self._world.now_us + delay_us
                self.later(delay_us, self._ring, self._alarm_at_us)

    def _ring(self, at_us: int) -> None:
        if at_us == self._alarm_at_us:
            self._alarm_at_us = 1 << 62
            self.group.give_up_late_calls(self.now_s, self.raft.clock.now_us())
            self.turn()

    def _arm_wheel(self) -> None:
        offset_us = self.raft.clock.offset_us
        deadline_us = self.group.deadline_us if offset_us is not None else None
        if deadline_us != self._armed_us:
            self._armed_us = deadline_us
            self.wheel.arm(LIFE, None if deadline_us is None or offset_us is None else deadline_us - offset_us)
            self._turn_wheel_later()

    def _turn_wheel_later(self) -> None:
        """At the wheel's next tick from the earliest deadline on."""
        earliest_us = self.wheel.earliest_us()
        if earliest_us is None:
            return
        clocks, wheel_us = self._hardware.clocks, self._shape.wheel_us
        ticks_at_us = (max(earliest_us, clocks.boottime_us()) // wheel_us + 1) * wheel_us
        at_us = self._world.now_us + clocks.virtual_delay_us(ticks_at_us)
        if at_us < self._wheel_turns_at_us:
            self._wheel_turns_at_us = at_us
            self.later(at_us - self._world.now_us, self._turn_wheel, at_us)

    def _turn_wheel(self, at_us: int) -> None:
        if at_us != self._wheel_turns_at_us:
            return
        self._wheel_turns_at_us = 1 << 62
        for _life in self.wheel.due(self._hardware.clocks.boottime_us()):
            self._armed_us = -1
            self.group.due()
            self.turn()
        self._turn_wheel_later()


def _entries(wal: Wal, group: RecoveredGroup) -> list[Entry]:
    entries: list[Entry] = []
    while group.previous_index + len(entries) < group.last_index:
        entries += wal.read(LIFE, group.first_index + len(entries), group.last_index, READ_BYTES)
    return entries
