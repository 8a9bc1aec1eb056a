"""One life of a node's process: what its groups share, and how a client's call gets to one of them.

What a single group does is in `driver`, which groups there are in the real `queen_node.groups`. What starts and ends a
process stands in `cluster`; what it gives and takes of snapshots in `transfers`. Transport has no place here: messages
go as objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from queen_node import commands, packed
from queen_node.answers.consume import render_ack, render_extend, render_pop
from queen_node.answers.push import render_configure, render_push
from queen_node.answers.timers import render_timers
from queen_node.antechamber import Antechamber
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.closed_groups import Glance, GroupsByLife
from queen_node.commands import Kind
from queen_node.events import HandBack, Heard, Pop, Withdraw, Written
from queen_node.host import LATE_CALLS_EVERY_S
from queen_node.parked_pops import Reader, WaitingPop
from queen_node.peer_calls import NotQuiet, PeerCall, QuietCall, QuietHeld
from queen_node.sleepers import Sleepers
from queen_node.sleeping_groups import SleepingGroups
from queen_node.state.incarnations import Incarnations
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.store import read_meta
from queen_node.state.tenants import Tenant
from queen_node.timer_wheel import TimerWheel
from raft.core import Role
from raft.group import LogWrite
from raft.messages import Message
from raft.peer_frames import NodeFrame
from raft.quorum import Configuration
from raft.wal import Wal
from tests.simulation.desk import Desk
from tests.simulation.door import Door
from tests.simulation.driver import INBOX_BOUND, NEVER_US, GroupDriver
from tests.simulation.failing_fires import group_settings, rules_of_fire
from tests.simulation.hardware import Hardware
from tests.simulation.log_hand import LogHand
from tests.simulation.parts import Parts
from tests.simulation.rules import AllRules
from tests.simulation.shape import TENANTS_MAX, Shape
from tests.simulation.slots import NODE_TIMEOUT_US, CallSlot
from tests.simulation.transfers import SnapshotWord, Transfers
from tests.simulation.world import MS, SECOND, World

OPENED_AFTER_US: Final = 500 * MS  # groups that sleep since the start, if nobody asked for them until then
OPENED_EVERY_US: Final = 300 * MS  # one; slower than a node, so that more happens to one that is closed
FRAME_EVERY_US: Final = 100 * MS  # M-30
DIRECTORY: Final = Path("log")
RENDERERS: Final = {
    Kind.ACK: render_ack, Kind.CONFIGURE: render_configure, Kind.EXTEND: render_extend, Kind.PUSH: render_push,
    Kind.TIMERS: render_timers,
}


class SaidOfNode(NamedTuple):
    """What a node says of itself to another, ten times a second."""

    sender: int
    frame: NodeFrame


class SaidOfSleep(NamedTuple):
    """What a node says to another of groups that sleep."""

    sender: int
    call: QuietCall


class Said(NamedTuple):
    """What a group says to itself on another node: Raft's words, or about calls."""

    sender: int
    life: int
    said: Message | PeerCall
    directory_id: bytes


class _Groups(SleepingGroups[GroupDriver]):
    """The groups of a process, in virtual time."""

    def __init__(self, process: Process, antechamber: Antechamber) -> None:
        self._process = process
        self._looks = False
        super().__init__(
            process.node_id, process.open_group, antechamber, lambda: process.now_s, process.make_sleepers,
            process.shape.tick_us / SECOND, process.glance)
        process.later(OPENED_AFTER_US, self._open_the_rest)

    def open_closed(self, tenant: Tenant) -> GroupDriver:
        """See `Groups`."""
        self._process.world.reached("a group was opened after the start")
        return super().open_closed(tenant)

    def _open_the_rest(self) -> None:
        if self.groups.closed_count:
            self._process.world.reached("a group was opened because nobody asked for it")
            self.groups.open_some(1)
            self._process.later(OPENED_EVERY_US, self._open_the_rest)

    def begun(self, actor: GroupDriver) -> None:
        """See `Groups`."""
        super().begun(actor)
        self._process.world.reached("a group began at a tenant's first write")

    def something_waits(self) -> None:
        """See `Groups`."""
        if not self._looks:
            self._looks = True
            self._process.later(round(LATE_CALLS_EVERY_S * SECOND), self._look)

    def _look(self) -> None:
        self._looks = False
        if self.give_up_late():
            self.something_waits()


class Process:
    """send: puts a message on the network. ready: groups that have something to do, in the order in which it came."""

    def __init__(
        self, world: World, shape: Shape, hardware: Hardware, node_id: int, number: int, rules: AllRules, parts: Parts,
        *, send: Callable[[int, Any], None], joined: bool, directories: Mapping[int, bytes],
    ) -> None:
        """Boot from what the disk holds. joined: to a cluster that others founded. directories: that the founders had.
        Raises Damaged."""
        self.node_id, self.number, self.alive, self.stopped = node_id, number, True, False
        self.process_number = hardware.next_process_number()
        self.world, self.shape, self.hardware, self.parts = world, shape, hardware, parts
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None  # None: not paused
        self.rules, self._send = rules, send
        self.group_settings = group_settings(shape, node_id)
        self._boottime_us = hardware.clocks.boottime_us
        self.ids = hardware.mint()
        known = {node_id: hardware.identity} if joined else directories
        self.founders = _founders(node_id, shape.node_ids, joined=joined).named(known)
        self.calls: set[CallSlot] = set()
        self.ready: deque[GroupDriver] = deque()
        self.wal, self.recovered = Wal.open(
            DIRECTORY, hardware.disk, segment_bytes=shape.segment_bytes, identity=hardware.identity,
            must_exist=number > 1)
        if self.recovered.torn is not None:
            world.reached("torn tail cut")
        self.wal.keep_for_laggards(shape.log_budget_bytes)
        self.incarnations = Incarnations(hardware.engine)
        self.transfers = Transfers(world, self, parts.new_snapshots, hardware, shape.chunk_bytes)
        self.wheel: TimerWheel[int] = TimerWheel(tick_us=shape.wheel_us, now_us=hardware.clocks.boottime_us())
        self._wheel_turns_at_us = NEVER_US
        self.host = _Groups(self, Antechamber(
            at_most_tenants=TENANTS_MAX, bound=INBOX_BOUND, mint=self.ids.request_id))
        self.desk = Desk(self)
        self.door = Door(self, rules=rules_of_fire(shape, node_id), timeout_ms=NODE_TIMEOUT_US // MS)
        self.log = LogHand(world, hardware, self.wal, written=self._written, failed=self.stop, later=self.later)
        self.later(shape.tick_us, self._tick)
        world.after(0, self._say_how_it_is)
        self.later(shape.flush_every_us, self._flush)
        self.transfers.start()
        self._drain()

    def open_group(self, life: int, row: TenantRow | None, members: MembersRow) -> GroupDriver:
        """A group as the disk has it."""
        driver = GroupDriver(self, life, row, members, self.rules.of(life))
        flipped = self.incarnations.flipped(life)
        if flipped is not None and driver.began_behind is None:
            self.transfers.log_told(life, flipped[0])
        return driver

    def glance(self, life: int) -> Glance | None:
        """What there is of a group that sleeps, as `opening.glance_at` has it."""
        if self.incarnations.flipped(life) is not None:
            return None
        meta = read_meta(self.hardware.engine, life, self.incarnations.current(life))
        group = self.recovered.groups.get(life)
        return Glance(meta.applied_index, group.last_index if group is not None else 0)

    def make_sleepers(self, groups: SleepingGroups[GroupDriver]) -> Sleepers:
        """Who watches over the groups that sleep."""
        shape = self.shape
        return Sleepers(
            self.node_id, groups, election_ticks=shape.raft.election_ticks, tick_s=shape.tick_us / SECOND,
            boottime_us=self.hardware.clocks.boottime_us, tell=self._tell_of_sleep, put=groups.tell,
            pairs_a_word=shape.pairs_a_word)

    @property
    def groups(self) -> GroupsByLife[GroupDriver]:
        """The process's groups, by life."""
        return self.host.groups

    @property
    def leads_asleep(self) -> bool:
        """Whether it leads groups that sleep."""
        return any(driver.core.role is Role.LEADER for driver in self.host.asleep())

    @property
    def now_s(self) -> float:
        """The monotonic clock that calls are timed by."""
        return self._boottime_us() / SECOND

    # --- time and life

    def later(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have something happen in this process in so long, if it lives then; once it goes on, if it is paused then."""
        self.world.after(delay_us, self.run, call, *arguments)

    def run(self, call: Callable[..., None], *arguments: Any) -> None:
        """An event of this process, and what its groups do about it."""
        if not self.alive or self.stopped:
            return
        if self._backlog is None:
            call(*arguments)
            self._drain()
        else:
            self._backlog.append((call, arguments))

    def _drain(self) -> None:
        ready = self.ready
        while ready:
            ready.popleft().drain()

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
        self.world.reached("stopped by its disk")
        self.stopped = True
        self.host.refuse_everything()

    def die(self) -> None:
        """End now, with every connection."""
        if self.alive and self.leads_asleep:
            self.world.reached("a leader of sleeping groups died")
        self.alive = False
        for slot in sorted(self.calls, key=lambda slot: slot.number):
            slot.connection_broke()

    # --- other nodes

    def hear(self, message: Said | SaidOfNode | SaidOfSleep | SnapshotWord) -> None:
        """A message of another node."""
        if type(message) is Said:
            heard = Heard(message.sender, message.said, message.directory_id)
            self.host.hear(self.parts.life_heard(message.life), heard)
        elif type(message) is SaidOfNode:
            self.desk.heard_us[message.sender] = self.world.now_us
            self.host.hear_frame(*message)
        elif type(message) is SaidOfSleep:
            self.host.hear_quiet(*message)
        elif type(message) is SnapshotWord:
            self.transfers.hear(message)

    def tell(self, peer: int, life: int, said: Message | PeerCall) -> None:
        """A group's word leaves."""
        self._send(peer, Said(self.node_id, life, said, self.hardware.identity))

    def _tell_of_sleep(self, peer: int, call: QuietCall) -> None:
        match call:
            case QuietHeld(first, _, _):
                self.world.reached("lists of sleeping groups were compared")
                if first:
                    self.world.reached("a list of sleeping groups went in parts")
            case NotQuiet():
                self.world.reached("a node took groups to sleep that did not")
        self._send(peer, SaidOfSleep(self.node_id, call))

    def tell_snapshot(self, peer: int, word: SnapshotWord) -> None:
        """A word about a snapshot leaves."""
        self._send(peer, word)

    # --- clients

    def accept(self, slot: CallSlot) -> None:
        """A client's call has come; it breaks when the process dies. One that is stopped answers at once."""
        self.calls.add(slot)
        slot.ended = self.calls.discard
        if self.stopped:
            slot.answer(Unavailable("no_leader"))

    def submit(
        self, tenant: bytes, command: bytes, slot: CallSlot, *, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (), timeout_us: int,
    ) -> None:
        """A client's command."""
        slot.render = RENDERERS[packed.fields_of(command)[0]]
        self.propose(tenant, command, slot, lane=lane, places=places, timeout_us=timeout_us)

    def propose(
        self, tenant: bytes, command: bytes, slot: CallSlot, *, lane: Lane, places: tuple[bytes, ...], timeout_us: int,
    ) -> None:
        """A command of which somebody else reads the answer."""
        give_up_at_s = self.now_s + timeout_us / SECOND
        self.host.sink(tenant).put((lane, Pending(command, slot, give_up_at_s=give_up_at_s, places=places)))

    def submit_pop(
        self, tenant: bytes, slot: CallSlot, *, queue: bytes, group: bytes, batch: int, partitions: int, lease_ms: int,
        wait_us: int | None, commit_on_delivery: bool = False,
    ) -> None:
        """A client's pop."""
        lease_id = self.ids.uuid7()
        command = commands.pop(
            self.ids.request_id(), lease_id=lease_id, queue=queue, partition=None, group=group, mode="all", from_us=0,
            batch=batch, partitions=partitions, lease_ms=lease_ms, commit_on_delivery=commit_on_delivery,
            max_bytes=8 << 20)
        slot.render = render_pop
        self.pop(tenant, command, slot, lease_id=lease_id, queue=queue, reader=(group, None), wait_us=wait_us)

    def pop(
        self, tenant: bytes, command: bytes, slot: CallSlot, *, lease_id: bytes, queue: bytes, reader: Reader,
        wait_us: int | None,
    ) -> None:
        """A pop of which somebody else reads the answer."""
        answer_by_s = self.now_s + (2 if wait_us is None else wait_us / SECOND)
        pop = WaitingPop(
            command, lease_id=lease_id, queue=queue, reader=reader, slot=slot, waits=wait_us is not None,
            answer_by_s=answer_by_s)
        slot.withdraw = lambda: self.run(self._withdraw, tenant, pop)
        slot.hand_back = lambda: self.run(self._hand_back, tenant, lease_id)
        self.host.sink(tenant).put(Pop(pop))

    def read(self, tenant: bytes, query: bytes, slot: CallSlot, *, timeout_us: int) -> None:
        """A client's linearizable read."""
        slot.committed_before = self.rules.committed_index(tenant)
        self.host.sink(tenant).put(PendingRead(query, slot, give_up_at_s=self.now_s + timeout_us / SECOND))

    def _withdraw(self, tenant: bytes, pop: WaitingPop) -> None:
        self.world.reached("pop withdrawn")
        self.host.sink(tenant).put(Withdraw(pop))

    def _hand_back(self, tenant: bytes, lease_id: bytes) -> None:
        self.world.reached("pop handed back")
        self.host.sink(tenant).put(HandBack(lease_id))

    # --- the disk

    def _written(self, batch: Sequence[LogWrite]) -> None:
        for write in batch:
            self.groups[write.group_write.life].inbox.put(Written(write))

    def _flush(self) -> None:
        self.hardware.engine.flush()
        for driver in self.groups.opened.values():
            driver.release(self.wal)
        self.later(self.shape.flush_every_us, self._flush)

    # --- time

    def _tick(self) -> None:
        self.later(self.shape.tick_us, self._tick)
        self.host.tick(0.0)
        if self.shape.spare_ids:
            self.desk.step()

    def _say_how_it_is(self) -> None:
        """So does a process whose disk has failed too, and that leads nothing any more."""
        if not self.alive:
            return
        if self._backlog is None:
            boottime_us, boot_id = self.hardware.clocks.boottime_us(), self.hardware.clocks.boot_id
            for peer in self.shape.all_ids:
                if peer != self.node_id:
                    self._send(peer, SaidOfNode(self.node_id, NodeFrame(
                        boottime_us, boot_id, self.process_number, *self.host.quiet_summary(peer), 0, None)))
        self.world.after(FRAME_EVERY_US, self._say_how_it_is)

    def arm(self, life: int, at_us: int | None) -> None:
        """The next deadline of a group, in µs of BOOTTIME."""
        self.wheel.arm(life, at_us)
        self._turn_wheel_later()

    def _turn_wheel_later(self) -> None:
        """At the wheel's next tick from the earliest deadline on."""
        earliest_us = self.wheel.earliest_us()
        if earliest_us is None:
            return
        clocks, wheel_us = self.hardware.clocks, self.shape.wheel_us
        ticks_at_us = (max(earliest_us, clocks.boottime_us()) // wheel_us + 1) * wheel_us
        at_us = self.world.now_us + clocks.virtual_delay_us(ticks_at_us)
        if at_us < self._wheel_turns_at_us:
            self._wheel_turns_at_us = at_us
            self.later(at_us - self.world.now_us, self._turn_wheel, at_us)

    def _turn_wheel(self, at_us: int) -> None:
        if at_us != self._wheel_turns_at_us:
            return
        self._wheel_turns_at_us = NEVER_US
        for life in self.wheel.due(self.hardware.clocks.boottime_us()):
            self.host.due(life)
        self._turn_wheel_later()

    def __str__(self) -> str:
        return "; ".join(map(str, self.groups.values()))


def _founders(node_id: int, listed: tuple[int, ...], *, joined: bool) -> Configuration:
    """Who the members were before any entry said so, as `opening.founding_members` has it: who joins only learns."""
    if not joined:
        return Configuration(listed)
    return Configuration(tuple(node for node in listed if node != node_id), (), (node_id,))
