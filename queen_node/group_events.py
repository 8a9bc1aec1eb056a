"""What a group does with each event, whoever drives it: one table, plain code.

Not here: what also concerns the driver: its disk (`Written`), its wheel (`Due`), its snapshots.
"""

from __future__ import annotations

from queen_node import membership_job
from queen_node.calls import PendingRead
from queen_node.events import (
    Alarm,
    Campaign,
    ChangeMembers,
    Event,
    Found,
    HandBack,
    HandOver,
    Heard,
    HeardClock,
    LetPopsGo,
    Pop,
    Tick,
    TransferLeadership,
    Withdraw,
)
from queen_node.group import Group
from raft.invariants import broken
from raft.messages import Envelope


def take(group: Group, event: Event, now_us: int) -> None:
    """Take in one event; a turn follows. now_us: of the group clock. `group.now_s` is the present."""
    match event:
        case Heard(node, said, directory_id):
            if isinstance(said, Envelope):
                group.raft.step(said, directory_id)
            else:
                group.hear(node, said, now_us)
        case (lane, pending):
            group.submit(pending, lane)
        case Pop(pop):
            group.pop(pop, now_us)
        case HeardClock(node, boottime_us):
            group.raft.hear_boottime(node, boottime_us)
        case Tick():
            group.raft.core.tick()
        case Campaign():
            group.raft.core.campaign(skip_pre_vote=True)
        case HandOver(max_silent_ticks):
            group.hand_over(max_silent_ticks)
        case ChangeMembers():
            membership_job.change(group.raft, event)
        case Found(configuration):
            group.raft.core.found(configuration)
        case TransferLeadership():
            membership_job.transfer(group.raft, event)
        case PendingRead():
            group.read(event)
        case Withdraw(pop):
            group.withdraw(pop)
        case LetPopsGo():
            group.let_pops_go()
        case HandBack(lease_id):
            group.hand_back(lease_id)
        case Alarm():
            group.give_up_late_calls(group.now_s, now_us)
        case _:
            broken("an event for the driver came to the group", kind=type(event).__name__)
