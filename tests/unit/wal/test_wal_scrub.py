"""Sealed segments are read again: a bit that changed is found, a segment that nobody needs is not missed (CL-125)."""

from __future__ import annotations

import pytest

from raft.wal import Damaged, Wal
from raft.wal_format import segment_name
from raft.wal_scrub import check_segment
from tests.support.fake_disk import FakeDisk
from tests.unit.wal.model import DIRECTORY, IDENTITY, clock, open_wal, write

SEGMENT_BYTES = 4096
SEGMENTS = 4


def path_of(segment: int) -> str:
    return f"{DIRECTORY}/{segment_name(segment)}"


def filled() -> tuple[FakeDisk, Wal, int]:
    """A log of four segments, the last of them in use, and the index of its last entry."""
    disk, index = FakeDisk(), 0
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    while wal.segment_count < SEGMENTS:
        index += 1
        wal.write([write(1, index, b"one" * 100), write(2, index, b"two" * 50)], clock())
    return disk, wal, index


def check(disk: FakeDisk, segment: int, identity: bytes = IDENTITY) -> int:
    """Records found sound."""
    return len(list(check_segment(disk, str(DIRECTORY), segment, identity)))


def test_what_was_written_is_found_sound() -> None:
    disk, wal, index = filled()
    assert wal.sealed_segments() == [1, 2, 3]
    records = sum(check(disk, segment) for segment in wal.sealed_segments())
    batches_at_least = index - SEGMENT_BYTES // 512
    assert records >= 3 * batches_at_least + 2 * 3, "a mark and two groups a batch; a checkpoint and a seal a segment"


def test_a_bit_flipped_anywhere_is_found_or_stands_in_empty_room() -> None:
    disk, wal, _ = filled()
    found = harmless = 0
    for segment in wal.sealed_segments():
        path = path_of(segment)
        for place in range(0, len(disk.files[path].content), 7):
            was = disk.files[path].content[place]
            disk.flip(path, place, place % 8)
            try:
                check(disk, segment)
            except Damaged as damaged:
                assert damaged.path == path
                assert damaged.position <= place
                found += 1
            else:
                assert not was
                harmless += 1
            disk.flip(path, place, place % 8)
    assert found > 3 * harmless


def test_a_segment_without_its_end_is_damaged() -> None:
    """Also the one in use, which must not be asked for."""
    disk, wal, _ = filled()
    with pytest.raises(Damaged, match="the seal is missing"):
        check(disk, SEGMENTS)
    for path in (path_of(1), path_of(2)):
        content = disk.files[path].content
        del content[len(content.rstrip(b"\0")) - 20 :]
    for segment in (1, 2):
        with pytest.raises(Damaged):
            check(disk, segment)
    assert wal.sealed_segments() == [1, 2, 3]


def test_a_segment_of_another_directory_is_damaged() -> None:
    disk, _, _ = filled()
    with pytest.raises(Damaged, match="another directory"):
        check(disk, 1, identity=b"x" * 16)


def test_what_nobody_needs_any_more_is_not_asked_for() -> None:
    """From the moment on at which a batch says so: from then on it may be gone."""
    disk, wal, index = filled()
    for life in (1, 2):
        wal.release(life, index)
    assert wal.sealed_segments() == [1, 2, 3]
    wal.mark(clock())
    assert wal.sealed_segments() == []
    assert path_of(1) not in disk.files


def test_a_recovered_log_knows_its_sealed_segments() -> None:
    disk, _, _ = filled()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    assert wal.sealed_segments() == [1, 2, 3]
    assert [check(disk, segment) > 0 for segment in wal.sealed_segments()] == [True] * 3
