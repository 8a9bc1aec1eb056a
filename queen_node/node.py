"""The node: which actors there are, in which order they start and stop.

Start: settings, directory, log, store, then the actors; the client port opens when the store is open (CL-130). Stop
(CL-131): the doors finish what is in hand, the group stops, the store is flushed, the log is closed.
"""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from queen_node import commands, config
from queen_node.antechamber import Antechamber
from queen_node.applier import Applier, parse_skips
from queen_node.condition import condition
from queen_node.crash_points import Reached, crash_at
from queen_node.debt import Debt
from queen_node.disk_gate import DiskGate, said_percent, used_percent
from queen_node.doors import build_handlers, operations, put_off_garbage, ready_limits, rules_of_fire, settle_garbage
from queen_node.doorway.children import DoorChildren
from queen_node.doorway.link import DoorLink
from queen_node.doorway.report import Sums
from queen_node.figures import Figures
from queen_node.forced_recovery import recover_alone
from queen_node.group import Group, GroupSettings
from queen_node.group_actor import GroupActor
from queen_node.host import Host
from queen_node.http.handlers.membership import MembershipHandlers
from queen_node.http.handlers.operations import Health
from queen_node.http.routes import Handler
from queen_node.http.server import Server, bind, limits_from, setting_of, take_descriptors, unbound
from queen_node.keeper import Keeper, release_log
from queen_node.layout import CannotStart, Layout, write_layout
from queen_node.membership import MembershipDesk
from queen_node.membership_view import MembershipView
from queen_node.metrics import Metrics
from queen_node.observability import LoopWatch
from queen_node.opening import (
    CELL_LIFE,
    close_data,
    glance_at,
    open_data,
    open_group,
    open_machine,
    raft_settings,
    time_source,
    untold_flip,
)
from queen_node.pass_end import PassEnd
from queen_node.peering import NODE_FRAME_EVERY_S, GroupPeers, Peering, Report
from queen_node.peers import parse_peers
from queen_node.pipeline import Pipeline
from queen_node.readiness import QuorumWatch
from queen_node.scrub import Pace, Scrub
from queen_node.sleepers import Sleepers
from queen_node.snapshot_actor import SnapshotActor
from queen_node.state.members import members_of
from queen_node.state.rocks import StoreDamaged
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.timer_wheel import TimerWheel, run_wheel
from queen_node.versions import unreadable
from raft.clock import read_clocks
from raft.core import Role
from raft.group import RaftGroup
from raft.laggards import supply
from raft.log_writer import LogWriter
from raft.wal import LogFailed
from raft.wal_hand import ProcessHand

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SUCCESSOR_HEARD_MS = 1000  # it answered within (CL-54)
HAND_OVER_S, HAND_OVER_STEP_S = 3.0, 0.1
LEADER_HOLDS_MS = 1500  # of a majority's silence: then a leader proposes nothing (CL-52)
PORT_PATIENCE_S = 5.0  # a door of a node that was killed holds the port until it has noticed
SWEPT_AT_ONCE = 64  # rows: half a millisecond, after which others are served (M-50)
# In which QUEEN_RAFT_KV_SWEEP_LIMIT rows of a backlog are swept. With 20 ms, 25,000 rows a second, the p99 of other
# calls rose by a third (bench/kv_sweep).
SWEEP_STEP_US = 50_000
IDLE_TICK_MS = 50  # of a wheel that only serves the forgetting of ids, when timers are switched off


def group_settings(settings: config.Settings) -> GroupSettings:
    """What the group proposes by itself, and its bounds."""
    swept = min(SWEPT_AT_ONCE, settings.kv_sweep_limit)
    return GroupSettings(
        batch_max_commands=settings.batch_max_commands,
        batch_max_bytes=settings.batch_max_bytes,
        hold_ticks=-(-LEADER_HOLDS_MS // settings.heartbeat_ms),
        firing=settings.timer_tick_ms > 0,
        fire=commands.fire(
            at_most=settings.timer_fire_batch, max_bytes=settings.timer_fire_max_bytes,
            rules=rules_of_fire(settings)),
        forget_ids=commands.forget_ids(at_most=1000, keep_at_least_s=settings.txn_window_min_s),
        sweep_kv=commands.sweep_kv(at_most=swept),
        sweep_every_us=settings.kv_sweep_ms * 1000,
        sweep_pause_us=SWEEP_STEP_US * swept // settings.kv_sweep_limit,
    )


class Doors(NamedTuple):
    """What serves clients: until it is drained, from the moment on that the status is told."""

    serve: Callable[[trio.TaskStatus[None]], Awaitable[None]]
    drain: Callable[[], None]


class Node:
    """One node, from its settings to its end. Implements `operations.HealthView`."""

    def __init__(
        self, settings: config.Settings, listener: socket.socket | None = None, children: DoorChildren | None = None,
        pass_end: PassEnd | None = None,
    ) -> None:
        """Opens everything. listener: not bound yet; children: the doors that inherited it; without them the doors are
        in this process. Raises CannotStart."""
        self.settings = settings
        self._listener, self._children = listener or unbound(settings.bind_address), children
        self._reached: Reached = _crash_point(settings)
        self._source = time_source(settings)
        opened = open_data(settings)
        if settings.raft_force_recover:
            recover_alone(opened, settings, read_clocks(self._source))
            close_data(opened)
            opened = open_data(settings)
        self._opened = opened
        self.metrics = Metrics(trio.current_time())
        self._figures = Figures(self.metrics)
        self._log_writer = LogWriter(
            opened.wal,
            ProcessHand(
                opened.disk, fsync_delay_ms=settings.test_fsync_delay_ms, drop_unsynced=settings.test_drop_unsynced,
                # Without points to stop at, a batch is one turn of the writer process instead of two.
                reached=self._reached if settings.test_crash_at else None),
            lambda: read_clocks(self._source), self._figures, later=(pass_end or PassEnd()).leave)
        self._wheel: TimerWheel[int] = TimerWheel(
            tick_us=(settings.timer_tick_ms or IDLE_TICK_MS) * 1000, now_us=self._source.boottime_us())
        self._debt = Debt()
        self._group_settings = group_settings(settings)
        self._skipping: list[Applier] = []
        self._peering = self._join_peers() if settings.raft_peers or len(opened.layout.founders) > 1 else None
        self._snapshots = SnapshotActor(
            opened.engine, opened.incarnations, groups=self._groups, peers=self._peering, reached=self._reached,
            has_room=lambda: not self._keeper.gates.storage_full)
        self.host = Host(settings.node_id, self._open_actor, Antechamber(
            at_most_tenants=settings.max_tenants, bound=settings.command_queue_depth,
            mint=lambda: random.randbytes(16)),
            partial(self._make_sleepers, self._peering) if self._peering is not None else None,
            settings.heartbeat_ms / 1000, partial(glance_at, opened))
        too_new = unreadable(_version_in(self.host), config.reads_format(settings))
        if too_new is not None:
            raise CannotStart(f"{opened.places.store}: {too_new}")
        self._scrub = Scrub(
            opened.wal, log_directory=opened.places.log, identity=bytes.fromhex(opened.layout.directory_id),
            store_directory=opened.places.store, pace=Pace(settings.scrub_every_s, settings.scrub_rows_per_s),
            metrics=self.metrics)
        self._keeper = Keeper(
            opened.engine, self._applied, self._debt, release=self._release, reached=self._reached,
            directory=Path(settings.raft_dir), gate=DiskGate(settings.disk_high_percent, settings.disk_low_percent),
            tell_gates=lambda gates: None if children is None else children.tell_gates(gates),
            used_percent=_disk_of(settings), scrub=self._scrub)
        self.metrics.before_scrape.append(self._figures.gauges(
            self.host, self._keeper, self._log_writer, opened.engine, self._source))
        self.pipeline = Pipeline(
            self.host, self.metrics, admit_max_bytes=settings.admit_max_mb << 20,
            admit_hold_s=settings.admit_hold_ms / 1000, margin_s=settings.pop_reply_margin_ms / 1000,
            gates=lambda: self._keeper.gates, jitter=random.random)
        self._membership = MembershipDesk(
            layout=opened.layout, keep_layout=self._keep_layout,
            listed=parse_peers(settings.raft_peers) if settings.raft_peers else (), groups=self._groups,
            others=self._peering, heartbeat_s=settings.heartbeat_ms / 1000, election_s=settings.election_ms / 1000,
            lag_max=settings.promote_max_lag, version_every_s=settings.cluster_version_ms / 1000,
            reads=config.reads_format(settings), on_version=self.host.hear_version, on_removed=self._removed,
            are_open=lambda: self.host.are_open)
        self._quorum = QuorumWatch(usual_ms=2 * settings.heartbeat_ms + round(NODE_FRAME_EVERY_S * 1000))
        self._failure: str | None = None  # why this node has stopped its work (CL-126)

    def _open_actor(self, life: int, founding: TenantRow | None, members: MembersRow) -> GroupActor:
        """A group as this node's disk has it, with its place among the actors. Raises CannotStart."""
        opened, settings, peering = self._opened, self.settings, self._peering
        machine = open_machine(opened, life)
        raft_group = open_group(opened, settings, self._source, life, machine, founding, members)
        skips = _skips(settings, life)
        applier = Applier(
            machine, life=life, reached=self._reached, count_slow=self._figures.count_slow,
            slow_command_ms=settings.slow_command_ms, skips=skips)
        if skips:
            self._skipping.append(applier)
        actor = GroupActor(
            Group(raft_group, machine, self._group_settings), applier, self._log_writer,
            arm=partial(self._wheel.arm, life), count=self._figures.count, debt=self._debt,
            inbox_bound=settings.command_queue_depth, supply=partial(self._supply, raft_group))
        actor.snapshots = self._snapshots
        if peering is not None:
            actor.peers = GroupPeers(peering, life)
        flipped = opened.incarnations.flipped(life)
        if flipped is not None and untold_flip(opened, life) is None:
            self._snapshots.log_told(life, flipped[0])
        return actor

    def _make_sleepers(self, peering: Peering, host: Host) -> Sleepers:
        settings = self.settings
        host.hear_version(_version_in(host))
        return Sleepers(
            settings.node_id, host, election_ticks=raft_settings(settings).election_ticks,
            tick_s=settings.heartbeat_ms / 1000, boottime_us=self._source.boottime_us,
            tell=lambda node, call: peering.tell(CELL_LIFE, node, call), put=host.tell)

    def _keep_layout(self, layout: Layout) -> None:
        self._opened.layout = write_layout(self._opened.places, layout)

    def _groups(self) -> Mapping[int, GroupActor]:
        return self.host.groups

    def _join_peers(self) -> Peering:
        """What connects this node with the others of its cluster. Raises CannotStart."""
        settings, opened = self.settings, self._opened
        if not settings.raft_peers:
            raise CannotStart(
                f"QUEEN_RAFT_PEERS: needed, the data belongs to a cluster of the nodes {opened.layout.founders}")
        opened.wal.keep_for_laggards(settings.log_budget_mb << 20)
        peering = Peering(
            settings, opened.layout, source=self._source, report=self._report, hear_report=self._hear_report,
            log_place=opened.wal.synced_place)
        self.metrics.before_scrape.append(partial(self._figures.read_peers, peering))
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
                    actors.start_soon(self.host.run)
                    actors.start_soon(self._turn_wheel)
                    actors.start_soon(self._keep)
                    actors.start_soon(self._give_and_take_snapshots)
                    actors.start_soon(LoopWatch(self.metrics).run)
                    actors.start_soon(self._membership.run)
                    if self._peering is not None:
                        self._peering.on_snapshot = self._snapshots.hear
                        self._peering.on_operator = self._membership.hear
                        self._membership.step(trio.current_time())  # before anybody is let in
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
            await actors.start(peering.run, self.host)
        except OSError as error:
            raise CannotStart(f"QUEEN_RAFT_LISTEN: {peering.listen}: {error.strerror}") from error

    async def _bind(self) -> int:
        """Listen on the client port; which it is."""
        address, port = self.settings.bind_address, self.settings.port
        try:
            await bind(self._listener, address, port, 0.0 if self._opened.is_new else PORT_PATIENCE_S)
        except OSError as error:
            raise CannotStart(f"{setting_of(error)}: {address}:{port}: {error.strerror}") from error
        bound: int = self._listener.getsockname()[1]
        return bound

    def _own_door(self) -> Doors:
        """The door in this process."""
        settings, metrics = self.settings, self.metrics
        router = build_handlers(settings, self.pipeline, self._about_node(), metrics)
        server = Server(router, limits_from(settings), metrics)

        def drain() -> None:
            server.drain()
            self.host.let_pops_go()

        return Doors(partial(server.run, [self._listener]), drain)

    def _linked(self, children: DoorChildren) -> Doors:
        """The doors in processes of their own, with our ends of their channels."""
        answers, sums = self._about_node(), Sums(self.metrics)
        margin_s = self.settings.pop_reply_margin_ms / 1000
        children.link(lambda channel: DoorLink(channel, self.host, answers, sums, margin_s=margin_s))

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            self._listener.close()  # the doors have it, and only they: it ends with them
            await children.run(self._keeper.gates, task_status)

        return Doors(serve, children.drain)

    def _about_node(self) -> Mapping[str, Handler]:
        """What answers questions after the node and the cell's members."""
        view = MembershipView(self._membership, self._disk_of)
        return {
            **operations(self.settings, self, self.metrics), **MembershipHandlers(self._membership, view).handlers()}

    def _disk_of(self, node: int) -> int | None:
        percent = self._keeper.used_percent if node == self.settings.node_id else self._keeper.disk_of(node)
        return None if percent is None else int(percent)

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
                log.info("serving", port=port, groups=len(self.host.groups))
                task_status.started(port)
                self.host.serves.set()

                async def drain_on_signal() -> None:
                    async for number in signals:
                        log.info("stopping", signal=signal.Signals(number).name)
                        await self._hand_over()
                        doors.drain()

                serving.start_soon(drain_on_signal)

    async def _hand_over(self) -> None:
        """Let somebody else lead before this node goes (CL-54); go on shutting down either way."""
        silent_ticks_max = -(-SUCCESSOR_HEARD_MS // self.settings.heartbeat_ms)
        with trio.move_on_after(HAND_OVER_S):
            while True:
                if self._peering is None or not self.host.hand_over(silent_ticks_max):
                    return
                await trio.sleep(HAND_OVER_STEP_S)

    def _supply(self, group: RaftGroup, node: int, index: int) -> None:
        """Send a member what it needs and this node has only on disk: as entries, or as a snapshot."""
        if not supply(group, self._log_writer.wal, node, index):
            self._snapshots.send_to(group.life, node)

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

    async def _give_and_take_snapshots(self) -> None:
        try:
            await self._snapshots.run()
        except* StoreDamaged as errors:
            self._stop_work("the store cannot take a snapshot", errors.exceptions[0])

    async def _make_durable(self) -> None:
        """The last flush. One that fails costs only time: the log, which is still whole, is replayed."""
        try:
            await self._keeper.make_durable()
        except StoreDamaged as error:
            self._stop_work("the store cannot be flushed", error)

    def _close_store(self) -> None:
        try:
            self._opened.engine.close()
        except StoreDamaged as error:  # RocksDB repeats here what it said when its disk failed
            if self._failure is None:
                self._stop_work("the store cannot be closed", error)

    def _stop_work(self, what: str, error: Exception) -> None:
        """A disk that failed stops the node's work, not its process: it stays to say so (CL-126, M-6)."""
        self._failure = f"{what}: {error}"
        log.error(
            f"{what}: this node does nothing more until its disk is well and it is restarted", error=str(error))
        self.host.refuse_everything()

    def _removed(self) -> None:
        """This node is a member of the cell no longer: it neither votes nor serves (CL-103)."""
        if self._failure is None:
            self._failure = "removed from the cluster"
            log.warning("this node was removed from the cluster and does nothing more: stop it; to be added again it "
                        "starts with an empty QUEEN_RAFT_DIR and QUEEN_RAFT_JOIN=1")
            self.host.refuse_everything()

    async def _turn_wheel(self) -> None:
        await run_wheel(
            self._wheel, tick_ms=self.settings.timer_tick_ms or IDLE_TICK_MS, clock_us=self._source.boottime_us,
            tell=self.host.due, observe_late_s=self.metrics.timers_tick_late_s.observe,
            work_done=lambda: self._debt.entries)

    def _release(self, life: int, through_index: int) -> None:
        self._reached("wal.before_release")
        release_log(self._log_writer.wal, self._opened.incarnations, life, through_index)

    def _applied(self) -> dict[int, int]:
        groups = self.host.groups
        opened = {life: actor.group.machine.applied_index for life, actor in groups.opened.items()}
        return opened | groups.closed_applied()

    def _report(self) -> Report:
        """What the other nodes should know of this one, now."""
        core = self.host.cell.group.raft.core
        silent_ms = None
        if core.role is Role.LEADER:
            silent_ms = core.quorum_silent_ticks() * self.settings.heartbeat_ms
            self._quorum.hear(silent_ms, trio.current_time())
        # The percentage is rounded down, so that it reaches a bound there when it does here.
        return Report(int(self._keeper.used_percent), silent_ms, self._log_writer.wal.synced_place)

    def _hear_report(self, node: int, said: Report) -> None:
        self._keeper.hear_disk(node, said.disk_used_percent)
        if said.quorum_silent_ms is not None and node == self.host.cell.group.raft.core.leader:
            self._quorum.hear(said.quorum_silent_ms, trio.current_time())

    def health(self) -> Health:
        """This node's condition now (AD-7)."""
        self._report()  # if it leads, the silence of its majority
        return condition(
            self.host, stopped=self._failure is not None, is_damaged=bool(self._scrub.damage),
            quorum_silent_ms=self._quorum.silent_ms(trio.current_time()),
            limits=ready_limits(self.settings), caught_up_entries=self.settings.ready_lag_entries,
            cluster_version=self._membership.row.cluster_version,
            skipped=[skip for applier in self._skipping for skip in applier.skipped])


def _version_in(host: Host) -> int:
    """The cluster's version, as group 0's state on this disk has it."""
    return members_of(host.cell.group.machine.store.committed()).cluster_version


def _crash_point(settings: config.Settings) -> Reached:
    try:
        return crash_at(settings.test_crash_at)
    except ValueError as error:
        raise CannotStart(f"QUEEN_TEST_CRASH_AT: {error}") from error


def _disk_of(settings: config.Settings) -> Callable[[], float]:
    """Tells how full the data directory's volume is."""
    if settings.test_disk_file:
        return partial(said_percent, Path(settings.test_disk_file))
    return partial(used_percent, Path(settings.raft_dir))


def _skips(settings: config.Settings, life: int) -> dict[int, str]:
    try:
        return parse_skips(settings.raft_apply_skip, life)
    except ValueError as error:
        raise CannotStart(f"QUEEN_RAFT_APPLY_SKIP: {error}") from error


async def run_node(environ: Mapping[str, str], settings: config.Settings) -> bool:
    """Boot and serve. False: it stopped because it could not go on. Raises CannotStart."""
    for line in config.warnings(settings, environ):
        log.warning(line)
    log.info("settings", **{name: value for name, value in config.effective(settings) if value})
    if settings.replicator != "local" and not settings.raft_peers:  # never a single node in silence (CL-5)
        raise CannotStart("QUEEN_RAFT_PEERS: needed, QUEEN_RAFT_REPLICATOR says that this node is one of a cluster")
    put_off_garbage()
    listener = unbound(settings.bind_address)
    # First of all: a door needs as long to start as this node needs to open its store.
    pass_end = PassEnd()
    children = DoorChildren(settings.doors, listener, environ, pass_end) if settings.doors else None
    node = Node(settings, listener, children, pass_end)
    await node.run()
    return not node.failed


