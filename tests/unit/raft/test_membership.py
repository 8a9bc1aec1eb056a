"""Which changes of members are legal, and the configurations that a log holds (Raft paper §6; M-71; CL-100 to 104)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.configurations import (
    VOTERS_MAX,
    Configurations,
    MalformedConfiguration,
    decode_configuration,
    encode_configuration,
)
from raft.membership import (
    LEARNER_LAG_MAX,
    MembershipRefused,
    View,
    Why,
    first_step,
    with_learner,
    with_promoted,
    with_voters,
    without,
)
from raft.quorum import Configuration

THREE = Configuration((1, 2, 3))
ALL = (1, 2, 3, 4, 5, 6)


def view(configuration: Configuration = THREE, *, live: tuple[int, ...] = ALL, **matches: int) -> View:
    """match of node 4: `n4=90`. The log ends at 2,000."""
    return View(configuration, 2000, {int(name[1:]): index for name, index in matches.items()}, live)


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (with_learner(view(), 4), Configuration((1, 2, 3), (), (4,))),
        (with_learner(view(Configuration((1, 2), (), (4,))), 4), Configuration((1, 2), (), (4,))),
        (with_promoted(view(Configuration((1, 2), (), (4, 5)), n4=1000), [4]), Configuration((1, 2, 4), (), (5,))),
        (with_promoted(view(Configuration((1, 2), (), (4,))), [4], force=True), Configuration((1, 2, 4))),
        (with_promoted(view(), [3]), THREE),
        (with_voters(view(), [3, 1]), Configuration((1, 3))),
        (with_voters(view(Configuration((1, 2, 3), (), (4, 5)), n4=2000), [3, 4]), Configuration((3, 4), (), (5,))),
        (with_voters(view(), [1, 2, 3, 3]), THREE),
        (without(view(), 2), Configuration((1, 3))),
        (without(view(Configuration((1,), (), (4, 5))), 4), Configuration((1,), (), (5,))),
    ],
)
def test_what_a_legal_change_reaches(reached: Configuration, expected: Configuration) -> None:
    """CL-100, CL-101: a change that took effect is reached already."""
    assert reached == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda: with_learner(view(), 2), Why.ALREADY_VOTER),
        (lambda: with_learner(view(Configuration((1, 2, 3, 4, 5))), 6), Why.TOO_MANY),
        (lambda: with_learner(view(live=(1, 2, 3)), 4), Why.NO_QUORUM),  # CL-104: running and answering
        (lambda: with_learner(view(Configuration((1, 4), (1, 2))), 5), Why.IN_FLIGHT),
        (lambda: with_promoted(view(), [4]), Why.NOT_A_MEMBER),
        (lambda: with_promoted(view(Configuration((1,), (), (4,)), n4=999), [4]), Why.LEARNER_BEHIND),
        (lambda: with_promoted(view(Configuration((1,), (), (4,))), [4]), Why.LEARNER_BEHIND),
        (lambda: with_voters(view(), []), Why.LAST_VOTER),
        (lambda: with_voters(view(), [1, 2, 4]), Why.NOT_A_LEARNER),
        (lambda: with_voters(view(), ALL), Why.TOO_MANY),
        (lambda: with_voters(view(live=(1, 3)), [1, 2]), Why.NO_QUORUM),
        (lambda: with_voters(view(live=(1,)), [1]), Why.NO_QUORUM),
        (lambda: without(view(), 4), Why.NOT_A_MEMBER),
        (lambda: without(view(Configuration((1,))), 1), Why.LAST_VOTER),
        (lambda: without(view(live=(1, 2)), 2), Why.NO_QUORUM),
        (lambda: without(view(Configuration((1, 3), (1, 2, 3))), 3), Why.IN_FLIGHT),
    ],
)
def test_why_a_change_is_refused(change: Callable[[], Configuration], why: Why) -> None:
    """CL-100: all checks run before anything is written. M-71: two to five nodes."""
    with pytest.raises(MembershipRefused) as refusal:
        change()
    assert refusal.value.why is why


def test_a_learner_may_be_behind_by_so_much() -> None:
    now = Configuration((1,), (), (4,))
    assert with_promoted(view(now, n4=2000 - LEARNER_LAG_MAX), [4]).voters == (1, 4)


def test_voters_change_through_a_joint_configuration_and_learners_in_one_step() -> None:
    """Raft paper §6."""
    after = Configuration((2, 3, 4), (), (5,))
    joint = first_step(THREE, after)
    assert joint == Configuration((2, 3, 4), (1, 2, 3), (5,))
    assert joint.settled == after
    learners = Configuration((1, 2, 3), (), (4,))
    assert first_step(THREE, learners) == learners


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (THREE, THREE),
        (THREE, Configuration((1, 2), (), (3,))),
        (Configuration((1, 2), (1, 2, 3)), THREE),
        (THREE, Configuration((1, 2), (1, 2, 3))),
        (THREE, Configuration((1, 2, 3, 4, 5, 6))),
    ],
    ids=["none", "demotion", "from a joint one", "to a joint one", "too many"],
)
def test_what_is_no_change(before: Configuration, after: Configuration) -> None:
    with pytest.raises(ValueError):
        first_step(before, after)


subsets = st.sets(st.integers(1, 6), min_size=1, max_size=5)


@given(subsets, subsets)
def test_any_two_majorities_along_a_change_share_a_voter(old: set[int], new: set[int]) -> None:
    """Raft paper §6: members at neighbouring steps can never elect two leaders, nor commit two entries at one index."""
    before, after = Configuration(tuple(old)), Configuration(tuple(new))
    if before == after:
        return
    steps = [before, first_step(before, after), after]
    for one, other in pairwise(steps):
        for winners in _winning(one):
            assert not any(winners.isdisjoint(others) for others in _winning(other))


def _winning(configuration: Configuration) -> list[frozenset[int]]:
    """All sets of nodes that decide."""
    nodes = configuration.electors
    sets = [frozenset(node for place, node in enumerate(nodes) if bits >> place & 1) for bits in range(1 << len(nodes))]
    return [one for one in sets if configuration.agreed({node: int(node in one) for node in nodes})]


# Their bytes


@given(subsets, st.sets(st.integers(1, 9), max_size=5), st.sets(st.integers(10, 15), max_size=5))
def test_a_configuration_survives_the_log(voters: set[int], outgoing: set[int], learners: set[int]) -> None:
    configuration = Configuration(tuple(voters), tuple(outgoing), tuple(learners))
    assert decode_configuration(encode_configuration(configuration)) == configuration


def test_the_bytes_of_a_configuration_stay_what_they_are() -> None:
    """Every later release reads them."""
    assert encode_configuration(Configuration((1, 2), (1, 3), (4,))) == bytes.fromhex("84 01 820102 820103 8104")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not CBOR"),
        (b"\x81" * 5000, "not CBOR"),
        (cbor2.dumps([1, [1], []]), "3 fields in version 1"),
        (cbor2.dumps({}), "not a version and"),
        (cbor2.dumps(["1", [1], [], []]), "not a version and"),
        (cbor2.dumps([3, [1], [], [], []]), "version 3"),
        (cbor2.dumps([2, [1], [], []]), "4 fields in version 2"),
        (cbor2.dumps([1, [1], [], [], []]), "5 fields in version 1"),
        (cbor2.dumps([2, [1], [], [], 7]), "not a list of directories"),
        (cbor2.dumps([2, [1], [], [], [[1]]]), "not a node id and its directory"),
        (cbor2.dumps([2, [1], [], [], [["1", bytes(16)]]]), "not a node id and its directory"),
        (cbor2.dumps([2, [1], [], [], [[1, bytes(15)]]]), "not the 16 bytes"),
        (cbor2.dumps([2, [1], [], [], [[1, bytes(16)], [1, bytes(16)]]]), "two directories for one node"),
        (cbor2.dumps([2, [1], [], [], [[2, bytes(16)]]]), "are no members"),
        (cbor2.dumps([1, [], [], []]), "needs a voter"),
        (cbor2.dumps([1, [1, 1], [], []]), "distinct"),
        (cbor2.dumps([1, [1], [], [1]]), "at once"),
        (cbor2.dumps([1, [0], [], []]), "not node ids"),
        (cbor2.dumps([1, [2**63], [], []]), "not node ids"),
        (cbor2.dumps([1, [True], [], []]), "not node ids"),
        (cbor2.dumps([1, 5, [], []]), "not a list"),
        (cbor2.dumps([1, list(range(1, VOTERS_MAX + 2)), [], []]), "at most 5"),
    ],
)
def test_what_is_no_configuration_is_refused_and_named(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedConfiguration, match=complaint):
        decode_configuration(data)


def test_a_configuration_comes_back_with_its_directories() -> None:
    """CL-132: one that names none is what earlier formats hold."""
    named = Configuration((1, 2), (1, 3), (4,)).named({1: bytes(16), 4: b"x" * 16})
    assert decode_configuration(encode_configuration(named)).directories == named.directories
    unnamed = encode_configuration(named.named({}))
    assert cbor2.loads(unnamed) == [1, [1, 2], [1, 3], [4]]
    assert decode_configuration(unnamed).directories == ()


# The ones that a log holds


def test_what_ruled_at_an_index() -> None:
    known = Configurations(10, THREE)
    four, five = Configuration((1, 2, 3, 4)), Configuration((5,))
    known.add(12, 2, four, applied_index=10)
    known.add(15, 3, five, applied_index=10)
    assert [known.at(index) for index in (10, 11, 12, 14, 15, 99)] == [THREE, THREE, four, four, five, five]
    assert (known.latest, known.latest_index) == (five, 15)
    known.cut(lambda index, term: (index, term) != (15, 3), commit_index=11)
    assert (known.latest, known.latest_index) == (four, 12)


def test_what_the_state_has_moved_past_is_forgotten() -> None:
    known = Configurations(0, THREE)
    for index in range(1, 100):
        known.add(index, 1, Configuration((index,)), applied_index=index - 1)
    assert len(known._history) == 2
    assert known.at(98) == Configuration((98,))


def test_what_is_committed_is_never_taken_back() -> None:
    """The log in memory does not reach back that far, and so does not hold it."""
    known = Configurations(0, THREE)
    known.add(5, 1, Configuration((9,)), applied_index=0)
    known.cut(lambda index, term: False, commit_index=5)
    assert known.latest == Configuration((9,))


def test_who_may_stand() -> None:
    """Thesis 4.2.2: who votes in the last committed configuration, or in any after it."""
    known = Configurations(0, Configuration((1,)))
    known.add(5, 1, Configuration((2,)), applied_index=0)
    known.add(7, 1, Configuration((3,)), applied_index=0)
    stands = {commit: [node for node in (1, 2, 3, 4) if known.may_stand(node, b"", commit)] for commit in (4, 5, 6, 7)}
    assert stands == {4: [1, 2, 3], 5: [2, 3], 6: [2, 3], 7: [3]}


def test_a_disk_stands_from_where_it_is_meant() -> None:
    """CL-105: that a lost disk voted under its id is no vote of the next one."""
    lost, following = b"the lost disk...", b"the next disk..."
    known = Configurations(0, THREE.named({1: lost}))
    assert known.may_stand(1, lost, 0) and not known.may_stand(1, following, 0)
    known.add(5, 1, Configuration((2, 3)), applied_index=0)
    known.add(7, 1, THREE.named({1: following}), applied_index=0)
    assert known.may_stand(1, following, 0) and not known.may_stand(1, lost, 5)
