"""A group that loses its leadership and wins it again: what it had proposed in between."""

from __future__ import annotations

import random

from queen_node import commands
from queen_node.broker import Lane
from queen_node.calls import Pending
from queen_node.group import Group
from queen_node.slots import Slot
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from raft.clock import GroupClock
from raft.core import Core
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import (
    Append,
    AppendAccepted,
    Entry,
    EntryKind,
    HardState,
    Message,
    PreVoteGranted,
    VoteGranted,
)
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.memory_engine import MemoryEngine
from tests.unit.group.driver import SETTINGS, HandClock, Rig, outcome


class Member(Rig):
    """Node 1 of three; the test speaks for the others. Its disk is instant."""

    def __init__(self) -> None:
        self.clock = HandClock()
        core = Core(
            node_id=1, configuration=Configuration((1, 2, 3)), log=Log(), hard_state=HardState(), applied_index=0,
            settings=Settings(), random=random.Random(1))
        raft = RaftGroup(life=1, core=core, clock=GroupClock.first_ever(self.clock), stamp_of=commands.stamp_of)
        super().__init__(Group(raft, Machine(Store(MemoryEngine(), life=1)), SETTINGS))

    def hear(self, message: Message) -> None:
        self.group.raft.step(message)
        self.work()

    def win(self, term: int) -> None:
        """Stand, and be elected by node 2."""
        self.group.raft.core.campaign()
        self.work()
        self.hear(PreVoteGranted(2, 1, term - 1))
        self.hear(VoteGranted(2, 1, term, 0, True))

    def accept_all(self) -> None:
        """Node 2 holds all that we hold."""
        log = self.group.raft.core.log
        self.hear(AppendAccepted(2, 1, self.group.raft.core.term, log.last_index, 0))

    def schedule(self, key: bytes, delay_ms: int = 1) -> Slot:
        slot = Slot()
        operation = (
            commands.TimerOp.SCHEDULE, b"q", key, delay_ms, b"txn-" + key, key.ljust(16), b"1", 0, b"Default", None)
        command = commands.timers(key.ljust(16), [operation], firing=True)
        self.group.submit(Pending(command, slot, give_up_at_s=1e9), Lane.DRAINING)
        self.work()
        return slot


def deposed_and_back(*, fires: bool) -> tuple[Member, list[Slot]]:
    """Leads term 1, proposes three entries that reach nobody, is cut by node 2's term 2, and leads term 3."""
    member = Member()
    member.win(1)
    member.accept_all()
    if fires:
        timer = member.schedule(b"first")
        member.accept_all()
        assert outcome(timer) is not None
    lost = [member.schedule(b"lost-%d" % number) for number in range(3)]
    if fires:
        member.clock.since_boot_us += 2000
        member.group.due()
        member.work()
    index = member.group.machine.applied_index
    member.hear(Append(2, 1, 2, index, 1, index, 0, (Entry(2, index + 1, EntryKind.BLANK, b""),)))
    member.win(3)
    member.accept_all()
    return member, lost


def test_what_another_leader_replaced_is_not_taken_for_a_new_entry() -> None:
    """CL-25: an index may come twice, under two terms; what waits for the first goes again."""
    member, lost = deposed_and_back(fires=False)
    new = member.schedule(b"new")
    member.accept_all()
    member.schedule(b"next")
    member.accept_all()
    assert all(isinstance(outcome(slot), bytes) for slot in [*lost, new])
    assert member.group.machine.store.counters().timers_pending == len(lost) + 2


def test_a_fire_that_another_leader_replaced_holds_no_other_back() -> None:
    """G-M4; DESIGN, one truth: what is in flight is asked of this term's unapplied tail."""
    member, lost = deposed_and_back(fires=True)
    member.group.due()
    member.work()
    member.accept_all()
    assert member.group.machine.store.counters().timers_pending == len(lost), "the first has fired"
