"""What a group's members say to each other, what its log and its hard state are made of; their CBOR form.

No behaviour belongs here. Messages are msgspec structs: making one costs 70 ns, a frozen dataclass costs 540.

Every message carries its sender's current term, also those that only ask about the next one (PreVote). So one
rule serves them all: a higher term is taken over, a lower one is answered with StaleTerm or dropped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from raft import versioned
from raft.configurations import MalformedConfiguration, decode_configuration

MESSAGE_VERSION = 1
NUMBER_MAX = 2**63 - 1
"""Highest term, index, node id or time that fits the disk's formats."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
NodeId: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
Index: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]


class MalformedMessage(Exception):
    """Bytes from a peer that are no message of a version and kind known here. The peer is wrong, not this node."""


class EntryKind(IntEnum):
    COMMANDS = 0
    """The product's commands; `data` is what was proposed."""
    BLANK = 1
    """Opens a term (Raft paper §8): with it commits all that earlier terms left in the log."""
    CONFIGURATION = 2
    """Who is a member from here on (Raft paper §6)."""


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Record of a group's log. `index` counts from 1; `term` is that of the leader who appended it."""

    term: Index
    index: Index
    kind: EntryKind
    data: bytes


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a member must find again after a crash (Raft paper, figure 2: persistent state).

    voted_for: 0 when this term's vote is not given. commit_index may lag behind what was known: it is a floor.
    """

    term: Number = 0
    voted_for: Number = 0
    commit_index: Number = 0


class Denial(IntEnum):
    """Why a vote was not given. Only for people: whoever asked does the same in each case."""

    HEARS_LEADER = 0
    LOG_BEHIND = 1
    VOTED_FOR_OTHER = 2


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields that all messages share."""

    sender: NodeId
    receiver: NodeId
    term: Number

    is_request: ClassVar[bool] = False
    """A request from an older term is answered, so that a deposed sender learns of it; an answer is dropped."""


class Append(Envelope, frozen=True, tag=1):
    """Entries that follow the one at (previous_index, previous_term); without entries it only asks for that one.

    commit_index: the leader's. round: the read round begun last, echoed by the answer (M-40).
    """

    previous_index: Number
    previous_term: Number
    commit_index: Number
    round: Number
    entries: tuple[Entry, ...]

    is_request: ClassVar[bool] = True


class AppendAccepted(Envelope, frozen=True, tag=2):
    """The sender's disk holds, flushed, what the leader holds, up to `index`."""

    index: Number
    round: Number


class AppendRejected(Envelope, frozen=True, tag=3):
    """The sender holds no entry of the leader's term at `rejected_index`, the append's previous index.

    hint: the last entry of the sender that may still agree with the leader's log, so that a whole term is stepped
    over in one answer (Raft paper §5.3, last part).
    """

    rejected_index: Number
    hint_index: Number
    hint_term: Number
    round: Number


class Heartbeat(Envelope, frozen=True, tag=4):
    """The leader lives. commit_index never exceeds what the receiver is known to hold, so it may be taken as it is."""

    commit_index: Number
    round: Number

    is_request: ClassVar[bool] = True


class HeartbeatAnswered(Envelope, frozen=True, tag=5):
    round: Number


class Committed(Envelope, frozen=True, tag=6):
    """The commit index went up and there is no append to carry it. Same bound as in a heartbeat; wants no answer."""

    commit_index: Number

    is_request: ClassVar[bool] = True


class PreVote(Envelope, frozen=True, tag=7):
    """Would you vote for me in the term after `term`, with this last entry? (Raft thesis 9.6)"""

    last_index: Number
    last_term: Number

    is_request: ClassVar[bool] = True


class PreVoteGranted(Envelope, frozen=True, tag=8):
    pass


class PreVoteDenied(Envelope, frozen=True, tag=9):
    reason: Denial


class Vote(Envelope, frozen=True, tag=10):
    """Asks for a vote in `term`. transfer: the leader told the sender to stand, so that it lives is no objection."""

    last_index: Number
    last_term: Number
    transfer: bool

    is_request: ClassVar[bool] = True


class VoteGranted(Envelope, frozen=True, tag=11):
    """clock_us: the voter's estimate of the group clock, below which the next leader must not start (M-21).

    is_weak: it rests on a wall clock, across a reboot, or on the clock of a term older than the candidate's log, and
    counts only where all do (M-22).
    """

    clock_us: Number
    is_weak: bool


class VoteDenied(Envelope, frozen=True, tag=12):
    reason: Denial


class TimeoutNow(Envelope, frozen=True, tag=13):
    """The leader hands over: stand for election at once (Raft thesis 3.10)."""

    is_request: ClassVar[bool] = True


class StaleTerm(Envelope, frozen=True, tag=14):
    """Answer to a request of an earlier term: that term is over."""


class AskQuiet(Envelope, frozen=True, tag=15):
    """Sleep with me: the leader's log ends with this entry, all of it is committed, and nothing is under way (M-31).

    number: of the question within the term, echoed; what the leader says after it takes the question back.
    """

    last_index: Number
    last_term: Number
    number: Number

    is_request: ClassVar[bool] = True


class QuietAgreed(Envelope, frozen=True, tag=16):
    """The sender's log is that log, and it waits without a tick until something happens (`quiet` says what)."""

    number: Number


class QuietRefused(Envelope, frozen=True, tag=17):
    """The sender lacks something, or something waits there for the group."""

    number: Number


Message: TypeAlias = (
    Append
    | AppendAccepted
    | AppendRejected
    | Heartbeat
    | HeartbeatAnswered
    | Committed
    | PreVote
    | PreVoteGranted
    | PreVoteDenied
    | Vote
    | VoteGranted
    | VoteDenied
    | TimeoutNow
    | StaleTerm
    | AskQuiet
    | QuietAgreed
    | QuietRefused
)


def encode(message: Message) -> bytes:
    """The message as CBOR: `[version, [kind, sender, receiver, term, ...]]`."""
    return versioned.encode(MESSAGE_VERSION, message)


def decode(data: bytes) -> Message:
    """The message that `encode` made `data` from.

    Raises MalformedMessage, which says what and where, for anything else: other versions and kinds, missing, extra
    or ill-typed fields, entries that do not follow each other, bytes after the end.
    """
    message: Message = versioned.decode(data, MESSAGE_VERSION, Message, MalformedMessage)
    if type(message) is Append:
        _check_entries(message)
    return message


def _check_entries(append: Append) -> None:
    """The log takes entries as they come, so that they follow each other, and that a member can follow the
    configurations in them, is checked at the door.
    """
    if append.previous_term > append.term:
        raise MalformedMessage(f"previous entry of term {append.previous_term} in an append of term {append.term}")
    index, term = append.previous_index, append.previous_term
    for entry in append.entries:
        if entry.index != index + 1 or not term <= entry.term <= append.term:
            raise MalformedMessage(f"entry {entry.term}:{entry.index} after {term}:{index} in term {append.term}")
        if entry.kind is EntryKind.CONFIGURATION:
            try:
                decode_configuration(entry.data)
            except MalformedConfiguration as error:
                raise MalformedMessage(f"the configuration in entry {entry.term}:{entry.index}: {error}") from error
        index, term = entry.index, entry.term
