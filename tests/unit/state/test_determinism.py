"""Two processes that apply the same log hold the same state, bit by bit (CL-20, M-80, M-81)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queen_node.commands import Kind
from queen_node.state.keys import (
    CURSOR,
    DEAD_LETTER,
    KV,
    KV_NAMESPACE,
    LEASE,
    MESSAGE,
    MESSAGE_ID,
    MESSAGE_ID_MORE,
    TIMER,
)
from tests.unit.state import history

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = 400


def digests_of_another_process(seed: int, hash_seed: str) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.unit.state.history", str(seed), str(ENTRIES)],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False,
        timeout=60)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


@pytest.mark.parametrize("seed", [1, 4])
def test_a_log_applied_in_two_processes_gives_one_digest(seed: int) -> None:
    """M-80: neither the interpreter's salted hash nor a set's order comes into it; M-81: compared entry by entry."""
    first, second = (digests_of_another_process(seed, hash_seed) for hash_seed in ("1", "4242"))
    assert len(set(first)) == ENTRIES
    differing = [index for index, pair in enumerate(zip(first, second, strict=True), 1) if pair[0] != pair[1]]
    assert not differing, f"entry {differing[0]} is the first that two nodes apply differently"


@pytest.mark.parametrize("seed", [1, 4])
def test_the_history_reaches_every_part_of_the_state(seed: int) -> None:
    """A digest over what never happened would prove nothing."""
    machine, applied, _digests = history.run(seed, ENTRIES)
    assert set(applied) == set(Kind)
    for kind in (MESSAGE, MESSAGE_ID, MESSAGE_ID_MORE, DEAD_LETTER, TIMER, CURSOR, LEASE, KV, KV_NAMESPACE):
        assert machine.store.first(kind, bytes((kind[0] + 1,))) is not None, kind


def test_another_history_gives_another_digest() -> None:
    assert history.run(1, 20)[2] != history.run(2, 20)[2]
