"""Majorities against slow, obvious twins."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.quorum import Configuration, Tally, majority

ids = st.lists(st.integers(1, 9), min_size=1, max_size=7, unique=True).map(tuple)
FIRST, SECOND = b"first directory.", b"second directory"
configurations = st.builds(Configuration, ids, st.one_of(st.just(()), ids))


def decides(configuration: Configuration, some: set[int]) -> bool:
    """Twin: more than half of each set of voters is among these (Raft paper §6)."""
    halves = [half for half in (configuration.voters, configuration.outgoing) if half]
    return all(2 * len(some & set(half)) > len(half) for half in halves)


@given(configurations, st.data())
def test_what_a_majority_has_reached(configuration: Configuration, data: st.DataObject) -> None:
    """Raft paper §5.3, §5.4.2: the highest index with a majority at or above it, in both halves of a joint one (§6)."""
    values = {voter: data.draw(st.integers(0, 12)) for voter in configuration.electors}
    twin = max(
        value for value in range(13) if decides(configuration, {v for v, reached in values.items() if reached >= value})
    )
    assert configuration.agreed(values) == twin


@given(configurations, st.data())
def test_how_an_election_stands(configuration: Configuration, data: st.DataObject) -> None:
    """Raft paper §5.2: won with a majority; lost when no answer that is still missing could make one."""
    votes = data.draw(st.dictionaries(st.sampled_from(configuration.electors), st.booleans()))
    granted = {voter for voter, vote in votes.items() if vote}
    denied = {voter for voter, vote in votes.items() if not vote}
    twin = Tally.PENDING
    if decides(configuration, granted):
        twin = Tally.WON
    elif not decides(configuration, set(configuration.electors) - denied):
        twin = Tally.LOST
    assert configuration.tally(votes) is twin


@given(configurations, st.data())
def test_votes_of_others_do_not_count(configuration: Configuration, data: st.DataObject) -> None:
    votes = data.draw(st.dictionaries(st.sampled_from(configuration.electors), st.booleans()))
    assert configuration.tally(votes | {99: True}) is configuration.tally(votes)


@pytest.mark.parametrize("count", range(1, 8))
def test_two_majorities_share_a_voter_and_two_smaller_sets_need_not(count: int) -> None:
    """Raft paper §5.2: on this rests that a term has one leader."""
    voters = range(count)
    deciding = list(combinations(voters, majority(count)))
    assert all(set(one) & set(other) for one in deciding for other in deciding)
    smaller = list(combinations(voters, majority(count) - 1))
    assert any(not set(one) & set(other) for one in smaller for other in smaller)


def test_a_configuration_has_one_order() -> None:
    configuration = Configuration((3, 1, 2), outgoing=(4, 2), learners=(9, 7))
    assert configuration == Configuration((1, 2, 3), (2, 4), (7, 9))
    assert configuration.electors == (1, 2, 3, 4)
    assert configuration.members == (1, 2, 3, 4, 7, 9)
    assert [node for node in range(1, 10) if configuration.is_voter(node)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "what",
    [
        {"voters": ()},
        {"voters": (1, 1)},
        {"voters": (0, 1)},
        {"voters": (1,), "outgoing": (2, 2)},
        {"voters": (1, 2), "learners": (2,)},
        {"voters": (1,), "outgoing": (2,), "learners": (2,)},
        {"voters": (1,), "directories": ((2, FIRST),)},
    ],
)
def test_a_configuration_that_cannot_be(what: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Configuration(**what)


def test_which_disk_is_meant_by_a_members_id() -> None:
    """CL-105. Of whom no directory is named, any will do."""
    known = Configuration((1, 2), (1, 3), (4,)).named({1: FIRST, 4: SECOND, 9: SECOND})
    assert known.directories == ((1, FIRST), (4, SECOND))
    assert known.is_member_by(1, FIRST) and not known.is_member_by(1, SECOND)
    assert known.is_member_by(2, SECOND) and known.is_member_by(1, b"")
    assert known == Configuration((1, 2), (1, 3), (4,)), "the members are the same"
    assert known.settled.directories == known.directories
    assert Configuration((1, 3), (1, 2)).named({2: FIRST}).settled.directories == ()
