"""Which format a cluster writes, and when it may write a later one (CL-132). Plain code.

A format is a number for all that nodes write to each other and to their disks. Each node says at its connections which
ones its release reads; the leader raises the cluster's version, by an entry, once every member reads the next.

A kind of command, row, message or word that is new comes with a format, and is written and said only once the cluster
is of it: a node of an earlier release would stop at the entry (CL-29), and end the connection at the word. Which kinds
came with which is held down by a test. Nothing was released before format 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

FORMAT: Final = 4  # the latest that this release reads and can write
QUIET: Final = 2  # with it came the words by which groups go to sleep (M-31); before, none sleeps
PACKED: Final = 3  # with it came the short form of commands (packed.py)
NAMED: Final = 4  # with it configurations came to name their members' data directories (CL-105)
OLDEST_FORMAT: Final = 1  # the earliest that it reads


def raised_version(now: int, members: Iterable[int], highest: Mapping[int, int]) -> int | None:
    """The version to raise to; None: it stays. members: all of them, learners too; highest: format that each reads, of
    those that have said so.

    A member that does not answer holds the cluster back: it may be of a release that reads less.
    """
    reads = [highest.get(node, now) for node in members]
    lowest = min(reads, default=now)
    return lowest if lowest > now else None


def held_back_by(now: int, members: Iterable[int], highest: Mapping[int, int]) -> tuple[int, ...]:
    """The members for which `raised_version` stays at `now`: who reads no more, and who has not said."""
    return tuple(node for node in members if highest.get(node, now) <= now)


def unreadable(cluster_version: int, reads: int = FORMAT) -> str | None:
    """Why a release that reads up to `reads` must not serve data of that version; None: it may."""
    if cluster_version > reads:
        return f"the data is of version {cluster_version}, and this release reads up to {reads}: start a later release"
    return None
