"""The clock of a group that a node finds on its disk (M-22)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from queen_node import commands, config
from queen_node.layout import LAYOUT_VERSION, Layout, Places
from queen_node.opening import Opened, open_group
from queen_node.state.incarnations import Incarnations
from queen_node.state.machine import Machine
from queen_node.state.rocks import RocksEngine
from queen_node.state.rows import TenantRow
from queen_node.state.store import Store
from raft.clock import Estimate, read_clocks
from raft.disk import FileDisk
from raft.group import RaftGroup
from raft.messages import Entry, EntryKind, HardState
from raft.wal import GroupWrite, Wal
from tests.support.fake_disk import FakeDisk
from tests.support.memory_engine import MemoryEngine
from tests.unit.group.driver import SECOND_US, START_US, HandClock

DIRECTORY = Path("log")
HOUR_S = 3600
LIFE = 1


def found(disk: FakeDisk, clocks: HandClock, row: TenantRow | None = None) -> RaftGroup:
    """The group as a new process finds it, with a store that has nothing of it. row: of its tenant."""
    wal, recovered = Wal.open(DIRECTORY, disk.copy())
    engine = MemoryEngine()
    machine = Machine(Store(engine, life=LIFE))
    opened = Opened(
        Places(DIRECTORY), wal, recovered, cast(FileDisk, disk), cast(RocksEngine, None), Incarnations(engine),
        is_new=False,
        layout=Layout(LAYOUT_VERSION, 1, "00" * 16, (1,), "cell"), listed=())
    return open_group(opened, config.load({}), clocks, LIFE, machine, row)


def test_a_group_that_was_quiet_for_an_hour_has_not_lost_the_hour() -> None:
    """M-22: the clock goes on from when it was recorded, not from when the log was last written on.

    An idle log names its clocks every 10 s and records no group's: counted from there, each restart of a quiet node
    made all timers late by the time since its last write.
    """
    clocks, disk = HandClock(), FakeDisk()
    wal, _ = Wal.open(DIRECTORY, disk)
    entry = Entry(1, 1, EntryKind.BLANK, b"")
    wal.write([GroupWrite(
        LIFE, HardState(1, 1, 0), entries=(entry,), clock_us=START_US, clock_offset_us=START_US - 5 * SECOND_US)],
        read_clocks(clocks))
    clocks.since_boot_us += HOUR_S * SECOND_US
    wal.mark(read_clocks(clocks))
    group = found(disk, clocks)
    assert group.clock.now_us() == START_US + HOUR_S * SECOND_US


def test_the_last_stamp_is_that_of_the_log_and_not_only_of_the_state() -> None:
    """M-21: replay must not be what moves the clock. With nothing else to go by it starts there."""
    clocks, disk = HandClock(), FakeDisk()
    wal, _ = Wal.open(DIRECTORY, disk)
    stamp_us = START_US + 60 * SECOND_US
    entries = (
        Entry(1, 1, EntryKind.BLANK, b""),
        Entry(1, 2, EntryKind.COMMANDS, commands.entry(START_US, [])),
        Entry(1, 3, EntryKind.COMMANDS, commands.entry(stamp_us, [])),
        Entry(2, 4, EntryKind.BLANK, b""),
    )
    wal.write([GroupWrite(LIFE, HardState(2, 1, 0), entries=entries)], read_clocks(clocks))
    group = found(disk, clocks)
    assert group.clock.estimate().is_weak
    group.core.campaign()
    while (pumped := group.pump()) is not None:
        for write in pumped.writes:
            group.written(write)
    assert group.clock.offset_us is not None and group.clock.now_us() == stamp_us


def test_a_group_that_voted_and_went_down_before_it_had_a_leader_begins_when_its_tenant_came() -> None:
    """M-70: the log then knows of a term and a vote, and of no clock: what was known was too weak to be recorded.

    Such a group began at zero, in 1970. Whatever its first leader promised for later was due at once when the next
    leader, of a member that had not been down, went by the true time.
    """
    clocks, disk = HandClock(), FakeDisk()
    wal, _ = Wal.open(DIRECTORY, disk)
    wal.write([GroupWrite(LIFE, HardState(1, 1, 0))], read_clocks(clocks))
    group = found(disk, clocks, TenantRow(LIFE, START_US, b""))
    assert group.clock.estimate() == Estimate(START_US, is_weak=True)


def test_a_tenants_group_with_entries_and_no_clock_begins_no_earlier_than_its_tenant_came() -> None:
    """The same for a member that got an entry of a first leader and had not heard its clock yet."""
    clocks, disk = HandClock(), FakeDisk()
    wal, _ = Wal.open(DIRECTORY, disk)
    wal.write([GroupWrite(LIFE, HardState(1, 1, 0), entries=(Entry(1, 1, EntryKind.BLANK, b""),))],
              read_clocks(clocks))
    assert found(disk, clocks, TenantRow(LIFE, START_US, b"")).clock.now_us() == START_US


def test_a_cell_whose_founders_went_down_before_it_had_a_leader_believes_the_wall_clock_once_more() -> None:
    """M-22: the moment at which a wall clock is believed is that of the first leader, not that of the first vote."""
    clocks, disk = HandClock(), FakeDisk()
    wal, _ = Wal.open(DIRECTORY, disk)
    wal.write([GroupWrite(LIFE, HardState(1, 1, 0))], read_clocks(clocks))
    assert found(disk, clocks).clock.estimate() == Estimate(clocks.wall_us(), is_weak=True)
