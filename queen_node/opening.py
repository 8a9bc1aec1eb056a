"""What is on this node's disk, opened: the log, the store, and each group as they have it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import structlog

from queen_node import commands, config
from queen_node.closed_groups import Glance
from queen_node.layout import CannotStart, Layout, Places, open_layout
from queen_node.peers import cluster_id, parse_peers
from queen_node.state.incarnations import Incarnations, UnknownRow
from queen_node.state.machine import Machine
from queen_node.state.members import was_known
from queen_node.state.rocks import RocksEngine, StoreDamaged
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.store import Store, read_meta
from raft.clock import (
    GroupClock,
    ShiftedWallTime,
    SystemTime,
    TimeSource,
    estimate_after_restart,
    read_clocks,
)
from raft.configurations import decode_configuration
from raft.core import Core
from raft.disk import FileDisk
from raft.forgetful_disk import ForgetfulDisk, forget_notes
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import Entry, HardState
from raft.quorum import Configuration
from raft.settings import Settings as RaftSettings
from raft.snapshot_start import log_was_told, start_behind_flip
from raft.wal import Damaged, Recovered, RecoveredGroup, Wal

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CELL_LIFE = 0  # of group 0
LEADER_DEAF_MS = 3000  # of a majority's silence: then a leader lets somebody else lead (CL-53)
REPLAY_READ_BYTES = 4 << 20


@dataclass(slots=True)
class Opened:
    """The open data directory."""

    places: Places
    wal: Wal
    recovered: Recovered
    disk: FileDisk
    engine: RocksEngine
    incarnations: Incarnations
    is_new: bool  # nothing was here before
    layout: Layout
    listed: tuple[int, ...]  # the nodes that the settings name
    refused_key: bytes = b""  # see Store


def time_source(settings: config.Settings) -> TimeSource:
    """This machine's clocks, the wall clock as a test hook shifts it. Raises CannotStart."""
    system = SystemTime()
    if not system.is_exact:
        log.warning("no clock runs while the machine sleeps: it makes timers late", clock=system.clock_name)
    if not settings.test_clock_file:
        return system
    shifted = ShiftedWallTime(system, Path(settings.test_clock_file))
    try:
        read_clocks(shifted)
    except (ValueError, OSError) as error:
        raise CannotStart(f"QUEEN_TEST_CLOCK_FILE: {settings.test_clock_file}: must hold whole ms: {error}") from error
    return shifted


def open_data(settings: config.Settings) -> Opened:
    """Open the data directory. Raises CannotStart: one line that names what is wrong (CL-124)."""
    places = Places(Path(settings.raft_dir))
    members = parse_peers(settings.raft_peers) if settings.raft_peers else ()
    layout, is_new = open_layout(
        places, node_id=settings.node_id, founders=tuple(member.node_id for member in members),
        cluster_id=cluster_id(settings.cell_id, members).decode(), joins=settings.raft_join)
    disk = ForgetfulDisk() if settings.test_drop_unsynced else FileDisk()
    try:
        if not settings.test_drop_unsynced:
            forget_notes(places.log)
        wal, recovered = Wal.open(
            places.log, disk, segment_bytes=settings.segment_bytes, identity=bytes.fromhex(layout.directory_id),
            must_exist=not is_new)
        engine = RocksEngine(places.store)
        incarnations = Incarnations(engine)
    except (Damaged, StoreDamaged) as error:
        raise CannotStart(str(error)) from error
    except UnknownRow as error:
        raise CannotStart(f"{places.store}: {error}") from error
    except OSError as error:
        raise CannotStart(f"{error.filename or places.directory}: {error.strerror}") from error
    if recovered.torn is not None:
        log.info("torn tail of the log cut", tail=str(recovered.torn))
    listed = tuple(member.node_id for member in members)
    return Opened(
        places, wal, recovered, disk, engine, incarnations, is_new, layout, listed,
        refused_key=settings.test_apply_refuse_key.encode())


def close_data(opened: Opened) -> None:
    """Close it, whole on the disk. Raises StoreDamaged."""
    opened.engine.flush()
    opened.engine.close()
    opened.wal.close()


def open_machine(opened: Opened, life: int) -> Machine:
    """A group's state. Raises CannotStart when it does not go with the log."""
    try:
        machine = Machine(Store(
            opened.engine, life=life, incarnation=opened.incarnations.current(life), refused_key=opened.refused_key))
    except StoreDamaged as error:
        raise CannotStart(str(error)) from error
    _check_agreement(opened, life, machine.applied_index)
    return machine


def glance_at(opened: Opened, life: int) -> Glance | None:
    """What there is of a group that sleeps, without opening it; None where that is not enough: a snapshot was flipped
    to. Raises CannotStart as opening it would: damage shows at the start (CL-124).
    """
    if opened.incarnations.flipped(life) is not None:
        return None
    try:
        meta = read_meta(opened.engine, life, opened.incarnations.current(life))
    except StoreDamaged as error:
        raise CannotStart(str(error)) from error
    _check_agreement(opened, life, meta.applied_index)
    group = opened.recovered.groups.get(life)
    return Glance(meta.applied_index, group.last_index if group is not None else 0)


def _check_agreement(opened: Opened, life: int, applied_index: int) -> None:
    """Log and store must be of one history: the store is never ahead of the log, nor behind its beginning (M-3).

    Unless it was flipped to a snapshot just there, and the log was not told yet (M-61).
    """
    flipped = untold_flip(opened, life)
    if flipped is not None and flipped[0] == applied_index:
        return
    places = opened.places
    group = opened.recovered.groups.get(life)
    first_index, last_index = (group.first_index, group.last_index) if group is not None else (1, 0)
    if applied_index > last_index:
        raise CannotStart(
            f"{places.log}: the log of group {life} ends at entry {last_index}, but {places.store} holds "
            f"{applied_index}: log files are missing; replace this node")
    if applied_index < first_index - 1:
        raise CannotStart(
            f"{places.store}: holds entries of group {life} up to {applied_index}, but {places.log} begins at "
            f"{first_index}: the store is older than its log or empty; replace this node")


def untold_flip(opened: Opened, life: int) -> tuple[int, int] | None:
    """The entry (index, term) of a flip to a snapshot that the group's log does not know of; None: there is none."""
    flipped = opened.incarnations.flipped(life)
    if flipped is None or log_was_told(opened.recovered.groups.get(life), *flipped):
        return None
    return flipped


def open_group(
    opened: Opened, settings: config.Settings, source: TimeSource, life: int, machine: Machine,
    founding: TenantRow | None = None, members: MembersRow | None = None,
) -> RaftGroup:
    """A group's Raft as the disk has it. founding: the row of its tenant; None: it is group 0. members: as it says.
    """
    group, meta = opened.recovered.groups.get(life), machine.store.meta
    flipped = untold_flip(opened, life)
    if flipped is not None:
        log_tail, hard_state = start_behind_flip(group, *flipped)
    elif group is not None:
        tail = _tail(opened.wal, life, meta.applied_index, group.last_index)
        log_tail, hard_state = Log.restore((meta.applied_index, meta.applied_term), tail), group.hard_state
    else:
        log_tail, hard_state = Log(), HardState()
    clock = open_clock(source, group, meta.stamp_us, founding)
    if meta.configuration:
        configuration = decode_configuration(meta.configuration)
    else:
        configuration = first_members(
            settings.node_id, bytes.fromhex(opened.layout.directory_id),
            founding_members(opened.layout, opened.listed), founding, members or MembersRow([]))
    core = Core(
        node_id=settings.node_id, configuration=configuration,
        log=log_tail, hard_state=hard_state, applied_index=meta.applied_index, settings=raft_settings(settings),
        random=random.Random(), directory_id=bytes.fromhex(opened.layout.directory_id))
    return RaftGroup(
        life=life, core=core, clock=clock, stamp_of=commands.stamp_of, offset=(meta.offset_term, meta.offset_us))


def open_clock(
    source: TimeSource, group: RecoveredGroup | None, stamp_us: int, founding: TenantRow | None,
    kind: type[GroupClock] = GroupClock,
) -> GroupClock:
    """A group's clock as log and state have it. stamp_us: of the last entry applied; founding: as in `open_group`.

    A log may know of a group no more than a term and a vote: nobody led it yet, and what its members think the time is
    was too weak to be recorded. Then it begins as a new one does, else its first leader's clock would begin at zero,
    and the next one's years later: with everything due that was to wait.
    """
    if group is None or not (group.clock_us or group.last_index):
        clock = kind.first_ever(source) if founding is None else kind.born(source, founding.created_at_us)
    else:
        estimate = estimate_after_restart(group.clock_us, group.clock_offset_us, group.reading, read_clocks(source))
        clock = kind(source, estimate, stamp_us, group.terms[-1][1])
    if founding is not None:
        clock.see_stamp(founding.created_at_us)
    clock.see_stamp(stamp_us)
    return clock


def founding_members(layout: Layout, listed: tuple[int, ...]) -> Configuration:
    """Who the members were before any entry said so. A node that was added later only learns until one does, and so
    does one that has not met the others of its list yet."""
    founders = layout.founders or tuple(node for node in listed if node != layout.node_id)
    learners = () if layout.node_id in founders else (layout.node_id,)
    directories = {node: bytes.fromhex(each) for node, each in layout.directories.items()}
    directories[layout.node_id] = bytes.fromhex(layout.directory_id)
    return Configuration(founders, (), learners).named(directories)


def first_members(
    node_id: int, directory_id: bytes, of_cell: Configuration, founding: TenantRow | None, members: MembersRow,
) -> Configuration:
    """Who the members of a group were before any entry of its own said so. directory_id: of this node; of_cell:
    `founding_members`; founding, members: as of `open_group`.

    Its founders, and so this node, if it was one with the data directory that it has now. A node that lost its disk and
    was added again finds its id among the founders of groups that are older than that: with nothing of what it had
    acknowledged there it would vote a leader in that lacks it. It learns there until an entry says more (CL-105).
    """
    if founding is None or not founding.configuration:
        return of_cell
    if node_id in of_cell.voters or was_known(members, node_id, directory_id, founding.life):
        return decode_configuration(founding.configuration)
    return of_cell


def raft_settings(settings: config.Settings) -> RaftSettings:
    """In ticks of a heartbeat (cluster.md 6)."""
    def ticks(milliseconds: int) -> int:
        return max(2, -(-milliseconds // settings.heartbeat_ms))

    election_ticks = ticks(settings.election_ms)
    return RaftSettings(election_ticks=election_ticks, quorum_ticks=max(election_ticks, ticks(LEADER_DEAF_MS)))


def _tail(wal: Wal, life: int, applied_index: int, last_index: int) -> list[Entry]:
    entries: list[Entry] = []
    while applied_index + len(entries) < last_index:
        entries += wal.read(life, applied_index + len(entries) + 1, last_index, REPLAY_READ_BYTES)
    return entries
