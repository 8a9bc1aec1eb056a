"""Who decides in a group, and what a majority of them agrees on. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum


class Tally(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a group. All ids are node ids, from 1.

    voters: they elect and commit by majority. outgoing: the voters before, while a change is under way; then every
    decision needs a majority of both (Raft paper §6, joint consensus). learners: have the log, never vote.
    directories: which data directory each member has, as (node id, id of the directory); of whom none is named here any
    will do. A node that lost its disk and was added again under its id is another server to Raft: nothing that the lost
    one voted for or acknowledged is known to it (CL-105). Configurations of the same members are equal whatever they
    know of directories. Raises ValueError for a configuration that cannot decide anything or names a member twice.
    """

    voters: tuple[int, ...]
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    directories: tuple[tuple[int, bytes], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.voters:
            raise ValueError("a group needs a voter")
        for name in ("voters", "outgoing", "learners"):
            ids = getattr(self, name)
            if len(set(ids)) != len(ids) or min(ids, default=1) < 1:
                raise ValueError(f"{name} {ids}: node ids are distinct and count from 1")
            # Sorted, so that equal configurations are equal and every walk over them has one order.
            object.__setattr__(self, name, tuple(sorted(ids)))
        if both := set(self.learners) & {*self.voters, *self.outgoing}:
            raise ValueError(f"{sorted(both)} are learners and voters at once")
        if strangers := {node_id for node_id, _ in self.directories} - set(self.members):
            raise ValueError(f"{sorted(strangers)} have directories and are no members")

    @property
    def members(self) -> tuple[int, ...]:
        """All who have the log, in order."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    @property
    def electors(self) -> tuple[int, ...]:
        """All whose vote counts, in order."""
        return tuple(sorted({*self.voters, *self.outgoing}))

    def is_alone(self, node_id: int) -> bool:
        """Whether the node is all there is: nobody else has the log or is to have it."""
        return self.voters == (node_id,) and not self.outgoing and not self.learners

    def is_voter(self, node_id: int) -> bool:
        """Whether the node's vote counts, in either half of a joint configuration."""
        return node_id in self.voters or node_id in self.outgoing

    @property
    def settled(self) -> Configuration:
        """What follows a joint configuration once that is committed: the new voters alone (Raft paper §6)."""
        return Configuration(self.voters, (), self.learners).named(dict(self.directories))

    def named(self, directories: Mapping[int, bytes]) -> Configuration:
        """The same members, each by its directory, if there is one here for it."""
        names = tuple((node_id, directories[node_id]) for node_id in self.members if directories.get(node_id))
        return replace(self, directories=names)

    def is_member_by(self, node_id: int, directory_id: bytes) -> bool:
        """Whether a node with that directory is who is meant by its id here; empty: it is not known."""
        for named, expected in self.directories:
            if named == node_id:
                return not directory_id or directory_id == expected
        return True

    def agreed(self, values: Mapping[int, int]) -> int:
        """The highest value that a majority (of both halves) has reached. `values` holds one for every voter."""
        reached = _reached_by_majority(self.voters, values)
        if self.outgoing:
            reached = min(reached, _reached_by_majority(self.outgoing, values))
        return reached

    def tally(self, votes: Mapping[int, bool]) -> Tally:
        """Where an election stands after these answers; a voter that is missing has not answered yet."""
        halves = [_tally_half(self.voters, votes)]
        if self.outgoing:
            halves.append(_tally_half(self.outgoing, votes))
        if Tally.LOST in halves:
            return Tally.LOST
        return Tally.PENDING if Tally.PENDING in halves else Tally.WON


def majority(voter_count: int) -> int:
    """How many of so many voters decide."""
    return voter_count // 2 + 1


def _reached_by_majority(voters: tuple[int, ...], values: Mapping[int, int]) -> int:
    if len(voters) == 1:
        return values[voters[0]]
    # In ascending order `majority` voters stand at this place or after it.
    return sorted([values[voter] for voter in voters])[len(voters) - majority(len(voters))]


def _tally_half(voters: tuple[int, ...], votes: Mapping[int, bool]) -> Tally:
    granted = sum(votes.get(voter, False) for voter in voters)
    still_open = sum(voter not in votes for voter in voters)
    if granted >= majority(len(voters)):
        return Tally.WON
    return Tally.PENDING if granted + still_open >= majority(len(voters)) else Tally.LOST
