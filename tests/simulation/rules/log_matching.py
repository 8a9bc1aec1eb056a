"""Raft paper, figure 3: log matching. One term and index is one entry, with one entry before it; so, by induction, one
log. Looks at what is handed to a disk, which is what changed (M-82).
"""

from __future__ import annotations

from raft.messages import Entry
from raft.wal import GroupWrite
from tests.simulation.world import Broken


class LogMatching:
    """Every entry that any node ever handed to its disk."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int, Entry]] = {}

    def submitted(self, write: GroupWrite) -> None:
        previous_term = write.previous_term
        for entry in write.entries:
            known = self._entries.setdefault((entry.term, entry.index), (previous_term, entry))
            if known != (previous_term, entry):
                raise Broken("log matching (Raft §5.3)", f"{entry} after {previous_term}, known as {known}")
            previous_term = entry.term
