"""What this machine can do at this moment, and what the kernel says of a process."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import msgspec

BLOCK_BYTES = 4096
FILE_BLOCKS = 256


class Machine(msgspec.Struct, frozen=True):
    """Where a run took place."""

    cores: int
    processor: str
    kernel: str
    python: str
    memory_bytes: int
    load_average: float  # of the last minute, before the run: what others did on this machine


def this_machine() -> Machine:
    return Machine(
        os.cpu_count() or 0,
        _processor(),
        platform.release(),
        platform.python_version(),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        os.getloadavg()[0],
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def fdatasync_per_s(folder: Path, seconds: float) -> float:
    """How often a second 4 KiB can be written and synced in `folder`, one after another. Raises OSError."""
    path = folder / "fdatasync"
    block = os.urandom(BLOCK_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.pwrite(fd, bytes(BLOCK_BYTES * FILE_BLOCKS), 0)
        os.fsync(fd)
        started = time.monotonic()
        count = 0
        while (elapsed := time.monotonic() - started) < seconds:
            os.pwrite(fd, block, count % FILE_BLOCKS * BLOCK_BYTES)
            os.fdatasync(fd)
            count += 1
        return count / elapsed
    finally:
        os.close(fd)
        path.unlink()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, its threads included, to the ns. Raises OSError when it is gone."""
    # The id of a process's clock as clock_getcpuclockid(3) makes it: /proc tells hundredths of a second only, and an
    # idle node takes few of those.
    return time.clock_gettime((~pid << 3) | 2)


def family(pid: int) -> list[int]:
    """A process and its children, as they are now."""
    return [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def resident_bytes(pid: int) -> int:
    """Memory that a process holds in RAM (VmRSS). Raises OSError when it is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def disk_bytes(folder: Path) -> dict[str, int]:
    """Space that the files below `folder` occupy, by suffix ("" for files without)."""
    used: dict[str, int] = {}
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # the store removes files while we look
        if path.is_file():
            used[path.suffix] = used.get(path.suffix, 0) + status.st_blocks * 512
    return used
