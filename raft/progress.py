"""What a leader knows of one other member: how far it holds the log, and what is on its way to it."""

from __future__ import annotations

from collections import deque
from enum import Enum

from raft.invariants import must


class Mode(Enum):
    PROBE = "probe"
    """Where its log agrees is not known: one append at a time, until one is accepted."""
    REPLICATE = "replicate"
    """It accepts: appends follow each other without waiting, as far as the window of bytes lets them."""
    LEFT_BEHIND = "left behind"
    """What it needs next is no longer held in memory: it gets what the driver supplies, from the log on disk."""
    SNAPSHOT = "snapshot"
    """The log on disk does not reach back to what it needs: nothing is sent until it has installed a snapshot."""


class Window:
    """Appends sent and not answered, by their last index and weight."""

    __slots__ = ("_flights", "max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._flights: deque[tuple[int, int]] = deque()

    @property
    def full(self) -> bool:
        """No further append may leave. One larger than the window still goes when nothing else is on its way."""
        return self.used_bytes >= self.max_bytes

    def add(self, last_index: int, weight_bytes: int) -> None:
        self._flights.append((last_index, weight_bytes))
        self.used_bytes += weight_bytes

    def free_through(self, index: int) -> None:
        """These arrived: an answer to an append answers the earlier ones too."""
        while self._flights and self._flights[0][0] <= index:
            self.used_bytes -= self._flights.popleft()[1]

    def clear(self) -> None:
        self._flights.clear()
        self.used_bytes = 0


class Progress:
    """One member, as its leader sees it.

    match_index: it is known to hold the leader's log, flushed, up to here. next_index: what it is sent next.
    told_commit: the highest commit index sent to it. silent_ticks: since it last answered. answered_round: the last
    read round that it confirmed. wants_naming: it is left behind, and the driver is to be told. Always match < next.
    """

    __slots__ = (
        "_match_when_nudged", "_next_at_heartbeat", "_probe_sent", "_supplied_index", "answered_round", "match_index",
        "mode", "next_index", "silent_ticks", "told_commit", "wants_naming", "window",
    )  # fmt: skip

    def __init__(self, next_index: int, max_inflight_bytes: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.mode = Mode.PROBE
        self.told_commit = 0
        self.silent_ticks = 0
        self.answered_round = 0
        self.window = Window(max_inflight_bytes)
        self.wants_naming = False
        self._probe_sent = False
        self._match_when_nudged = 0
        self._next_at_heartbeat = next_index
        self._supplied_index = 0

    @property
    def may_send(self) -> bool:
        """Whether an append with entries may leave now."""
        if self.mode is Mode.REPLICATE:
            return not self.window.full
        return self.mode is Mode.PROBE and not self._probe_sent

    def answered(self, round: int) -> None:
        """Any answer in the leader's term shows that the member follows it still."""
        self.silent_ticks = 0
        self.answered_round = max(self.answered_round, round)

    def sent(self, last_index: int, weight_bytes: int) -> None:
        """An append up to `last_index` left."""
        if self.mode is Mode.REPLICATE:
            self.window.add(last_index, weight_bytes)
            self.next_index = last_index + 1
        else:
            self._probe_sent = True

    def accepted(self, index: int) -> bool:
        """The member holds the log up to `index`. Returns whether that is news."""
        news = index > self.match_index
        if self.mode is Mode.LEFT_BEHIND and index < self._supplied_index:
            pass  # the rest of what was supplied is on its way
        elif self.mode is not Mode.REPLICATE and (news or index == self.match_index):
            self._enter(Mode.REPLICATE)
            self.next_index = index + 1
        self.match_index = max(self.match_index, index)
        self.next_index = max(self.next_index, index + 1)
        self.window.free_through(index)
        return news

    def rejected(self, rejected_index: int, agreeing_index: int) -> None:
        """The member does not hold the entry at `rejected_index`; the last that may agree is at `agreeing_index`.

        An answer that was overtaken is ignored: it speaks of what was accepted since, or of another probe.
        """
        if rejected_index <= self.match_index or self.mode is Mode.SNAPSHOT:
            return
        if self.mode is not Mode.REPLICATE and rejected_index != self.next_index - 1:
            return
        self.next_index = max(self.match_index, min(rejected_index - 1, agreeing_index)) + 1
        if self.mode is Mode.LEFT_BEHIND:
            self.leave_behind()
        else:
            self._enter(Mode.PROBE)

    def took_since_heartbeat(self) -> bool:
        """A heartbeat is due. Whether the member accepted an entry that left after the last one was due: then it has
        heard its leader since. An acceptance of what had been on its way for longer does not show that.
        """
        took = self.mode is Mode.REPLICATE and self.match_index >= self._next_at_heartbeat
        self._next_at_heartbeat = self.next_index
        return took

    def nudge(self) -> bool:
        """The member answered a heartbeat. Returns whether to ask, by an append without entries, what it holds.

        A lost probe is sent again by this. In the stream, a lost append shows by the rejection of the next, but nothing
        follows the last one: when two heartbeats in a row find nothing moved, it is asked for. One that is left behind
        or takes a snapshot is asked each time, as it gets what it lacks by another way; when two heartbeats in a row
        find that what was supplied did not arrive, its driver is told of it again.
        """
        self._probe_sent = False
        stalled = self.match_index == self._match_when_nudged
        self._match_when_nudged = self.match_index
        if self.mode is Mode.LEFT_BEHIND:
            if stalled:
                self._supplied_index = 0
                self.wants_naming = True
            return True
        if self.mode is Mode.SNAPSHOT:
            return True
        return self.mode is Mode.REPLICATE and stalled and self.next_index > self.match_index + 1

    def shows_nothing(self, last_index: int) -> bool:
        """Whether there is no entry to probe it with, though it is not known what it holds: as when it took a snapshot
        of all that the log holds. Nobody would ask until the next entry, and a quiet group has none.
        """
        return self.mode is Mode.PROBE and self.match_index < last_index < self.next_index

    def leave_behind(self) -> None:
        """What it needs next cannot be sent from memory."""
        self._enter(Mode.LEFT_BEHIND)
        self._match_when_nudged = -1
        self._supplied_index = 0
        self.wants_naming = True

    def supplied(self, last_index: int) -> None:
        """Entries up to `last_index` that are not in memory were sent to it."""
        self._supplied_index = last_index
        self._match_when_nudged = -1

    def begin_snapshot(self) -> None:
        """It is sent one, and no entries."""
        self._enter(Mode.SNAPSHOT)

    def probe(self) -> None:
        """What it needs next is in memory."""
        self._enter(Mode.PROBE)

    def end_snapshot(self, installed_index: int) -> None:
        """It says that it installed the one at this index; 0: the transfer was given up.

        That is no acceptance: what it holds shows by what it accepts next, from there on.
        """
        self.next_index = max(self.next_index, installed_index + 1)
        self.leave_behind()

    def check(self) -> None:
        must(self.match_index < self.next_index, "next at or below match", match=self.match_index, next=self.next_index)

    def _enter(self, mode: Mode) -> None:
        self.mode = mode
        self.window.clear()
        self._probe_sent = False
        self.wants_naming = False
