"""Raft paper, figure 2: what is promised is on stable storage before it is said, and a vote is given once a term."""

from __future__ import annotations

from typing import Final

from raft.messages import AppendAccepted, Message, Vote, VoteGranted
from tests.simulation.rules.disks import Disks
from tests.simulation.world import Broken

PROMISES: Final = frozenset((AppendAccepted, Vote, VoteGranted))


class PromisesKept:
    """To whom each node gave its vote in each term."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._votes: dict[tuple[int, int], int] = {}

    def wiped(self, node_id: int) -> None:
        """The node's next disk is another server: its word is not taken for the lost one's (CL-105)."""
        self._votes = {place: candidate for place, candidate in self._votes.items() if place[0] != node_id}

    def sends(self, message: Message) -> None:
        if type(message) not in PROMISES:
            return
        disk = self._disks.hard_state(message.sender)
        if disk.term < message.term:
            raise Broken("figure 2, promised after the write", f"{message} while the disk holds {disk}")
        if isinstance(message, AppendAccepted):
            # In the batch behind the accepted entries another leader's may have cut them: the acceptance was true when
            # it was made, and that it leaves late is what a network could do too.
            held = self._disks.reaches(message.sender, message.index)
            if message.index and not held and not self._disks.reached_in_term(
                message.sender, message.term, message.index
            ):
                raise Broken("figure 2, accepted after the write", f"{message} is not on the disk")
        elif isinstance(message, VoteGranted):
            candidate = self._votes.setdefault((message.sender, message.term), message.receiver)
            if candidate != message.receiver:
                raise Broken("one vote a term (Raft §5.2)", f"{message}, given to {candidate} before")
