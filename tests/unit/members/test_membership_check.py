"""What an operator's wish leads to, or how it is refused (cluster.md 10: each code)."""

from __future__ import annotations

from typing import Any

import pytest

from queen_node.membership_check import Refusals, check, drops_members, named_target
from queen_node.operator_calls import AddLearner, Change, OperatorRefused, Promote, Remove, SetVoters
from queen_node.state.rows import MemberRow, MembersJobRow, MembersRow
from queen_node.versions import NAMED
from raft.membership import View
from raft.quorum import Configuration

THREE = Configuration((1, 2, 3))
LEARNING = Configuration((1, 2, 3), (), (4,))
FIVE = Configuration((1, 2, 3, 4, 5))
ALL = frozenset(range(1, 8))


def row(node_id: int) -> MemberRow:
    return MemberRow(node_id, f"raft-{node_id}:7400", f"http-{node_id}:6632")


def learner(node_id: int) -> AddLearner:
    return AddLearner(node_id, f"raft-{node_id}:7400", f"http-{node_id}:6632")


def job(voters: list[int], learners: list[int], *, done: bool = False, before: tuple[int, ...] = (1, 2, 3),
        before_learners: tuple[int, ...] = ()) -> MembersJobRow:
    return MembersJobRow(3, voters, learners, False, list(before), list(before_learners), done)


def against(
    configuration: Configuration = THREE, standing: MembersJobRow | None = None, *, live: frozenset[int] = ALL,
    matched: int = 5000,
) -> Refusals:
    members = [row(node) for node in configuration.members]
    seen = View(configuration, 5000, dict.fromkeys(range(2, 8), matched), live)
    return Refusals(seen, MembersRow(members, standing), {member.node_id: member for member in members}, 1000)


@pytest.mark.parametrize(("question", "where", "target"), [
    (learner(4), against(), LEARNING),
    (learner(4), against(LEARNING), None),
    (Promote((4,), False), against(LEARNING), Configuration((1, 2, 3, 4))),
    (Promote((3,), False), against(), None),
    (Promote((4,), True), against(LEARNING, matched=10), Configuration((1, 2, 3, 4))),
    (SetVoters((1, 2, 4), False), against(LEARNING), Configuration((1, 2, 4))),
    (SetVoters((3, 2, 1), False), against(), None),
    (Remove(3), against(), Configuration((1, 2))),
    (Remove(4), against(LEARNING), THREE),
    (Remove(4), against(THREE, job([1, 2, 3], [], done=True, before=(1, 2, 3, 4))), None),
    # while a change stands: the same again, and out with whoever it brings in
    (learner(4), against(THREE, job([1, 2, 3], [4])), None),
    (Promote((4,), False), against(LEARNING, job([1, 2, 3, 4], [])), None),
    (SetVoters((1, 2, 3, 4), False), against(LEARNING, job([1, 2, 3, 4], [])), None),
    (Remove(3), against(THREE, job([1, 2], [])), None),
    (Remove(4), against(THREE, job([1, 2, 3], [4])), THREE),
    (Remove(4), against(LEARNING, job([1, 2, 3, 4], [], before_learners=(4,))), THREE),
])
def test_where_it_leads(question: Change, where: Refusals, target: Configuration | None) -> None:
    """CL-101: nothing when it took effect already."""
    assert check(question, where, connected=True) == target


@pytest.mark.parametrize(("question", "where", "code"), [
    (learner(6), against(FIVE), "too_many_nodes"),
    (learner(3), against(), "already_voter"),
    (learner(4), against(live=frozenset((1, 2, 3))), "no_quorum"),
    (AddLearner(4, "raft-4:7400", "http-1:6632"), against(), "address_mismatch"),
    (AddLearner(4, "elsewhere:1", "http-4:6632"), against(LEARNING), "address_mismatch"),
    (AddLearner(4, "no address", "http-4:6632"), against(), "bad_request"),
    (Promote((5,), False), against(LEARNING), "not_a_member"),
    (Promote((4,), False), against(LEARNING, matched=10), "learner_behind"),
    (SetVoters((1, 2, 5), False), against(), "not_a_learner"),
    (SetVoters((1, 2), False), against(live=frozenset((1, 3))), "no_quorum"),
    (Remove(1), against(Configuration((1,))), "last_voter"),
    (Remove(9), against(), "not_a_member"),
    (Remove(3), against(THREE, job([1, 2, 3], [4])), "in_flight"),
    (learner(5), against(THREE, job([1, 2, 3], [4])), "in_flight"),
    (Remove(2), against(Configuration((1, 2), (1, 2, 3))), "in_flight"),
])
def test_how_it_is_refused(question: Change, where: Refusals, code: str) -> None:
    with pytest.raises(OperatorRefused) as refused:
        check(question, where, connected=True)
    assert refused.value.code == code


def test_the_way_out_of_a_change_that_stands_is_named() -> None:
    with pytest.raises(OperatorRefused, match="DELETE /api/v1/system/raft/membership/members/4 ends it"):
        check(learner(5), against(THREE, job([1, 2, 3], [4])))


def test_before_it_is_connected_a_node_is_not_asked_whether_it_answers() -> None:
    assert check(learner(4), against(live=frozenset((1, 2, 3)))) == LEARNING


@pytest.mark.parametrize(("standing", "drops"), [
    (job([1, 2, 3], [4]), False), (job([1, 2], []), True), (job([1, 2, 4], [], before_learners=(4,)), True),
])
def test_who_is_dropped(standing: Any, drops: bool) -> None:
    assert drops_members(standing) is drops


def test_members_are_named_with_their_directories_once_all_nodes_read_that() -> None:
    """CL-105, CL-132."""
    known = (1, b"1" * 16), (4, b"4" * 16), (2, b"")
    members = [MemberRow(node, f"r{node}:1", f"h{node}:1", directory) for node, directory in known]
    named = {version: named_target(LEARNING, MembersRow(members, None, version)) for version in (NAMED - 1, NAMED)}
    assert named[NAMED - 1].directories == ()
    assert named[NAMED].directories == ((1, b"1" * 16), (4, b"4" * 16))
    assert named[NAMED] == LEARNING
