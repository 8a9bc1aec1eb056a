"""What was released is kept for members elsewhere that lag, within one bound for the node (M-10, CL-111, CL-114)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.invariants import InvariantBroken
from raft.messages import HardState
from raft.wal import GroupWrite, Wal
from raft.wal_format import CRC, ENTRY, GROUP, ROW, Row
from raft.wal_laggards import LAGGARD_BYTES_DEFAULT, PIECE_BYTES
from tests.support.fake_disk import FakeDisk
from tests.unit.wal.model import READ_ALL, clock, open_wal, write

SEGMENT_BYTES = 8192
RECORD_BYTES = 1000
DATA = b"x" * (RECORD_BYTES - GROUP.size - ENTRY.size - CRC.size)


def fill(wal: Wal, life: int, first_index: int, last_index: int, *, data: bytes = DATA) -> None:
    for index in range(first_index, last_index + 1):
        wal.write([write(life, index, data)], clock(index))


def test_the_bound_is_256_mib_a_node() -> None:
    assert LAGGARD_BYTES_DEFAULT == 256 * 1024 * 1024


def test_a_node_without_peers_keeps_nothing() -> None:
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    fill(wal, 1, 1, 20)
    wal.release(1, 15)
    assert wal.span(1) == (15, 20)
    wal.write([write(1, 21, b"of", b"one", b"record")], clock())
    wal.release(1, 21)
    wal.release(1, 22)
    assert wal.span(1) == (22, 23)
    row = Row._make(ROW.unpack_from(wal._groups.rows))
    assert row.previous_index == 22, "M-10: what the next segment's checkpoint says"


def test_the_newest_that_was_released_is_kept_and_read() -> None:
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    wal.keep_for_laggards(10 * RECORD_BYTES)
    fill(wal, 1, 1, 40)
    for index in range(1, 31):
        wal.release(1, index)
    assert wal.span(1) == (20, 40)
    assert [entry.index for entry in wal.read(1, 21, 30, READ_ALL)] == list(range(21, 31))
    assert [wal.term_at(1, index) for index in (20, 25)] == [1, 1]


def test_one_bound_for_all_groups_and_the_oldest_release_goes_first() -> None:
    """M-10: a number of entries a group would let one idle group pin the oldest segment for ever."""
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    wal.keep_for_laggards(10 * RECORD_BYTES)
    fill(wal, 1, 1, 6)
    wal.release(1, 6)
    fill(wal, 2, 1, 4)
    wal.release(2, 4)
    assert (wal.span(1), wal.span(2)) == ((0, 6), (0, 4))
    fill(wal, 2, 5, 5)
    wal.release(2, 5)
    assert (wal.span(1), wal.span(2)) == ((6, 6), (0, 5))


def test_segments_of_what_is_kept_no_longer_go() -> None:
    disk = FakeDisk()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    wal.keep_for_laggards(20 * RECORD_BYTES)
    fill(wal, 7, 1, 1)  # an idle group, in the oldest segment
    wal.release(7, 1)
    for index in range(1, 200):
        fill(wal, 1, index, index)
        wal.release(1, index)
    assert wal.total_bytes < 20 * 1536 + 4 * SEGMENT_BYTES
    assert wal.span(7) == (1, 1)
    wal.keep_for_laggards(0)
    while not wal.is_idle:
        wal.mark(clock())
    assert wal.segment_count == 1


def test_after_a_restart_it_is_there_and_goes_piece_by_piece() -> None:
    """One call releases all that was kept before the restart; a laggard must not lose it in one go."""
    disk = FakeDisk()
    wal, _ = open_wal(disk, 1 << 22)
    data = b"x" * (PIECE_BYTES // 4)
    fill(wal, 1, 1, 40, data=data)
    wal, recovered = open_wal(disk.copy(), 1 << 22)
    wal.keep_for_laggards(20 * len(data))
    wal.release(1, 40)
    assert recovered.groups[1].previous_index == 0
    assert 20 <= wal.span(1)[0] <= 24


def test_a_group_that_ended_or_began_anew_leaves_nothing_behind() -> None:
    """M-61, M-70."""
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    wal.keep_for_laggards(10 * RECORD_BYTES)
    for life in (1, 2):
        fill(wal, life, 1, 4)
        wal.release(life, 3)
    wal.forget(1)
    wal.write([GroupWrite(2, HardState(1, 0, 50), 1, (), restart_after=50)], clock())
    wal.write([write(2, 51, DATA)], clock())
    fill(wal, 3, 1, 12)
    for index in range(1, 13):
        wal.release(3, index)
    assert (wal.span(2), wal.span(3)) == ((50, 51), (2, 12))
    assert wal._kept._through == {3: 12}


def test_a_state_that_is_ahead_of_the_log_releases_what_there_is() -> None:
    """M-61: flipped to a snapshot, before the log's record says so."""
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    fill(wal, 1, 1, 4)
    wal.release(1, 50)
    assert wal.span(1) == (4, 4)


def test_a_group_that_is_not_known_has_no_span() -> None:
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    for ask in (lambda: wal.span(1), lambda: wal.term_at(1, 0)):
        with pytest.raises(InvariantBroken, match="does not know"):
            ask()
    wal.release(1, 1)  # its state came in a snapshot, before its first record


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 6)), max_size=40), st.integers(1, 12))
def test_what_is_kept_against_its_slow_twin(events: list[tuple[int, int, int]], budget_records: int) -> None:
    """Each write is one record of 1,000 bytes; each release one piece. The twin drops whole pieces, oldest first."""
    wal, _ = open_wal(FakeDisk(), SEGMENT_BYTES)
    wal.keep_for_laggards(budget_records * RECORD_BYTES)
    last = dict.fromkeys((1, 2, 3), 0)
    through = dict(last)
    floor = dict(last)
    pieces: list[tuple[int, int, int]] = []
    for life, count, short_by in events:
        fill(wal, life, last[life] + 1, last[life] + count)
        last[life] += count
        to = max(last[life] - short_by, through[life])
        if to > through[life]:
            pieces.append((life, to, to - through[life]))
        wal.release(life, to)
        through[life] = to
        while sum(size for _, _, size in pieces) > budget_records:
            dropped, index, _ = pieces.pop(0)
            floor[dropped] = index
        assert wal.span(life) == (floor[life], last[life])
