"""Who changes the members: an operator with plans drawn from the seed, while faults go on (cluster.md 10, CL-100 to
CL-107). Each plan leads back to the members that the cluster began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from queen_node import commands
from queen_node.membership_check import Refusals, check
from queen_node.opening import CELL_LIFE
from queen_node.operator_calls import AddLearner, Change, OperatorRefused, Promote, Remove, SetVoters
from queen_node.state.members import next_number
from queen_node.versions import FORMAT
from raft.core import Role
from tests.simulation.calls import Script
from tests.simulation.cluster import Cluster
from tests.simulation.desk import LAG_MAX
from tests.simulation.driver import GroupDriver
from tests.simulation.process import Process
from tests.simulation.world import MS, SECOND, World

PAUSE_US: Final = 800 * MS  # between two plans, on average
LOOK_EVERY_US: Final = 100 * MS
ASKED_AGAIN_US: Final = 2 * SECOND  # what was lost with a leader is asked again
MISSES_A_SWAP: Final = 0.7  # of the swaps: one of those who stay
TENANT_LOOKS_MAX: Final = 20
IN_GROUP_0: Final = 0.25  # of the outages come before the node has heard of group 0; the others catch a tenant's group
WATCHED_EVERY_US: Final = 2 * MS
WATCHED_US: Final = 2 * SECOND
OUTAGE_US: Final = 4 * SECOND  # longer than who missed the swap takes to stand


class Operator:
    """stopping: begin no new plan. is_idle: no plan is under way, so every member has its disk."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world, self._cluster = world, cluster
        self._dice = world.dice("operator")
        self._outage_dice = world.dice("outages in swaps")
        self.stopping = False
        self.is_idle = True

    def run(self) -> Script:
        """Plan after plan."""
        plans: list[Callable[[], Script]] = [self._replace, self._retire_and_return, self._visit, self._swap]
        while True:
            yield int(self._dice.expovariate(1 / PAUSE_US))
            if self.stopping:
                return
            self.is_idle = False
            damaged = [node.node_id for node in self._cluster.nodes.values() if node.hardware.is_damaged]
            if damaged:
                yield from self._replace(damaged[0])
            else:
                yield from self._dice.choice(plans)()
            self.is_idle = True

    # --- plans

    def _replace(self, node_id: int = 0) -> Script:
        """A node loses its disk: it is removed, comes back empty under its id and is added (CL-105, CL-107)."""
        node_id = node_id or self._some_node()
        self._world.fault("lost disk", f"node {node_id} loses its disk")
        self._cluster.wipe(node_id)
        yield from self._change(Remove(node_id))
        yield from self._arrive(node_id)
        self._world.reached("a node that lost its disk was replaced")

    def _retire_and_return(self) -> Script:
        """A voter becomes a learner: it is removed, comes back empty and is added; and then it is promoted."""
        node_id = self._some_node()
        yield from self._leave(node_id)
        yield from self._arrive(node_id)

    def _visit(self) -> Script:
        """A node more for a while; sometimes it goes again before it votes."""
        spare = self._spare()
        if self._dice.random() < 0.3:
            yield from self._add(spare)
            yield from self._leave(spare)
            self._world.reached("a learner was removed")
        else:
            yield from self._arrive(spare)
            yield from self._leave(spare)

    def _swap(self) -> Script:
        """Another node in the place of one, in one step (joint consensus), and back."""
        spare, node_id = self._spare(), self._some_node()
        staying = [node for node in self._cluster.shape.node_ids if node != node_id]
        yield from self._add(spare)
        late = 0
        if self._outage_dice.random() < MISSES_A_SWAP:
            yield from self._wait_for_a_tenant()
            late = self._kill_one(staying)
        yield from self._change(SetVoters((*staying, spare), force=False))
        self._world.reached("one voter took another's place")
        self._cluster.wipe(node_id)
        if late:
            self._expect_outage(node_id, late)
        yield from self._add(node_id)
        if late:
            self._cluster.start(late)
        yield from self._change(SetVoters((*staying, node_id), force=False))
        self._cluster.wipe(spare)

    def _kill_one(self, staying: list[int]) -> int:
        """Who leads least, so that the change need not wait for elections. 0: no faults come any more."""
        if self.stopping:
            return 0
        late = min(staying, key=self._led_by)
        self._world.fault("kill", f"node {late} killed before a swap")
        self._cluster.kill(late)
        return late

    def _expect_outage(self, empty: int, late: int) -> None:
        """All who know of the swap are to be gone for a while, when who missed it is back: it takes the empty node for
        the voter that it was, and a vote of it would make a leader without what is committed (CL-105). Left to other
        faults this came once in some thousand runs.
        """
        rules, begun = self._cluster.rules, self._world.now_us
        removed_at = {life: rules.of(life).committed.index for life in self._cluster.lives}
        in_group_0 = self._outage_dice.random() < IN_GROUP_0

        def look() -> None:
            process = self._cluster.nodes[empty].live
            if self.stopping or self._world.now_us > begun + WATCHED_US:
                return
            if process is not None and _is_behind_its_removal(process, removed_at, in_group_0=in_group_0):
                self._strike(empty, late)
            else:
                self._world.after(WATCHED_EVERY_US, look)

        self._world.after(WATCHED_EVERY_US, look)

    def _strike(self, empty: int, late: int) -> None:
        cluster = self._cluster
        gone = [node_id for node_id in cluster.nodes if node_id not in (empty, late)]
        links = {(node_id, empty) for node_id in gone}  # what is on its way over them is lost too
        self._world.reached("an empty node met one that had missed its leaving")
        self._world.fault("outage in a swap", f"nodes {gone} killed, node {late} is back, node {empty} is empty")
        cluster.network.cut |= links
        for node_id in gone:
            cluster.kill(node_id)
            self._world.after(OUTAGE_US, cluster.start, node_id)
        self._world.after(OUTAGE_US, cluster.network.cut.difference_update, links)
        cluster.start(late)

    def _wait_for_a_tenant(self) -> Script:
        """For a while, if one is to come: only of a group that is founded after a change are the members written down.
        """
        rules, looks = self._cluster.rules, 0
        known = len(rules.lives)
        while len(rules.lives) == known < len(self._cluster.shape.tenants_begin_us) and looks < TENANT_LOOKS_MAX:
            looks += 1
            yield LOOK_EVERY_US

    def _led_by(self, node_id: int) -> int:
        process = self._cluster.nodes[node_id].live
        opened = {} if process is None else process.groups.opened
        return sum(driver.core.role is Role.LEADER for driver in opened.values())

    def _arrive(self, node_id: int) -> Script:
        yield from self._add(node_id)
        yield from self._change(Promote((node_id,), force=False))
        self._world.reached("a learner was promoted")

    def _add(self, node_id: int) -> Script:
        self._cluster.join(node_id)
        yield from self._change(AddLearner(node_id, f"raft{node_id}:1", f"http{node_id}:1"))

    def _leave(self, node_id: int) -> Script:
        yield from self._change(Remove(node_id))
        self._cluster.wipe(node_id)

    def _some_node(self) -> int:
        return self._dice.choice(self._cluster.shape.node_ids)

    def _spare(self) -> int:
        return self._cluster.shape.spare_ids[0]

    # --- one change

    def _change(self, question: Change) -> Script:
        """Ask until it is through, whoever leads."""
        self._world.fault("change of members", f"asked for: {question}")
        while True:
            leader = self._cluster.leader_of(CELL_LIFE)
            number = None if leader is None else self._begin(question, leader)
            if number == 0:
                return
            ask_again_us = self._world.now_us + ASKED_AGAIN_US
            while number and self._world.now_us < ask_again_us:
                yield LOOK_EVERY_US
                if self._is_done(number):
                    break
            yield LOOK_EVERY_US

    def _begin(self, question: Change, leader: GroupDriver) -> int | None:
        """The number of the change; 0: there is nothing to do; None: not now."""
        desk, process = leader.process.desk, leader.process
        desk.step()
        view = leader.core.membership_view(desk.max_silent_ticks, desk.live)
        row = desk.row
        if row.cluster_version < FORMAT:
            process.run(desk.propose, commands.raise_version(process.ids.request_id(), FORMAT))
            return None
        try:
            target = check(question, Refusals(view, row, {}, LAG_MAX), connected=True)
        except OperatorRefused as refused:
            self._world.reached(f"refused {refused.code}")
            return None
        job = row.job
        if target is None:
            return 0 if job is None or job.done else job.number
        if isinstance(question, AddLearner):
            directory_id = self._cluster.nodes[question.node_id].hardware.identity
            process.run(desk.propose, commands.know_members(
                process.ids.request_id(), [(question.node_id, question.raft, question.http, directory_id)]))
        now, number = view.configuration, next_number(row)
        process.run(desk.propose, commands.change_members(
            process.ids.request_id(), number, target.voters, target.learners, force=False,
            before=(now.voters, now.learners)))
        return number

    def _is_done(self, number: int) -> bool:
        """Whether group 0 says so, on any node that lives."""
        for node in self._cluster.nodes.values():
            job = None if node.live is None else node.live.desk.row.job
            if job is not None and job.done and job.number >= number:
                return True
        return False


def _is_behind_its_removal(process: Process, removed_at: Mapping[int, int], *, in_group_0: bool) -> bool:
    """Whether the new disk holds nothing of some group, or less than up to the removal of the one before it.

    removed_at: of each group, up to where it was committed then.
    """
    held = {life: driver.core.log.last_index for life, driver in process.groups.opened.items()}
    return any(last < removed_at.get(life, 0) for life, last in held.items() if in_group_0 or life != CELL_LIFE)
