"""The calendar against a sorted list, and what its scan positions are for (M-7)."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from queen_node.state import calendar
from queen_node.state.keys import CALENDAR, CALENDAR_MESSAGE_IDS, CALENDAR_TIMERS
from queen_node.state.store import Pair, Store
from tests.support.memory_engine import MemoryEngine

KINDS = (CALENDAR_TIMERS, CALENDAR_MESSAGE_IDS)


class Rows(MemoryEngine):
    """Remembers where scans began."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[bytes] = []

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        self.starts.append(start)
        return super().iterate(start, end)


def commit(store: Store) -> None:
    store.commit(index=store.meta.applied_index + 1, term=1, stamp_us=0)


def test_earliest_first_ties_by_sequence_and_now_is_due() -> None:
    store = Store(MemoryEngine(), life=1)
    for at_us, sequence in ((20, 1), (10, 3), (10, 2), (30, 4), (21, 5)):
        calendar.put(store, CALENDAR_TIMERS, at_us, sequence, b"%d" % sequence)
    assert calendar.due(store, CALENDAR_TIMERS, 20, 9) == [(10, 2, b"2"), (10, 3, b"3"), (20, 1, b"1")]
    assert calendar.due(store, CALENDAR_TIMERS, 20, 2) == [(10, 2, b"2"), (10, 3, b"3")]
    assert calendar.due(store, CALENDAR_TIMERS, 9, 9) == []


def test_a_kind_never_stands_before_another() -> None:
    """M-7: a million due timers must not stand before other deadlines."""
    store = Store(MemoryEngine(), life=1)
    calendar.put(store, CALENDAR_TIMERS, 1, 1, b"timer")
    calendar.put(store, CALENDAR_MESSAGE_IDS, 2, 1, b"ids")
    assert calendar.due(store, CALENDAR_MESSAGE_IDS, 5, 9) == [(2, 1, b"ids")]
    calendar.remove(store, CALENDAR_TIMERS, 1, 1)
    assert calendar.earliest(store, CALENDAR_TIMERS) is None
    assert calendar.earliest(store, CALENDAR_MESSAGE_IDS) == 2


def test_a_scan_begins_where_the_last_one_ended_not_at_the_beginning() -> None:
    """M-7: else each tick walks over the tombstones of all that ever fired."""
    engine = Rows()
    store = Store(engine, life=1)
    for at_us in range(100):
        calendar.put(store, CALENDAR_TIMERS, at_us, at_us, b"")
    commit(store)
    for at_us, sequence, _owner in calendar.due(store, CALENDAR_TIMERS, 59, 1000):
        calendar.remove(store, CALENDAR_TIMERS, at_us, sequence)
    commit(store)
    assert calendar.earliest(store, CALENDAR_TIMERS) == 60
    engine.starts.clear()
    assert calendar.due(store, CALENDAR_TIMERS, 70, 1)[0][0] == 60
    assert len(engine.starts) == 1 and engine.starts[0].endswith((60).to_bytes(8, "big") * 2)


def test_idle_looks_cost_no_scan() -> None:
    engine = Rows()
    store = Store(engine, life=1)
    calendar.put(store, CALENDAR_TIMERS, 1000, 1, b"")
    commit(store)
    calendar.earliest(store, CALENDAR_TIMERS)
    engine.starts.clear()
    for now_us in range(0, 1000, 100):
        assert calendar.earliest(store, CALENDAR_TIMERS) == 1000
        assert calendar.due(store, CALENDAR_TIMERS, now_us, 10) == []
    assert engine.starts == []
    calendar.remove(store, CALENDAR_TIMERS, 1000, 1)
    commit(store)
    assert calendar.earliest(store, CALENDAR_TIMERS) is None
    engine.starts.clear()
    assert calendar.earliest(store, CALENDAR_TIMERS) is None
    assert engine.starts == [], "an empty calendar is known to be empty"


def test_an_earlier_put_lowers_the_position() -> None:
    store = Store(MemoryEngine(), life=1)
    calendar.put(store, CALENDAR_TIMERS, 100, 1, b"late")
    assert calendar.due(store, CALENDAR_TIMERS, 50, 9) == []
    assert calendar.earliest(store, CALENDAR_TIMERS) == 100
    calendar.put(store, CALENDAR_TIMERS, 40, 2, b"early")
    assert calendar.earliest(store, CALENDAR_TIMERS) == 40
    assert calendar.due(store, CALENDAR_TIMERS, 50, 9) == [(40, 2, b"early")]


def test_a_new_store_over_the_same_rows_begins_at_the_beginning() -> None:
    engine = MemoryEngine()
    store = Store(engine, life=1)
    calendar.put(store, CALENDAR_TIMERS, 7, 1, b"a")
    commit(store)
    assert Store(engine, life=1).positions == {}
    assert calendar.earliest(Store(engine, life=1), CALENDAR_TIMERS) == 7


def test_a_floor_is_where_scans_begin_after_a_restart() -> None:
    """M-7: a position that is kept; else a restart walks over all that ever fired."""
    engine = Rows()
    store = Store(engine, life=1)
    calendar.put(store, CALENDAR_TIMERS, 50, 7, b"row")
    calendar.set_floor(store, CALENDAR_TIMERS, 50, 7)
    commit(store)
    engine.starts.clear()
    assert calendar.earliest(Store(engine, life=1), CALENDAR_TIMERS) == 50
    assert calendar.due(Store(engine, life=1), CALENDAR_TIMERS, 60, 1) == [(50, 7, b"row")]
    assert {start[7:17] for start in engine.starts} == {CALENDAR + CALENDAR_TIMERS + (50).to_bytes(8, "big")}
    calendar.remove(store, CALENDAR_TIMERS, 50, 7)
    commit(store)
    assert calendar.earliest(Store(engine, life=1), CALENDAR_TIMERS) is None


times = st.integers(0, 30)
actions = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KINDS), times),
    st.tuples(st.just("remove"), st.sampled_from(KINDS), times),
    st.tuples(st.just("due"), st.sampled_from(KINDS), times),
    st.tuples(st.just("earliest"), st.sampled_from(KINDS), times),
    st.tuples(st.sampled_from(["commit", "restart"]), st.just(b""), times),
)


@settings(max_examples=300)
@given(st.lists(actions, max_size=60))
def test_any_history_reads_like_a_sorted_list(history: list[tuple[str, bytes, int]]) -> None:
    engine = MemoryEngine()
    store = Store(engine, life=1)
    rows: dict[bytes, list[tuple[int, int, bytes]]] = {kind: [] for kind in KINDS}
    for sequence, (action, kind, at_us) in enumerate(history):
        if action == "put":
            calendar.put(store, kind, at_us, sequence, b"%d" % sequence)
            rows[kind] = sorted([*rows[kind], (at_us, sequence, b"%d" % sequence)])
        elif action == "remove" and rows[kind]:
            gone = rows[kind].pop(at_us % len(rows[kind]))
            calendar.remove(store, kind, gone[0], gone[1])
        elif action == "due":
            at_most = 1 + sequence % 4
            expected = [row for row in rows[kind] if row[0] <= at_us][:at_most]
            assert calendar.due(store, kind, at_us, at_most) == expected
        elif action == "earliest":
            assert calendar.earliest(store, kind) == (rows[kind][0][0] if rows[kind] else None)
        elif action in ("commit", "restart"):
            commit(store)
            if action == "restart":
                store = Store(engine, life=1)
        for each in KINDS:
            position = store.positions.get(each, b"")
            assert all(CALENDAR + each + at.to_bytes(8, "big") + seq.to_bytes(8, "big") >= position
                       for at, seq, _owner in rows[each]), "a row stands below the position"
