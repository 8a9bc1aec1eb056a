"""A disk in memory that can lose power: what was written and not synced may survive by sectors, in any choice of them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from raft.disk import Create, Cut, Reached, Rename, Step, Sync, SyncDirectory, Unlink, WriteAt

SECTOR = 512


class PowerLost(Exception):
    """The node is gone; `FakeDisk.after_power_loss` is what it finds when it starts again."""


class FakeFile:
    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.unsynced: set[int] = set()  # numbers of sectors

    def write(self, position: int, data: bytes) -> None:
        if position > len(self.content):
            self.content += bytes(position - len(self.content))
        self.content[position : position + len(data)] = data
        self.unsynced.update(range(position // SECTOR, -(-(position + len(data)) // SECTOR)))

    def resize(self, position: int, size_bytes: int) -> None:
        self.unsynced.update(range(position // SECTOR, -(-len(self.content) // SECTOR)))
        del self.content[position:]
        self.content += bytes(max(0, size_bytes - position))

    def sync(self) -> None:
        """All that was written is durable. Copies what changed: a segment is a thousand times larger than a write."""
        content, durable = self.content, self.durable
        del durable[len(content) :]
        durable += bytes(len(content) - len(durable))
        for sector in self.unsynced:
            begin = sector * SECTOR
            durable[begin : begin + SECTOR] = content[begin : begin + SECTOR]
        self.unsynced.clear()

    def survivor(self, kept: Callable[[int], bytes | None]) -> FakeFile:
        """The file after a power loss. kept: for an unsynced sector what stands there; None: what was synced before."""
        size_bytes = max(len(self.content), len(self.durable))
        after = bytearray(self.durable.ljust(size_bytes, b"\0"))
        for sector in sorted(self.unsynced):
            begin = sector * SECTOR
            data = kept(sector)
            if data is not None:
                after[begin : begin + SECTOR] = data.ljust(SECTOR, b"\0")[: max(0, size_bytes - begin)]
        return FakeFile(bytes(after))


class FakeDisk:
    """stop_at: the power goes before the step of this number (from 0). fail_at: that step raises an I/O error instead.
    """

    def __init__(self, *, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.files: dict[str, FakeFile] = {}
        self.durable_names: dict[str, FakeFile] = {}
        self.stop_at = stop_at
        self.fail_at = fail_at
        self.steps_done: list[Step] = []
        self.is_open = False
        self.bytes_read = 0

    def carry_out(self, steps: Sequence[Step]) -> None:
        for step in steps:
            number = len(self.steps_done)
            if number == self.stop_at:
                raise PowerLost(step)
            self.steps_done.append(step)
            if number == self.fail_at:
                raise OSError(errno.EIO, f"the test lets step {number} fail", type(step).__name__)
            self.do(step)

    def do(self, step: Step) -> None:
        """Carry out one step that no test counts."""
        match step:
            case WriteAt(path, position, data):
                self.files[path].write(position, bytes(data))
            case Sync(path):
                self.files[path].sync()
            case Create(path, size_bytes):
                self.files[path] = FakeFile()
                self.files[path].resize(0, size_bytes)
            case Cut(path, position, size_bytes):
                self.files[path].resize(position, size_bytes)
            case Rename(old, new):
                self.files[new] = self.files.pop(old)
            case Unlink(path):
                del self.files[path]
            case SyncDirectory():
                self.durable_names = dict(self.files)
            case Reached():
                pass

    def prepare(self, directory: str) -> None:
        self.is_open = True

    def names(self, directory: str) -> list[str]:
        return sorted(PurePosixPath(path).name for path in self.files)

    def size_bytes(self, path: str) -> int:
        return len(self.files[path].content)

    def read(self, path: str, position: int, size_bytes: int) -> bytes:
        data = bytes(self.files[path].content[position : position + size_bytes])
        self.bytes_read += len(data)
        return data

    def forget(self, path: str) -> None:
        pass

    def close(self) -> None:
        self.is_open = False

    # -- what a test does to it

    def unsynced(self) -> list[tuple[str, int]]:
        """Every sector that a power loss may take or leave."""
        return [(path, sector) for path, file in sorted(self.files.items()) for sector in sorted(file.unsynced)]

    def after_power_loss(
        self,
        kept: Iterable[tuple[str, int]] = (),
        *,
        names_kept: bool = False,
        change: Callable[[bytes], bytes] = lambda data: data,
    ) -> FakeDisk:
        """The disk of the next start: synced bytes, and of the unsynced sectors those in `kept`, each passed through
        `change`.

        names_kept: renames and removals that were not synced happened nevertheless.
        """
        chosen = set(kept)
        after = FakeDisk()
        for path, file in (self.files if names_kept else self.durable_names).items():
            paths = [name for name, other in self.files.items() if other is file] or [path]

            def survivor(sector: int, file: FakeFile = file, paths: list[str] = paths) -> bytes | None:
                data = bytes(file.content[sector * SECTOR : (sector + 1) * SECTOR])
                return change(data) if any((name, sector) in chosen for name in paths) else None

            after.files[path] = file.survivor(survivor)
        after.durable_names = dict(after.files)
        return after

    def copy(self) -> FakeDisk:
        """The disk after a kill of the process: all that was written is there, synced or not."""
        return self.after_power_loss(self.unsynced(), names_kept=True)

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Damage one bit, as a disk does: of what is synced too."""
        self.files[path].content[position] ^= 1 << bit
        self.files[path].unsynced.add(position // SECTOR)
        self.files[path].sync()
