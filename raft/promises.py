"""What a member tells its peers only once its disk holds it: votes given and asked for, appends accepted."""

from __future__ import annotations

from raft.invariants import must
from raft.log import Log
from raft.messages import HardState, Message


class Promises:
    """Messages that wait for the disk, and what the disk has of the hard state.

    handed: the hard state handed out last; in it the commit index may have moved without a write. on_disk: the one
    that a report named last.
    """

    __slots__ = ("_waiting", "handed", "on_disk")

    def __init__(self, on_disk: HardState) -> None:
        self.handed = self.on_disk = on_disk
        self._waiting: list[Message] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, message: Message) -> None:
        self._waiting.append(message)

    def drop(self) -> None:
        """The term is over. What its promises speak of may be cut before it is written, so they are not made."""
        self._waiting.clear()

    def take(self) -> tuple[Message, ...]:
        waiting = tuple(self._waiting)
        self._waiting.clear()
        return waiting

    def take_hard_state(self, term: int, voted_for: int, commit_index: int, log: Log) -> tuple[bool, HardState | None]:
        """Whether to write before what waits may leave, and the hard state if it moved or is to be written."""
        handed = self.handed
        must_write = (
            term != handed.term
            or voted_for != handed.voted_for
            or log.last_index > log.submitted_index
            or log.restart_after is not None
            or (bool(self._waiting) and self._writes_under_way(log))
        )
        if not must_write and commit_index == handed.commit_index:
            return False, None
        self.handed = HardState(term, voted_for, commit_index)
        return must_write, self.handed

    def written(self, hard_state: HardState) -> None:
        must(hard_state.term >= self.on_disk.term, "the disk's term fell", now=hard_state, before=self.on_disk)
        self.on_disk = hard_state

    def vote_is_on_disk(self, term: int, voted_for: int) -> bool:
        return self.on_disk.term == term and self.on_disk.voted_for == voted_for

    def _writes_under_way(self, log: Log) -> bool:
        """A promise may speak of those. A small write behind them makes it wait for them."""
        handed = self.handed
        return log.flushed_index < log.submitted_index or not self.vote_is_on_disk(handed.term, handed.voted_for)
