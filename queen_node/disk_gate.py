"""What a volume that fills up closes, step by step, and the ballast that buys time (CL-127, M-6).

All nodes of a cluster store the same, so the fullest volume of any of them closes the gates of all: else a smaller disk
fills up with what the others take, and its node stops.

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
REPORT_COUNTS_S = 3.0  # nodes say ten times a second how they are; one that has not for so long stores nothing either


class Gates(NamedTuple):
    """What is refused now, as doors hear it. storage_full: what grows storage; drains_only: all but what empties the
    system; store_full: writes come faster than the store digests them, so they are held back (M-4).
    """

    storage_full: bool = False
    drains_only: bool = False
    store_full: bool = False


OPEN = Gates()


class Step(Enum):
    """What a look at the volumes leads to."""

    CLOSED = "disk gate closed"
    OPENED = "disk gate open"
    DRAINS_ONLY = "only what empties the system is taken"


class Fullest(NamedTuple):
    """How full the fullest volume is, and whose. None: this node's own."""

    used_percent: float
    node: int | None


class DiskReports:
    """What the other nodes say of their volumes."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[float, float]] = {}  # by node: percent, when (s)

    def hear(self, node: int, used_percent: float, now_s: float) -> None:
        """A node says how full its volume is."""
        self._said[node] = used_percent, now_s

    def of(self, node: int) -> float | None:
        """How full that node's volume was when it last said so; None: it never did."""
        said = self._said.get(node)
        return None if said is None else said[0]

    def fullest(self, own_percent: float, now_s: float) -> Fullest:
        """Of this node and those that were heard of lately."""
        fullest = Fullest(own_percent, None)
        for node, (used_percent, at_s) in self._said.items():
            if now_s - at_s <= REPORT_COUNTS_S and used_percent > fullest.used_percent:
                fullest = Fullest(used_percent, node)
        return fullest


class DiskGate:
    """Decides; touches no disk. `closed`: what grows storage is refused (507); `drains_only`: configuring too."""

    def __init__(self, close_percent: int, release_percent: int) -> None:
        self._close_percent, self._release_percent = close_percent, release_percent
        self.closed = self.drains_only = False
        self._gave_ballast = False

    def look(self, used_percent: float) -> list[Step]:
        """Take in how full the fullest volume is; what follows, in order. Between the two bounds nothing changes."""
        steps = []
        if not self.closed and used_percent >= self._close_percent:
            self.closed = True
            steps.append(Step.CLOSED)
        elif self.closed and used_percent < self._release_percent:
            self.closed = self.drains_only = False
            steps.append(Step.OPENED)
        if used_percent >= DRAINS_PERCENT and not self.drains_only:
            self.drains_only = True
            steps.append(Step.DRAINS_ONLY)
        return steps

    def gives_ballast(self, own_percent: float) -> bool:
        """Whether the ballast must go now: once each time this node's own volume fills up."""
        if own_percent < self._release_percent:
            self._gave_ballast = False
        gives = own_percent >= BALLAST_PERCENT and not self._gave_ballast
        self._gave_ballast |= gives
        return gives

    def may_lay_ballast(self, own_percent: float) -> bool:
        """Whether this node's own volume has room for it."""
        return own_percent < (self._release_percent if self.closed else self._close_percent)


def used_percent(directory: Path) -> float:
    """How full the volume of `directory` is."""
    usage = shutil.disk_usage(directory)
    return 100.0 * (usage.total - usage.free) / usage.total


def said_percent(path: Path) -> float:
    """Test hook QUEEN_TEST_DISK_FILE: the file says how full the volume is. No file: empty. Raises ValueError when it
    holds no number."""
    try:
        return float(path.read_text())
    except FileNotFoundError:
        return 0.0


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
