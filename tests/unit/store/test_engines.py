"""RocksDB and its ordered twin are one map (M-82); what a kill leaves of RocksDB is a prefix of the batches (M-1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen_node.state.rocks import RocksEngine, StoreDamaged
from queen_node.state.store import Engine, Pair
from tests.support.memory_engine import MemoryEngine

KEYS = st.binary(min_size=1, max_size=4).map(lambda raw: bytes(byte & 3 for byte in raw))
BATCHES = st.dictionaries(KEYS, st.none() | st.binary(max_size=6), max_size=8)
STEPS = st.lists(
    st.tuples(st.just("write"), BATCHES)
    | st.tuples(st.just("get"), KEYS)
    | st.tuples(st.sampled_from(["up", "down", "remove"]), st.tuples(KEYS, KEYS))
    | st.tuples(st.sampled_from(["flush", "reopen"]), st.none()),
    max_size=25,
)


def walk(view: Engine, direction: str, low: bytes, high: bytes) -> list[Pair]:
    return list(view.iterate(low, high) if direction == "up" else view.iterate_down(low, high))


@given(STEPS)
@settings(max_examples=60)
def test_the_twin_is_equal_to_rocksdb(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rocks, twin = RocksEngine(Path(directory)), MemoryEngine()
        for step, argument in steps:
            if step == "write":
                assert isinstance(argument, dict)
                rocks.write(b"", dict(argument))
                twin.write(b"", dict(argument))
            elif step == "get":
                assert isinstance(argument, bytes)
                assert rocks.get(argument) == twin.get(argument)
            elif step in ("up", "down"):
                assert isinstance(argument, tuple)
                low, high = sorted(argument)
                assert walk(rocks, step, low, high) == walk(twin, step, low, high)
            elif step == "remove":
                assert isinstance(argument, tuple)
                low, high = sorted(argument)
                rocks.remove_range(low, high)
                twin.remove_range(low, high)
            elif step == "flush":
                rocks.flush()
                twin.flush()
            else:
                rocks.close()
                rocks = RocksEngine(Path(directory))
        assert list(rocks.iterate(b"", b"\xff")) == list(twin.iterate(b"", b"\xff"))
        rocks.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_an_iteration_sees_one_instant(tmp_path: Path, flushed: bool) -> None:
    """A read in slices is of one state, whatever is written between its steps (CL-42)."""
    rocks = RocksEngine(tmp_path)
    for engine in (rocks, MemoryEngine()):
        engine.write(b"", {b"a": b"1", b"b": b"1", b"d": b"1"})
        if flushed:
            engine.flush()
        rows = engine.iterate(b"a", b"z")
        seen = [next(rows)]
        engine.write(b"", {b"b": b"2", b"c": b"2", b"d": None})
        if flushed:
            engine.flush()
        assert [*seen, *rows] == [(b"a", b"1"), (b"b", b"1"), (b"d", b"1")]
    rocks.close()


WRITER = """
import os, signal, sys
from pathlib import Path
from queen_node.state.rocks import RocksEngine
engine = RocksEngine(Path(sys.argv[1]))
for number in range(40):
    engine.write(b"", {b"applied": b"%d" % number, b"row-%d" % number: b"x", b"row-%d" % (number - 2): None})
    if number == 20:
        engine.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_a_prefix_of_whole_batches(tmp_path: Path) -> None:
    """M-1: one column family, the applied index in the batch, RocksDB's own log off; M-2: what was flushed stays."""
    ended = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    engine = RocksEngine(tmp_path)
    applied = int(engine.get(b"applied") or b"-1")
    assert applied >= 20
    rows = [key for key, _ in engine.iterate(b"row-", b"row.")]
    assert sorted(rows) == sorted([b"row-%d" % (applied - 1), b"row-%d" % applied])
    engine.close()


def test_damage_is_told_by_the_name_of_the_directory(tmp_path: Path) -> None:
    """CL-124: RocksDB's own corruption errors are refusals, not tracebacks."""
    engine = RocksEngine(tmp_path)
    engine.write(b"", {b"a": b"1"})
    engine.flush()
    engine.close()
    for manifest in tmp_path.glob("MANIFEST-*"):
        manifest.write_bytes(b"\xff" * 100)
    with pytest.raises(StoreDamaged, match=str(tmp_path)):
        RocksEngine(tmp_path)
