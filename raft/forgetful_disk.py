"""The test hook QUEEN_TEST_DROP_UNSYNCED: a kill that costs what a power cut costs, without a special file system.

The kernel keeps what a killed process wrote, so a plain kill never loses an unsynced byte. This disk notes beside the
log, before it changes bytes of a file, what stood there (`UNSYNCED_NAME`); a Sync of the file drops its notes. A start
puts back what the notes say, the last first, before anything is read: the files are as they were at their last flush.

What is left as the kill left it, and why that is sound:

- Names (made, renamed, gone). The log follows each with a SyncDirectory, and before that a power cut may keep or lose
  the change: a start that finds it kept is one of the two. Both are tried, at every step, by the fake disk of the unit
  tests; this hook is about bytes, which a real node writes far more often.
- A kill between a change of the disk and that of the notes. A note is written before its bytes, so a torn note has
  none to undo; a Sync that was done but not yet noted is undone, and nobody had been told of it. A file that was
  renamed meanwhile keeps its unsynced bytes: a power cut may keep them too.
- The store. RocksDB keeps no log of its own here: what was not flushed is in the node's memory and goes with the
  process, and a flush syncs its files before it returns.

Runs in the writer process as well: nothing but the standard library and `disk` may be imported here.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from raft.disk import Create, Cut, FileDisk, Rename, Step, Sync, Unlink, WriteAt

UNSYNCED_NAME: Final = "unsynced"
_HEAD: Final = struct.Struct("<IIQQ")  # length of the name, of the bytes; position; size of the file
_CRC: Final = struct.Struct("<I")


class Note(NamedTuple):
    """What stood in a file before a change: `before` at byte `position`, and the file's size."""

    name: str
    position: int
    before: bytes
    size_bytes: int

    def packed(self) -> bytes:
        name = self.name.encode()
        body = _HEAD.pack(len(name), len(self.before), self.position, self.size_bytes) + name + self.before
        return body + _CRC.pack(zlib.crc32(body))


class ForgetfulDisk(FileDisk):
    """Real files that forget at the next `prepare` what was not synced."""

    def __init__(
        self,
        *,
        before_sync: Callable[[], None] | None = None,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(before_sync=before_sync, reached=reached)
        self._notes: _Notes | None = None

    def prepare(self, directory: str) -> None:
        """As FileDisk.prepare; then every file of `directory` is as its last Sync left it."""
        super().prepare(directory)
        self._notes_beside(f"{directory}/{UNSYNCED_NAME}").undo()

    def carry_out(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._note_before(step)
            super().carry_out([step])
            self._note_after(step)

    def close(self) -> None:
        super().close()
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def _note_before(self, step: Step) -> None:
        match step:
            case WriteAt(path, position, data):
                before, size_bytes = self.read(path, position, len(data)), self.size_bytes(path)
            case Cut(path, position, _):
                size_bytes = self.size_bytes(path)
                before = self.read(path, position, max(0, size_bytes - position)).rstrip(b"\0")
            case _:
                return
        self._notes_beside(path).add(Note(Path(path).name, position, before, size_bytes))

    def _note_after(self, step: Step) -> None:
        match step:
            case Sync(path) | Create(path, _) | Unlink(path):
                self._notes_beside(path).drop(Path(path).name)
            case Rename(old, new):
                self._notes_beside(new).rename(Path(old).name, Path(new).name)

    def _notes_beside(self, path: str) -> _Notes:
        """The notes for the files of one directory: a disk serves one log."""
        if self._notes is None:
            self._notes = _Notes(Path(path).parent)
        return self._notes


def forget_notes(directory: Path) -> None:
    """For a start without the hook: what was noted is no longer true once somebody else writes the files."""
    (directory / UNSYNCED_NAME).unlink(missing_ok=True)


class _Notes:
    """The file of notes; also held in memory, for those that stay when some are dropped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / UNSYNCED_NAME
        self._file = self._open()
        self._held = list(_parse(self._path.read_bytes()))

    def add(self, note: Note) -> None:
        self._held.append(note)
        _append(self._file, note.packed())

    def drop(self, name: str) -> None:
        self._replace([note for note in self._held if note.name != name])

    def rename(self, old: str, new: str) -> None:
        kept = [note for note in self._held if note.name != new]
        self._replace([note._replace(name=new) if note.name == old else note for note in kept])

    def undo(self) -> None:
        """Put back what stood in the files, the last change first. Files that are gone stay gone."""
        for note in reversed(self._held):
            path = self._directory / note.name
            if path.exists():
                with path.open("r+b") as file:
                    if path.stat().st_size > note.size_bytes:
                        file.truncate(note.size_bytes)
                    file.seek(note.position)
                    file.write(note.before)
                    file.truncate(note.size_bytes)
        self._replace([])

    def close(self) -> None:
        os.close(self._file)

    def _replace(self, notes: list[Note]) -> None:
        """Keep these alone; killed meanwhile, the file holds all of the old ones or all of the new."""
        if notes == self._held:
            return
        self._held = notes
        if not notes:
            os.ftruncate(self._file, 0)
            return
        new = self._directory / f"{UNSYNCED_NAME}.new"
        new.write_bytes(b"".join(note.packed() for note in notes))
        new.rename(self._path)
        os.close(self._file)
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _append(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _parse(data: bytes) -> Iterable[Note]:
    """The notes up to one that a kill tore, whose change was never begun."""
    at = 0
    while at + _HEAD.size <= len(data):
        name_size, before_size, position, size_bytes = _HEAD.unpack_from(data, at)
        middle = at + _HEAD.size + name_size
        end = middle + before_size
        if end + _CRC.size > len(data) or zlib.crc32(data[at:end]) != _CRC.unpack_from(data, end)[0]:
            return
        yield Note(data[at + _HEAD.size : middle].decode(), position, data[middle:end], size_bytes)
        at = end + _CRC.size
