"""Virtual time: one heap of events on one thread, and everything that is drawn, from one seed.

Each purpose has dice of its own, so that a new kind of fault does not shift what all others draw. What happens goes
into one running hash: two runs of a seed are equal if it is. Nodes, networks and clients do not belong here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final

MS: Final = 1000  # µs
SECOND: Final = 1_000_000  # µs
EPOCH_US: Final = 1_700_000_000 * SECOND  # the true wall clock when a run begins
EVENTS_MAX: Final = 3_000_000  # of one run: more means that something turns in circles


class Broken(AssertionError):
    """A rule was broken, or service did not come back. `promise` names the rule, `seen` what shows it."""

    def __init__(self, promise: str, seen: str) -> None:
        super().__init__(f"{promise}: {seen}")
        self.promise, self.seen = promise, seen


class World:
    """now_us: virtual µs since the run began. faults: how many of each kind. marks: rare branches that were reached.
    journal: (when, what) of the faults, for the report. driving: node and life of the group whose turn it is; None:
    nobody's.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        self.events = 0
        self.faults: Counter[str] = Counter()
        self.marks: set[str] = set()
        self.journal: list[tuple[int, str]] = []
        self.driving: tuple[int, int] | None = None
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._trace = hashlib.blake2b(digest_size=16)

    def dice(self, purpose: str) -> Random:
        """Dice for one purpose. Equal in every process: a text seeds them by SHA-512, not by `hash`."""
        return Random(f"{self.seed}/{purpose}")

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have `call(*arguments)` happen in so long; ties happen in the order in which they were asked for."""
        at_us = self.now_us + delay_us if delay_us > 0 else self.now_us
        heappush(self._heap, (at_us, next(self._order), call, arguments))

    def run_until(self, at_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to `at_us`, or until `done`, which is asked after each event. Returns whether it is done."""
        heap = self._heap
        while heap and heap[0][0] <= at_us:
            self.now_us, _, call, arguments = heappop(heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Broken("liveness", f"{EVENTS_MAX} events and no end")
            call(*arguments)
            if done is not None and done():
                return True
        self.now_us = max(self.now_us, at_us)
        return False

    def trace(self, what: bytes) -> None:
        """Something happened: it goes into the digest of the run."""
        self._trace.update(b"%d %d %b" % (self.now_us, len(what), what))

    @property
    def digest(self) -> str:
        """Of everything that happened so far."""
        return self._trace.hexdigest()

    def fault(self, kind: str, text: str) -> None:
        """A fault was put upon the cluster."""
        self.faults[kind] += 1
        self.journal.append((self.now_us, text))
        self.trace(text.encode())

    def reached(self, mark: str) -> None:
        """A branch that random runs seldom reach."""
        self.marks.add(mark)


def clock_text(at_us: int) -> str:
    """Virtual time as a person reads it."""
    minutes, us = divmod(at_us, 60 * SECOND)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{us // SECOND:02d}.{us % SECOND // MS:03d}"
