"""A state is installed beside the one that lives, and one batch flips to it: a crash leaves one of the two (M-61)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.state.incarnations import HIGHEST, LEFTOVERS_MAX, POINT_DELETES_MAX, Incarnations, UnknownRow
from queen_node.state.keys import INCARNATIONS, after, group_prefix
from queen_node.state.rocks import RocksEngine
from queen_node.state.snapshot_rows import MalformedRows, RowsReader, view
from queen_node.state.store import Engine, Store
from raft.invariants import InvariantBroken
from tests.support.memory_engine import MemoryEngine

LIFE = 7
ROWS = st.dictionaries(
    st.binary(min_size=1, max_size=3).map(lambda raw: b"\x40" + raw), st.binary(max_size=40), max_size=30)


def state_of(engine: Engine, rows: dict[bytes, bytes], *, life: int = LIFE, incarnation: int = 1) -> Store:
    """A group's state with these rows, written by one entry."""
    store = Store(engine, life=life, incarnation=incarnation)
    for key, value in rows.items():
        store.put(key, value)
    store.commit(index=store.meta.applied_index + 1, term=3, stamp_us=store.meta.stamp_us + 5)
    return store


def parts_of(store: Store, part_bytes: int = 100) -> list[bytes]:
    seen = view(store.engine, store.life, store.incarnation, part_bytes)
    assert seen is not None
    return list(seen.parts)


def install(incarnations: Incarnations, life: int, parts: list[bytes]) -> bytes:
    """All but the flip; the row META. Where it stands: the last of the leftovers."""
    number, reader = incarnations.begin(life), RowsReader()
    for part in parts:
        incarnations.write(life, number, reader.read(part))
    assert reader.meta is not None
    return reader.meta


def rows_of(store: Store) -> dict[bytes, bytes]:
    return dict(store.committed().iterate(b"\x40", b"\x41"))


def rows_under(engine: Engine, life: int, incarnation: int) -> int:
    prefix = group_prefix(life, incarnation)
    return len(list(engine.iterate(prefix, after(prefix))))


# The view

@given(ROWS, ROWS, st.integers(1, 300))
def test_a_view_is_of_one_instant_and_comes_back_as_the_same_rows(
    rows: dict[bytes, bytes], later: dict[bytes, bytes], part_bytes: int,
) -> None:
    """CL-113, M-61: entries applied while it is read are not in it, and its META is of that instant."""
    store = state_of(MemoryEngine(), rows)
    digest = store.meta.digest
    seen = view(store.engine, LIFE, 1, part_bytes)
    state_of(store.engine, later)
    assert seen is not None
    parts, reader, read = list(seen.parts), RowsReader(), dict[bytes, bytes | None]()
    for part in parts:
        read |= reader.read(part)
    assert read == rows
    assert (seen.meta.applied_index, seen.meta.digest) == (1, digest)
    assert reader.meta is not None
    row_max = max((len(key) + len(value) for key, value in rows.items()), default=0)
    assert all(len(part) <= part_bytes + row_max + 120 for part in parts)


def test_a_group_that_never_applied_has_no_view() -> None:
    assert view(MemoryEngine(), LIFE, 1, 100) is None


@pytest.mark.parametrize("spoil", [
    lambda parts: parts[1:],  # without META
    lambda parts: [parts[0], parts[0]],
    lambda parts: [parts[1], parts[0]],
    lambda parts: [parts[0][:-1]],
    lambda parts: [b"\x90"],  # nothing
    lambda parts: [b"\x91\xc4\x01a"],  # a key without a value
])
def test_what_is_no_state_is_refused(spoil: object) -> None:
    """A peer can be wrong; nothing of it is believed."""
    parts = parts_of(state_of(MemoryEngine(), {b"\x40a": b"1" * 90, b"\x40b": b"2" * 90}))
    reader = RowsReader()
    with pytest.raises(MalformedRows):
        for part in spoil(parts):  # type: ignore[operator]
            reader.read(part)


# Installing

@given(ROWS, ROWS)
def test_after_the_flip_the_store_is_as_if_opened_on_the_other_one(
    old: dict[bytes, bytes], new: dict[bytes, bytes],
) -> None:
    """M-61, M-81: rows, applied index, stamp and digest; nothing in memory is of before."""
    source, engine = state_of(MemoryEngine(), new), MemoryEngine()
    state_of(source.engine, {})
    source = Store(source.engine, life=LIFE)
    store = state_of(engine, old)
    store.put_young(b"\x40y", b"young")
    store.commit(index=2, term=3, stamp_us=9)
    store.positions[b"\x01"] = b"above"
    incarnations = Incarnations(engine)
    meta = install(incarnations, LIFE, parts_of(source))
    assert store.get_young(b"\x40y") == b"young"
    incarnations.flip(LIFE, 2, meta)
    store.reopen(incarnations.current(LIFE))
    fresh = Store(engine, life=LIFE, incarnation=2)
    assert rows_of(store) == rows_of(fresh) == new
    assert store.meta == fresh.meta == source.meta
    assert store.get_young(b"\x40y") == new.get(b"\x40y")
    assert (store.positions, store.batch_count) == ({}, 0)


@given(ROWS, ROWS, st.integers(0, 60), st.integers(10, 200))
def test_a_crash_at_any_instant_leaves_the_old_state_or_the_new_and_no_leftover(
    old: dict[bytes, bytes], new: dict[bytes, bytes], kept: int, part_bytes: int,
) -> None:
    """CL-112: whatever prefix of the batches survived (M-1), a start finds all that is nobody's, and removes it."""
    source, engine = state_of(MemoryEngine(), new), MemoryEngine()
    state_of(engine, old)
    engine.flush()
    incarnations = Incarnations(engine)
    incarnations.flip(LIFE, 2, install(incarnations, LIFE, parts_of(source, part_bytes)))
    incarnations.told(LIFE, 1)
    incarnations.remove(LIFE, 1)
    engine = engine.crashed(kept)
    incarnations = Incarnations(engine)
    for life, number in incarnations.leftovers():
        incarnations.remove(life, number)
    current = incarnations.current(LIFE)
    assert rows_of(Store(engine, life=LIFE, incarnation=current)) == (old if current == 1 else new)
    assert [rows_under(engine, LIFE, number) for number in (1, 2, 3) if number != current] == [0, 0]
    assert incarnations.flipped(LIFE) in (None, (1, 3))
    assert Incarnations(engine).leftovers() == []


def test_the_flip_names_its_entry_until_the_log_was_told() -> None:
    """M-3: only a recorded flip explains a store that is ahead of its log; an older word does not clear a newer one."""
    engine = MemoryEngine()
    incarnations = Incarnations(engine)
    assert incarnations.flipped(LIFE) is None
    incarnations.flip(LIFE, 2, install(incarnations, LIFE, parts_of(state_of(MemoryEngine(), {}))))
    assert Incarnations(engine).flipped(LIFE) == (1, 3)
    incarnations.told(LIFE, 99)
    assert Incarnations(engine).flipped(LIFE) == (1, 3)
    incarnations.told(LIFE, 1)
    assert Incarnations(engine).flipped(LIFE) is None
    assert Incarnations(engine).current(LIFE) == 2
    assert Incarnations(engine).current(LIFE + 1) == 1


def test_unfinished_installs_are_bounded_and_their_numbers_come_round() -> None:
    incarnations = Incarnations(MemoryEngine())
    numbers = [incarnations.begin(LIFE) for _ in range(LEFTOVERS_MAX)]
    assert numbers == list(range(2, LEFTOVERS_MAX + 2))
    assert not incarnations.may_begin(LIFE)
    assert incarnations.may_begin(LIFE + 1)
    with pytest.raises(InvariantBroken):
        incarnations.begin(LIFE)
    incarnations.remove(LIFE, 3)
    assert incarnations.begin(LIFE) == LEFTOVERS_MAX + 2
    assert 3 not in [number for _, number in incarnations.leftovers()]


def test_the_numbers_of_a_life_never_run_out() -> None:
    incarnations = Incarnations(MemoryEngine())
    for _ in range(HIGHEST - 1):
        last = incarnations.begin(LIFE)
        incarnations.remove(LIFE, last)
        if last < HIGHEST:
            incarnations._rows[LIFE] = type(incarnations._rows[LIFE])(current=last)
    assert incarnations.begin(LIFE) == HIGHEST
    incarnations._keep(LIFE, type(incarnations._rows[LIFE])(current=HIGHEST))
    assert incarnations.begin(LIFE) == 1


def test_a_life_that_lives_is_neither_written_over_nor_removed() -> None:
    incarnations = Incarnations(MemoryEngine())
    for wrong in (lambda: incarnations.write(LIFE, 1, {b"a": b"b"}), lambda: incarnations.remove(LIFE, 1)):
        with pytest.raises(InvariantBroken):
            wrong()


def test_few_rows_go_by_themselves_and_many_by_one_range(tmp_path: Path) -> None:
    """M-5; the neighbours in the order of the keys stay: lives, and incarnations, before and behind."""
    rocks = RocksEngine(tmp_path)
    for engine in (rocks, MemoryEngine()):
        many: dict[bytes, bytes | None] = {b"\x40%d" % number: b"x" for number in range(POINT_DELETES_MAX)}
        for life, number in ((LIFE - 1, 2), (LIFE, 1), (LIFE, 3), (LIFE + 1, 1)):
            state_of(engine, {b"\x40a": b"1"}, life=life, incarnation=number)
        incarnations = Incarnations(engine)
        assert incarnations.begin(LIFE) == 2
        incarnations.write(LIFE, 2, many)
        assert incarnations.remove(LIFE, 2) is True
        assert rows_under(engine, LIFE, 2) == 0
        number = incarnations.begin(LIFE)
        incarnations.write(LIFE, number, {b"\x40a": b"1"})
        assert incarnations.remove(LIFE, number) is False
        assert [rows_under(engine, *place) for place in ((LIFE - 1, 2), (LIFE, 1), (LIFE + 1, 1))] == [2, 2, 2]
    rocks.close()


@pytest.mark.parametrize("value", [b"", b"\xff\xff", b"\x95\x63\x01\x90\x00\x00"])
def test_a_row_that_no_release_wrote_refuses_the_start(value: bytes) -> None:
    """CL-124: damaged, or of version 99."""
    with pytest.raises(UnknownRow):
        Incarnations(MemoryEngine({INCARNATIONS + (7).to_bytes(4, "big"): value}))
