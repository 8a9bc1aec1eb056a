"""G-D1, CL-121, M-3: what was reported as written is found again after any crash, and no store is ahead of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.messages import HardState
from raft.wal import GroupWrite
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.driver import GroupDriver


class _Disk:
    """terms: of the entries that are surely there (place 0: index 1; 0 for what a snapshot stands for). under_way:
    handed over, not reported. reached: where the log ended, at its longest, in writes of each term. restored_index: a
    flushed snapshot stands for all up to here.
    """

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.restored_index = 0
        self.reached: dict[int, int] = {}
        self.hard_state = HardState()
        self.under_way: list[GroupWrite] = []

    def holds(self, index: int, term: int) -> bool:
        return index <= self.restored_index or (self.reaches(index) and self.terms[index - 1] == term)

    def reaches(self, index: int) -> bool:
        return 0 < index <= max(len(self.terms), self.restored_index)

    def take(self, write: GroupWrite) -> None:
        self.hard_state = write.hard_state
        if write.restart_after is not None:
            self.start_behind(write.restart_after)
        if write.entries:
            del self.terms[write.entries[0].index - 1 :]
            self.terms += [entry.term for entry in write.entries]
        term = write.hard_state.term
        self.reached[term] = max(len(self.terms), self.reached.get(term, 0))

    def start_behind(self, index: int) -> None:
        """The log is forgotten and goes on there: a snapshot stands for what was before."""
        self.terms = [0] * index
        self.restored_index = max(self.restored_index, index)

    def is_found(self, first_index: int, found: list[int], term: int, voted_for: int) -> bool:
        same_vote = (self.hard_state.term, self.hard_state.voted_for) == (term, voted_for)
        return same_vote and len(self.terms) >= first_index - 1 and self.terms[first_index - 1 :] == found

    def is_left_by(self, flipped: tuple[int, int], term: int, voted_for: int) -> bool:
        """Whether a log that did not know of the flip can have looked so: the term of a snapshot may be news to it."""
        same_vote = (self.hard_state.term, self.hard_state.voted_for) == (term, voted_for)
        return same_vote or (self.hard_state.term < term == flipped[1] and voted_for == 0)


class Disks:
    """What each node's disk holds, as its process was told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disks: dict[int, _Disk] = {}
        self._lost: dict[int, list[_Disk]] = {}

    def holds(self, node_id: int, index: int, term: int) -> bool:
        """Whether the node's disk surely has the entry."""
        return self._of(node_id).holds(index, term)

    def held(self, node_id: int, index: int, term: int) -> bool:
        """Whether it has the entry, or had it when it was lost: an acceptance may be on its way for longer than that.
        """
        return any(disk.holds(index, term) for disk in (self._of(node_id), *self._lost.get(node_id, ())))

    def reaches(self, node_id: int, index: int) -> bool:
        """Whether the node's disk surely has a log up to there."""
        return self._of(node_id).reaches(index)

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

    def restored(self, driver: GroupDriver) -> None:
        """The process's store holds, flushed, what a snapshot stands for."""
        disk = self._of(driver.node_id)
        disk.restored_index = max(disk.restored_index, driver.machine.applied_index)

    def booted(self, driver: GroupDriver) -> None:
        """A new process finds what the last one was told of, and after it the first few of what was under way."""
        core, log, disk = driver.core, driver.core.log, self._of(driver.node_id)
        found = [log.term_at(index) for index in range(log.first_index, log.last_index + 1)]
        told = f"{disk.hard_state} and {len(disk.terms)} entries"
        under_way, disk.under_way = disk.under_way, []
        behind = driver.began_behind
        while not (
            disk.is_found(log.first_index, found, core.term, core.voted_for) if behind is None
            else disk.is_left_by(behind, core.term, core.voted_for)
        ):
            if not under_way:
                raise Broken(
                    "G-D1, what was written survives",
                    f"node {driver.node_id} wrote {told}, found term {core.term}, vote {core.voted_for}, "
                    f"{log.last_index} entries of terms {sorted(set(found))}")
            disk.take(under_way.pop(0))
            self._world.reached("a write nobody was told of survived")
        if behind is not None:
            disk.start_behind(behind[0])
            # The flip was found on the disk, and names its term: it does not depend on the log's word of it.
            disk.hard_state = HardState(core.term, core.voted_for, disk.hard_state.commit_index)
        elif disk.restored_index > driver.machine.applied_index:
            raise Broken("CL-112, an installed snapshot survives",
                         f"node {driver.node_id} installed {disk.restored_index}, has {driver.machine.applied_index}")
        if core.applied_index > log.last_index:
            raise Broken("M-3", f"node {driver.node_id} holds state {core.applied_index}, log {log.last_index}")

    def wiped(self, node_id: int) -> None:
        """The disk is gone."""
        disk = self._disks.pop(node_id, None)
        if disk is not None:
            self._lost.setdefault(node_id, []).append(disk)

    def _of(self, node_id: int) -> _Disk:
        disk = self._disks.get(node_id)
        if disk is None:
            disk = self._disks[node_id] = _Disk()
        return disk
