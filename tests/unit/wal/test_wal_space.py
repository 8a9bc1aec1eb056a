"""Segments go when nobody needs them, and what must not be lost with them is not (M-10, CL-114, CL-115)."""

from __future__ import annotations

import pytest

from raft.disk import WriteAt
from raft.messages import HardState
from raft.wal import GroupWrite, Wal
from tests.support.fake_disk import FakeDisk, PowerLost
from tests.unit.wal.model import READ_ALL, Model, clock, entries, held, open_wal, write

SEGMENT_BYTES = 8192


def fill(wal: Wal, model: Model, life: int, first_index: int, last_index: int, *, keep: int = 5) -> None:
    """Entries of 500 bytes, one a batch; all but the last `keep` are released as they come."""
    for index in range(first_index, last_index + 1):
        batch = [write(life, index, index.to_bytes(4, "big") * 125)]
        wal.write(batch, clock(index))
        model.write(batch)
        if index > keep:
            wal.release(life, index - keep)
            model.release(life, index - keep)


def test_released_segments_give_their_room_back() -> None:
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    fill(wal, model, 1, 1, 500)
    assert wal.segment_count <= 3
    assert len(disk.files) == wal.segment_count
    assert wal.total_bytes <= sum(len(file.content) for file in disk.files.values()) < 5 * SEGMENT_BYTES
    model.must_be_in(*open_wal(disk.copy(), SEGMENT_BYTES))


def test_an_idle_groups_term_and_vote_outlive_their_segment() -> None:
    """M-10: else freeing it allows a double vote."""
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    vote = GroupWrite(7, HardState(12, 3, 0), clock_us=1234, clock_offset_us=56)
    wal.write([vote], clock(99))
    model.write([vote])
    fill(wal, model, 1, 1, 300)
    wal, recovered = open_wal(disk.copy(), SEGMENT_BYTES)
    model.must_be_in(wal, recovered)
    group = recovered.groups[7]
    assert group.hard_state == HardState(12, 3, 0)
    assert (group.clock_us, group.clock_offset_us, group.reading) == (1234, 56, clock(99)), "M-22: as it was recorded"


def test_one_idle_group_does_not_pin_the_log() -> None:
    """M-10: a segment of which less than a tenth is needed is copied forward."""
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    idle = [write(2, 1, b"old", b"but", b"needed"), write(3, 1, b"too")]
    wal.write(idle, clock())
    model.write(idle)
    fill(wal, model, 1, 1, 600)
    assert wal.segment_count <= 14, "at most about ten times what is needed"
    wal, recovered = open_wal(disk.copy(), SEGMENT_BYTES)
    model.must_be_in(wal, recovered)
    assert [entry.data for entry in held(wal, recovered, 2)] == [b"old", b"but", b"needed"]


def test_what_is_densely_needed_is_not_copied_again_and_again() -> None:
    """M-10: copying costs at most a tenth of what it frees."""
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    fill(wal, model, 2, 1, 12, keep=12)
    before = len(disk.steps_done)
    fill(wal, model, 1, 1, 400)
    written = sum(len(step.data) for step in disk.steps_done[before:] if isinstance(step, WriteAt))
    assert written < 400 * 1024 * 1.35
    model.must_be_in(*open_wal(disk.copy(), SEGMENT_BYTES))


def test_an_idle_log_tidies_itself_up_by_marks() -> None:
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    first = [write(2, 1, b"idle")]
    wal.write(first, clock())
    model.write(first)
    fill(wal, model, 1, 1, 60, keep=60)
    wal.release(1, 60)
    model.release(1, 60)
    marks = 0
    while not wal.is_idle:
        wal.mark(clock())
        marks += 1
        assert marks < 10
    assert wal.segment_count == 1
    model.must_be_in(*open_wal(disk.copy(), SEGMENT_BYTES))


@pytest.mark.parametrize("names_kept", [True, False])
def test_a_crash_at_any_step_of_a_removal(names_kept: bool) -> None:
    """CL-114: between mark, rename, sync and delete."""
    crashes = 0
    for stop_at in range(20, 260):
        disk, model = FakeDisk(stop_at=stop_at), Model()
        wal, _ = open_wal(disk, SEGMENT_BYTES)
        try:
            fill(wal, model, 1, 1, 60)
        except PowerLost as lost:
            crashes += "retired" in str(lost) or "SyncDirectory" in str(lost)
        after = disk.after_power_loss(disk.unsynced() if stop_at % 2 else (), names_kept=names_kept)
        wal, recovered = open_wal(after, SEGMENT_BYTES)
        last = max((entry.index for entry in model.entries.get(1, [])), default=0)
        assert last <= recovered.groups[1].last_index <= last + 1 if last else True
        assert not [path for path in after.files if "retired" in path or "new" in path], "leftovers are swept at boot"
    assert crashes >= 6


def test_a_record_larger_than_a_segment() -> None:
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    for index, size in ((1, 10), (2, 5 * SEGMENT_BYTES), (3, 3 << 20), (4, 10)):
        batch = [write(1, index, bytes([index]) * size), write(2, index, b"beside")]
        wal.write(batch, clock())
        model.write(batch)
    model.must_be_in(*open_wal(disk.after_power_loss(), SEGMENT_BYTES))


def test_entries_after_a_cut_are_found_in_a_later_segment() -> None:
    """CL-115: an entry written after the log was cut back must be findable, also in a segment begun for a later place.
    """
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    fill(wal, model, 1, 1, 40, keep=40)
    assert wal.segment_count > 2
    for first, term in ((20, 2), (15, 3), (16, 4)):  # each leader replaces what the one before it left
        datas = [b"of term %d" % term for _ in range(8)]
        batch = [write(1, first, *datas, term=term, previous_term=3 if first == 16 else 1)]
        wal.write(batch, clock())
        model.write(batch)
        assert wal.read(1, first, first, READ_ALL)[0].term == term
        model.must_be_in(*open_wal(disk.copy(), SEGMENT_BYTES))
    _, recovered = open_wal(disk.copy(), SEGMENT_BYTES)
    assert recovered.groups[1].terms == [(0, 0), (1, 1), (15, 3), (16, 4)]
    assert recovered.groups[1].last_index == 23


def test_a_snapshot_replaces_the_log() -> None:
    """M-61: the log's record "starts at N+1"."""
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    fill(wal, model, 1, 1, 30, keep=30)
    restart = GroupWrite(1, HardState(9, 0, 5000), 8, (), restart_after=5000)
    wal.write([restart], clock())
    model.write([restart])
    _, recovered = open_wal(disk.copy(), SEGMENT_BYTES)
    group = recovered.groups[1]
    assert (group.previous_index, group.previous_term, group.first_index, group.last_index) == (5000, 8, 5001, 5000)
    behind = [write(1, 5001, b"next", term=9, previous_term=8), write(2, 1, b"other")]
    wal.write(behind, clock())
    model.write(behind)
    model.must_be_in(*open_wal(disk.copy(), SEGMENT_BYTES))
    while wal.segment_count > 1 and not wal.is_idle:
        wal.mark(clock())
    assert wal.segment_count <= 2


def test_a_group_born_of_a_snapshot() -> None:
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    wal.write([GroupWrite(5, HardState(4, 0, 77), 3, entries(78, b"first", term=4), restart_after=77)], clock())
    wal, recovered = open_wal(disk.copy())
    assert recovered.groups[5].previous_index == 77
    assert recovered.groups[5].previous_term == 3
    assert [entry.index for entry in held(wal, recovered, 5)] == [78]


def test_a_group_that_ended_stays_away() -> None:
    """M-70: removal. A later life has another id, so nothing of this one may come back."""
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    for life in (2, 3, 4):
        batch = [write(life, 1, b"of %d" % life)]
        wal.write(batch, clock())
        model.write(batch)
    wal.forget(3)
    wal.forget(3)
    assert not wal.is_idle
    wal.mark(clock())
    del model.hard_states[3], model.entries[3]
    model.must_be_in(*open_wal(disk.copy(), SEGMENT_BYTES))
    fill(wal, model, 1, 1, 200)
    _, recovered = open_wal(disk.copy(), SEGMENT_BYTES)
    assert sorted(recovered.groups) == [1, 2, 4]


def test_a_release_is_kept_by_the_next_checkpoint() -> None:
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk, SEGMENT_BYTES)
    fill(wal, model, 1, 1, 200, keep=3)
    _, recovered = open_wal(disk.copy(), SEGMENT_BYTES)
    assert recovered.groups[1].previous_index > 150
    wal.release(1, 200)
    wal.release(1, 100)  # an older durable point tells nothing new
    assert wal.is_idle is False
    wal.write([write(1, 201, b"next")], clock())
    assert [entry.data for entry in wal.read(1, 201, 201, READ_ALL)] == [b"next"]


@pytest.mark.parametrize("count", [1, 3])
def test_many_groups_share_one_write_and_one_sync(count: int) -> None:
    """M-14: one write call and one sync a batch, whatever it holds."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    before = len(disk.steps_done)
    wal.write([write(life, 1, b"x" * 100) for life in range(1, count * 100)], clock())
    kinds = [type(step).__name__ for step in disk.steps_done[before:]]
    assert kinds == ["Reached", "WriteAt", "Reached", "Sync", "Reached"]
