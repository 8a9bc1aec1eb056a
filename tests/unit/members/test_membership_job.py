"""What a group's leader does next when the cell's members change, and when the change is through (M-71)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from queen_node.broker import Unavailable
from queen_node.membership_job import (
    CELL,
    GROUPS_A_STEP,
    LOOKED_AT_A_STEP,
    Confirmation,
    MembershipJob,
    Standing,
    next_step,
)
from raft.membership import MembershipRefused, View, Why
from raft.quorum import Configuration

THREE = Configuration((1, 2, 3))
FOUR = Configuration((1, 2, 3, 4))
LIVE = frozenset((1, 2, 3, 4))


def view(configuration: Configuration, matched: int = 1000, live: frozenset[int] = LIVE) -> View:
    return View(configuration, 1000, dict.fromkeys((2, 3, 4), matched), live)


def steps_to(target: Configuration, start: Configuration) -> list[Configuration]:
    """Every configuration at rest on the way."""
    passed, now = [], start
    while (after := next_step(view(now), target, force=False, lag_max=1000)) is not None:
        passed.append(after)
        now = after
    return passed


def test_who_is_new_learns_before_it_votes() -> None:
    """CL-104; the order in which nothing is ever decided by a node without the log."""
    assert steps_to(FOUR, THREE) == [Configuration((1, 2, 3), (), (4,)), FOUR]
    assert steps_to(THREE, FOUR) == [THREE]
    replaced = Configuration((1, 2, 4))
    assert steps_to(replaced, THREE) == [
        Configuration((1, 2, 3), (), (4,)), Configuration((1, 2, 4))]
    assert steps_to(THREE, Configuration((1, 2, 3), (), (4,))) == [THREE]


def test_a_learner_that_lags_or_holds_nothing_waits() -> None:
    """`learner_behind`; one with an empty log has no vote to give yet, whatever force says."""
    learning = Configuration((1, 2, 3), (), (4,))
    for matched, force in ((10, False), (0, True)):
        with pytest.raises(MembershipRefused) as refused:
            next_step(view(learning, matched), FOUR, force=force, lag_max=900)
        assert refused.value.why is Why.LEARNER_BEHIND
    assert next_step(view(learning, 10), FOUR, force=True, lag_max=900) == FOUR


def test_nothing_is_begun_without_a_live_majority_after_it() -> None:
    with pytest.raises(MembershipRefused) as refused:
        next_step(view(THREE, live=frozenset((1, 2))), Configuration((1, 3)), force=False, lag_max=1000)
    assert refused.value.why is Why.NO_QUORUM


def test_who_is_a_member_by_a_disk_that_is_gone_leaves_first() -> None:
    """What its successor answers counts for nothing (CL-105): the group would wait for it for ever."""
    before, now = {1: b"1" * 16, 4: b"old" * 5 + b"4"}, {1: b"1" * 16, 4: b"new" * 5 + b"4"}
    assert steps_to(FOUR.named(now), FOUR.named(before)) == [THREE, Configuration((1, 2, 3), (), (4,)), FOUR]
    learning = Configuration((1, 2, 3), (), (4,))
    assert next_step(view(learning.named(before)), learning.named(now), force=False, lag_max=1000) == THREE
    for known in ({}, {1: b"1" * 16}, before):  # one that is not named is taken for whoever has its id
        assert next_step(view(FOUR.named(known)), FOUR.named(before), force=False, lag_max=1000) is None
    groups, job = cell(1), MembershipJob(1, FOUR.named(now), drops=False)
    groups[0].raft.core.configuration = FOUR.named(before)
    assert walk(job, groups) == [0]
    assert not is_through(job, groups)


def test_a_node_acts_only_on_a_change_that_was_just_seen_to_stand() -> None:
    """One that lags in group 0 and leads another would bring that to where a change of long ago was bound for."""
    job = MembershipJob(1, FOUR, drops=False)
    assert not job.may_act(has_to=True)
    slot = Standing(job)
    assert job.is_asked and not job.may_act(has_to=True)
    slot.answer(Unavailable("no_leader"))
    assert not job.is_asked and not job.may_act(has_to=True)
    Standing(job).answer(b"")
    assert job.may_act(has_to=True)
    assert not job.may_act(has_to=True)  # once for each answer
    Standing(job).answer(b"")
    assert not job.may_act(has_to=False)
    assert not job.may_act(has_to=True)  # an answer of long ago says nothing of now


@dataclass
class FakeCore:
    configuration: Configuration
    node_id: int = 1
    membership_index: int = 5
    commit_index: int = 5


@dataclass
class FakeRaft:
    core: FakeCore
    may_propose: bool = True


@dataclass
class FakeGroup:
    raft: FakeRaft = field(default_factory=lambda: FakeRaft(FakeCore(THREE)))


def cell(count: int) -> dict[int, FakeGroup]:
    return {life: FakeGroup() for life in range(count)}


def walk(job: MembershipJob, groups: dict[int, FakeGroup]) -> list[int]:
    return job.take_step(groups)  # type: ignore[arg-type]


def is_through(job: MembershipJob, groups: dict[int, FakeGroup]) -> bool:
    confirm(job, groups)
    return job.is_through(groups)  # type: ignore[arg-type]


def confirm(job: MembershipJob, groups: dict[int, FakeGroup], answer: bytes | Unavailable = b"") -> list[int]:
    """Who was asked; they all answer that."""
    lives = job.to_confirm()
    for life in lives:
        Confirmation(job, life, groups[life]).answer(answer)  # type: ignore[arg-type]
    return lives


def test_a_step_asks_a_bounded_number_of_groups_and_comes_to_all() -> None:
    groups, job = cell(35), MembershipJob(1, FOUR, drops=False)
    asked: list[int] = []
    while not is_through(job, groups):
        lives = walk(job, groups)
        assert len(lives) <= GROUPS_A_STEP
        asked += lives
        for life in lives:
            groups[life].raft.core.configuration = FOUR
    assert sorted(asked) == list(range(35))


def test_only_groups_that_this_node_leads_are_asked() -> None:
    groups, job = cell(3), MembershipJob(1, FOUR, drops=False)
    groups[1].raft.may_propose = False
    groups[2].raft.core.configuration = Configuration((1, 2, 3, 4), (1, 2, 3))  # its second step follows by itself
    assert walk(job, groups) == [0]
    assert not is_through(job, groups)


def test_it_is_not_through_before_it_is_committed() -> None:
    groups, job = cell(1), MembershipJob(1, THREE, drops=False)
    groups[0].raft.core.commit_index = 4
    walk(job, groups)
    assert not is_through(job, groups)
    groups[0].raft.core.commit_index = 5
    walk(job, groups)
    assert is_through(job, groups)


def test_a_group_that_begins_meanwhile_is_brought_along() -> None:
    groups, job = cell(1), MembershipJob(1, FOUR, drops=False)
    walk(job, groups)
    groups[0].raft.core.configuration = FOUR
    groups[7] = FakeGroup()  # of a tenant that appeared before group 0 had its new members
    while walk(job, groups) != [7]:
        assert not is_through(job, groups)
    groups[7].raft.core.configuration = FOUR
    walk(job, groups)
    assert is_through(job, groups)


def test_group_0_drops_a_member_last() -> None:
    """Who is dropped hears no more of group 0, and may lead other groups that are to change."""
    groups, job = cell(3), MembershipJob(1, Configuration((1, 2)), drops=True)
    assert CELL not in walk(job, groups)
    for life in (1, 2):
        groups[life].raft.core.configuration = Configuration((1, 2))
    assert CELL not in walk(job, groups), "this node's logs may be old"
    assert confirm(job, groups) == [1, 2]
    assert walk(job, groups) == [CELL]


def test_an_old_configuration_is_not_taken_for_the_one_to_be_reached() -> None:
    """M-71: who came last in group 0 may lead it, and its log of another group end where that had these members before.
    Simulation, seeds 101038 and 103504 of 30 s: the next node was removed while the one before it did not vote yet."""
    groups, job = cell(2), MembershipJob(1, FOUR, drops=False)
    groups[CELL].raft.core.configuration = FOUR
    old = groups[1].raft
    old.may_propose, old.core.configuration = False, FOUR
    walk(job, groups)
    assert not job.is_through(groups)  # type: ignore[arg-type]
    (life,) = job.to_confirm()
    walk(job, groups)
    assert not job.to_confirm(), "once at a time"
    old.core.configuration = THREE  # what came before its state was as new as the question
    Confirmation(job, life, groups[life]).answer(b"")  # type: ignore[arg-type]
    walk(job, groups)
    assert not is_through(job, groups)
    old.core.configuration = FOUR
    walk(job, groups)
    assert is_through(job, groups)


def test_a_group_whose_leader_does_not_answer_is_asked_again() -> None:
    groups, job = cell(2), MembershipJob(1, THREE, drops=False)
    walk(job, groups)
    assert confirm(job, groups, Unavailable("no_leader")) == [1]
    assert not is_through(job, groups)
    walk(job, groups)
    assert is_through(job, groups)


def test_a_look_at_very_many_groups_is_cut() -> None:
    groups, job = cell(LOOKED_AT_A_STEP + 5), MembershipJob(1, THREE, drops=False)
    walk(job, groups)
    assert not is_through(job, groups)
    while not is_through(job, groups):
        walk(job, groups)
        assert len(confirm(job, groups)) <= GROUPS_A_STEP


def test_a_group_that_begins_while_others_are_changed_is_changed_too() -> None:
    """M-71: a tenant came in the middle of it. Here group 0 waits for all others, and this node does not lead it.

    The walk did not see a new group before it was through with the old ones, group 0 among them; the node that leads
    group 0 waited for the new group: the change hung for ever. Seed 19 of the simulation.
    """
    target = Configuration((1, 2))
    groups, job = cell(2), MembershipJob(1, target, drops=True)
    groups[CELL].raft.may_propose = False
    assert walk(job, groups) == [1]
    groups[1].raft.core.configuration = target
    groups[2] = FakeGroup()
    assert walk(job, groups) == [2]
