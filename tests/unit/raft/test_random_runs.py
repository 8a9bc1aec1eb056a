"""The safety properties of the Raft paper under faults, then liveness; and proof that broken cores are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft.core import Core
from raft.invariants import InvariantBroken
from tests.unit.raft.mutants import FOUND_BY_SEEDS
from tests.unit.raft.random_run import RandomRun
from tests.unit.raft.rules import RuleBroken

SEEDS = range(400)
SEEDS_A_BATCH = 50
MARKS = {
    "append rejected",
    "configuration taken back",
    "crash that lost a write",
    "hand-over begun",
    "leads though left out",
    "members changed",
    "message doubled",
    "read served",
    "report out of date",
    "stands though left out",
    "supplied from disk",
    "supplied too late",
    "tail cut that was handed to the disk",
    "write of a hard state alone",
}


@pytest.mark.parametrize("first", SEEDS[::SEEDS_A_BATCH])
def test_a_group_is_safe_under_faults_and_live_after_them(first: int) -> None:
    """Raft paper figure 3: election safety, leader append-only, log matching, leader completeness, state machine
    safety; M-3, CL-30; §5.6 and thesis 9.6 for liveness. Each batch also reaches every rare branch it should."""
    marks: set[str] = set()
    for seed in range(first, first + SEEDS_A_BATCH):
        run = RandomRun(seed)
        try:
            run.run()
        except (RuleBroken, InvariantBroken) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        marks |= run.marks
    assert marks == MARKS


def test_a_seed_run_twice_takes_the_same_course() -> None:
    """Nothing in the core draws on anything but what it is given (DESIGN rule 4)."""
    histories = []
    for _ in range(2):
        run = RandomRun(7)
        run.run()
        histories.append((run.rules.leaders, [member.applied for member in run.members.values()]))
    assert histories[0] == histories[1]


@pytest.mark.parametrize("mutant", FOUND_BY_SEEDS)
def test_a_broken_core_is_found(mutant: Callable[..., Core]) -> None:
    """The checkers prove themselves: each fault put into the core is found by some seed."""
    for seed in SEEDS:
        try:
            RandomRun(seed, mutant).run()
        except (RuleBroken, InvariantBroken):
            return
    pytest.fail("no seed found it")
