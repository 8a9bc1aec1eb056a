"""The disk of QUEEN_TEST_DROP_UNSYNCED: after a kill a start finds exactly what was synced."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.disk import Create, Cut, FileDisk, Rename, Step, Sync, Unlink, WriteAt
from raft.forgetful_disk import UNSYNCED_NAME, ForgetfulDisk, forget_notes
from raft.wal import Wal
from tests.unit.wal.model import IDENTITY, Model, clock, write

SIZE_BYTES = 64
NAMES = ("one", "two")


def killed(disk: FileDisk) -> None:
    """Let go of the files as the kernel does for a process that was killed."""
    disk.close()


def started(folder: Path) -> dict[str, bytes]:
    """What a start with the hook finds in the files."""
    disk = ForgetfulDisk()
    disk.prepare(str(folder))
    found = {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}
    disk.close()
    return found


def begun(folder: Path, content: bytes = b"old") -> tuple[ForgetfulDisk, str]:
    disk = ForgetfulDisk()
    disk.prepare(str(folder))
    path = str(folder / "one")
    disk.carry_out([Create(path, SIZE_BYTES), WriteAt(path, 0, content), Sync(path)])
    return disk, path


def test_a_kill_between_write_and_sync_loses_that_write_alone(tmp_path: Path) -> None:
    disk, path = begun(tmp_path)
    disk.carry_out([WriteAt(path, 3, b"synced"), Sync(path), WriteAt(path, 1, b"lost"), WriteAt(path, 60, b"grown")])
    assert (tmp_path / "one").stat().st_size == 65
    killed(disk)
    assert started(tmp_path)["one"] == b"oldsynced".ljust(SIZE_BYTES, b"\0")
    assert started(tmp_path)["one"] == b"oldsynced".ljust(SIZE_BYTES, b"\0"), "undone once, and for good"


def test_a_kill_between_cut_and_sync_brings_back_what_was_cut(tmp_path: Path) -> None:
    disk, path = begun(tmp_path, b"before the cut")
    disk.carry_out([Cut(path, 6, 16), WriteAt(path, 6, b"!!"), Cut(path, 7, 200)])
    killed(disk)
    assert started(tmp_path)["one"] == b"before the cut".ljust(SIZE_BYTES, b"\0")


def test_a_file_that_was_renamed_or_removed(tmp_path: Path) -> None:
    """Notes follow a file to its new name; those of a file that is gone are of no use."""
    disk, path = begun(tmp_path)
    two = str(tmp_path / "two")
    disk.carry_out([WriteAt(path, 0, b"new"), Rename(path, two)])
    killed(disk)
    assert started(tmp_path) == {"two": b"old".ljust(SIZE_BYTES, b"\0")}
    again = ForgetfulDisk()
    again.prepare(str(tmp_path))
    again.carry_out([WriteAt(two, 0, b"new"), Unlink(two)])
    killed(again)
    assert started(tmp_path) == {}


def test_another_process_goes_on_with_the_notes(tmp_path: Path) -> None:
    """The node's own disk recovers, the writer process writes: both keep one file of notes."""
    disk, path = begun(tmp_path)
    disk.carry_out([WriteAt(path, 0, b"first")])
    writer = ForgetfulDisk()
    writer.carry_out([WriteAt(path, 0, b"second")])
    killed(writer)
    killed(disk)
    assert started(tmp_path)["one"] == b"old".ljust(SIZE_BYTES, b"\0")


@pytest.mark.parametrize("kept_bytes", range(0, 60, 7))
def test_a_torn_note_has_nothing_to_undo(tmp_path: Path, kept_bytes: int) -> None:
    """Killed within the note, the write that it announces was not begun."""
    disk, path = begun(tmp_path)
    disk.carry_out([WriteAt(path, 0, b"lost")])
    whole = (tmp_path / UNSYNCED_NAME).read_bytes()
    disk.carry_out([WriteAt(path, 0, b"lost as well, and of more bytes than a note has")])
    second = (tmp_path / UNSYNCED_NAME).read_bytes()[len(whole) :]
    assert kept_bytes < len(second)
    killed(disk)
    (tmp_path / "one").write_bytes(b"lost".ljust(SIZE_BYTES, b"\0"))
    (tmp_path / UNSYNCED_NAME).write_bytes(whole + second[:kept_bytes])
    assert started(tmp_path)["one"] == b"old".ljust(SIZE_BYTES, b"\0")


def test_a_start_without_the_hook_ends_what_was_noted(tmp_path: Path) -> None:
    """Else a later start with it would put old bytes over those that were written meanwhile."""
    disk, path = begun(tmp_path)
    disk.carry_out([WriteAt(path, 0, b"new")])
    killed(disk)
    forget_notes(tmp_path)
    forget_notes(tmp_path)
    assert started(tmp_path)["one"] == b"new".ljust(SIZE_BYTES, b"\0")


steps = st.lists(
    st.one_of(
        st.builds(WriteAt, st.sampled_from(NAMES), st.integers(0, 40), st.binary(min_size=1, max_size=50)),
        st.builds(Cut, st.sampled_from(NAMES), st.integers(0, 40), st.integers(0, 80)),
        st.builds(Sync, st.sampled_from(NAMES)),
    ),
    max_size=25,
)


@given(steps=steps)
def test_against_a_copy_made_at_each_sync(tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
    folder = tmp_path_factory.mktemp("disk")
    disk = ForgetfulDisk()
    disk.prepare(str(folder))
    synced = {}
    for name in NAMES:
        disk.carry_out([Create(str(folder / name), SIZE_BYTES), Sync(str(folder / name))])
        synced[name] = bytes(SIZE_BYTES)
    for step in steps:
        assert isinstance(step, WriteAt | Cut | Sync)
        disk.carry_out([step._replace(path=str(folder / step.path))])
        if isinstance(step, Sync):
            synced[step.path] = (folder / step.path).read_bytes()
    killed(disk)
    assert started(folder) == synced


def test_a_log_loses_exactly_the_batch_that_was_not_synced(tmp_path: Path) -> None:
    """G-D1 with M-12: killed in the middle of every eighth batch, over segments that roll; the model has the others."""
    model, index = Model(), 1
    for start in range(6):
        disk = ForgetfulDisk()
        wal, recovered = Wal.open(tmp_path / "log", disk, segment_bytes=8192, identity=IDENTITY, must_exist=start > 0)
        model.must_be_in(wal, recovered)
        assert recovered.torn is None, "what is undone leaves no torn tail"
        for _ in range(7):
            batch = [write(1, index, b"x" * 700)]
            wal.write(batch, clock())
            model.write(batch)
            index += 1
        half = wal.begin([write(1, index, b"never synced")], clock())
        disk.carry_out([step for step in half if not isinstance(step, Sync)])
        killed(disk)
    assert len(list((tmp_path / "log").glob("segment-*"))) > 1
