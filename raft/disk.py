"""The few file operations that the log needs, as data, and the real disk that carries them out.

The log decides which steps follow from a batch and never touches a file itself. So the same steps run in this process,
in the writer process (`wal_process`), or on a fake disk that loses power between any two of them. What the bytes mean
does not belong here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

OPEN_FILES_MAX = 64  # descriptors kept open for reading old segments; beyond it the longest open one is closed
LOCK_WAIT_S = 10.0  # a writer process whose node was killed ends with its last fsync; longer means a second node
LOCK_POLL_S = 0.02
_NO_PREALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Create(NamedTuple):
    """Make `path`, empty, in place of any file of that name, with room for `size_bytes` that reads as zeros."""

    path: str
    size_bytes: int


class WriteAt(NamedTuple):
    """Put `data` at byte `position` of a file that exists. Not durable before a Sync."""

    path: str
    position: int
    data: bytes | memoryview


class Sync(NamedTuple):
    """Wait until all that was written to `path` survives a power cut."""

    path: str


class Cut(NamedTuple):
    """Forget all from byte `position` on; then make room up to `size_bytes`, which reads as zeros."""

    path: str
    position: int
    size_bytes: int


class Rename(NamedTuple):
    old: str
    new: str


class Unlink(NamedTuple):
    path: str


class SyncDirectory(NamedTuple):
    """Wait until the names in `path` (made, renamed, gone) survive a power cut."""

    path: str


class Reached(NamedTuple):
    """A named point in the list of steps, at which a test may stop the node. Does nothing to the disk."""

    name: str


Step = Create | WriteAt | Sync | Cut | Rename | Unlink | SyncDirectory | Reached


class Disk(Protocol):
    """What the log asks of a disk. Every method may raise OSError."""

    def carry_out(self, steps: Sequence[Step]) -> None:
        """Do the steps in order; stop at the first that fails, whose OSError is raised. No step is ever tried twice."""

    def prepare(self, directory: str) -> None:
        """Make the directory if need be, and keep any other process from using it until `close`."""

    def names(self, directory: str) -> list[str]:
        """Names of the files in `directory`, sorted."""

    def size_bytes(self, path: str) -> int: ...

    def read(self, path: str, position: int, size_bytes: int) -> bytes:
        """Bytes from `position` on; fewer than asked for only at the end of the file."""

    def forget(self, path: str) -> None:
        """Another process removed this file: hold it open no longer."""

    def close(self) -> None: ...


class FileDisk:
    """Real files.

    before_sync: called before every fsync of a file (the test hook QUEEN_TEST_FSYNC_DELAY_MS sleeps in it).
    reached: called with the name of each Reached step (tests end the process there).
    """

    def __init__(
        self,
        *,
        before_sync: Callable[[], None] | None = None,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        self._before_sync = before_sync
        self._reached = reached
        self._files: dict[str, int] = {}
        self._lock: int | None = None

    @property
    def lock_descriptor(self) -> int | None:
        """The open file that holds the lock; a writer process inherits it, so that the lock lives as long as either."""
        return self._lock

    def prepare(self, directory: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        give_up_at = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    os.close(descriptor)
                    raise OSError(errno.EBUSY, "another process uses this log", f"{directory}/lock") from None
                time.sleep(LOCK_POLL_S)
            else:
                self._lock = descriptor
                return

    def names(self, directory: str) -> list[str]:
        return sorted(path.name for path in Path(directory).iterdir())

    def size_bytes(self, path: str) -> int:
        return os.fstat(self._file(path)).st_size

    def read(self, path: str, position: int, size_bytes: int) -> bytes:
        descriptor = self._file(path)
        data = os.pread(descriptor, size_bytes, position)
        while len(data) < size_bytes:
            more = os.pread(descriptor, size_bytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def forget(self, path: str) -> None:
        descriptor = self._files.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for path in list(self._files):
            self.forget(path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def carry_out(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case WriteAt(path, position, data):
                    _write_all(self._file(path), data, position)
                case Sync(path):
                    if self._before_sync is not None:
                        self._before_sync()
                    # The size of a file that grew is written too: without it the bytes cannot be found (fdatasync(2)).
                    _data_sync(self._file(path))
                case Reached(name):
                    if self._reached is not None:
                        self._reached(name)
                case Create(path, size_bytes):
                    self.forget(path)
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                    self._files[path] = descriptor
                    _reserve(descriptor, size_bytes)
                case Cut(path, position, size_bytes):
                    os.ftruncate(self._file(path), position)
                    _reserve(self._file(path), size_bytes)
                case Rename(old, new):
                    self.forget(new)
                    Path(old).rename(new)
                    if old in self._files:
                        self._files[new] = self._files.pop(old)
                case Unlink(path):
                    self.forget(path)
                    Path(path).unlink()
                case SyncDirectory(path):
                    _sync_directory(path)

    def _file(self, path: str) -> int:
        descriptor = self._files.get(path)
        if descriptor is None:
            if len(self._files) >= OPEN_FILES_MAX:
                self.forget(next(iter(self._files)))
            descriptor = self._files[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return descriptor



def _data_sync(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    elif hasattr(fcntl, "F_FULLFSYNC"):  # a platform whose fsync stops at the drive's cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """One call to the kernel; more only when it took less than all, as it does just before a disk is full."""
    written = os.pwrite(descriptor, data, position)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], position + written)


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Take room before it is needed.

    Measured (ext4, 4 KiB writes): 5,000 syncs/s into reserved room, 3,900 at the end of a file that grows, as its size
    changes each time. A file system that cannot reserve is only slower.
    """
    if not hasattr(os, "posix_fallocate") or size_bytes == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in _NO_PREALLOCATION:
            raise
