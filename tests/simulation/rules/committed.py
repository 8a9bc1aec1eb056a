"""CL-30, CL-42, Raft thesis 6.4: committed is what a majority has on disk, and no read misses what was committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.core import Role
from tests.simulation.rules.disks import Disks
from tests.simulation.world import Broken

if TYPE_CHECKING:
    from tests.simulation.driver import GroupDriver


class Committed:
    """terms: of each committed entry, and of the leader that committed it first (place 0: index 1)."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self.terms: list[tuple[int, int]] = []

    @property
    def index(self) -> int:
        return len(self.terms)

    def looked(self, driver: GroupDriver) -> None:
        core = driver.core
        index = core.commit_index
        if index <= self.index:
            if index and index >= core.log.first_index - 1 and core.log.term_at(index) != self.terms[index - 1][0]:
                raise Broken("Raft §5.3, one log is committed", f"node {core.node_id} commits another entry {index}")
            return
        if core.role is not Role.LEADER:
            raise Broken("Raft §5.3, leaders commit", f"node {core.node_id} commits {index}, leaders {self.index}")
        while self.index < index:
            self.terms.append((core.log.term_at(self.index + 1), core.term))
        term = core.log.term_at(index)
        holds = {node_id: int(self._disks.held(node_id, index, term)) for node_id in core.configuration.members}
        if core.configuration.agreed(holds) != 1:
            raise Broken("CL-30, committed is on a majority's disks", f"entry {term}:{index} is on {holds}")

    def serves_read(self, driver: GroupDriver, committed_before: int) -> None:
        applied_index = driver.machine.applied_index
        if applied_index < committed_before:
            raise Broken(
                "CL-42, a read sees what was committed before it",
                f"node {driver.node_id} reads at {applied_index}, {committed_before} was committed")
