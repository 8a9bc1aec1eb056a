"""What a volume that fills up closes, step by step, and the ballast that buys time (CL-127, M-6).

RocksDB turns read-only when the disk is full and cannot be resumed, so this must be noticed before: from
`close_percent` on what grows storage is refused; at BALLAST_PERCENT a file kept for that purpose is given back, so that
acks, cancels and fires can go on while somebody makes room; from DRAINS_PERCENT on nothing else is taken (README 26). A
disk that is full all the same stops the node (CL-126).
"""

from __future__ import annotations

import os
import shutil
from enum import Enum
from pathlib import Path
from typing import NamedTuple

BALLAST_FILE = "ballast"
BALLAST_BYTES = 32 << 20
BALLAST_PERCENT = 95
DRAINS_PERCENT = 97


class Gates(NamedTuple):
    """What is refused now, as doors hear it. storage_full: what grows storage; drains_only: all but what empties the
    system; store_full: writes come faster than the store digests them, so they are held back (M-4).
    """

    storage_full: bool = False
    drains_only: bool = False
    store_full: bool = False


OPEN = Gates()


class Step(Enum):
    """What a look at the volume leads to."""

    CLOSED = "closed"
    OPENED = "opened"
    BALLAST_NEEDED = "ballast needed"
    DRAINS_ONLY = "drains only"


class DiskGate:
    """Decides; touches no disk. `closed`: what grows storage is refused (507); `drains_only`: configuring too."""

    def __init__(self, close_percent: int, release_percent: int) -> None:
        self._close_percent, self._release_percent = close_percent, release_percent
        self.closed = self.drains_only = False
        self._gave_ballast = False

    def look(self, used_percent: float) -> list[Step]:
        """Take in how full the volume is; what follows from it, in order. Between the two bounds nothing changes."""
        steps = []
        if not self.closed and used_percent >= self._close_percent:
            self.closed = True
            steps.append(Step.CLOSED)
        elif self.closed and used_percent < self._release_percent:
            self.closed = self.drains_only = self._gave_ballast = False
            steps.append(Step.OPENED)
        if used_percent >= BALLAST_PERCENT and not self._gave_ballast:
            self._gave_ballast = True
            steps.append(Step.BALLAST_NEEDED)
        if used_percent >= DRAINS_PERCENT and not self.drains_only:
            self.drains_only = True
            steps.append(Step.DRAINS_ONLY)
        return steps


def used_percent(directory: Path) -> float:
    """How full the volume of `directory` is."""
    usage = shutil.disk_usage(directory)
    return 100.0 * (usage.total - usage.free) / usage.total


def lay_ballast(directory: Path) -> None:
    """Reserve the ballast, if it is not there. A volume without room for it goes without."""
    path = directory / BALLAST_FILE
    if path.exists():
        return
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
    except OSError:
        path.unlink(missing_ok=True)


def give_ballast(directory: Path) -> bool:
    """Give the ballast back to the volume; whether there was one."""
    path = directory / BALLAST_FILE
    was_there = path.exists()
    path.unlink(missing_ok=True)
    return was_there
