"""The log against a slow, obvious twin, and what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raft.invariants import InvariantBroken
from raft.log import ENTRY_OVERHEAD_BYTES, Log, parts, size_bytes
from raft.messages import Entry, EntryKind


def entry(term: int, index: int, data: bytes = b"") -> Entry:
    return Entry(term, index, EntryKind.COMMANDS, data)


def log_of(*terms: int, previous: tuple[int, int] = (0, 0)) -> Log:
    return Log.restore(previous, [entry(term, index) for index, term in enumerate(terms, previous[0] + 1)])


class LogTwin(RuleBasedStateMachine):
    """A log and a plain list of all its entries from 1 on, with the writes that are under way spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.twin: list[Entry] = []
        self.term = 1
        self.submitted: list[Entry] = []
        self.writes: list[tuple[int, list[Entry]]] = []
        self.disk: list[Entry] = []
        self.forgotten = 0
        self.appended_in_term = False

    @rule(count=st.integers(1, 3))
    def lead(self, count: int) -> None:
        """A leader's own entries, in a term in which no other leader's came."""
        if not self.appended_in_term:
            self.term += 1
        first = self.log.append(self.term, EntryKind.COMMANDS, [b""] * count)
        assert first == len(self.twin) + 1
        self.twin += [entry(self.term, first + place) for place in range(count)]

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        """A new leader's append: agrees up to some place, overrules the rest (§5.3)."""
        self.term += 1
        self.appended_in_term = False
        agrees_to = data.draw(st.integers(self.forgotten, len(self.twin)))
        previous = data.draw(st.integers(self.forgotten, agrees_to))
        shared = self.twin[previous:agrees_to]
        terms = sorted(data.draw(st.lists(st.integers(1, self.term), max_size=3)))
        least = self.twin[agrees_to - 1].term if agrees_to else 1
        new = [entry(max(term, least), agrees_to + 1 + place) for place, term in enumerate(terms)]
        sent = shared + new
        assert self.log.write_after(previous, sent, commit_index=0, in_term=self.term) == previous + len(sent)
        for one in sent:
            if one.index <= len(self.twin) and self.twin[one.index - 1].term != one.term:
                del self.twin[one.index - 1 :]
            if one.index > len(self.twin):
                self.twin.append(one)

    @rule()
    def submit(self) -> None:
        start = self.log.submitted_index
        previous_term, entries = self.log.submit()
        assert list(entries) == self.twin[start:]
        assert previous_term == (self.twin[start - 1].term if entries and start else 0)
        self.writes.append((self.term, list(entries)))

    @precondition(lambda self: self.writes)
    @rule(report=st.booleans())
    def finish_write(self, report: bool) -> None:
        term, entries = self.writes.pop(0)
        if entries:
            self.disk[entries[0].index - 1 :] = entries
        if report and self.disk:
            last = self.disk[-1]
            self.log.flushed(last.term, last.index, term)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.log.flushed_index))
        self.log.forget_through(index)
        self.forgotten = max(self.forgotten, index)

    @rule(data=st.data(), keep_count=st.integers(0, 4))
    def trim(self, data: st.DataObject, keep_count: int) -> None:
        """The oldest go, up to a place, while more is held than is to be kept."""
        through = data.draw(st.integers(0, self.log.flushed_index))
        self.log.trim(through, keep_count * ENTRY_OVERHEAD_BYTES + data.draw(st.integers(0, ENTRY_OVERHEAD_BYTES - 1)))
        while len(self.twin) - self.forgotten > keep_count and self.forgotten < through:
            self.forgotten += 1

    @rule(index=st.integers(0, 12), term=st.integers(0, 12))
    def find_agreeing_place(self, index: int, term: int) -> None:
        """§5.3, last part: the last entry at or before `index` that is not of a later term."""
        places = [(one.index, one.term) for one in self.twin if one.index <= index and one.term <= term]
        found = max([place for place in places if place[0] > self.forgotten], default=None)
        ahead = (self.forgotten, self.twin[self.forgotten - 1].term if self.forgotten else 0)
        assert self.log.agreeing_place(index, term) == (found or ahead)

    @invariant()
    def agrees_with_the_twin(self) -> None:
        log = self.log
        assert (log.first_index, log.last_index) == (self.forgotten + 1, len(self.twin))
        assert log.last_term == (self.twin[-1].term if self.twin else 0)
        assert log.flushed_index <= log.submitted_index <= log.last_index
        for one in self.twin[self.forgotten :]:
            assert log.term_at(one.index) == one.term and log.holds(one.index, one.term)
            assert not log.holds(one.index, one.term + 1)
        assert not log.holds(log.last_index + 1, log.last_term)

    @invariant()
    def what_counts_as_flushed_is_on_disk(self) -> None:
        """M-13, whatever reports are late: as of the writes finished so far, the disk agrees up to flushed_index."""
        flushed = self.log.flushed_index
        assert self.disk[:flushed] == self.twin[:flushed]


TestLogTwin = LogTwin.TestCase
TestLogTwin.settings = settings(max_examples=60, stateful_step_count=25)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8), st.integers(1, 400), st.data())
def test_entries_are_cut_to_a_size_and_the_first_always_comes(
    payloads: list[bytes], max_bytes: int, data: st.DataObject
) -> None:
    log = Log()
    log.append(1, EntryKind.COMMANDS, payloads)
    lo = data.draw(st.integers(1, len(payloads)))
    hi = data.draw(st.integers(lo, len(payloads)))
    twin: list[bytes] = []
    for payload in payloads[lo - 1 : hi]:
        if twin and sum(len(one) + ENTRY_OVERHEAD_BYTES for one in [*twin, payload]) > max_bytes:
            break
        twin.append(payload)
    chosen = log.entries(lo, hi, max_bytes)
    assert [one.data for one in chosen] == twin
    assert [one.index for one in chosen] == list(range(lo, lo + len(twin)))
    assert size_bytes(chosen) == sum(len(one) + ENTRY_OVERHEAD_BYTES for one in twin)


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 300))
def test_parts_are_as_large_as_they_may_be(payloads: list[bytes], max_bytes: int) -> None:
    entries = [entry(1, index, data) for index, data in enumerate(payloads, 1)]
    found = list(parts(entries, max_bytes))
    assert [one for part in found for one in part] == entries
    assert all(len(part) == 1 or (len(part) > 1 and size_bytes(part) <= max_bytes) for part in found)
    assert all(size_bytes([*part, following[0]]) > max_bytes for part, following in pairwise(found))


def test_a_trimmed_log_keeps_so_many_bytes() -> None:
    log = Log.restore((0, 0), [entry(1, index, b"x" * 68) for index in range(1, 11)])
    log.trim(10, 350)
    assert (log.first_index, log.previous_term) == (8, 1)
    log.trim(9, 0)
    assert log.first_index == 10


def test_what_was_cut_weighs_nothing() -> None:
    log = Log.restore((0, 0), [entry(1, index, b"x" * 68) for index in range(1, 11)])
    log.trim(0, 0)
    log.write_after(4, [entry(2, 5)], commit_index=4, in_term=2)
    log.trim(4, 400 + ENTRY_OVERHEAD_BYTES)
    assert log.first_index == 1
    log.trim(4, 399 + ENTRY_OVERHEAD_BYTES)
    assert log.first_index == 2


def test_a_restored_log_that_was_cut_knows_the_term_before_its_first_entry() -> None:
    log = log_of(3, 4, previous=(7, 2))
    assert (log.first_index, log.last_index, log.flushed_index, log.submitted_index) == (8, 9, 9, 9)
    assert [log.term_at(index) for index in (7, 8, 9)] == [2, 3, 4]
    assert log.holds(7, 2)
    assert not log.holds(6, 2)
    empty = Log.restore((7, 2), [])
    assert (empty.last_index, empty.last_term) == (7, 2)


def test_truncation_lowers_flushed_and_submitted_in_the_same_step() -> None:
    """M-13."""
    log = log_of(1, 1, 1)
    log.write_after(1, [entry(2, 2)], commit_index=1, in_term=2)
    assert (log.last_index, log.submitted_index, log.flushed_index) == (2, 1, 1)


def test_a_committed_entry_is_never_overwritten() -> None:
    with pytest.raises(InvariantBroken, match="committed"):
        log_of(1, 1).write_after(1, [entry(2, 2)], commit_index=2, in_term=2)


def test_what_a_log_does_not_do() -> None:
    with pytest.raises(InvariantBroken, match="never submitted"):
        log = Log()
        log.append(1, EntryKind.BLANK, [b""])
        log.flushed(1, 1, written_in_term=1)
    with pytest.raises(InvariantBroken, match="disk does not hold"):
        log.forget_through(1)
    with pytest.raises(InvariantBroken, match="not held"):
        log_of(1).term_at(2)
    with pytest.raises(InvariantBroken, match="not held"):
        log_of(1).entries(1, 2, 100)
    with pytest.raises(InvariantBroken, match="terms fall"):
        log_of(3).append(2, EntryKind.COMMANDS, [b""])
    with pytest.raises(InvariantBroken, match="gap in the log"):
        Log.restore((0, 0), [entry(1, 2)])
    with pytest.raises(InvariantBroken, match="gap in the entries"):
        Log.restore((0, 0), [entry(1, 1), entry(1, 3)])
