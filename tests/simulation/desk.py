"""A process's part in a change of members: it looks at group 0's state and carries on the change that stands there.

The decisions are those of `queen_node.membership_job`; this stands for the task around them (`MembershipDesk`), without
one. Who asks for changes is in `operator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queen_node import commands
from queen_node.broker import Lane
from queen_node.calls import NobodyWaits, Pending, PendingRead
from queen_node.events import ChangeMembers
from queen_node.membership import KNOW_WITHIN_S
from queen_node.membership_check import drops_members, job_target, named_target
from queen_node.membership_job import Confirmation, MembershipJob, Standing
from queen_node.state.members import members_of
from queen_node.state.rows import MembersRow
from tests.simulation.world import SECOND

if TYPE_CHECKING:
    from tests.simulation.process import Process

LIVE_WITHIN_US: Final = SECOND
LAG_MAX: Final = 1000


class Desk:
    """One a process. heard_us: when each other node said something last."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.row = MembersRow([])
        self.heard_us: dict[int, int] = {}
        self._job: MembershipJob | None = None
        self._seen_index = -1
        self._done_told, self._done_again_s = 0, 0.0

    @property
    def live(self) -> frozenset[int]:
        """Nodes that answer."""
        since_us = self._process.world.now_us - LIVE_WITHIN_US
        return frozenset((
            self._process.node_id, *(node for node, heard_us in self.heard_us.items() if heard_us >= since_us)))

    @property
    def max_silent_ticks(self) -> int:
        """Of a member that counts as live."""
        return LIVE_WITHIN_US // self._process.shape.tick_us

    def step(self) -> None:
        """Look at group 0, and do what is to be done now."""
        machine = self._process.host.cell.machine
        if machine.applied_index != self._seen_index:
            self._seen_index = machine.applied_index
            self._look(members_of(machine.store.committed()))
        if self._job is not None:
            self._carry_on(self._job)

    def _look(self, row: MembersRow) -> None:
        self.row, job = row, row.job
        if job is None or job.done:
            self._job = None
        elif self._job is None or self._job.number != job.number:
            self._job = MembershipJob(job.number, named_target(job_target(job), row), drops=drops_members(job))
        else:
            self._job.target = named_target(job_target(job), row)

    def _carry_on(self, job: MembershipJob) -> None:
        process, row_job = self._process, self.row.job
        groups, cell = process.groups, process.host.cell
        lives = job.take_step(groups)
        give_up_at_s = process.now_s + KNOW_WITHIN_S
        if job.may_act(has_to=bool(lives)) and row_job is not None:
            event = ChangeMembers(job.target, row_job.force, self.live, self.max_silent_ticks, LAG_MAX)
            for life in lives:
                groups[life].inbox.put(event)
        if lives and not job.is_asked:
            cell.inbox.put(PendingRead(Confirmation.QUERY, Standing(job), give_up_at_s=give_up_at_s))
        for life in job.to_confirm() if cell.raft.may_propose else ():
            slot = Confirmation(job, life, groups[life])
            groups[life].inbox.put(PendingRead(Confirmation.QUERY, slot, give_up_at_s=give_up_at_s))
        if not cell.raft.may_propose or (job.number == self._done_told and process.now_s < self._done_again_s):
            return
        if job.is_through(groups):
            self._done_told, self._done_again_s = job.number, process.now_s + KNOW_WITHIN_S
            self.propose(commands.members_changed(process.ids.request_id(), job.number))

    def propose(self, command: bytes) -> None:
        """To group 0. Nobody waits."""
        give_up_at_s = self._process.now_s + KNOW_WITHIN_S
        self._process.host.cell.inbox.put(
            (Lane.DRAINING, Pending(command, NobodyWaits(), give_up_at_s=give_up_at_s)))
