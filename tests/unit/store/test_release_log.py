"""What the log may forget once the store is flushed (M-2, M-61)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from queen_node.keeper import release_log
from queen_node.state.incarnations import Incarnations
from queen_node.state.store import Meta
from raft.clock import ClockReading
from raft.messages import Entry, EntryKind, HardState
from raft.wal import GroupWrite, Wal
from tests.support.fake_disk import FakeDisk
from tests.support.memory_engine import MemoryEngine

LIFE = 1
NO_CLOCK = ClockReading(bytes(16), 0, 0)


def entry(index: int, term: int) -> Entry:
    return Entry(term, index, EntryKind.COMMANDS, b"x")


def log_of(*entries: Entry) -> Wal:
    wal, _ = Wal.open(Path("log"), FakeDisk())
    wal.write([GroupWrite(LIFE, HardState(1, 1, 0), entries=entries)], NO_CLOCK)
    return wal


def test_what_the_flushed_store_holds_is_released() -> None:
    wal = log_of(entry(1, 1), entry(2, 1), entry(3, 1))
    release_log(wal, Incarnations(MemoryEngine()), LIFE, 2)
    assert wal.span(LIFE) == (2, 3)


def test_a_write_that_waited_while_a_snapshot_overtook_it_still_finds_the_log_it_continues() -> None:
    """The disk was stuck for two seconds: entry 3 of a later term waited for it when a snapshot at 9 was installed.

    The store was flushed, the log's entries were released up to its end, and the node stopped on its own write.
    Seed 77 of the simulation, when it came to have several groups.
    """
    wal, incarnations = log_of(entry(1, 1), entry(2, 1), entry(3, 1)), Incarnations(MemoryEngine())
    incarnations.flip(LIFE, incarnations.begin(LIFE), msgspec.msgpack.encode(Meta(9, 2, 0, bytes(16), 0, 0)))
    release_log(wal, incarnations, LIFE, 9)
    wal.write([
        GroupWrite(LIFE, HardState(2, 0, 0), previous_term=1, entries=(entry(3, 2),)),
        GroupWrite(LIFE, HardState(2, 0, 9), previous_term=2, restart_after=9)], NO_CLOCK)
    assert wal.span(LIFE) == (9, 9)
    incarnations.told(LIFE, 9)
    wal.write([GroupWrite(LIFE, HardState(2, 0, 9), previous_term=2, entries=(entry(10, 2),))], NO_CLOCK)
    release_log(wal, incarnations, LIFE, 10)
    assert wal.span(LIFE) == (10, 10)
