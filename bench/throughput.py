"""Rates in rounds: each measures the echo, then the node, so that a ratio compares seconds that lie side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bench.jobs import Outcome
from bench.results import Results, Table
from bench.stats import median, ratio
from bench.surroundings import Bench


class Measured(Protocol):
    """What runs while a load is on: a node, or several."""

    @property
    def cpu_s(self) -> float: ...

    def must_live(self) -> None: ...


class Rounds:
    """One table of rates on one node, and the ratio to the echo of each."""

    def __init__(self, bench: Bench, node: Measured, results: Results, title: str) -> None:
        self._bench, self._node, self._results = bench, node, results
        columns = ["round", "what", "items/s", "of the echo", "p50 ms", "p99 ms", "node cores", "load cores"]
        self._table = Table(title, columns)
        self._ratios: dict[str, list[float]] = {}
        self._echo_per_s = 0.0
        self.number = 0
        results.tables.append(self._table)

    def begin(self) -> int:
        """Measures the echo for a new round; gives the round's number, from 1. Raises LoadFailed."""
        self.number += 1
        self._echo_per_s = self._bench.yardstick(self._results).echo_per_s
        return self.number

    def take(self, what: str, work: Callable[..., Outcome], *arguments: object) -> Outcome:
        """Runs `work(*arguments)`; notes its rate, and what node and load took of the processor. Raises LoadFailed."""
        before_s = self._node.cpu_s
        outcome = work(*arguments)
        self._node.must_live()
        node_cores = ratio(self._node.cpu_s - before_s, outcome.seconds)
        share = ratio(outcome.items_per_s, self._echo_per_s)
        self._ratios.setdefault(what, []).append(share)
        latency = outcome.latency_ms
        p50, p99 = (latency.p50, latency.p99) if latency else (None, None)
        self._table.rows.append(
            [self.number, what, round(outcome.items_per_s), share, p50, p99, node_cores, outcome.load_cores]
        )
        self._results.trouble += outcome.trouble(f"round {self.number}, {what}")
        return outcome

    def ratio_of(self, what: str) -> float:
        """The median of the rounds' ratios to their echo."""
        return median(self._ratios[what])
