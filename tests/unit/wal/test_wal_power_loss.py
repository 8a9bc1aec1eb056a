"""Power loss at any step, with any choice of unsynced sectors: what was synced is found, what was torn is cut (M-12,
CL-120 to CL-122).
"""

from __future__ import annotations

import contextlib
import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft.messages import HardState
from raft.wal import Damaged, GroupWrite, LogFailed
from tests.support.fake_disk import SECTOR, FakeDisk, PowerLost
from tests.unit.wal.model import Model, clock, entries, open_wal, write

SEGMENT_BYTES = 4096  # small, so that runs cross many segments


def shuffled(data: bytes) -> bytes:
    """A sector that arrived as garbage."""
    return bytes(byte ^ 0x5A for byte in data)


def random_batch(
    chance: random.Random, last_indexes: dict[int, int], terms: dict[int, int], released: dict[int, int]
) -> list[GroupWrite]:
    batch = []
    for life in chance.sample(range(1, 5), chance.randint(1, 3)):
        last = last_indexes.get(life, 0)
        if last - 2 > released.get(life, 0) and chance.random() < 0.15:  # a new leader replaces the end of the log
            last -= chance.randint(1, 2)
            terms[life] = terms.get(life, 1) + 1
        datas = [chance.randbytes(chance.choice((0, 10, 200, 1500))) for _ in range(chance.randint(0, 3))]
        term = terms.get(life, 1)
        batch.append(GroupWrite(life, HardState(term, 1, 0), 1, entries(last + 1, *datas, term=term), 77, 5))
        if datas:
            last_indexes[life] = last + len(datas)
    return batch


def run_until_the_power_goes(chance: random.Random, disk: FakeDisk) -> tuple[Model, list[GroupWrite]]:
    """Writes and releases until the disk's power goes. Returns what was reported, and the batch that was not."""
    model, batch = Model(), list[GroupWrite]()
    last_indexes: dict[int, int] = {}
    terms: dict[int, int] = {}
    try:
        wal, _ = open_wal(disk, SEGMENT_BYTES)
        while True:
            batch = fixed_terms(random_batch(chance, last_indexes, terms, model.released), model)
            wal.write(batch, clock())
            model.write(batch)
            assert wal.synced_place > model.place
            model.place = wal.synced_place
            batch = []
            for life, last in last_indexes.items():
                if life != 4 and last > 3 and chance.random() < 0.5:  # group 4 pins its first entries
                    wal.release(life, last - 3)
                    model.release(life, last - 3)
    except PowerLost:
        # A segment may be begun behind a batch that is durable but was not reported yet: see `some_prefix`.
        return model, batch


def fixed_terms(batch: list[GroupWrite], model: Model) -> list[GroupWrite]:
    """The same writes with the true term of the entry before."""
    fixed = []
    for one in batch:
        term_of = {entry.index: entry.term for entry in model.entries.get(one.life, [])}
        first = one.entries[0].index if one.entries else 1
        fixed.append(GroupWrite(one.life, one.hard_state, term_of.get(first - 1, 0), one.entries, 77, 5))
    return fixed


def must_hold_some_prefix(disk: FakeDisk, model: Model, batch: list[GroupWrite]) -> None:
    """All that was reported, and of the batch on its way the first few records whole, or none."""
    failures = []
    for count in range(len(batch) + 1):
        guess = copy.deepcopy(model)
        guess.write(batch[:count])
        after = copy.deepcopy(disk)
        wal, recovered = open_wal(after, SEGMENT_BYTES)
        assert wal.synced_place >= model.place  # else a restart would look like an older copy of the directory (CL-105)
        try:
            guess.must_be_in(wal, recovered)
        except AssertionError as error:
            failures.append(error)
            continue
        wal.mark(clock())
        guess.must_be_in(*open_wal(after.after_power_loss(), SEGMENT_BYTES))  # the log is fit to be written on
        return
    raise failures[0]


@settings(max_examples=250)
@given(st.integers(0, 2**32), st.integers(6, 500), st.booleans(), st.sampled_from(["none", "some", "all", "garbage"]))
def test_power_loss_at_any_step(seed: int, stop_at: int, names_kept: bool, survivors: str) -> None:
    """M-12, CL-114, CL-120, CL-121, CL-122: also between the steps that begin, seal and remove segments."""
    chance = random.Random(seed)
    disk = FakeDisk(stop_at=stop_at)
    model, batch = run_until_the_power_goes(chance, disk)
    unsynced = disk.unsynced()
    kept = [sector for sector in unsynced if survivors == "all" or (survivors != "none" and chance.random() < 0.6)]
    change = shuffled if survivors == "garbage" else bytes
    must_hold_some_prefix(disk.after_power_loss(kept, names_kept=names_kept, change=change), model, batch)


def log_with_a_last_batch() -> tuple[FakeDisk, FakeDisk, Model, list[GroupWrite], str]:
    """A disk before and one after an unsynced last batch, what was synced, that batch, and the segment's path."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    model = Model()
    for index in (1, 2):
        batch = [write(1, index, b"first" * 30), write(2, index, b"second" * 60)]
        wal.write(batch, clock())
        model.write(batch)
    before = disk.after_power_loss()
    last = [write(1, 3, b"a" * 300), write(2, 3, b"b" * 300, b"c"), write(3, 1, b"d" * 400)]
    disk.stop_at = len(disk.steps_done) + 3  # before the sync
    with pytest.raises(PowerLost):
        wal.write(last, clock())
    (path,) = disk.files
    return before, disk.copy(), model, last, path


def test_every_choice_of_sectors_of_the_last_batch() -> None:
    """M-12: sectors of one unsynced write reach the disk in any order."""
    _, _, model, last, _ = log_with_a_last_batch()
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    for index in (1, 2):
        wal.write([write(1, index, b"first" * 30), write(2, index, b"second" * 60)], clock())
    disk.stop_at = len(disk.steps_done) + 3
    with pytest.raises(PowerLost):
        wal.write(last, clock())
    unsynced = disk.unsynced()
    assert 3 <= len(unsynced) <= 8
    for choice in range(1 << len(unsynced)):
        kept = [sector for place, sector in enumerate(unsynced) if choice >> place & 1]
        must_hold_some_prefix(disk.after_power_loss(kept), model, last)
        must_hold_some_prefix(disk.after_power_loss(kept, change=shuffled), model, last)


def test_the_last_batch_cut_and_flipped_at_every_byte() -> None:
    """M-12: above the highest synced position, a bad record is cut with everything after it."""
    before, after, model, last, path = log_with_a_last_batch()
    contents, old = bytes(after.files[path].content), bytes(before.files[path].content)
    changed = [place for place in range(len(contents)) if contents[place] != old[place]]
    begin, end = changed[0] // SECTOR * SECTOR, changed[-1] + 1
    for place in range(begin, end + 1):
        cut = copy.deepcopy(after)
        del cut.files[path].content[place:]
        must_hold_some_prefix(cut, model, last)
    for place in range(begin, end):
        flipped = copy.deepcopy(after)
        flipped.flip(path, place, place % 8)
        must_hold_some_prefix(flipped, model, last)


def test_a_torn_tail_is_reported_and_gone() -> None:
    """CL-124: a torn tail of the active segment is not damage."""
    _, after, _, _, path = log_with_a_last_batch()
    content = after.files[path].content
    place = content.index(b"a" * 300)
    after.flip(path, place)
    _, recovered = open_wal(after)
    assert recovered.torn is not None
    assert (recovered.torn.path, recovered.torn.flaw) == (path, "a record fails its checksum")
    assert b"a" * 300 not in content and b"b" * 300 not in content and b"d" * 400 not in content
    assert open_wal(after)[1].torn is None


def test_below_the_synced_position_the_same_flip_is_damage() -> None:
    """M-12, CL-124: every byte of every record but the last batch's; file and position are named."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    for index in range(1, 5):
        wal.write([write(1, index, b"payload" * 20)], clock())
    wal.mark(clock())
    (path,) = disk.files
    content = bytes(disk.files[path].content)
    end = content.rindex(b"payload") + 7
    begin = content.index(b"payload") // SECTOR * SECTOR
    padding = 0
    for place in range(begin, end):
        flipped = disk.copy()
        flipped.flip(path, place, place % 8)
        if not content[place] and not content[place : (place // SECTOR + 1) * SECTOR].strip(b"\0"):
            padding += 1  # room between two batches: noticed as well
        with pytest.raises(Damaged) as caught:
            open_wal(flipped)
        assert caught.value.path == path
        assert caught.value.position <= place
        assert path in str(caught.value) and "remove the member" in str(caught.value)
    assert padding > 100


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_failed_step_poisons_the_log_for_good(what: str) -> None:
    """CL-126: a failed flush is never retried and assumed good."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    wal.write([write(1, 1, b"durable")], clock())
    disk.fail_at = len(disk.steps_done) + (1 if what == "write" else 3)
    with pytest.raises(LogFailed, match="the test lets step"):
        wal.write([write(1, 2, b"lost")], clock())
    done = len(disk.steps_done)
    for _ in range(2):
        with pytest.raises(LogFailed, match="the test lets step"):
            wal.write([write(1, 2, b"again")], clock())
        with pytest.raises(LogFailed):
            wal.mark(clock())
    assert len(disk.steps_done) == done, "the disk was touched again"
    assert [entry.data for entry in wal.read(1, 1, 1, 100)] == [b"durable"]


def test_what_a_restart_found_survives_the_next_power_loss() -> None:
    """CL-122: after a kill the last batch may be in the page cache only; recovery must sync what it hands out."""
    disk, model = FakeDisk(), Model()
    wal, _ = open_wal(disk)
    batch = [write(1, 1, b"written, not synced")]
    disk.stop_at = len(disk.steps_done) + 3
    with pytest.raises(PowerLost):
        wal.write(batch, clock())
    disk.stop_at = None  # only the process died
    assert disk.unsynced()
    model.write(batch)
    model.must_be_in(*open_wal(disk))
    model.must_be_in(*open_wal(disk.after_power_loss()))


@given(st.data())
def test_a_snapshots_record_is_there_whole_or_the_old_log_is(data: st.DataObject) -> None:
    """M-61, CL-112: a power loss in the write that says where the log starts anew."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    wal.write([write(1, 1, b"a" * 400, b"b" * 400)], clock())
    wal.write([write(2, 1, b"other")], clock())
    restart = GroupWrite(1, HardState(9, 0, 50), 8, entries(51, b"c" * 900, term=9), restart_after=50)
    disk.stop_at = len(disk.steps_done) + data.draw(st.integers(0, 5))
    with contextlib.suppress(PowerLost):
        wal.write([restart], clock())
    kept = data.draw(st.sets(st.sampled_from(disk.unsynced() or [("", 0)])))
    _, recovered = open_wal(disk.after_power_loss(kept))
    group = recovered.groups[1]
    assert (group.previous_index, group.previous_term, group.last_index) in [(0, 0, 2), (50, 8, 51)]
    assert recovered.groups[2].last_index == 1
