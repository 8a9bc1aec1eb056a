"""The node: which actors there are, in which order they start and stop.

Start: settings, directory, log, store, then the actors; the client port opens when the store is open (CL-130). Stop
(CL-131): the doors finish what is in hand, the group stops, the store is flushed, the log is closed.
"""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from queen_node import commands, config
from queen_node.applier import Applier, parse_skips
from queen_node.crash_points import Reached, crash_at
from queen_node.disk_gate import DiskGate
from queen_node.doors import build_handlers, operations, rules_of_fire, settle_garbage
from queen_node.doorway.children import DoorChildren
from queen_node.doorway.link import DoorLink
from queen_node.doorway.report import Sums
from queen_node.figures import Figures
from queen_node.group import Group, GroupSettings
from queen_node.group_actor import DUE, LET_POPS_GO, Debt, GroupActor, HandOver
from queen_node.http.handlers.operations import ApplyFailure, Groups, Health
from queen_node.http.server import Server, bind, limits_from, take_descriptors, unbound
from queen_node.keeper import Keeper
from queen_node.layout import CannotStart, Layout, Places, open_layout
from queen_node.metrics import Metrics
from queen_node.observability import LoopWatch
from queen_node.peering import Peering
from queen_node.peers import cluster_id, parse_peers
from queen_node.pipeline import Pipeline
from queen_node.state.machine import Machine
from queen_node.state.rocks import RocksEngine, StoreDamaged
from queen_node.state.store import Store
from queen_node.timer_wheel import TimerWheel, run_wheel
from raft.clock import GroupClock, ShiftedWallTime, SystemTime, TimeSource, estimate_after_restart, read_clocks
from raft.configurations import decode_configuration
from raft.core import Core, Role
from raft.disk import FileDisk
from raft.forgetful_disk import ForgetfulDisk, forget_notes
from raft.group import RaftGroup
from raft.laggards import supply
from raft.log import Log
from raft.log_writer import LogWriter
from raft.messages import Entry, HardState
from raft.quorum import Configuration
from raft.settings import Settings as RaftSettings
from raft.wal import Damaged, LogFailed, Recovered, Wal
from raft.wal_hand import ProcessHand

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SUCCESSOR_HEARD_MS = 1000  # it answered within (CL-54)
HAND_OVER_S, HAND_OVER_STEP_S = 3.0, 0.1
LIFE = 1  # of the default tenant's group
# Of a majority's silence: a leader proposes nothing; it lets somebody else lead (CL-52, CL-53).
LEADER_HOLDS_MS, LEADER_DEAF_MS = 1500, 3000
REPLAY_READ_BYTES = 4 << 20
PORT_PATIENCE_S = 5.0  # a door of a node that was killed holds the port until it has noticed
IDLE_TICK_MS = 50  # of a wheel that only serves the forgetting of ids, when timers are switched off


@dataclass(slots=True)
class Opened:
    """What is on this node's disk, open."""

    wal: Wal
    recovered: Recovered
    disk: FileDisk
    engine: RocksEngine
    machine: Machine
    is_new: bool  # nothing was here before
    layout: Layout


def open_data(settings: config.Settings) -> Opened:
    """Open the data directory. Raises CannotStart: one line that names what is wrong (CL-124)."""
    places = Places(Path(settings.raft_dir))
    members = parse_peers(settings.raft_peers) if settings.raft_peers else ()
    layout, is_new = open_layout(
        places, node_id=settings.node_id, founders=tuple(member.node_id for member in members),
        cluster_id=cluster_id(settings.cell_id, members).decode())
    disk = ForgetfulDisk() if settings.test_drop_unsynced else FileDisk()
    try:
        if not settings.test_drop_unsynced:
            forget_notes(places.log)
        wal, recovered = Wal.open(
            places.log, disk, segment_bytes=settings.segment_bytes, identity=bytes.fromhex(layout.directory_id),
            must_exist=not is_new)
        engine = RocksEngine(places.store)
        machine = Machine(Store(engine, life=LIFE))
    except (Damaged, StoreDamaged) as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(f"{error.filename or places.directory}: {error.strerror}") from error
    if recovered.torn is not None:
        log.info("torn tail of the log cut", tail=str(recovered.torn))
    _check_agreement(places, recovered, machine)
    return Opened(wal, recovered, disk, engine, machine, is_new, layout)


def _check_agreement(places: Places, recovered: Recovered, machine: Machine) -> None:
    """Log and store must be of one history: the store is never ahead of the log, nor behind its beginning (M-3)."""
    applied_index = machine.applied_index
    group = recovered.groups.get(LIFE)
    first_index, last_index = (group.first_index, group.last_index) if group is not None else (1, 0)
    if applied_index > last_index:
        raise CannotStart(
            f"{places.log}: the log ends at entry {last_index}, but {places.store} holds {applied_index}: "
            "log files are missing; replace this node")
    if applied_index < first_index - 1:
        raise CannotStart(
            f"{places.store}: holds entries up to {applied_index}, but {places.log} begins at {first_index}: "
            "the store is older than its log or empty; replace this node")


def open_group(opened: Opened, settings: config.Settings, source: TimeSource) -> RaftGroup:
    """The tenant's group as the disk has it."""
    group = opened.recovered.groups.get(LIFE)
    meta = opened.machine.store.meta
    if group is None:
        log_tail, hard_state = Log(), HardState(0, 0, 0)
        clock = GroupClock.first_ever(source)
    else:
        applied = meta.applied_index, meta.applied_term
        tail = _tail(opened.wal, meta.applied_index, group.last_index)
        log_tail = Log.restore(applied, tail)
        hard_state = group.hard_state
        estimate = estimate_after_restart(
            group.clock_us, group.clock_offset_us, group.reading, read_clocks(source))
        clock = GroupClock(source, estimate, meta.stamp_us)
    configuration = (
        decode_configuration(meta.configuration) if meta.configuration else Configuration(opened.layout.founders))
    core = Core(
        node_id=settings.node_id, configuration=configuration, log=log_tail, hard_state=hard_state,
        applied_index=meta.applied_index, settings=raft_settings(settings), random=random.Random(),
    )
    return RaftGroup(
        life=LIFE, core=core, clock=clock, stamp_of=commands.stamp_of, offset=(meta.offset_term, meta.offset_us))


def raft_settings(settings: config.Settings) -> RaftSettings:
    """In ticks of a heartbeat (cluster.md 6)."""
    def ticks(milliseconds: int) -> int:
        return max(2, -(-milliseconds // settings.heartbeat_ms))

    election_ticks = ticks(settings.election_ms)
    return RaftSettings(election_ticks=election_ticks, quorum_ticks=max(election_ticks, ticks(LEADER_DEAF_MS)))


def _tail(wal: Wal, applied_index: int, last_index: int) -> list[Entry]:
    entries: list[Entry] = []
    while applied_index + len(entries) < last_index:
        entries += wal.read(LIFE, applied_index + len(entries) + 1, last_index, REPLAY_READ_BYTES)
    return entries


def group_settings(settings: config.Settings) -> GroupSettings:
    """What the group proposes by itself, and its bounds."""
    return GroupSettings(
        batch_max_commands=settings.batch_max_commands,
        batch_max_bytes=settings.batch_max_bytes,
        hold_ticks=-(-LEADER_HOLDS_MS // settings.heartbeat_ms),
        firing=settings.timer_tick_ms > 0,
        fire=commands.fire(
            at_most=settings.timer_fire_batch, max_bytes=settings.timer_fire_max_bytes,
            rules=rules_of_fire(settings)),
        forget_ids=commands.forget_ids(at_most=1000, keep_at_least_s=settings.txn_window_min_s),
    )


class Doors(NamedTuple):
    """What serves clients: until it is drained, from the moment on that the status is told."""

    serve: Callable[[trio.TaskStatus[None]], Awaitable[None]]
    drain: Callable[[], None]


class Node:
    """One node, from its settings to its end. Implements `operations.HealthView`."""

    def __init__(
        self, settings: config.Settings, listener: socket.socket | None = None, children: DoorChildren | None = None,
    ) -> None:
        """Opens everything. listener: not bound yet; children: the doors that inherited it; without them the doors are
        in this process. Raises CannotStart."""
        self.settings = settings
        self._listener, self._children = listener or unbound(settings.bind_address), children
        self._reached: Reached = _crash_point(settings)
        system = SystemTime()
        if not system.is_exact:
            log.warning("no clock runs while the machine sleeps: it makes timers late", clock=system.clock_name)
        self._source: TimeSource = (
            ShiftedWallTime(system, Path(settings.test_clock_file)) if settings.test_clock_file else system)
        opened = open_data(settings)
        self._was_here_before = not opened.is_new
        self._engine = opened.engine
        self.metrics = Metrics(trio.current_time())
        self._figures = Figures(self.metrics)
        self._log_writer = LogWriter(
            opened.wal,
            ProcessHand(
                opened.disk, fsync_delay_ms=settings.test_fsync_delay_ms, drop_unsynced=settings.test_drop_unsynced,
                # Without points to stop at, a batch is one turn of the writer process instead of two.
                reached=self._reached if settings.test_crash_at else None),
            lambda: read_clocks(self._source), self._figures)
        self._wheel: TimerWheel[int] = TimerWheel(
            tick_us=(settings.timer_tick_ms or IDLE_TICK_MS) * 1000, now_us=self._source.boottime_us())
        debt = Debt()
        raft_group = open_group(opened, settings, self._source)
        self.replay_until = raft_group.core.log.last_index
        self._applier = Applier(
            opened.machine, reached=self._reached, count_slow=self._figures.count_slow,
            slow_command_ms=settings.slow_command_ms, skips=_skips(settings))
        self.actor = GroupActor(
            Group(raft_group, opened.machine, group_settings(settings)), self._applier, self._log_writer,
            arm=lambda at_us: self._wheel.arm(LIFE, at_us), count=self._figures.count, debt=debt,
            inbox_bound=settings.command_queue_depth, supply=self._supply)
        self._keeper = Keeper(
            opened.engine, {LIFE: opened.machine}, debt, release=self._release, reached=self._reached,
            directory=Path(settings.raft_dir), gate=DiskGate(settings.disk_high_percent, settings.disk_low_percent),
            tell_gates=lambda gates: None if children is None else children.tell_gates(gates))
        self.metrics.before_scrape.append(self._figures.gauges(
            self.actor, self._keeper, self._log_writer, opened.engine, self._source.wall_us))
        self.pipeline = Pipeline(
            self.actor, self.metrics, admit_max_bytes=settings.admit_max_mb << 20,
            admit_hold_s=settings.admit_hold_ms / 1000, margin_s=settings.pop_reply_margin_ms / 1000,
            gates=lambda: self._keeper.gates, jitter=random.random)
        self._lost: set[int] = set()  # members that only a snapshot could bring back; told once
        self._peering = self._join_peers(opened) if len(opened.layout.founders) > 1 else None
        self._failure: str | None = None  # why this node has stopped its work (CL-126)

    def _join_peers(self, opened: Opened) -> Peering:
        """What connects this node with the others of its cluster. Raises CannotStart."""
        settings, layout = self.settings, opened.layout
        if not settings.raft_peers:
            raise CannotStart(f"QUEEN_RAFT_PEERS: needed, the data belongs to a cluster of the nodes {layout.founders}")
        opened.wal.keep_for_laggards(settings.log_budget_mb << 20)
        peering = self.actor.peers = Peering(
            settings, layout, life=LIFE, inbox=self.actor.inbox, source=self._source,
            disk_used_percent=lambda: round(self._keeper.used_percent))
        return peering

    async def run(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until SIGTERM or SIGINT, or until cancelled. Starts with the port in use."""
        too_few = take_descriptors(self.settings.http_connections_max)
        if too_few is not None:
            log.warning(too_few)
        doors = self._own_door() if self._children is None else self._linked(self._children)
        port = await self._bind()
        settle_garbage()
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._write_log)
                async with trio.open_nursery() as actors:
                    actors.start_soon(self.actor.run)
                    actors.start_soon(self._turn_wheel)
                    actors.start_soon(self._keep)
                    actors.start_soon(LoopWatch(self.metrics).run)
                    if self._peering is not None:
                        await self._listen_to_peers(self._peering, actors)
                    await self._serve(doors, port, task_status)
                    if self._peering is not None:
                        await self._peering.close()
                    actors.cancel_scope.cancel()
                if self._failure is None:
                    await self._make_durable()
                self._log_writer.stop()
        finally:
            self._close_store()
        log.info("stopped")

    async def _listen_to_peers(self, peering: Peering, actors: trio.Nursery) -> None:
        try:
            await actors.start(peering.run)
        except OSError as error:
            raise CannotStart(f"QUEEN_RAFT_LISTEN: {peering.listen}: {error.strerror}") from error

    async def _bind(self) -> int:
        """Listen on the client port; which it is."""
        address, port = self.settings.bind_address, self.settings.port
        try:
            await bind(self._listener, address, port, PORT_PATIENCE_S if self._was_here_before else 0.0)
        except OSError as error:
            raise CannotStart(f"PORT: {address}:{port}: {error.strerror}") from error
        bound: int = self._listener.getsockname()[1]
        return bound

    def _own_door(self) -> Doors:
        """The door in this process."""
        settings, metrics = self.settings, self.metrics
        router = build_handlers(settings, self.pipeline, operations(settings, self, metrics), metrics)
        server = Server(router, limits_from(settings), metrics)

        def drain() -> None:
            server.drain()
            self.actor.inbox.put(LET_POPS_GO)

        return Doors(partial(server.run, [self._listener]), drain)

    def _linked(self, children: DoorChildren) -> Doors:
        """The doors in processes of their own, with our ends of their channels."""
        answers, sums = operations(self.settings, self, self.metrics), Sums(self.metrics)
        margin_s = self.settings.pop_reply_margin_ms / 1000
        children.link(lambda channel: DoorLink(channel, self.actor.inbox, answers, sums, margin_s=margin_s))

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            self._listener.close()  # the doors have it, and only they: it ends with them
            await children.run(self._keeper.gates, task_status)

        return Doors(serve, children.drain)

    @property
    def failed(self) -> bool:
        """Whether it stopped because it could not go on."""
        return self._children is not None and self._children.failed

    async def _serve(self, doors: Doors, port: int, task_status: trio.TaskStatus[int]) -> None:
        """Until a signal asks for the end and the doors have finished what was in hand, or one has failed."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as serving:
                async def serve(task_status: trio.TaskStatus[None]) -> None:
                    await doors.serve(task_status)
                    serving.cancel_scope.cancel()

                await serving.start(serve)
                log.info("serving", port=port, applied=self.actor.group.machine.applied_index, last=self.replay_until)
                task_status.started(port)

                async def drain_on_signal() -> None:
                    async for number in signals:
                        log.info("stopping", signal=signal.Signals(number).name)
                        await self._hand_over()
                        doors.drain()

                serving.start_soon(drain_on_signal)

    async def _hand_over(self) -> None:
        """Let somebody else lead before this node goes (CL-54); go on shutting down either way."""
        silent_ticks_max = -(-SUCCESSOR_HEARD_MS // self.settings.heartbeat_ms)
        core = self.actor.group.raft.core
        with trio.move_on_after(HAND_OVER_S):
            while self._peering is not None and core.role is Role.LEADER:
                self.actor.inbox.put(HandOver(silent_ticks_max))
                await trio.sleep(HAND_OVER_STEP_S)

    def _supply(self, node: int, index: int) -> None:
        """Send a member what it needs and this node has only on disk."""
        if not supply(self.actor.group.raft, self._log_writer.wal, node, index) and node not in self._lost:
            self._lost.add(node)
            log.error("a member is further behind than this node's log reaches: it must be replaced", node=node)

    async def _write_log(self) -> None:
        try:
            await self._log_writer.run()
        except LogFailed as error:
            self._stop_work("the log cannot be written", error)

    async def _keep(self) -> None:
        try:
            await self._keeper.run()
        except* StoreDamaged as errors:
            self._stop_work("the store cannot be flushed", errors.exceptions[0])

    async def _make_durable(self) -> None:
        """The last flush. One that fails costs only time: the log, which is still whole, is replayed."""
        try:
            await self._keeper.make_durable()
        except StoreDamaged as error:
            self._stop_work("the store cannot be flushed", error)

    def _close_store(self) -> None:
        try:
            self._engine.close()
        except StoreDamaged as error:  # RocksDB repeats here what it said when its disk failed
            if self._failure is None:
                self._stop_work("the store cannot be closed", error)

    def _stop_work(self, what: str, error: Exception) -> None:
        """A disk that failed stops the node's work, not its process: it stays to say so (CL-126, M-6)."""
        self._failure = f"{what}: {error}"
        log.error(
            f"{what}: this node does nothing more until its disk is well and it is restarted", error=str(error))
        self.actor.refuse_everything()

    async def _turn_wheel(self) -> None:
        await run_wheel(
            self._wheel, tick_ms=self.settings.timer_tick_ms or IDLE_TICK_MS, clock_us=self._source.boottime_us,
            tell=lambda _life: self.actor.inbox.put(DUE), observe_late_s=self.metrics.timers_tick_late_s.observe,
            work_done=lambda: self.actor.group.machine.applied_index)

    def _release(self, life: int, through_index: int) -> None:
        self._reached("wal.before_release")
        self._log_writer.wal.release(life, through_index)

    def health(self) -> Health:
        """This node's condition now (AD-7)."""
        actor = self.actor
        core = actor.group.raft.core
        poison, stopped = actor.poison, self._failure is not None
        leads = actor.group.raft.may_propose and poison is None and not stopped
        follows = core.leader not in (0, core.node_id)
        replayed = core.applied_index >= self.replay_until
        silent_ms = core.quorum_silent_ticks() * self.settings.heartbeat_ms if core.role is Role.LEADER else 0
        failure = None
        if poison is not None:
            failure = ApplyFailure(
                "deterministic" if poison.digest else "node-local", poison.log_index, poison.term, poison.digest,
                poison.command, None, poison.error)
        return Health(
            role="stopped" if stopped else "leader" if leads else "follower" if follows else "candidate",
            leader_known=leads or follows, leads_others=False, term=core.term, applied=core.applied_index,
            commit=core.commit_index, lag_ms=0, quorum_ack_ms=silent_ms if leads or follows else None,
            storage_ready=replayed, cluster_version=1, kinds=len(commands.Kind),
            groups=Groups(
                hosted=1, leading=int(leads), quiet=0, behind=int(not replayed), failed=(LIFE,) if poison else ()),
            failure=failure, skipped=tuple(self._applier.skipped))


def _crash_point(settings: config.Settings) -> Reached:
    try:
        return crash_at(settings.test_crash_at)
    except ValueError as error:
        raise CannotStart(f"QUEEN_TEST_CRASH_AT: {error}") from error


def _skips(settings: config.Settings) -> dict[int, str]:
    try:
        return parse_skips(settings.raft_apply_skip, LIFE)
    except ValueError as error:
        raise CannotStart(f"QUEEN_RAFT_APPLY_SKIP: {error}") from error


async def run_node(environ: Mapping[str, str], settings: config.Settings) -> bool:
    """Boot and serve. False: it stopped because it could not go on. Raises CannotStart."""
    for line in config.warnings(settings, environ):
        log.warning(line)
    log.info("settings", **{name: value for name, value in config.effective(settings) if value})
    if settings.replicator != "local" and not settings.raft_peers:  # never a single node in silence (CL-5)
        raise CannotStart("QUEEN_RAFT_PEERS: needed, QUEEN_RAFT_REPLICATOR says that this node is one of a cluster")
    listener = unbound(settings.bind_address)
    # First of all: a door needs as long to start as this node needs to open its store.
    children = DoorChildren(settings.doors, listener, environ) if settings.doors else None
    node = Node(settings, listener, children)
    await node.run()
    return not node.failed


