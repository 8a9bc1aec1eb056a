"""What a group's actor hears."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from queen_node.broker import Lane
from queen_node.calls import Pending, PendingRead
from queen_node.parked_pops import WaitingPop
from queen_node.peer_calls import PeerCall
from raft.group import LogWrite
from raft.messages import Message
from raft.quorum import Configuration


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop that a client sent."""

    pop: WaitingPop


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Its client has gone."""

    pop: WaitingPop


@dataclass(frozen=True, slots=True)
class HandBack:
    """Its answer could not be delivered."""

    lease_id: bytes


class Written(msgspec.Struct, frozen=True):
    """A write of the log is on the disk."""

    write: LogWrite


class Heard(msgspec.Struct, frozen=True):
    """What the same group said on another node, with that data directory: Raft's words, or about calls."""

    node: int
    said: Message | PeerCall
    directory_id: bytes


class HeardClock(msgspec.Struct, frozen=True):
    """A node's BOOTTIME when it said so, a moment ago (M-21)."""

    node: int
    boottime_us: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Raft's unit of time has passed. periods: the same in heartbeat periods, more than one where many are awake."""

    periods: int = 1


@dataclass(frozen=True, slots=True)
class HandOver:
    """The node stops: somebody else should lead, who answered within so many ticks (CL-54)."""

    max_silent_ticks: int


class Campaign:
    """This node is to lead a new group first (M-70)."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The group is to sleep no longer. stands: it has no leader, and this node is the one to stand (M-32)."""

    stands: bool = False


@dataclass(frozen=True, slots=True)
class AskAlso:
    """A node is back: it is asked to sleep with a group that sleeps under this one already."""

    node: int


class LetPopsGo:
    """The node stops: pops that wait are answered empty, so that their connections can close (CL-131)."""


class Due:
    """The wheel: a deadline may have passed."""


class Alarm:
    """The time that the group asked to be told of has come."""


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """For the leader's group: the member installed the snapshot at `index`; 0: it was not sent to its end."""

    peer: int
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotWhole:
    """For the receiver's group: a state at (index, term) is here and durable. May it be flipped to?"""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class SnapshotFlipped:
    """For the receiver's group: its state is this incarnation now, durably."""

    incarnation: int
    configuration: bytes


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """A change of the cell's members asks a group's leader for its next step (M-71). live: nodes that answer; lag_max:
    entries that a learner may lack when it is promoted."""

    target: Configuration
    force: bool
    live: frozenset[int]
    max_silent_ticks: int
    lag_max: int


@dataclass(frozen=True, slots=True)
class Found:
    """The founders have met: they are the members of this group, which has no past."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """An operator wants that node to lead the group."""

    to: int


SnapshotEvent = SnapshotEnded | SnapshotWhole | SnapshotFlipped
DUE, ALARM, LET_POPS_GO = Due(), Alarm(), LetPopsGo()
Event = (
    tuple[Lane, Pending] | PendingRead | Pop | Withdraw | HandBack | Written | Heard | HeardClock | Tick | Due | Alarm
    | LetPopsGo | Wake | AskAlso | HandOver | Campaign | SnapshotEvent | ChangeMembers | TransferLeadership
    | Found
)
