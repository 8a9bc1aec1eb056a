"""Raft paper, figure 3: election safety, leader append-only, leader completeness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.core import Role
from tests.simulation.rules.committed import Committed
from tests.simulation.world import Broken

if TYPE_CHECKING:
    from tests.simulation.driver import GroupDriver


class Leaders:
    """Who led which term, and where the log of each leader ends."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._leaders: dict[int, tuple[int, bytes]] = {}
        self._led_to: dict[int, tuple[int, int]] = {}

    def booted(self, driver: GroupDriver) -> None:
        """What its disk did not hold of the log that it led is gone, and may be."""
        self._led_to.pop(driver.node_id, None)

    def looked(self, driver: GroupDriver) -> None:
        core = driver.core
        if core.role is not Role.LEADER:
            self._led_to.pop(core.node_id, None)
            return
        leads = core.node_id, driver.process.hardware.identity
        leader = self._leaders.get(core.term)
        if leader is None:
            self._leaders[core.term] = leads
            self._complete(driver)
        elif leader != leads:
            raise Broken("election safety (Raft §5.2)", f"nodes {leader[0]} and {core.node_id} lead term {core.term}")
        log = core.log
        last_index, last_term = self._led_to.get(core.node_id, (log.last_index, log.last_term))
        if log.last_index < last_index or (last_index >= log.first_index - 1 and log.term_at(last_index) != last_term):
            raise Broken("leader append-only (Raft §5.3)", f"node {core.node_id} cut its log in term {core.term}")
        self._led_to[core.node_id] = log.last_index, log.last_term

    def _complete(self, driver: GroupDriver) -> None:
        """§5.4: it holds all that was committed in earlier terms."""
        core, log = driver.core, driver.core.log
        for index in range(log.first_index, self._committed.index + 1):
            term, in_term = self._committed.terms[index - 1]
            if in_term < core.term and (index > log.last_index or log.term_at(index) != term):
                raise Broken(
                    "leader completeness (Raft §5.4)", f"node {core.node_id} leads {core.term} without {term}:{index}")
