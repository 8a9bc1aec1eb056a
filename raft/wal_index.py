"""Where the entries of each group stand in the log, in memory: one row of numbers a record, no payloads. No file is
touched here.

A run is a record, or what is left of one after a truncation or a release: first index, last index, place, bytes. A
million one-entry records take 32 MB. Beside the runs each group keeps what a checkpoint says of it, always packed, so
that a new segment begins with one copy of a byte array however many groups there are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raft.clock import ClockReading
from raft.invariants import must
from raft.messages import Entry, HardState
from raft.wal_format import POSITION_BITS, ROW, Row

_STRIDE = 4
_NO_READING = ClockReading(bytes(16), 0, 0)


class Run(NamedTuple):
    """Entries first_index to last_index stand in the record at `place`."""

    first_index: int
    last_index: int
    place: int
    size_bytes: int  # of the whole record

    @property
    def segment(self) -> int:
        return self.place >> POSITION_BITS

    @property
    def position(self) -> int:
        return self.place & ((1 << POSITION_BITS) - 1)


class SegmentUse:
    """How much of each segment is still needed, and by whom."""

    def __init__(self) -> None:
        self.needed_bytes: Counter[int] = Counter()
        self.lives: dict[int, set[int]] = {}  # a hint for copying forward: who ever had a run there

    def add(self, life: int, place: int, size_bytes: int) -> None:
        segment = place >> POSITION_BITS
        self.needed_bytes[segment] += size_bytes
        self.lives.setdefault(segment, set()).add(life)

    def drop(self, place: int, size_bytes: int) -> None:
        segment = place >> POSITION_BITS
        self.needed_bytes[segment] -= size_bytes
        must(self.needed_bytes[segment] >= 0, "a segment needs less than nothing", segment=segment)

    def forget(self, segment: int) -> None:
        self.needed_bytes.pop(segment, None)
        self.lives.pop(segment, None)


class GroupLog:
    """One group's part of the log: what is held, where it stands, which terms its entries have."""

    __slots__ = (
        "_runs", "_terms", "_use", "clock", "clock_offset_us", "clock_us", "hard_state", "last_index", "life",
        "previous_index", "row_number",
    )  # fmt: skip

    def __init__(self, life: int, row_number: int, use: SegmentUse) -> None:
        self.life = life
        self.row_number = row_number
        self.hard_state = HardState()
        self.previous_index = 0  # just before the first entry held
        self.last_index = 0
        self.clock_us = 0
        self.clock_offset_us = 0
        self.clock = _NO_READING  # when clock_us was read
        self._use = use
        self._runs = array("Q")
        # (index, term): the entries from index on have that term, up to the next such fact. Exact for all entries held
        # and for the one before them.
        self._terms: list[tuple[int, int]] = [(0, 0)]

    # -- what is held

    def term_at(self, index: int) -> int:
        """Term of an entry held, or of the one just before the first."""
        must(self.previous_index <= index <= self.last_index, "asked for a term outside the log", life=self.life,
             index=index, previous=self.previous_index, last=self.last_index)  # fmt: skip
        return self._fact(index)[1]

    def terms(self) -> list[tuple[int, int]]:
        """(first index, term) of each stretch of equal terms, from the entry just before the first on."""
        facts = [(self.previous_index, self._fact(self.previous_index)[1])]
        for index, term in self._terms:
            if self.previous_index < index <= self.last_index and term != facts[-1][1]:
                facts.append((index, term))
        return facts

    def runs(self, first_index: int = 0, last_index: int = (1 << 64) - 1) -> Iterator[Run]:
        """Runs that hold any of the entries first_index to last_index, in order."""
        runs = self._runs
        for at in range(self._run_ending_at_or_after(first_index) * _STRIDE, len(runs), _STRIDE):
            run = Run(*runs[at : at + _STRIDE])
            if run.first_index > last_index:
                return
            yield run

    # -- what changes it

    def append(self, first_index: int, last_index: int, place: int, size_bytes: int) -> None:
        """A record was written whose entries replace all from first_index on. Its terms are noted apart."""
        self.truncate(first_index)
        self._runs.extend((first_index, last_index, place, size_bytes))
        self._use.add(self.life, place, size_bytes)
        self.last_index = last_index

    def truncate(self, first_index: int) -> None:
        """Entries from first_index on are no longer held."""
        runs = self._runs
        while runs and runs[-3] >= first_index:
            if runs[-4] < first_index:
                runs[-3] = first_index - 1
                break
            self._use.drop(runs[-2], runs[-1])
            del runs[-_STRIDE:]
        facts = self._terms
        while facts and facts[-1][0] >= first_index:
            facts.pop()
        if not facts:  # recovery meets a record that reaches below the checkpoint; that record names the term before it
            facts.append((first_index - 1, 0))
        self.last_index = first_index - 1
        self.previous_index = min(self.previous_index, self.last_index)

    def note_term(self, index: int, term: int) -> None:
        """The entry at `index`, and those behind it of which nothing else is noted, have this term."""
        facts = self._terms
        if facts[-1][0] <= index:
            if facts[-1][0] == index:
                facts[-1] = (index, term)
            elif facts[-1][1] != term:
                facts.append((index, term))
            return
        at = bisect_right(facts, (index, 1 << 64))
        if at and facts[at - 1][0] == index:
            facts[at - 1] = (index, term)
        elif not at or facts[at - 1][1] != term:
            facts.insert(at, (index, term))

    def note_terms(self, entries: Sequence[Entry]) -> None:
        self.note_term(entries[0].index, entries[0].term)
        if entries[0].term != entries[-1].term:  # terms never fall, so else all between are equal too
            for entry in entries:
                self.note_term(entry.index, entry.term)

    def release(self, through_index: int, term: int) -> None:
        """Entries up to through_index, which has this term, are needed no more."""
        end = self._run_ending_at_or_after(through_index + 1) * _STRIDE
        runs = self._runs
        for at in range(0, end, _STRIDE):
            self._use.drop(runs[at + 2], runs[at + 3])
        del runs[:end]
        if runs and runs[0] <= through_index:
            runs[0] = through_index + 1
        self.previous_index = through_index
        del self._terms[: bisect_right(self._terms, (through_index, 1 << 64)) - 1]
        self._terms[0] = (through_index, term)

    def restart(self, previous_index: int, previous_term: int) -> None:
        """Forget all entries: the log goes on after previous_index."""
        for run in self.runs():
            self._use.drop(run.place, run.size_bytes)
        self._runs = array("Q")
        self._terms = [(previous_index, previous_term)]
        self.previous_index = self.last_index = previous_index

    def move(self, first_index: int, last_index: int, place: int, size_bytes: int) -> None:
        """Entries first_index to last_index stand at `place` too, which takes the place of where they stood before."""
        begin = self._run_ending_at_or_after(first_index) * _STRIDE
        replacement = [first_index, last_index, place, size_bytes]
        end = begin
        while end < len(self._runs) and self._runs[end] <= last_index:
            run = Run(*self._runs[end : end + _STRIDE])
            self._use.drop(run.place, run.size_bytes)
            if run.first_index < first_index:
                replacement[:0] = [run.first_index, first_index - 1, run.place, run.size_bytes]
            if run.last_index > last_index:
                replacement += [last_index + 1, run.last_index, run.place, run.size_bytes]
            end += _STRIDE
        for at in range(0, len(replacement), _STRIDE):
            self._use.add(self.life, replacement[at + 2], replacement[at + 3])
        self._runs[begin:end] = array("Q", replacement)

    def keep_gapless(self, floor: int) -> None:
        """After recovery: keep the entries that reach to the last one without a gap, from segment `floor` on.

        What is missing before them was released: the floor moves only when nothing below it is needed.
        """
        runs = self._runs
        begin = len(runs)
        expected_last = self.last_index
        while begin and runs[begin - 3] == expected_last and runs[begin - 2] >> POSITION_BITS >= floor:
            begin -= _STRIDE
            expected_last = runs[begin] - 1
        for at in range(0, begin, _STRIDE):
            self._use.drop(runs[at + 2], runs[at + 3])
        del runs[:begin]
        self.release(expected_last, self._fact(expected_last)[1])

    # -- the checkpoint

    def restore(self, row: Row) -> None:
        self.hard_state = HardState(row.term, row.vote, row.commit_index)
        self.clock_us = row.clock_us
        self.clock_offset_us = row.clock_offset_us
        self.clock = ClockReading(row.boot_id, row.boottime_us, row.wall_us)
        self.restart(row.last_index, row.last_term)

    def pack_row(self, rows: bytearray) -> None:
        state = self.hard_state
        ROW.pack_into(
            rows, self.row_number * ROW.size, self.life, state.term, state.voted_for, state.commit_index,
            self.previous_index, self._fact(self.previous_index)[1], self.last_index, self._fact(self.last_index)[1],
            self.clock_us, self.clock_offset_us, *self.clock,
        )  # fmt: skip

    def _fact(self, index: int) -> tuple[int, int]:
        facts = self._terms
        if facts[-1][0] <= index:
            return facts[-1]
        return facts[bisect_right(facts, (index, 1 << 64)) - 1]

    def _run_ending_at_or_after(self, index: int) -> int:
        """Number of the first run whose last index is at or after `index`; the number of runs when none is."""
        runs = self._runs
        low, high = 0, len(runs) // _STRIDE
        while low < high:
            middle = (low + high) // 2
            if runs[middle * _STRIDE + 1] < index:
                low = middle + 1
            else:
                high = middle
        return low


class Groups:
    """All groups of the node by life, and the rows of the next checkpoint."""

    def __init__(self) -> None:
        self.use = SegmentUse()
        self.rows = bytearray()
        self._by_life: dict[int, GroupLog] = {}
        self._by_row: list[GroupLog] = []

    def __iter__(self) -> Iterator[GroupLog]:
        return iter(self._by_row)

    def __len__(self) -> int:
        return len(self._by_row)

    def get(self, life: int) -> GroupLog | None:
        return self._by_life.get(life)

    def get_or_add(self, life: int) -> GroupLog:
        group = self._by_life.get(life)
        if group is None:
            group = self._by_life[life] = GroupLog(life, len(self._by_row), self.use)
            self._by_row.append(group)
            self.rows += bytes(ROW.size)
            group.pack_row(self.rows)
        return group

    def forget(self, life: int) -> None:
        """The group has ended; the last row takes the place of its row."""
        group = self._by_life.pop(life, None)
        if group is None:
            return
        group.restart(group.last_index, 0)
        last = self._by_row.pop()
        if last is not group:
            last.row_number = group.row_number
            self._by_row[last.row_number] = last
            last.pack_row(self.rows)
        del self.rows[-ROW.size :]
