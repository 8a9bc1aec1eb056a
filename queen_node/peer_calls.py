"""What the same group says to itself on two nodes, beside Raft: calls on their way to the leader, and what it knows of
them (contract/cluster.md 4.3, M-42); and what nodes say to each other: of the cell's members (`OperatorCall`), of
groups that sleep (`QuietCall`).

A leader does not answer a write: the node that took it applies the entry too and answers from that. So only what does
not show in the log has an answer here. Encoded as `[version, [kind, field, …]]`, CBOR.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from raft import versioned

PEER_CALLS_VERSION = 1

Id: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Pairs: TypeAlias = Annotated[tuple[tuple[Number, Number], ...], msgspec.Meta(max_length=4096)]
Lives: TypeAlias = Annotated[tuple[Number, ...], msgspec.Meta(max_length=4096)]
Name: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=65_535)]


class Malformed(Exception):
    """Bytes from a peer that are none of these."""


class _Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Forward(_Call, frozen=True, tag=1):
    """Propose this. lane: of `broker.Lane`. repeat: it may be in the log already. places: see `Broker.write`."""

    request_id: Id
    lane: Annotated[int, msgspec.Meta(ge=0, le=1)]
    repeat: bool
    places: tuple[Name, ...]
    command: bytes


class ForwardPop(_Call, frozen=True, tag=2):
    """Propose this pop when it can be served. wait_ms: for so long; waits: False, and nothing is confirmed at once."""

    request_id: Id
    lease_id: Id
    repeat: bool
    wait_ms: Number
    waits: bool
    queue: Name
    group: Name
    partition: Name | None
    command: bytes


class Withdraw(_Call, frozen=True, tag=3):
    """The client of that pop has gone."""

    request_id: Id


class AskRead(_Call, frozen=True, tag=4):
    """From which index on may what is asked now be read? (M-40) number: of the asker's, echoed."""

    number: Number


class NotTaken(_Call, frozen=True, tag=5):
    """The receiver of a call does not lead, or no longer: it proposes it no more. What it proposed before may be in the
    log."""

    request_id: Id


class Nothing(_Call, frozen=True, tag=6):
    """That pop has come to its end, and nothing was claimed for it."""

    request_id: Id


class ReadAt(_Call, frozen=True, tag=7):
    """The answer to AskRead. now_us: of the leader's group clock: by it the read judges what has ended (KV-22)."""

    number: Number
    index: Number
    now_us: Number


class AskOperator(_Call, frozen=True, tag=8):
    """What an operator asked another node, for the leader to begin (`operator_calls`). number: of the asker's, echoed.
    """

    number: Number
    question: bytes


class OperatorTold(_Call, frozen=True, tag=9):
    """The answer to AskOperator: an HTTP status and its document."""

    number: Number
    status: Number
    document: bytes


class Members(_Call, frozen=True, tag=10):
    """Who the members of the cell are, as the sender's state of group 0 has it: a row of `state.rows.MembersRow`.

    A node that is behind could else refuse, or not find, the very member that leads now.
    """

    row: bytes


class Removed(_Call, frozen=True, tag=11):
    """The receiver is a member of the cell no longer (CL-103). number: of the change that removed it."""

    number: Number


class Known(_Call, frozen=True, tag=12):
    """Which data directory the sender takes each node to have: (node, id of the directory) each (CL-105)."""

    directories: tuple[tuple[Number, Id], ...]


class QuietHeld(_Call, frozen=True, tag=13):
    """Of the lives from `first` to `last` the sender takes these, (life, term), to sleep under the receiver (M-30)."""

    first: Number
    last: Number
    pairs: Pairs


class NotQuiet(_Call, frozen=True, tag=14):
    """The sender does not lead these lives asleep."""

    lives: Lives


QuietCall: TypeAlias = QuietHeld | NotQuiet
OperatorCall: TypeAlias = AskOperator | OperatorTold | Members | Removed | Known
PeerCall: TypeAlias = QuietCall | OperatorCall | Forward | ForwardPop | Withdraw | AskRead | NotTaken | Nothing | ReadAt


def encode(call: PeerCall) -> bytes:
    """The call as it travels."""
    return versioned.encode(PEER_CALLS_VERSION, call)


def decode(data: bytes) -> PeerCall:
    """The call that `encode` made `data` from. Raises Malformed for anything else."""
    call: PeerCall = versioned.decode(data, PEER_CALLS_VERSION, PeerCall, Malformed)
    return call
