"""Which change of a group's members is legal, and by which steps it is made (Raft paper §6, thesis 4; M-71).

Decisions only: what a leader knows goes in, a configuration or a refusal comes out. Carrying a change out is the core's
business; addresses, and jobs over many groups, are not Raft's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from raft.configurations import VOTERS_MAX
from raft.quorum import Configuration, majority

MEMBERS_MAX: Final = 5  # M-71
LEARNER_LAG_MAX: Final = 1000  # entries (cluster page, section 10: `learner_behind`)


class Why(Enum):
    """Why a change of members is refused; the values are the contract's codes."""

    IN_FLIGHT = "in_flight"
    """Another change is not finished."""
    TERM_NOT_COMMITTED = "retry"
    """Nothing of this leader's term is committed yet, so it does not know which configuration is (thesis 4.1)."""
    CHANGED = "membership_changed"
    """It was checked against another configuration than the one that rules now."""
    NOT_A_MEMBER = "not_a_member"
    NOT_A_LEARNER = "not_a_learner"
    ALREADY_VOTER = "already_voter"
    LAST_VOTER = "last_voter"
    TOO_MANY = "too_many_nodes"
    LEARNER_BEHIND = "learner_behind"
    NO_QUORUM = "no_quorum"
    """The voters before the change, or after it, would lack a live majority."""


class MembershipRefused(Exception):
    """The change is refused, and nothing was done. why: for a program; the text is for people."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why: Final = why


@dataclass(frozen=True, slots=True)
class View:
    """What a leader knows when it is asked for a change.

    match_indexes: of each other member. live: the members that answered of late, the leader included. silent_ticks: of
    each other member, since it last answered.
    """

    configuration: Configuration
    last_index: int
    match_indexes: Mapping[int, int] = field(default_factory=dict)
    live: Collection[int] = ()
    silent_ticks: Mapping[int, int] = field(default_factory=dict)


# Each returns the configuration to be reached; the present one when there is nothing to do (CL-101).


def with_learner(view: View, node_id: int) -> Configuration:
    """Add one that receives the log and does not vote (CL-104). Raises MembershipRefused."""
    now = _at_rest(view)
    if node_id in now.learners:
        return now
    if node_id in now.voters:
        raise MembershipRefused(Why.ALREADY_VOTER, f"node {node_id} votes already")
    if len(now.members) >= MEMBERS_MAX:
        raise MembershipRefused(Why.TOO_MANY, f"a group has at most {MEMBERS_MAX} members")
    if node_id not in view.live:
        raise MembershipRefused(Why.NO_QUORUM, f"node {node_id} does not answer")
    return Configuration(now.voters, (), (*now.learners, node_id))


def with_promoted(
    view: View, node_ids: Sequence[int], *, force: bool = False, lag_max: int = LEARNER_LAG_MAX
) -> Configuration:
    """Learners become voters. force: also those more than `lag_max` entries behind. Raises MembershipRefused."""
    now = _at_rest(view)
    for node_id in node_ids:
        if node_id not in now.members:
            raise MembershipRefused(Why.NOT_A_MEMBER, f"node {node_id} is no member: add it as a learner first")
    return with_voters(view, (*now.voters, *node_ids), force=force, lag_max=lag_max)


def with_voters(
    view: View, voters: Sequence[int], *, force: bool = False, lag_max: int = LEARNER_LAG_MAX
) -> Configuration:
    """These vote from now on. Who voted and is not named is a member no longer; learners not named stay learners.

    A voter becomes a learner only by being removed and added again. Raises MembershipRefused.
    """
    now = _at_rest(view)
    wanted = tuple(sorted(set(voters)))
    if not wanted:
        raise MembershipRefused(Why.LAST_VOTER, "no voter would be left")
    if len(wanted) > VOTERS_MAX:
        raise MembershipRefused(Why.TOO_MANY, f"a group has at most {VOTERS_MAX} voters")
    for node_id in wanted:
        if node_id not in now.members:
            raise MembershipRefused(Why.NOT_A_LEARNER, f"node {node_id} is no learner: add it as one first")
        if node_id in now.learners:
            _check_lag(view, node_id, lag_max, force=force)
    _check_majority(view, now.voters, "before")
    _check_majority(view, wanted, "after")
    learners = tuple(node_id for node_id in now.learners if node_id not in wanted)
    return Configuration(wanted, (), learners)


def without(view: View, node_id: int) -> Configuration:
    """The node is a member no longer (CL-103). Raises MembershipRefused."""
    now = _at_rest(view)
    if node_id not in now.members:
        raise MembershipRefused(Why.NOT_A_MEMBER, f"node {node_id} is no member")
    if node_id in now.voters:
        return with_voters(view, [voter for voter in now.voters if voter != node_id])
    return Configuration(now.voters, (), tuple(learner for learner in now.learners if learner != node_id))


def first_step(before: Configuration, after: Configuration) -> Configuration:
    """What to append first to get from one configuration at rest to another.

    Learners come and go in one step: who decides stays the same. Voters change through a joint configuration, in which
    both halves decide (Raft paper §6); `Configuration.settled` is its second step. Raises ValueError for what is no
    such change.
    """
    if before.outgoing or after.outgoing:
        raise ValueError("a change begins and ends with a configuration at rest")
    if before == after:
        raise ValueError("nothing would change")
    if demoted := set(before.voters) & set(after.learners):
        raise ValueError(f"voters {sorted(demoted)} would become learners: remove them, then add them again")
    if max(len(after.voters), len(after.learners)) > VOTERS_MAX:
        raise ValueError(f"more than {VOTERS_MAX} voters or learners")
    return after if before.voters == after.voters else Configuration(after.voters, before.voters, after.learners)


def _at_rest(view: View) -> Configuration:
    if view.configuration.outgoing:
        raise MembershipRefused(Why.IN_FLIGHT, "a joint configuration stands: its second step follows by itself")
    return view.configuration


def _check_lag(view: View, node_id: int, lag_max: int, *, force: bool) -> None:
    lag = view.last_index - view.match_indexes.get(node_id, 0)
    if lag > lag_max and not force:
        raise MembershipRefused(
            Why.LEARNER_BEHIND, f"learner {node_id} is {lag} entries behind, more than {lag_max}"
        )


def _check_majority(view: View, voters: Sequence[int], when: str) -> None:
    live_count = sum(voter in view.live for voter in voters)
    if live_count < majority(len(voters)):
        raise MembershipRefused(
            Why.NO_QUORUM, f"{live_count} of the {len(voters)} voters {when} the change are live, which is no majority"
        )
