"""A store is read again while its node goes on using it (CL-123, CL-128)."""

from __future__ import annotations

from pathlib import Path

import pytest

from queen_node.state import rocks_check
from queen_node.state.rocks import RocksEngine, StoreDamaged
from queen_node.state.rocks_check import check_store

ROWS = 3000
PAGE_BYTES = 8 << 10  # of a block of a table, before it is compressed


@pytest.fixture
def engine(tmp_path: Path) -> RocksEngine:
    """With rows in three tables, and some that were deleted."""
    engine = RocksEngine(tmp_path / "store")
    for first in range(0, ROWS, 1000):
        engine.write(b"p", {b"%06d" % number: b"v" * 90 for number in range(first, first + 1000)})
        engine.flush()
    engine.write(b"p", {b"%06d" % number: None for number in range(500, 1500)})
    engine.flush()
    return engine


@pytest.fixture(autouse=True)
def _without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_check, "OPEN_PAUSE_S", 0.0)


def rows_of(directory: Path, **options: float) -> list[int]:
    """Bytes of each row that the check read."""
    sizes: list[int] = []
    check_store(directory, sizes.append, **options)
    return sizes


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes((byte ^ 1,)))


@pytest.mark.parametrize("reopened_after_s", [60.0, 0.0])
def test_every_row_is_read_once_and_nothing_is_changed(
    engine: RocksEngine, tmp_path: Path, reopened_after_s: float
) -> None:
    """However often it is opened in between."""
    store = tmp_path / "store"
    if not reopened_after_s:
        engine.write(b"p", {b"%06d" % number: None for number in range(20, ROWS)})  # each opening takes a while
        engine.flush()
    expected = sum(1 for _ in engine.iterate(b"", b"\xff"))
    before = {path.name: path.stat().st_mtime_ns for path in store.iterdir()}
    sizes = rows_of(store, reopened_after_s=reopened_after_s)
    assert {path.name: path.stat().st_mtime_ns for path in store.iterdir()} == before
    assert len(sizes) == expected == (20 if not reopened_after_s else ROWS - 1000)
    assert set(sizes) == {1 + 6 + 90}


def test_the_node_writes_flushes_and_compacts_meanwhile(engine: RocksEngine, tmp_path: Path) -> None:
    """Tables that go while they are read are no damage, nor are those that go before they are opened."""
    seen = 0

    def went_on(_: int) -> None:
        nonlocal seen
        seen += 1
        if seen % 500 == 1:
            engine.write(b"p", {b"%06d" % number: b"w" for number in range(ROWS)})
            engine.flush()
            engine._database.compact_range(None, None)

    check_store(tmp_path / "store", went_on)
    assert seen == ROWS - 1000
    assert len(rows_of(tmp_path / "store")) == ROWS


def test_a_flipped_bit_in_any_table_is_found_and_its_file_named(engine: RocksEngine, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for table in sorted(store.glob("*.sst")):
        flip(table, 30)
        with pytest.raises(StoreDamaged, match="checksum mismatch") as damage:
            check_store(store, lambda _: None)
        assert str(table) in str(damage.value)
        flip(table, 30)
    assert len(rows_of(store)) == ROWS - 1000


@pytest.mark.parametrize("name", ["*.sst", "CURRENT", "MANIFEST-*"])
def test_a_missing_file_is_found(engine: RocksEngine, tmp_path: Path, name: str) -> None:
    (tmp_path / "store").glob(name).__next__().unlink()
    with pytest.raises(StoreDamaged) as damage:
        check_store(tmp_path / "store", lambda _: None)
    assert str(tmp_path / "store") in str(damage.value)
