"""The clock of a group that a node finds on its disk (M-22)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from queen_node import config
from queen_node.node import LIFE, Opened, open_group
from queen_node.state.machine import Machine
from queen_node.state.rocks import RocksEngine
from queen_node.state.store import Store
from raft.clock import read_clocks
from raft.disk import FileDisk
from raft.messages import Entry, EntryKind, HardState
from raft.wal import GroupWrite, Wal
from tests.support.fake_disk import FakeDisk
from tests.support.memory_engine import MemoryEngine
from tests.unit.group.driver import SECOND_US, START_US, HandClock

DIRECTORY = Path("log")
HOUR_S = 3600


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
    wal, recovered = Wal.open(DIRECTORY, disk.copy())
    machine = Machine(Store(MemoryEngine(), life=LIFE))
    opened = Opened(wal, recovered, cast(FileDisk, disk), cast(RocksEngine, None), machine, is_new=False)
    group = open_group(opened, config.load({}), clocks)
    assert group.clock.now_us() == START_US + HOUR_S * SECOND_US
