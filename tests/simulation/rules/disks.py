"""G-D1, CL-121, M-3: what was reported as written is found again after any crash, and no store is ahead of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.messages import HardState
from raft.wal import GroupWrite
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.process import Process


class _Disk:
    """terms: of the entries that are surely there (place 0: index 1). under_way: handed over, not reported.
    reached: where the log ended, at its longest, in writes of each term.
    """

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.reached: dict[int, int] = {}
        self.hard_state = HardState()
        self.under_way: list[GroupWrite] = []

    def take(self, write: GroupWrite) -> None:
        self.hard_state = write.hard_state
        if write.entries:
            del self.terms[write.entries[0].index - 1 :]
            self.terms += [entry.term for entry in write.entries]
        term = write.hard_state.term
        self.reached[term] = max(len(self.terms), self.reached.get(term, 0))

    def is_found(self, first_index: int, found: list[int], term: int, voted_for: int) -> bool:
        same_vote = (self.hard_state.term, self.hard_state.voted_for) == (term, voted_for)
        return same_vote and len(self.terms) >= first_index - 1 and self.terms[first_index - 1 :] == found


class Disks:
    """What each node's disk holds, as its process was told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disks: dict[int, _Disk] = {}

    def holds(self, node_id: int, index: int, term: int) -> bool:
        """Whether the node's disk surely has the entry."""
        return self.reaches(node_id, index) and self._of(node_id).terms[index - 1] == term

    def reaches(self, node_id: int, index: int) -> bool:
        """Whether the node's disk surely has a log up to there."""
        return 0 < index <= len(self._of(node_id).terms)

    def reached_in_term(self, node_id: int, term: int, index: int) -> bool:
        """Whether the disk had a log up to there when it was last written in `term`; a later term may have cut it."""
        return index <= self._of(node_id).reached.get(term, 0)

    def hard_state(self, node_id: int) -> HardState:
        """The node's, as it surely is on its disk."""
        return self._of(node_id).hard_state

    def submitted(self, node_id: int, write: GroupWrite) -> None:
        self._of(node_id).under_way.append(write)

    def written(self, node_id: int, write: GroupWrite) -> None:
        disk = self._of(node_id)
        disk.under_way.pop(0)
        if write.entries and write.entries[0].index <= len(disk.terms):
            self._world.reached("entries on disk replaced")
        disk.take(write)

    def booted(self, process: Process) -> None:
        """A new process finds what the last one was told of, and after it the first few of what was under way."""
        core, log, disk = process.core, process.core.log, self._of(process.node_id)
        found = [log.term_at(index) for index in range(log.first_index, log.last_index + 1)]
        told = f"{disk.hard_state} and {len(disk.terms)} entries"
        under_way, disk.under_way = disk.under_way, []
        while not disk.is_found(log.first_index, found, core.term, core.voted_for):
            if not under_way:
                raise Broken(
                    "G-D1, what was written survives",
                    f"node {process.node_id} wrote {told}, found term {core.term}, vote {core.voted_for}, "
                    f"{log.last_index} entries of terms {sorted(set(found))}")
            disk.take(under_way.pop(0))
            self._world.reached("a write nobody was told of survived")
        if core.applied_index > log.last_index:
            raise Broken("M-3", f"node {process.node_id} holds state {core.applied_index}, log {log.last_index}")

    def _of(self, node_id: int) -> _Disk:
        return self._disks.setdefault(node_id, _Disk())
