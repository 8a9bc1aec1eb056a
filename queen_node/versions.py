"""Which format a cluster writes, and when it may write a later one (CL-132). Plain code.

A format is a number for all that nodes write to each other and to their disks. Each node says at its connections which
ones its release reads; the leader raises the cluster's version, by an entry, once every member reads the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

FORMAT: Final = 1  # the latest that this release reads and can write
OLDEST_FORMAT: Final = 1  # the earliest that it reads


def raised_version(now: int, members: Iterable[int], highest: Mapping[int, int]) -> int | None:
    """The version to raise to; None: it stays. members: all of them, learners too; highest: format that each reads, of
    those that have said so.

    A member that does not answer holds the cluster back: it may be of a release that reads less.
    """
    reads = [highest.get(node, now) for node in members]
    lowest = min(reads, default=now)
    return lowest if lowest > now else None


def unreadable(cluster_version: int) -> str | None:
    """Why this release must not serve data of that version; None: it may."""
    if cluster_version > FORMAT:
        return f"the data is of version {cluster_version}, and this release reads up to {FORMAT}: start a later release"
    return None
