"""The rules and the checkers prove themselves: each known bug, put back on its own, is found."""

from __future__ import annotations

import re
import shlex
from itertools import chain

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.campaign import read_arguments
from tests.simulation.run import run_seed

SEEDS_TRIED_HERE = 100  # most bugs need fewer; for the others the search is a command of its own, on all cores
FOUND_BY = {
    "a vote is forgotten across a crash": 2,
    "an acceptance leaves before the fsync": 1,
    "more is committed than an append proves": 97,
    "apply runs past the own disk": 2,
    "votes go to any log": 9,
    "a read is served without a round": 101,
    "a fire does not forget its timer": 1,
    "a flag says that a fire is in flight": 106,
    "a repeat is carried out again": 243,
    "the wall clock steers the group clock": 2,
    "a follower's estimate rests on its wall clock": 2,
    "a rebooted machine's guess counts as knowledge": 23,
    "the digest depends on the order of writing": 9,
    "a log is told of a flip before it is flushed": 20,
    "half of a snapshot is flipped to": 3,
    "a learner counts as a voter": 10,
    "the next disk's word counts as the lost one's": 34,
    "who founded a group votes in it without its disk": 162,
    "a version is not looked at": 6,
    "a repeated call counts again": 563,
    "half of a key/value call is carried out": 6,
    "an ack in a transaction is not fenced": 47,
    "a rolled back transaction counts all the same": 18,
    "a rolled back transaction leaves its timers": 251,
    "a cancel in a transaction takes nothing": 7,
    "a guard stops nothing": 5,
    "a permit is short": 372,
    "a failing fire is tried once less": 6,
    "the wait of a failing fire does not grow": 12,
    "a timer that failed for good leaves nothing": 6,
    "a message reaches another life": 2,
    "memory outlives the state that it is of": 3,
}


def test_every_bug_is_looked_for() -> None:
    assert sorted(FOUND_BY) == sorted(BUGS)


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_known_bug_is_found(bug: str) -> None:
    """By the seed that found it last, else by one of the first: where draws have changed, what finds it is printed."""
    tried = chain([FOUND_BY[bug]], range(1, SEEDS_TRIED_HERE + 1))
    found = next((outcomes for seed in tried if (outcomes := run_seed(seed, BUGS[bug])).broken), None)
    search = f'./scripts/simulate --bug "{bug}"'
    assert found is not None, f"seed {FOUND_BY[bug]} does not find it any more; {search} tells which of 2,000 does"
    print(f"{bug}: seed {found.seed}, {found.promise}")


def test_a_report_says_what_broke_where_and_how_to_see_it_again() -> None:
    """STYLE: BROKEN, SEEN, FAULTS, NODES, AGAIN."""
    report = run_seed(2, BUGS["a vote is forgotten across a crash"]).broken
    assert [line.split()[0] for line in report.splitlines()] == ["BROKEN", "SEEN", "FAULTS", "NODES", "AGAIN"]
    pattern = r"G-D1, what was written survives   seed 2, commit \S+, at \d\d:\d\d:\d\d\.\d{3}, step \d+"
    assert re.search(pattern, report)
    assert report.endswith("./scripts/test simulation --seed 2")


@pytest.mark.parametrize("length_s", [1.25, 4.0, 1 / 3])
def test_a_run_of_a_given_length_takes_the_same_course_by_the_line_that_it_printed(length_s: float) -> None:
    """The length is drawn where none is given, so the seed alone would be another run."""
    bug = BUGS["apply runs past the own disk"]
    failed = next(outcomes for seed in range(1, 20) if (outcomes := run_seed(seed, bug, length_s=length_s)).broken)
    command, *given = shlex.split(failed.broken.splitlines()[-1].removeprefix("AGAIN"))
    assert command == "./scripts/simulate"
    arguments = read_arguments(given)
    again = run_seed(arguments.seed, bug, length_s=arguments.length)
    assert (again.broken, again.digest) == (failed.broken, failed.digest)
