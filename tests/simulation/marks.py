"""Branches that random runs seldom reach. A campaign that leaves one of them unreached has proved less than it says."""

from __future__ import annotations

from typing import Final

MARKS: Final = frozenset({
    "a learner was promoted",
    "a learner was removed",
    "a node that lost its disk was replaced",
    "a write nobody was told of survived",
    "a snapshot came to a member that was ahead of it",
    "a snapshot was installed",
    "a snapshot went on after a loss",
    "answered no_leader",
    "answered retry",
    "answered timeout",
    "client gave up",
    "clock guessed across a reboot",
    "clock kept over a restart",
    "crash between a flip and the log's word of it",
    "dead letter",
    "duplicate push",
    "entries on disk replaced",
    "laggard served from the disk",
    "leadership handed over by wish",
    "lease handed back",
    "lease ran out",
    "leftovers of a snapshot found at a start",
    "log released",
    "message doubled",
    "one voter took another's place",
    "pop handed back",
    "pop withdrawn",
    "refused to start on damage",
    "segment begun or removed",
    "a group began at a tenant's first write",
    "stopped by its disk",
    "store fell behind its log",
    "timer met a message with its id",
    "torn tail cut",
    "torn write",
})
