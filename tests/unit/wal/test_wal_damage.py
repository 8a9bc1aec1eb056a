"""Damage is refused with file and position, and never read as something else (CL-123 to CL-125)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from raft.wal import Damaged, Recovered, Wal
from raft.wal_format import SECTOR_BYTES, segment_name
from tests.support.fake_disk import FakeDisk, PowerLost
from tests.unit.wal.model import DIRECTORY, IDENTITY, Model, clock, held, open_wal, write

SEGMENT_BYTES = 4096


def path_of(segment: int) -> str:
    return f"{DIRECTORY}/{segment_name(segment)}"


def log_of_four_segments() -> tuple[FakeDisk, Model]:
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    index = 0
    while wal.segment_count < 4 or index % 3:
        index += 1
        batch = [write(1, index, b"one" * 100), write(2, index, b"two" * 50, term=7)]
        wal.write(batch, clock())
        model.write(batch)
    wal.mark(clock())
    assert sorted(disk.files) == [path_of(number) for number in range(1, 5)]
    return disk, model


def outcome(disk: FakeDisk) -> tuple[Wal, Recovered] | Damaged:
    try:
        return open_wal(disk, SEGMENT_BYTES)
    except Damaged as damaged:
        return damaged


def test_a_bit_flipped_anywhere_is_refused_or_changes_nothing() -> None:
    """CL-124, CL-125: header, checkpoint, records, seal, of old and new segments; every 7th byte, a different bit each.
    """
    disk, model = log_of_four_segments()
    refused, harmless = 0, 0
    for path, file in disk.files.items():
        for place in range(0, len(file.content), 7):
            flipped = disk.copy()
            flipped.flip(path, place, place % 8)
            result = outcome(flipped)
            if isinstance(result, Damaged):
                assert result.path == path
                assert result.position <= place
                refused += 1
            else:
                model.must_be_in(*result)
                harmless += 1
                written = bytes(file.content[place // SECTOR_BYTES * SECTOR_BYTES :][:SECTOR_BYTES])
                # Only room that was never written, and the last mark, of which no later one says that it was synced.
                following = place // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES
                is_last_mark = path == path_of(4) and not bytes(file.content[following:]).strip(b"\0")
                assert not written[place % SECTOR_BYTES :].strip(b"\0") or is_last_mark
    assert refused > 1000
    assert harmless > 100


@pytest.mark.parametrize("segment", [1, 2, 3, 4])
def test_a_deleted_segment_is_missed(segment: int) -> None:
    """CL-125: the oldest, one between, and the newest, whose predecessor says that it was there."""
    disk, _ = log_of_four_segments()
    del disk.files[path_of(segment)]
    with pytest.raises(Damaged, match="the segment is missing") as caught:
        open_wal(disk, SEGMENT_BYTES)
    assert caught.value.path == path_of(segment)


def test_a_log_that_is_gone_is_damage_when_the_directory_is_not_new() -> None:
    """CL-125: a new log in its place could vote twice."""
    with pytest.raises(Damaged, match="the log is gone"):
        open_wal(FakeDisk(), must_exist=True)
    _, recovered = open_wal(FakeDisk())
    assert recovered.is_new


@pytest.mark.parametrize("segment", [1, 2, 3])
def test_a_sealed_segment_that_was_cut_short(segment: int) -> None:
    disk, _ = log_of_four_segments()
    content = disk.files[path_of(segment)].content
    del content[len(content) - 3 * SECTOR_BYTES :]
    with pytest.raises(Damaged) as caught:
        open_wal(disk, SEGMENT_BYTES)
    assert caught.value.path == path_of(segment)


def test_segments_that_changed_places() -> None:
    """CL-123, M-11: a checksum is over the bytes and their place."""
    disk, _ = log_of_four_segments()
    two, three = path_of(2), path_of(3)
    disk.files[two], disk.files[three] = disk.files[three], disk.files[two]
    with pytest.raises(Damaged, match="checkpoint does not parse"):
        open_wal(disk, SEGMENT_BYTES)


def test_a_batch_that_stands_at_another_position() -> None:
    disk, _ = log_of_four_segments()
    content = disk.files[path_of(2)].content
    content[2 * SECTOR_BYTES : 3 * SECTOR_BYTES] = content[SECTOR_BYTES : 2 * SECTOR_BYTES]
    with pytest.raises(Damaged) as caught:
        open_wal(disk, SEGMENT_BYTES)
    assert caught.value.path == path_of(2)


def test_another_directorys_log_is_refused() -> None:
    """CL-105: every data directory has an identity."""
    disk, _ = log_of_four_segments()
    with pytest.raises(Damaged, match="belongs to another directory"):
        Wal.open(DIRECTORY, disk, segment_bytes=SEGMENT_BYTES, identity=b"another identity")


def test_a_mixture_of_two_logs_is_refused() -> None:
    """CL-134: one member restored in part from an old copy."""
    disk, _ = log_of_four_segments()
    other = FakeDisk()
    wal, _ = open_wal(other, SEGMENT_BYTES)
    for index in range(1, 40):
        wal.write([write(9, index, b"other" * 90)], clock())
    disk.files[path_of(4)] = other.files[path_of(4)]
    with pytest.raises(Damaged):
        open_wal(disk, SEGMENT_BYTES)


def test_a_file_that_is_no_segment() -> None:
    disk, _ = log_of_four_segments()
    disk.files[path_of(1)].content[:8] = b"GIF89a.."
    with pytest.raises(Damaged, match="no segment of the log"):
        open_wal(disk, SEGMENT_BYTES)


def test_a_newer_format_is_refused_by_its_number() -> None:
    disk, _ = log_of_four_segments()
    disk.files[path_of(2)].content[SECTOR_BYTES] = 2
    with pytest.raises(Damaged, match=r"unknown version \(2\)"):
        open_wal(disk, SEGMENT_BYTES)


def test_reading_checks_the_record_again() -> None:
    """CL-123, CL-125: damage while serving is an error, never an empty or shortened result."""
    disk, model = log_of_four_segments()
    wal, recovered = open_wal(disk, SEGMENT_BYTES)
    model.must_be_in(wal, recovered)
    disk.flip(path_of(1), bytes(disk.files[path_of(1)].content).index(b"oneone"))
    with pytest.raises(Damaged, match="checksum") as caught:
        wal.read(1, 1, 5, 1 << 20)
    assert caught.value.path == path_of(1)
    del disk.files[path_of(2)].content[600:]
    last = recovered.groups[1].last_index
    with pytest.raises(Damaged):
        wal.read(1, 2, last, 1 << 20)


def test_a_crash_between_a_new_segment_and_the_old_ones_seal() -> None:
    """CL-124: the seal may be torn while its successor is empty; a later batch without it is damage."""
    disk = FakeDisk()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    index = 0
    with pytest.raises(PowerLost):
        while True:
            index += 1
            if wal.total_bytes > SEGMENT_BYTES:  # this write will fill the segment: stop before the seal is synced
                disk.stop_at = len(disk.steps_done) + 5 + 7
            wal.write([write(1, index, b"x" * 300)], clock())
    assert path_of(2) in disk.durable_names
    for kept in ([], disk.unsynced()):
        after = disk.after_power_loss(kept)
        wal, recovered = open_wal(after, SEGMENT_BYTES)
        assert recovered.groups[1].last_index == index
        assert held(wal, recovered, 1)[-1].index == index
        wal.write([write(1, index + 1, b"goes on")], clock())
        unsealed = copy.deepcopy(after)
        content = unsealed.files[path_of(1)].content
        begin = (len(bytes(content).rstrip(b"\0")) - 1) // SECTOR_BYTES * SECTOR_BYTES
        content[begin : begin + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        with pytest.raises(Damaged, match="seal is missing"):
            open_wal(unsealed, SEGMENT_BYTES)
        _, recovered = open_wal(after, SEGMENT_BYTES)
        assert recovered.groups[1].last_index == index + 1


def test_damage_names_a_real_file(tmp_path: Path) -> None:
    """CL-124: one line naming the file and what to do."""
    damaged = Damaged(str(tmp_path / "segment-1.log"), 512, "a record fails its checksum")
    assert str(damaged).startswith(f"{tmp_path}/segment-1.log: byte 512: a record fails its checksum. ")
    assert "\n" not in str(damaged)
    assert IDENTITY.decode() not in str(damaged)
