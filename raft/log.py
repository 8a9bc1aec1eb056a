"""A group's log as its core sees it: the tail held in memory, and how far the own disk has it.

Reading or writing files does not belong here. What stands before `first_index` is on disk or in a snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from raft.invariants import must
from raft.messages import Entry, EntryKind

ENTRY_OVERHEAD_BYTES = 32
"""What an entry weighs beside its data, in every bound on bytes: else entries without data would weigh nothing."""

_term_of = attrgetter("term")


def size_bytes(entries: Iterable[Entry]) -> int:
    """What these entries weigh against a bound."""
    return sum([len(entry.data) + ENTRY_OVERHEAD_BYTES for entry in entries])


def parts(entries: Sequence[Entry], max_bytes: int) -> Iterator[tuple[Entry, ...]]:
    """The entries in order, in parts of at most `max_bytes`; one that is larger goes alone."""
    part: list[Entry] = []
    room_bytes = max_bytes
    for entry in entries:
        room_bytes -= len(entry.data) + ENTRY_OVERHEAD_BYTES
        if room_bytes < 0 and part:
            yield tuple(part)
            part, room_bytes = [], max_bytes - len(entry.data) - ENTRY_OVERHEAD_BYTES
        part.append(entry)
    if part:
        yield tuple(part)


class Log:
    """Entries `first_index` to `last_index`, without gaps, and the place of the one before them.

    flushed_index: the own disk surely holds the log up to here. submitted_index: handed out to be written up to here.
    Always flushed ≤ submitted ≤ last (M-13). The indexes are to be read from outside, never set.
    """

    __slots__ = (
        "_cut_in_term", "_entries", "_weighed_bytes", "_weighed_count", "first_index", "flushed_index", "last_index",
        "last_term", "previous_term", "restart_after", "submitted_index",
    )  # fmt: skip

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.first_index = 1
        self.previous_term = 0
        """Term of the entry at `first_index - 1`; 0 when there is none."""
        self.last_index = 0
        self.last_term = 0
        self.submitted_index = 0
        self.flushed_index = 0
        self.restart_after: int | None = None
        """The disk is to be told that the log starts anew behind this index; whoever tells it sets this to None."""
        self._cut_in_term = 0
        # Entries are weighed only for `trim`, from the first one on: a lone voter's never are.
        self._weighed_count = 0
        self._weighed_bytes = 0

    @classmethod
    def restore(cls, previous: tuple[int, int], entries: Iterable[Entry]) -> Log:
        """The log that recovery read from disk, all of it flushed. previous: (index, term) before the first entry."""
        log = cls()
        index, log.previous_term = previous
        log.first_index = index + 1
        log.last_index, log.last_term = previous
        log._extend(list(entries))
        log.submitted_index = log.flushed_index = log.last_index
        return log

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`, which must be one that is held or the one just before."""
        position = index - self.first_index
        if 0 <= position < len(self._entries):
            return self._entries[position].term
        must(position == -1, "asked for a term that is not held", index=index, at=(self.first_index, self.last_index))
        return self.previous_term

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry at `index` is known and of that term."""
        return self.first_index - 1 <= index <= self.last_index and self.term_at(index) == term

    def entries(self, lo: int, hi: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries `lo` to `hi`, both included, cut to `max_bytes`; the first comes even if it alone is larger."""
        must(self.first_index <= lo and hi <= self.last_index, "asked for entries that are not held", lo=lo, hi=hi)
        chosen = self._entries[lo - self.first_index : hi - self.first_index + 1]
        room_bytes = max_bytes
        for count, entry in enumerate(chosen):
            room_bytes -= len(entry.data) + ENTRY_OVERHEAD_BYTES
            if room_bytes < 0:
                return tuple(chosen[: max(count, 1)])
        return tuple(chosen)

    def after(self, index: int) -> list[Entry]:
        """All that is held after `index`: for looks that are rare, at a start or an election."""
        return self._entries[max(index + 1 - self.first_index, 0) :]

    def append(self, term: int, kind: EntryKind, payloads: Sequence[bytes]) -> int:
        """Add a leader's own entries; returns the index of the first."""
        first = self.last_index + 1
        self._extend([Entry(term, index, kind, data) for index, data in enumerate(payloads, first)])
        return first

    def write_after(self, previous_index: int, entries: Sequence[Entry], *, commit_index: int, in_term: int) -> int:
        """Make the log agree with a leader's entries; returns the last index that is now known to agree.

        previous_index: an entry that agrees already. Entries that are held stay, and so does what follows them: an
        append that was overtaken by a later one must not undo it (Raft paper, figure 2, steps 3 and 4 of the receiver).
        in_term: the leader's term. Breaks an invariant rather than overwrite a committed entry.
        """
        held = 0
        for entry in entries:
            if entry.index > self.last_index:
                break
            if self.term_at(entry.index) != entry.term:
                must(entry.index > commit_index, "a committed entry would be overwritten", entry=entry.index)
                self._cut_from(entry.index, in_term)
                break
            held += 1
        if held < len(entries):
            self._extend(list(entries[held:]) if held else list(entries))
        return previous_index + len(entries)

    def agreeing_place(self, index: int, term: int) -> tuple[int, int]:
        """The last place (index, term) at or before `index` whose term is not above `term`.

        Nothing after it can agree with a log whose entry at `index` is of that term, as terms never fall along a log.
        Not before the entry ahead of the first: that one is committed everywhere that matters.
        """
        upper = max(min(index, self.last_index) - self.first_index + 1, 0)
        found = self.first_index - 1 + bisect_right(self._entries, term, 0, upper, key=_term_of)
        return found, self.term_at(found)

    def submit(self) -> tuple[int, tuple[Entry, ...]]:
        """Hand out what was not handed out to be written: the term just before, and the entries."""
        start = self.submitted_index
        if start == self.last_index:
            return 0, ()
        self.submitted_index = self.last_index
        return self.term_at(start), tuple(self._entries[start - self.first_index + 1 :])

    def flushed(self, term: int, index: int, written_in_term: int) -> None:
        """The disk held, flushed, the log up to (term, index), as of a write made in term `written_in_term`.

        The report may be out of date (M-13): it counts only while the entry is still that one, and never if the tail
        was cut in a later term than that of the write: the same entry can have come back since, and not be on disk.
        """
        if written_in_term < self._cut_in_term or index <= self.flushed_index or not self.holds(index, term):
            return
        must(index <= self.submitted_index, "reported written, never submitted", index=index, at=self.submitted_index)
        self.flushed_index = index

    def forget_through(self, index: int) -> None:
        """Drop entries up to `index` from memory. The caller knows that nobody here needs them again."""
        must(index <= self.flushed_index, "forgot what the disk does not hold", index=index, flushed=self.flushed_index)
        if index < self.first_index:
            return
        self.previous_term = self.term_at(index)
        count = index - self.first_index + 1
        if self._weighed_count:
            self._unweigh(0, count)
        del self._entries[:count]
        self.first_index = index + 1

    def trim(self, through_index: int, keep_bytes: int) -> None:
        """Drop the oldest entries up to `through_index` from memory while all that are held weigh over `keep_bytes`."""
        new = self._entries[self._weighed_count :]
        self._weighed_bytes += size_bytes(new)
        self._weighed_count += len(new)
        left_bytes, drop_count = self._weighed_bytes, 0
        droppable = through_index - self.first_index + 1
        while left_bytes > keep_bytes and drop_count < droppable:
            left_bytes -= len(self._entries[drop_count].data) + ENTRY_OVERHEAD_BYTES
            drop_count += 1
        if drop_count:
            self.forget_through(self.first_index + drop_count - 1)

    def restart(self, index: int, term: int, in_term: int) -> None:
        """Forget everything: the state holds all up to (index, term), flushed, and the log goes on behind it (M-61)."""
        self._entries.clear()
        self._weighed_count = self._weighed_bytes = 0
        self.first_index = index + 1
        self.last_index = self.submitted_index = self.flushed_index = self.restart_after = index
        self.last_term = self.previous_term = term
        self._cut_in_term = in_term

    def _unweigh(self, begin: int, end: int) -> None:
        """The entries at these places, up to those that were weighed, are about to go."""
        end = min(end, self._weighed_count)
        if begin < end:
            self._weighed_bytes -= size_bytes(self._entries[begin:end])
            self._weighed_count -= end - begin

    def _extend(self, entries: list[Entry]) -> None:
        if not entries:
            return
        last = entries[-1]
        must(entries[0].index == self.last_index + 1, "gap in the log", first=entries[0].index, last=self.last_index)
        must(last.index == self.last_index + len(entries), "gap in the entries", last=last.index, count=len(entries))
        must(entries[0].term >= self.last_term, "terms fall along the log", first=entries[0].term, last=self.last_term)
        self._entries += entries
        self.last_index, self.last_term = last.index, last.term

    def _cut_from(self, index: int, in_term: int) -> None:
        """Drop the entries from `index` on; what was flushed or submitted of them no longer is."""
        must(in_term > self._cut_in_term, "cut twice in one term", index=index, term=in_term)
        self.last_term = self.term_at(index - 1)
        self._unweigh(index - self.first_index, len(self._entries))
        del self._entries[index - self.first_index :]
        self.last_index = index - 1
        self.submitted_index = min(self.submitted_index, self.last_index)
        self.flushed_index = min(self.flushed_index, self.last_index)
        self._cut_in_term = in_term
