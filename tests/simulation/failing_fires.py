"""Nodes that refuse fires (W14): on one they fail for good, on another for the moment, on the rest they do not.

It is the node that leads a group that fails its fires, so a change of leaders mends them, or breaks them anew.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from queen_node.commands import RulesOfFire
from queen_node.events import TransferLeadership
from queen_node.group import GroupSettings
from tests.checkers.failing import BACKOFF_MS
from tests.simulation.shape import Shape, fire_command
from tests.workloads.failing import FAILING

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

FOR_GOOD, FOR_THE_MOMENT = 1, 2  # nodes


def rules_of_fire(shape: Shape, node_id: int) -> RulesOfFire | None:
    """What the node does with a fire that is refused; None: what the contract says, and none is."""
    if not shape.fails_fires:
        return None
    return RulesOfFire(
        backoff_min_ms=BACKOFF_MS, transient_backoff_ms=BACKOFF_MS, fail_transient=node_id == FOR_THE_MOMENT,
        fail_queue=FAILING.encode() if node_id in (FOR_GOOD, FOR_THE_MOMENT) else b"")


def group_settings(shape: Shape, node_id: int) -> GroupSettings:
    """Of a node's groups."""
    rules = rules_of_fire(shape, node_id)
    return shape.group if rules is None else replace(shape.group, fire=fire_command(shape.fire_bounds, rules))


def mend(cluster: Cluster, life: int | None, dice: Random) -> None:
    """Let the group be led where timers come to an end. life: None while there is none."""
    leader = None if life is None else cluster.leader_of(life)
    if leader is not None and leader.node_id == FOR_THE_MOMENT:
        others = [node_id for node_id in cluster.shape.node_ids if node_id != FOR_THE_MOMENT]
        leader.process.run(leader.inbox.put, TransferLeadership(dice.choice(others)))
