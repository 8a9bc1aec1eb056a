"""Reading entries back, in slices, also from a log that is larger than memory should be."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from raft.disk import FileDisk
from raft.invariants import InvariantBroken
from raft.messages import Entry, EntryKind, HardState
from raft.wal import GroupWrite, Wal
from tests.support.fake_disk import FakeDisk
from tests.unit.wal.model import READ_ALL, clock, entries, open_wal, write


def test_slices_by_bytes() -> None:
    wal, _ = open_wal(FakeDisk())
    wal.write([write(1, 1, *(b"x" * 100 for _ in range(4)))], clock())
    wal.write([write(1, 5, b"y" * 5000, b"z")], clock())
    assert [entry.index for entry in wal.read(1, 1, 6, 250)] == [1, 2]
    assert [entry.index for entry in wal.read(1, 3, 6, 250)] == [3, 4]
    assert [entry.index for entry in wal.read(1, 5, 6, 250)] == [5], "the first comes even if it alone is larger"
    assert [entry.index for entry in wal.read(1, 6, 6, 0)] == [6]
    assert [entry.index for entry in wal.read(1, 2, 5, READ_ALL)] == [2, 3, 4, 5]


def test_entries_come_back_as_they_were_written() -> None:
    wal, _ = open_wal(FakeDisk())
    written = [
        Entry(3, 1, EntryKind.BLANK, b""),
        Entry(3, 2, EntryKind.COMMANDS, bytes(range(256))),
        Entry(9, 3, EntryKind.BLANK, b"\0" * 600),
    ]
    wal.write([GroupWrite(1, HardState(9, 2, 1), 0, written)], clock())
    assert wal.read(1, 1, 3, READ_ALL) == written


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 6), (6, 6), (4, 3), (0, 3)])
def test_what_is_not_held_is_not_asked_for(first: int, last: int) -> None:
    wal, _ = open_wal(FakeDisk())
    wal.write([write(1, 1, b"a", b"b", b"c", b"d", b"e")], clock())
    wal.release(1, 1)
    with pytest.raises(InvariantBroken, match="does not hold"):
        wal.read(1, first, last, READ_ALL)
    with pytest.raises(InvariantBroken, match="does not hold"):
        wal.read(2, 1, 1, READ_ALL)


def test_entries_that_do_not_continue_the_log_are_our_own_mistake() -> None:
    wal, _ = open_wal(FakeDisk())
    wal.write([write(1, 1, b"a", b"b")], clock())
    wal.release(1, 1)
    gap = [*entries(3, b"c"), *entries(5, b"e")]
    for bad, what in (
        (write(1, 4, b"gap"), "do not continue"),
        (write(1, 1, b"released"), "do not continue"),
        (GroupWrite(1, HardState(1, 0, 0), 1, gap), "gap between"),
        (GroupWrite(1, HardState(0, 0, 0)), "term went back"),
    ):
        with pytest.raises(InvariantBroken, match=what):
            wal.begin([bad], clock())
    wal.write([write(1, 3, b"c"), write(1, 4, b"d")], clock())  # twice one group in a batch
    assert len(wal.read(1, 2, 4, READ_ALL)) == 3


def test_entries_can_be_read_and_released_while_a_batch_is_on_its_way() -> None:
    """A batch changes what is held only when it is durable."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    wal.write([write(1, 1, b"a", b"b")], clock())
    steps = wal.begin([write(1, 3, b"c")], clock())
    assert len(wal.read(1, 1, 2, READ_ALL)) == 2
    wal.release(1, 2)
    with pytest.raises(InvariantBroken, match="does not hold"):
        wal.read(1, 3, 3, READ_ALL)
    with pytest.raises(InvariantBroken, match="while another is being written"):
        wal.begin([], clock())
    disk.carry_out(steps)
    wal.finish()
    assert wal.read(1, 3, 3, READ_ALL)[0].data == b"c"


def test_recovery_holds_no_payloads(tmp_path: Path) -> None:
    """A log of gigabytes must not be held in memory: here 24 MB of data, of which recovery may keep a tenth."""
    disk = FileDisk()
    wal, _ = Wal.open(tmp_path, disk, segment_bytes=8 << 20)
    index = 1
    for _ in range(24):
        wal.write([write(1, index + place, b"p" * 1000) for place in range(1000)], clock())
        index += 1000
    wal.close()
    tracemalloc.start()
    try:
        wal, recovered = Wal.open(tmp_path, FileDisk(), segment_bytes=8 << 20)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert recovered.groups[1].last_index == index - 1
    assert kept < 1_500_000
    assert peak < 5_000_000
    assert wal.read(1, index - 1, index - 1, READ_ALL)[0].data == b"p" * 1000
    wal.close()
