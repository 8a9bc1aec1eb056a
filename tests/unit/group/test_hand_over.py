"""Whom a node that stops hands over: what it leads awake at once, of what it leads asleep some at a time (CL-54)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

from queen_node.events import HandOver
from queen_node.groups import ASLEEP_A_STEP, Groups
from raft.core import Role


def actor(role: Role) -> Any:
    told: list[Any] = []
    core = SimpleNamespace(role=role)
    return SimpleNamespace(
        group=SimpleNamespace(raft=SimpleNamespace(core=core)), inbox=SimpleNamespace(put=told.append), told=told)


class Halves(Groups[Any]):
    """Groups that are awake and groups that sleep, and nothing else of a node."""

    def __init__(self, awake: list[Any], asleep: list[Any]) -> None:
        self._halves = awake, asleep

    def awake(self) -> Collection[Any]:
        return self._halves[0]

    def asleep(self) -> Iterable[Any]:
        return self._halves[1]


def test_leaders_are_handed_over_and_followers_are_left_alone() -> None:
    leads, follows, sleeps, rests = (actor(role) for role in (Role.LEADER, Role.FOLLOWER, Role.LEADER, Role.FOLLOWER))
    assert Halves([leads, follows], [rests, sleeps]).hand_over(10)
    assert [each.told for each in (leads, follows, sleeps, rests)] == [[HandOver(10)], [], [HandOver(10)], []]
    assert not Halves([follows], [rests]).hand_over(10)


def test_of_those_that_sleep_some_are_handed_over_at_a_time() -> None:
    sleeping = [actor(Role.LEADER) for _ in range(ASLEEP_A_STEP + 5)]
    groups = Halves([], sleeping)
    assert groups.hand_over(10)
    assert sum(len(each.told) for each in sleeping) == ASLEEP_A_STEP
    for each in sleeping:
        if each.told:
            each.group.raft.core.role = Role.FOLLOWER
    assert groups.hand_over(10)
    assert all(len(each.told) == 1 for each in sleeping)
