"""What group 0's leader says of a change of members, when leaders come and go (M-71)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import trio

from queen_node import commands
from queen_node.broker import Lane
from queen_node.calls import Pending
from queen_node.group_on_node import GroupOnNode
from queen_node.layout import Layout
from queen_node.membership import KNOW_WITHIN_S, MembershipDesk
from queen_node.membership_job import CELL
from queen_node.state.members import members_of
from tests.unit.group.three import NODES, Three


class OnNode:
    """Group 0 on one node, and its inbox. said: how many commands the desk put in."""

    def __init__(self, three: Three, node: int) -> None:
        self.group, self.inbox, self.said, self._three = three.members[node].group, self, 0, three

    def put(self, event: tuple[Lane, Pending]) -> None:
        lane, pending = event
        pending.give_up_at_s += self._three.now_s - trio.current_time()
        self.said += 1
        self.group.submit(pending, lane)


def desk_of(node: int, actor: OnNode, are_open: Callable[[], bool] = lambda: True) -> MembershipDesk:
    layout = Layout(1, node, "00" * 16, NODES, "cell")
    return MembershipDesk(
        layout=layout, keep_layout=lambda _layout: None, listed=(), groups=lambda: {CELL: cast(GroupOnNode, actor)},
        others=None, heartbeat_s=0.1, election_s=1.0, lag_max=1000, version_every_s=0, reads=1,
        on_version=lambda _version: None, on_removed=lambda: None, are_open=are_open)


def is_done(three: Three, node: int) -> bool:
    job = members_of(three.members[node].group.machine.store.committed()).job
    return job is not None and job.done


async def test_that_a_change_is_through_is_said_until_it_is_heard() -> None:
    """M-71: each leader's word is lost with its leadership, and the first leads again at last: it says so again."""
    three = Three()
    actors = {node: OnNode(three, node) for node in NODES}
    desks = {node: desk_of(node, actors[node]) for node in NODES}
    three.elect(1)
    three._submit(1, commands.change_members(bytes(16), 1, NODES, (), force=False, before=(NODES, ())))
    three.settle()
    three.pass_time(0.3)
    for leader, next_leader in ((1, 2), (2, 3), (3, 1)):
        three.cut = {leader}
        for desk in desks.values():
            desk.step(three.now_s)
        assert actors[leader].said, "the leader, and nobody hears it"
        three.settle()
        three.pass_time(KNOW_WITHIN_S + 1)  # for as long it would be sent to the next leader
        (led,) = (node for node in NODES if three.members[node].leads and node != leader)
        if led != next_leader:
            three.hand_over(led, next_leader)
        three.cut = set()
        three.pass_time(0.5)
        assert not any(is_done(three, node) for node in NODES)
    assert [actors[node].said for node in NODES] == [1, 1, 1], "not at every look"
    three.pass_time(KNOW_WITHIN_S)
    for desk in desks.values():
        desk.step(three.now_s)
    three.settle()
    three.pass_time(0.3)
    assert all(is_done(three, node) for node in NODES)
    for desk in desks.values():
        desk.step(three.now_s)
        assert desk.job is None


async def test_a_change_waits_until_all_groups_are_open() -> None:
    """It looks at all of them at once, so 10,000 that are closed since the start would be opened in one step."""
    three = Three()
    actor, closed = OnNode(three, 1), [7]
    desk = desk_of(1, actor, lambda: not closed)
    three.elect(1)
    three._submit(1, commands.change_members(bytes(16), 1, NODES, (), force=False, before=(NODES, ())))
    three.settle()
    three.pass_time(0.3)
    desk.step(three.now_s)
    assert desk.job is not None
    assert actor.said == 0
    closed.clear()
    desk.step(three.now_s)
    assert actor.said >= 1
