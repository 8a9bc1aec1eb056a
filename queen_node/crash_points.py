"""Places at which a test can have the process kill itself: between every two steps that a crash may fall between.

QUEEN_TEST_CRASH_AT=name or name:count, with QUEEN_TEST_HOOKS=1. Without it a point costs one call of an empty function.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

CRASH_POINTS = (
    "wal.before_write",
    "wal.after_write",
    "wal.after_fsync",
    "wal.segment_created",
    "wal.before_unlink",
    "apply.before_commit",
    "apply.after_commit",
    "store.before_flush",
    "store.after_flush",
    "wal.before_release",
)

SNAPSHOT_POINTS = (  # of a member that takes one
    "snapshot.chunk_written",
    "snapshot.before_flip",
    "snapshot.after_flip",
    "snapshot.flip_flushed",
    "snapshot.installed",
)

Reached = Callable[[str], None]


def passes(_: str) -> None:
    """No crash is wanted."""


def crash_at(wanted: str) -> Reached:
    """What to call with the name of each point. `wanted`: name, or name:count for the count-th time; "" for never.

    Raises ValueError for a name that no point has.
    """
    if not wanted:
        return passes
    name, _, times = wanted.partition(":")
    if name not in CRASH_POINTS + SNAPSHOT_POINTS:
        there_are = ", ".join(CRASH_POINTS + SNAPSHOT_POINTS)
        raise ValueError(f"no crash point is called {name!r}; there are {there_are}")
    left = int(times or "1")

    def reached(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
