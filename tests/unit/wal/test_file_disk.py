"""The real disk does what the fake one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft import disk as disk_module
from raft.disk import Create, Cut, FileDisk, Reached, Rename, Sync, SyncDirectory, Unlink, WriteAt
from raft.wal import Wal
from tests.unit.wal.model import IDENTITY, Model, clock, write


def test_a_log_on_real_files(tmp_path: Path) -> None:
    model = Model()
    for start in range(3):
        wal, recovered = Wal.open(tmp_path / "log", FileDisk(), segment_bytes=8192, identity=IDENTITY)
        model.must_be_in(wal, recovered)
        assert recovered.is_new == (start == 0)
        for index in range(start * 60 + 1, start * 60 + 61):
            batch = [write(1, index, b"x" * 300), write(2, index, b"y" * index)]
            wal.write(batch, clock())
            model.write(batch)
            for life in (1, 2):
                wal.release(life, max(1, index - 20))
                model.release(life, max(1, index - 20))
        wal.close()
    assert len(list((tmp_path / "log").iterdir())) < 12


def test_the_steps(tmp_path: Path) -> None:
    reached: list[str] = []
    disk = FileDisk(reached=reached.append)
    disk.prepare(str(tmp_path))
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    disk.carry_out([Create(one, 1000), WriteAt(one, 10, b"hello"), Sync(one), SyncDirectory(str(tmp_path))])
    disk.carry_out([Reached("here")])
    assert reached == ["here"]
    assert disk.read(one, 0, 16) == bytes(10) + b"hello\0"
    assert disk.size_bytes(one) >= 15
    disk.carry_out([Cut(one, 12, 100), Rename(one, two)])
    assert disk.read(two, 0, 200).rstrip(b"\0") == bytes(10) + b"he"
    assert disk.names(str(tmp_path)) == ["lock", "two"]
    disk.carry_out([Unlink(two)])
    with pytest.raises(FileNotFoundError):
        disk.read(two, 0, 1)
    disk.close()


def test_only_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes on one directory would overwrite each other's log."""
    monkeypatch.setattr(disk_module, "LOCK_WAIT_S", 0.0)
    first, second = FileDisk(), FileDisk()
    first.prepare(str(tmp_path))
    with pytest.raises(OSError, match="another process uses this log"):
        second.prepare(str(tmp_path))
    first.close()
    second.prepare(str(tmp_path))
    second.close()


def test_a_removed_file_is_held_open_no_longer(tmp_path: Path) -> None:
    """Else the room of a segment that another process removed would never come back."""
    disk = FileDisk()
    path = tmp_path / "file"
    path.write_bytes(b"x")
    before = open_descriptors()
    disk.read(str(path), 0, 1)
    disk.forget(str(path))
    disk.forget(str(path))
    assert open_descriptors() == before


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "OPEN_FILES_MAX", 2)
    disk = FileDisk()
    for name in "abc":
        (tmp_path / name).write_text(name)
    for name in "abcabc":
        assert disk.read(str(tmp_path / name), 0, 9) == name.encode()
    disk.close()
