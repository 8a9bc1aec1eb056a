"""Many seeds on all cores, and what they add up to.

    ./scripts/simulate --seeds 10000            seeds 1 to 10,000
    ./scripts/simulate --minutes 30             as many as fit, from a first seed that the clock gives
    ./scripts/simulate --seed 4711              one, with its report
    ./scripts/simulate --figures                how fast it is
    ./scripts/simulate --bug "votes go to any log"   the first seed that finds a planted bug
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, islice
from multiprocessing import Pool
from typing import Final

from tests.simulation import figures
from tests.simulation.bugs import BUGS
from tests.simulation.marks import MARKS
from tests.simulation.run import Outcomes, run_seed

SEEDS_DEFAULT: Final = 1000
SEEDS_TO_FIND_A_BUG: Final = 2000
SEEDS_A_TASK: Final = 32  # handed to each core before the clock is looked at again
REPORTS_MAX: Final = 10
MARKS_NEED_SEEDS: Final = 1000  # fewer may leave a rare branch unreached without telling anything
HOUR_US: Final = 3_600_000_000


class Totals:
    """What all runs so far add up to."""

    def __init__(self) -> None:
        self.seeds = self.events = self.virtual_us = self.calls = 0
        self.faults: Counter[str] = Counter()
        self.marks: set[str] = set()
        self.broken: list[Outcomes] = []

    def add(self, outcomes: Outcomes) -> None:
        self.seeds += 1
        self.events += outcomes.events
        self.virtual_us += outcomes.virtual_us
        self.calls += outcomes.calls
        self.faults.update(outcomes.faults)
        self.marks |= outcomes.marks
        if outcomes.broken:
            self.broken.append(outcomes)

    def lines(self, seconds: float, processes: int) -> Iterator[str]:
        """The summary of a campaign."""
        virtual_s = self.virtual_us / 1_000_000
        yield f"SEEDS    {self.seeds:,}, broken {len(self.broken)}"
        yield f"TIME     {self.virtual_us / HOUR_US:.2f} virtual hours in {seconds:.0f} s on {processes} cores: " \
              f"{virtual_s / seconds:.0f} x real time, {self.events / seconds / processes:,.0f} events/s a core"
        yield f"CALLS    {self.calls:,} calls, {self.events:,} events"
        yield f"FAULTS   {', '.join(f'{kind} {number:,}' for kind, number in sorted(self.faults.items()))}"
        yield f"MARKS    {len(self.marks & MARKS)} of {len(MARKS)} reached"
        if self.missing:
            yield f"MISSING  {', '.join(self.missing)}"

    @property
    def missing(self) -> list[str]:
        """Marks that no seed reached."""
        return sorted(MARKS - self.marks)


def _batches(seeds: Iterator[int], size: int) -> Iterator[list[int]]:
    while batch := list(islice(seeds, size)):
        yield batch


def run_one(task: tuple[int, float | None]) -> Outcomes:
    """One seed, in a process of the pool."""
    seed, length_s = task
    return run_seed(seed, length_s=length_s)


def run_many(arguments: argparse.Namespace) -> int:
    """Run the campaign; the exit code: 1 when a seed broke a rule, or a mark was not reached."""
    began_s = time.monotonic()
    ends_s = None if arguments.minutes is None else began_s + 60 * arguments.minutes
    first = arguments.first or (1 if ends_s is None else int(time.time()))
    seeds = count(first) if ends_s is not None else iter(range(first, first + (arguments.seeds or SEEDS_DEFAULT)))
    processes, totals = arguments.cores, Totals()
    with Pool(processes) as pool:
        for batch in _batches(seeds, SEEDS_A_TASK * processes):
            if ends_s is not None and time.monotonic() > ends_s:
                break
            for outcomes in pool.imap_unordered(run_one, [(seed, arguments.length) for seed in batch]):
                totals.add(outcomes)
                if outcomes.broken and len(totals.broken) <= REPORTS_MAX:
                    print(f"{outcomes.broken}\n", flush=True)
            if sys.stderr.isatty():
                print(f"\r{totals.seeds:,} seeds, {len(totals.broken)} broken", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    for line in totals.lines(time.monotonic() - began_s, processes):
        print(line)
    enough = totals.seeds >= MARKS_NEED_SEEDS
    return int(bool(totals.broken) or (enough and bool(totals.missing)))


def run_with_bug(bug: str, seed: int) -> Outcomes:
    """One seed with a planted bug, in a process of the pool."""
    return run_seed(seed, BUGS[bug])


def find_bug(bug: str, seeds: Iterator[int], cores: int) -> int:
    """Run seeds with a planted bug put back until one finds it; the exit code: 1 when none does."""
    tried = 0
    with Pool(cores) as pool:
        for outcomes in pool.imap(partial(run_with_bug, bug), seeds):
            tried += 1
            if outcomes.broken:
                print(f"FOUND    seed {outcomes.seed}, {outcomes.promise}, after {tried:,} seeds")
                return 0
    print(f"MISSED   {tried:,} seeds")
    return 1


def run_single(seed: int, length_s: float | None) -> int:
    """Run one seed and show it."""
    outcomes = run_seed(seed, length_s=length_s)
    print(outcomes.broken or f"SEED     {seed} holds, {outcomes.events:,} events, digest {outcomes.digest}")
    return int(bool(outcomes.broken))


def read_arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./scripts/simulate", description="Whole clusters in virtual time.")
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--seeds", type=int, help=f"how many seeds ({SEEDS_DEFAULT})")
    how_many.add_argument("--minutes", type=float, help="as many seeds as fit into so long")
    how_many.add_argument("--seed", type=int, help="this one alone")
    how_many.add_argument("--bug", choices=sorted(BUGS), metavar="NAME", help="until one finds this bug, put back")
    how_many.add_argument("--figures", action="store_true", help="how fast it is without faults, on one core")
    parser.add_argument("--first", type=int, help="the first of the seeds")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="how many at once (all)")
    parser.add_argument("--length", type=float, help="virtual seconds of faults in each run (drawn, 1.5 to 5)")
    return parser.parse_args(given)


def main() -> int:
    """Read the command line and run."""
    arguments = read_arguments(sys.argv[1:])
    if arguments.figures:
        for line in figures.lines():
            print(line, flush=True)
        return 0
    if arguments.bug is not None:
        first = arguments.first or 1
        return find_bug(arguments.bug, iter(range(first, first + SEEDS_TO_FIND_A_BUG)), arguments.cores)
    return run_many(arguments) if arguments.seed is None else run_single(arguments.seed, arguments.length)


if __name__ == "__main__":
    sys.exit(main())
