"""A change of members on its way through all groups of the cell (M-71): what each group's leader does next, and when it
is through.

Plain code, nothing awaits. A change says where every group is to be brought, so it can be taken up by any leader at any
moment, and a group that is there needs nothing. What a group's change consists of is Raft's (`raft.membership`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from queen_node import queries
from queen_node.broker import Unavailable
from queen_node.events import ChangeMembers, TransferLeadership
from queen_node.queries import Query
from raft.core import NotLeader
from raft.group import RaftGroup
from raft.membership import MembershipRefused, View, Why, with_learner, with_voters
from raft.quorum import Configuration

CELL: Final = 0  # life of group 0
STEP_S: Final = 0.05
GROUPS_A_STEP: Final = 10  # 200 groups a second (M-71)
LOOKED_AT_A_STEP: Final = 2000  # groups, so that a step of 10,000 takes no longer than a few ms


class GroupOfJob(Protocol):
    """What the change needs to know of a group of this node."""

    @property
    def raft(self) -> RaftGroup: ...


def next_step(view: View, target: Configuration, *, force: bool, lag_max: int) -> Configuration | None:
    """What the group's leader changes to now on the way to `target`; None: nothing, the group is there.

    First who is new learns, then who votes changes, then who only learned goes. Before all that goes whoever is a
    member by another data directory than the target's: what that disk's successor answers would count for nothing.
    Raises MembershipRefused while that cannot be: it is tried again.
    """
    now = view.configuration
    if misnamed := _misnamed(now, target):
        voters = tuple(node_id for node_id in now.voters if node_id not in misnamed)
        if voters != now.voters:
            return with_voters(view, voters, force=force, lag_max=lag_max)
        return Configuration(voters, (), tuple(node_id for node_id in now.learners if node_id not in misnamed))
    if now == target:
        return None
    for node_id in target.members:
        if node_id not in now.members:
            return with_learner(view, node_id)
    if now.voters != target.voters:
        for node_id in target.voters:
            if node_id in now.learners and not view.match_indexes.get(node_id, 0):
                # Its vote would count at once, and a majority with it would wait for all of the log.
                raise MembershipRefused(Why.LEARNER_BEHIND, f"learner {node_id} holds nothing of the log yet")
        return with_voters(view, target.voters, force=force, lag_max=lag_max)
    return Configuration(now.voters, (), target.learners)


def change(raft: RaftGroup, event: ChangeMembers) -> None:
    """In the group's own turn: one step towards what the event names, if this node leads and it can be done now."""
    core = raft.core
    if not raft.may_propose:
        return
    view = core.membership_view(event.max_silent_ticks, event.live)
    if core.node_id not in event.target.voters:
        successor = _successor(view, event.target)
        if successor:
            core.transfer_leadership(successor)
        return
    try:
        after = next_step(view, event.target, force=event.force, lag_max=event.lag_max)
        if after is not None:
            core.change_membership(view.configuration, after.named(dict(event.target.directories)))
    except (MembershipRefused, NotLeader):
        return  # the job asks again


def _successor(view: View, target: Configuration) -> int:
    """Who goes on with the change where the leader is to go: it would not hear whether the last step was committed. 0:
    nobody who will stay answers."""
    staying = [node for node in target.voters if node in view.live and node in view.configuration.voters]
    return max(staying, key=lambda node: view.match_indexes.get(node, 0), default=0)


def transfer(raft: RaftGroup, event: TransferLeadership) -> None:
    """In the group's own turn: hand over to that voter, if this node leads still."""
    if raft.may_propose and event.to != raft.core.node_id and raft.core.configuration.is_voter(event.to):
        raft.core.transfer_leadership(event.to)


class MembershipJob:
    """The walk of one change over the groups of this node.

    Every node walks: each group's leader acts, a step at a time and only when a read of group 0 has just shown that
    this change still stands. Whoever leads a group may lag in group 0, and would bring the group to where a change of
    long ago was bound for: members whose disks are gone.

    Whether all groups are through only group 0's leader says. Its own log of a group may be old, and where members come
    and go an old configuration can be the one to be reached: so it has each group's leader confirm, once its own log
    shows the group there, that nothing newer is committed (`to_confirm`). What was confirmed stays so as long as this
    is the change that stands.
    """

    def __init__(self, number: int, target: Configuration, *, drops: bool) -> None:
        """target: with the directories that group 0 knows. drops: some are members no longer when it is through."""
        self.number, self.target, self._drops = number, target, drops
        self._left: dict[int, None] = {}
        self._group_count = 0  # when all of them were put on the list
        self._unsure: dict[int, None] = {}  # there, as far as this node knows
        self._asked: set[int] = set()
        self._sure: set[int] = {CELL}  # who says that the change is through has to write it there
        self.is_asked = False  # whether it still stands
        self._stands = False

    def take_step(self, groups: Mapping[int, GroupOfJob]) -> list[int]:
        """Lives of the groups that this node leads and should change now."""
        if not self._left or len(groups) != self._group_count:
            # Also one that began since: group 0, which goes last, would wait for it on one node while another, which
            # leads it, waits for group 0 before it walks again.
            self._left |= dict.fromkeys(groups)
            self._group_count = len(groups)
        lives: list[int] = []
        for life in list(self._left)[:LOOKED_AT_A_STEP]:
            del self._left[life]
            group = groups.get(life)
            if group is None:
                continue
            if is_there(group.raft, self.target):
                if not (life in self._sure or life in self._asked):
                    self._unsure[life] = None
                continue
            self._left[life] = None  # behind the others
            if life == CELL and self._drops and not self._cell_may_go(group, groups):
                continue
            if group.raft.may_propose and not group.raft.core.configuration.outgoing:
                lives.append(life)
                if len(lives) == GROUPS_A_STEP:
                    break
        return lives

    def may_act(self, *, has_to: bool) -> bool:
        """Whether a read that began no earlier than in the step before has shown that this change stands: to be asked
        once a step, when group 0's state was looked at."""
        stands, self._stands = self._stands, False
        return has_to and stands

    def stood(self, *, is_known: bool) -> None:
        """The answer: group 0's state here is as new as the question, or not."""
        self.is_asked, self._stands = False, is_known

    def _cell_may_go(self, cell: GroupOfJob, groups: Mapping[int, GroupOfJob]) -> bool:
        """Last: who hears no more of group 0 would not know that the groups it leads are to change."""
        return cell.raft.core.node_id not in self.target.voters or self._sure.issuperset(groups)

    def to_confirm(self) -> list[int]:
        """Lives of the groups whose leaders are to be asked now; for group 0's leader. `looked` tells what they said.
        """
        lives = list(self._unsure)[:GROUPS_A_STEP]
        for life in lives:
            del self._unsure[life]
        self._asked.update(lives)
        return lives

    def looked(self, life: int, group: GroupOfJob, *, is_new: bool) -> None:
        """The group's state here is as new as the question; or not, as nobody answered."""
        self._asked.discard(life)
        if is_new and is_there(group.raft, self.target):
            self._sure.add(life)
        else:
            self._left[life] = None

    def is_through(self, groups: Mapping[int, GroupOfJob]) -> bool:
        """Whether every group is there, those among them that began since the last walk. Costs a look at each group, so
        ask only when nothing is left."""
        if self._left or not self._sure.issuperset(groups):
            return False
        missing = [life for life, group in groups.items() if not is_there(group.raft, self.target)]
        self._left = dict.fromkeys(missing)
        return not missing


class Standing:
    """Where a read says that group 0's state here is as new as the question. Implements `slots.ResultSlot`."""

    def __init__(self, job: MembershipJob) -> None:
        self._job = job
        self.answered = False
        job.is_asked = True

    def answer(self, result: bytes | Unavailable) -> None:
        """See `MembershipJob.stood`."""
        if not self.answered:
            self.answered = True
            self._job.stood(is_known=not isinstance(result, Unavailable))


class Confirmation:
    """Where a read says that a group's state here is as new as the question. Implements `slots.ResultSlot`."""

    QUERY: Final = queries.query(Query.NOTHING)

    def __init__(self, job: MembershipJob, life: int, group: GroupOfJob) -> None:
        self._job, self._life, self._group = job, life, group
        self.answered = False

    def answer(self, result: bytes | Unavailable) -> None:
        """See `MembershipJob.looked`."""
        if not self.answered:
            self.answered = True
            self._job.looked(self._life, self._group, is_new=not isinstance(result, Unavailable))


def is_there(raft: RaftGroup, target: Configuration) -> bool:
    """Whether these are the group's members, for good: as far as this node knows."""
    core = raft.core
    now = core.configuration
    return now == target and core.membership_index <= core.commit_index and not _misnamed(now, target)


def _misnamed(now: Configuration, target: Configuration) -> set[int]:
    """Members by another data directory than the target names them by, where both name one."""
    if now.directories == target.directories:
        return set()
    names = dict(target.directories)
    return {
        node_id for node_id, directory_id in now.directories if names.get(node_id, directory_id) != directory_id}


def groups_left(groups: Iterable[GroupOfJob], target: Configuration) -> int:
    """How many groups are not there yet; a look at each."""
    return sum(not is_there(group.raft, target) for group in groups)
