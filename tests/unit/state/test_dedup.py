"""What a partition remembers of transaction ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.state import dedup
from queen_node.state.dedup import MessageIdRow
from queen_node.state.keys import MESSAGE_ID, MESSAGE_ID_MORE, u64
from queen_node.state.store import Store
from raft.invariants import InvariantBroken
from tests.support.memory_engine import MemoryEngine

KEY = dedup.id_key(7, b"order-1")


def remembering(*occurrences: tuple[int, int]) -> Store:
    """A store that knows these (offset, created at) of one id."""
    store = Store(MemoryEngine(), life=1)
    for offset, created_at_us in occurrences:
        row = MessageIdRow(offset, created_at_us, b"m%015d" % offset)
        first = dedup.lowest(store, KEY)
        if first is None:
            store.put(KEY, dedup.encode_row(row))
        else:
            dedup.remember_again(store, KEY, first, row)
    return store


def test_the_hash_is_the_same_everywhere_and_for_ever() -> None:
    """PU-57, M-80: BLAKE2b of 128 bits, here from b2sum; a change would forget every id on an upgrade."""
    assert KEY.removeprefix(MESSAGE_ID + u64(7)).hex() == "56eea00bbcad2f0a2ca2cc13492405d7"


occurrence_lists = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=12,
).map(lambda steps: [
    (sum(gap for gap, _ in steps[: place + 1]) - 1, sum(wait for _, wait in steps[: place + 1]))
    for place in range(len(steps))
])


@given(occurrence_lists, st.integers(0, 40))
def test_the_oldest_inside_is_the_first_that_a_walk_would_find(occurrences: list[tuple[int, int]], oldest: int) -> None:
    """PU-55: the lowest offset inside the window is named."""
    store = remembering(*occurrences)
    first = dedup.lowest(store, KEY)
    assert first is not None
    found = dedup.oldest_inside(store, KEY, first, oldest, occurrences[-1][0] + 1)
    expected = next((offset for offset, created_at_us in occurrences if created_at_us >= oldest), None)
    assert (found.offset if found else None) == expected


@given(occurrence_lists, st.integers(0, 60), st.integers(0, 60))
def test_offsets_of_a_span(occurrences: list[tuple[int, int]], first: int, last: int) -> None:
    """PA-53."""
    offsets = dedup.offsets_of(remembering(*occurrences), 7, b"order-1", first, last)
    assert offsets == [offset for offset, _ in occurrences if first <= offset <= last]


def test_an_unknown_id_has_no_offsets() -> None:
    store = remembering((3, 1), (5, 2))
    assert dedup.offsets_of(store, 7, b"order-2", 0, 99) == []
    assert dedup.offsets_of(store, 8, b"order-1", 0, 99) == []


@given(occurrence_lists)
def test_forgetting_from_the_lowest_on_leaves_nothing(occurrences: list[tuple[int, int]]) -> None:
    """FAULTS: expired dedup rows were never freed."""
    store = remembering(*occurrences)
    offsets = [offset for offset, _ in occurrences]
    for place, offset in enumerate(offsets):
        dedup.forget_lowest(store, KEY, offset)
        assert dedup.offsets_of(store, 7, b"order-1", 0, 99) == offsets[place + 1 :]
        row = dedup.lowest(store, KEY)
        assert (row.more if row else False) == (len(offsets) - place > 2)
    assert store.scan(MESSAGE_ID, bytes((MESSAGE_ID_MORE[0] + 1,)), 1) == []


def test_forgetting_another_offset_than_the_lowest_is_a_broken_invariant() -> None:
    with pytest.raises(InvariantBroken):
        dedup.forget_lowest(remembering((3, 1), (5, 2)), KEY, 5)
    with pytest.raises(InvariantBroken):
        dedup.forget_lowest(remembering((3, 1)), dedup.id_key(7, b"order-2"), 3)


def test_rows_packed_together_are_the_rows() -> None:
    rows = [MessageIdRow(7, 1_700_000_000_000_000, b"a" * 16), MessageIdRow(8, 1_700_000_000_000_000, b"b" * 16)]
    packed = dedup.encode_rows(7, 1_700_000_000_000_000, [b"a" * 16, b"b" * 16])
    assert packed == list(map(dedup.encode_row, rows)) and list(map(dedup.decode_row, packed)) == rows
    again = rows[0]._replace(more=True)
    assert dedup.decode_row(dedup.encode_row(again)) == again
