"""What a core hands out and says: its role, its Ready, its refusals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from raft.messages import Entry, HardState, Message


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    """Asks whether it would be elected, before it disturbs anyone with a new term."""
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Restore:
    """A snapshot that the driver flips to, and what was handed out to apply before."""

    index: int
    term: int
    handed_index: int


class NotLeader(Exception):
    """Only a leader can do this, and nothing was done. leader: who is thought to lead, 0 if unknown."""

    def __init__(self, leader: int) -> None:
        super().__init__(f"led by {leader}" if leader else "no leader known")
        self.leader: Final = leader


class TransferInProgress(NotLeader):
    """Still leader, but it takes nothing new while it hands over. leader: to whom."""


class Ready(msgspec.Struct, frozen=True):
    """What follows from the calls since the last Ready. Nothing is handed out twice.

    hard_state, entries: to be written, in one record; the log is cut at entries[0].index first. previous_term: term
    of the entry before entries[0]; 0 without entries. Writes are carried out in the order of their Readys; several
    may be on their way. hard_state is there whenever must_write is.
    must_write: write and flush before anything of send_after_write leaves. Without it, that may leave at once, and a
    hard_state in which only the commit index moved may be written with whatever is written next.
    to_apply: committed and on the own disk (M-3), in order. reads: (request, index) that may be served once `index` is
    applied. left_behind: (member, next index) of those who need entries from that index on which are no longer in
    memory: `Core.supply` takes them, or a snapshot does. A member is named again when that did not bring it further.
    restart_after: the write forgets the whole log, which goes on behind this index; previous_term is that of the entry
    there.
    """

    hard_state: HardState | None
    must_write: bool
    previous_term: int
    entries: tuple[Entry, ...]
    send_now: tuple[Message, ...]
    send_after_write: tuple[Message, ...]
    to_apply: tuple[Entry, ...]
    reads: tuple[tuple[int, int], ...]
    left_behind: tuple[tuple[int, int], ...]
    restart_after: int | None = None
