"""The store over its engine: one open batch that only the entry itself sees, rows kept decoded, one digest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.state.keys import COUNTERS, after, named
from queen_node.state.rows import CountersRow
from queen_node.state.store import Store, StoreBusy
from raft.invariants import InvariantBroken
from tests.support.memory_engine import MemoryEngine

KEYS = st.binary(min_size=1, max_size=3).map(lambda raw: bytes(0x40 | byte & 3 for byte in raw))
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=4)), max_size=12)


@given(st.lists(st.tuples(WRITES, KEYS, KEYS), max_size=6))
def test_an_entry_reads_through_its_own_batch(
    entries: list[tuple[list[tuple[bytes, bytes | None]], bytes, bytes]],
) -> None:
    """M-50: gets and scans see the open batch over what is committed; M-1: a new Store finds what was committed."""
    engine = MemoryEngine()
    store = Store(engine, life=7)
    model: dict[bytes, bytes] = {}
    for index, (writes, start, end) in enumerate(entries, 1):
        for key, value in writes:
            if value is None:
                store.delete(key)
                model.pop(key, None)
            else:
                store.put(key, value)
                model[key] = value
            assert store.get(key) == value
        low, high = sorted((start, end))
        expected = [(key, model[key]) for key in sorted(model) if low <= key < high]
        assert store.scan(low, high, 100) == expected
        assert store.scan(low, high, 2) == expected[:2]
        assert store.first(low, high) == (expected[0] if expected else None)
        store.commit(index=index, term=1, stamp_us=index)
        assert store.scan(low, high, 100) == expected
    again = Store(engine, life=7)
    assert again.meta == store.meta
    assert again.scan(b"\x40", b"\x50", 1000) == [(key, model[key]) for key in sorted(model)]
    assert Store(engine, life=8).scan(b"\x40", b"\x50", 1000) == []


def test_rows_are_shared_while_an_entry_is_applied_and_found_afterwards() -> None:
    engine = MemoryEngine()
    store = Store(engine, life=1)
    counters = store.counters()
    counters.timers_pending = 5
    store.put_row(COUNTERS, counters)
    counters.timers_pending = 6
    store.put_row(COUNTERS, counters)
    assert store.counters() is counters
    store.commit(index=1, term=1, stamp_us=1)
    assert Store(engine, life=1).counters() == CountersRow(timers_pending=6)
    store.delete(COUNTERS)
    assert store.row(COUNTERS, CountersRow) is None
    assert store.counters() == CountersRow()


def test_a_scan_sees_rows_that_were_put_and_not_yet_encoded() -> None:
    store = Store(MemoryEngine(), life=1)
    store.put(b"k2", b"2")
    assert store.scan(b"k", b"l", 9) == [(b"k2", b"2")]
    store.put_row(b"k1", CountersRow())
    store.delete(b"k2")
    assert [key for key, _ in store.scan(b"k", b"l", 9)] == [b"k1"]


YOUNG_STEPS = st.lists(
    st.tuples(st.sampled_from(["young", "put", "delete", "commit", "discard"]), KEYS, st.binary(max_size=40)),
    max_size=40,
)


@given(YOUNG_STEPS, st.sampled_from([0, 400, 1 << 20]))
def test_young_rows_are_what_the_store_holds(steps: list[tuple[str, bytes, bytes]], kept_bytes: int) -> None:
    """A copy in memory decides nothing: with none, with little and with room for all, every read is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queen_node.state.store.YOUNG_BYTES", kept_bytes)
        store, index = Store(MemoryEngine(), life=1), 0
        for step, key, value in steps:
            if step == "young":
                store.put_young(key, value)
            elif step == "put":
                store.put(key, value)
            elif step == "delete":
                store.delete(key)
            elif step == "commit":
                index += 1
                store.commit(index=index, term=1, stamp_us=index)
            else:
                store.discard()
            assert store.get_young(key) == store.get(key)
            for half in (store._young, store._older):
                assert sum(len(young) + 150 for young in half.values()) <= kept_bytes + 190


def test_the_digest_does_not_tell_when_a_scan_was_made() -> None:
    """M-81: whether an entry scans at all may depend on what a node remembers. What it writes counts, nothing else."""
    stores = Store(MemoryEngine(), life=1), Store(MemoryEngine(), life=1)
    for store in stores:
        store.put_row(b"k2", CountersRow())
        if store is stores[1]:
            store.scan(b"k", b"l", 9)
        store.put(b"k1", b"1")
        store.commit(index=1, term=1, stamp_us=1)
    assert stores[0].meta == stores[1].meta


class BusyOnce(MemoryEngine):
    """Refuses one write, as RocksDB does where it would have stalled."""

    refusals = 1

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreBusy("would stall")
        super().write(prefix, batch)


def test_a_batch_that_was_refused_is_written_whole_by_the_next_try() -> None:
    """M-4."""
    engine = BusyOnce()
    store = Store(engine, life=1)
    store.put(b"a", b"1")
    store.put_row(COUNTERS, CountersRow(next_queue_id=3))
    with pytest.raises(StoreBusy):
        store.commit(index=1, term=1, stamp_us=1)
    assert store.meta.applied_index == 0
    assert Store(engine, life=1).meta.applied_index == 0
    store.commit(index=1, term=1, stamp_us=1)
    again = Store(engine, life=1)
    assert (again.get(b"a"), again.counters().next_queue_id, again.meta.applied_index) == (b"1", 3, 1)


def test_what_a_commit_must_hold() -> None:
    """M-20: stamps never fall; CL-25: entries apply in order, without a gap."""
    store = Store(MemoryEngine(), life=1)
    store.commit(index=1, term=1, stamp_us=50)
    with pytest.raises(InvariantBroken, match="out of order"):
        store.commit(index=3, term=1, stamp_us=60)
    with pytest.raises(InvariantBroken, match="ran backwards"):
        store.commit(index=2, term=1, stamp_us=40)


def test_the_digest_tells_any_two_histories_apart() -> None:
    """M-81: of the batch's bytes, of which write they are, and of all before."""

    def digest(*entries: dict[bytes, bytes | None]) -> bytes:
        store = Store(MemoryEngine(), life=1)
        for index, entry in enumerate(entries, 1):
            for key, value in entry.items():
                if value is None:
                    store.delete(key)
                else:
                    store.put(key, value)
            store.commit(index=index, term=1, stamp_us=index)
        return store.meta.digest

    histories: list[tuple[dict[bytes, bytes | None], ...]] = [
        ({b"a": b"1"},), ({b"a": b"2"},), ({b"b": b"1"},), ({b"a": None},), ({b"a": b""},), ({b"a1": b""},),
        ({b"a": b"1"}, {}), ({b"a": b"1", b"b": b"1"},), ({b"a": b"1"}, {b"b": b"1"}),
    ]
    digests = [digest(*history) for history in histories]
    assert len(set(digests)) == len(histories)
    assert digests == [digest(*history) for history in histories]


@given(st.lists(st.binary(max_size=3), min_size=2, max_size=2, unique=True), st.binary(max_size=3))
def test_names_in_keys_are_unambiguous(names: list[bytes], rest: bytes) -> None:
    """PU-20: no name is the beginning of another's key, whatever bytes they hold."""
    one, other = (named(name) for name in names)
    assert not (one + rest).startswith(other)


@given(st.binary(min_size=1, max_size=4).filter(lambda raw: raw.strip(b"\xff") != b""), st.binary(max_size=3))
def test_after_is_the_end_of_a_prefix(prefix: bytes, tail: bytes) -> None:
    end = after(prefix)
    assert prefix + tail < end
    assert not end.startswith(prefix)
