"""What a process is built of: the real rooms, unless a test of the checkers puts an old fault back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queen_node import opening
from queen_node.group import Group
from queen_node.snapshots import Snapshots
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from raft.clock import GroupClock
from raft.core import Core
from raft.group import RaftGroup
from raft.messages import HardState
from raft.quorum import Configuration


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts by the names of what they stand for."""

    new_core: Callable[..., Core] = Core
    new_raft_group: Callable[..., RaftGroup] = RaftGroup
    new_group: Callable[..., Group] = Group
    new_clock: type[GroupClock] = GroupClock
    new_machine: Callable[[Store], Machine] = Machine
    new_store: Callable[..., Store] = Store
    new_snapshots: Callable[..., Snapshots] = Snapshots
    read_hard_state: Callable[[HardState], HardState] = lambda hard_state: hard_state
    first_members: Callable[..., Configuration] = opening.first_members
    life_heard: Callable[[int], int] = lambda life: life
