"""Where entries stand, against a slow twin: one dictionary entry an index."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raft.wal_format import POSITION_BITS, ROW, Row
from raft.wal_index import GroupLog, Groups, SegmentUse

kinds = st.sampled_from(["append", "cut", "release", "move"])
operations = st.lists(st.tuples(kinds, st.integers(0, 30), st.integers(1, 6)))


class Twin:
    """index -> (term, place)"""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, int]] = {}
        self.previous = (0, 0)

    @property
    def last_index(self) -> int:
        return max(self.entries, default=self.previous[0])


@settings(max_examples=300)
@given(operations)
def test_runs_and_terms_against_their_slow_twin(steps: list[tuple[str, int, int]]) -> None:
    use = SegmentUse()
    group, twin, term = GroupLog(1, 0, use), Twin(), 1
    for place, (what, number, count) in enumerate(steps, start=1):
        here = place // 4 << POSITION_BITS | place * 512
        lowest, last = twin.previous[0], twin.last_index
        if what in ("append", "cut"):
            first = last + 1 if what == "append" else max(lowest + 1, last - number % 5)
            term += what == "cut" or number % 3 == 0
            twin.entries = {index: at for index, at in twin.entries.items() if index < first}
            twin.entries |= dict.fromkeys(range(first, first + count), (term, here))
            group.append(first, first + count - 1, here, 100)
            group.note_term(first, term)
        elif what == "release" and last > lowest:
            through = min(last, lowest + 1 + number % 7)
            group.release(through, group.term_at(through))
            twin.previous = (through, twin.entries[through][0])
            twin.entries = {index: at for index, at in twin.entries.items() if index > through}
        elif what == "move" and last > lowest:
            first = min(last, lowest + 1 + number % 9)
            end = min(last, first + count)
            twin.entries |= {index: (twin.entries[index][0], here) for index in range(first, end + 1)}
            group.move(first, end, here, 100)
        must_agree(group, twin, use)


def must_agree(group: GroupLog, twin: Twin, use: SegmentUse) -> None:
    assert (group.previous_index, group.last_index) == (twin.previous[0], twin.last_index)
    found = {index: run.place for run in group.runs() for index in range(run.first_index, run.last_index + 1)}
    assert found == {index: place for index, (_, place) in twin.entries.items()}
    assert group.term_at(group.previous_index) == twin.previous[1]
    for index, (term, _) in twin.entries.items():
        assert group.term_at(index) == term
        assert [of for begin, of in group.terms() if begin <= index][-1] == term
        assert next(iter(group.runs(index, index))).place == twin.entries[index][1]
    needed = {place >> POSITION_BITS for _, place in twin.entries.values()}
    assert {segment for segment, size in use.needed_bytes.items() if size} == needed


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8))))
def test_rows_of_the_next_checkpoint_are_always_ready(changes: list[tuple[bool, int]]) -> None:
    groups, lives = Groups(), set()
    for is_added, life in changes:
        if is_added:
            groups.get_or_add(life)
            lives.add(life)
        else:
            groups.forget(life)
            lives.discard(life)
        rows = [Row._make(fields) for fields in ROW.iter_unpack(groups.rows)]
        assert {row.life for row in rows} == lives
        assert len(rows) == len(lives) == len(groups)
        assert all(rows[group.row_number].life == group.life for group in groups)
