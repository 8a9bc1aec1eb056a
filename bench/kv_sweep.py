"""What other calls feel while very many key/value rows end: puts at a steady rate, before and while they are swept."""

from __future__ import annotations

import time

from bench import calls, load
from bench.jobs import FillRowsJob, PacedJob
from bench.node import Node
from bench.prometheus import value_of
from bench.results import Results, Table
from bench.stats import median, ratio
from bench.surroundings import Bench

PUTS_PER_S = 1000
CONNECTIONS = 32
ENDS_WITHIN_S = 60.0  # of the first: all rows
WINDOWS = 3  # of puts before the first row ends, each judged by itself
START_S = 2.0  # of a load process, at most
SWEPT_WITHIN_S = 120.0  # of the last end; what stands longer is trouble
JOB_S_MAX = 60.0


def measure(bench: Bench) -> Results:
    results = Results("kv_sweep")
    count, first_end_s = bench.choose((1_000_000, 110.0), (30_000, 20.0))
    window_s, ends_within_s = bench.choose((10.0, ENDS_WITHIN_S), (3.0, 9.0))
    results.notes += [
        f"{count:,} rows with values of {calls.PAYLOAD_BYTES} bytes end evenly over {ends_within_s:.0f} s; beside them "
        f"{PUTS_PER_S} puts a second, one a call, on {CONNECTIONS} connections, in windows of {window_s:.0f} s",
        "judged: the median of the windows' p99 while rows end and are swept, to that of the windows before",
    ]
    table = Table("Puts", ["rows", "window", "rows left", "p50 ms", "p99 ms", "max ms", "node cores", "load cores"])
    results.tables.append(table)
    bench.yardstick(results)
    with bench.node() as node:
        began_s = time.monotonic()
        fill = FillRowsJob("ending", count, first_end_s, first_end_s + ends_within_s, seconds_max=first_end_s)
        results.trouble += load.run(node.port, fill, first_end_s).trouble("filling")
        puts = _Puts(node, table, results, window_s)
        calm_from_s = began_s + first_end_s - WINDOWS * (window_s + START_S)
        if time.monotonic() > calm_from_s:
            results.trouble.append("filling took so long that rows ended before it was done")
        time.sleep(max(calm_from_s - time.monotonic(), 0.0))
        calm_ms = puts.windows("all alive", until_s=began_s + first_end_s - window_s - START_S)
        time.sleep(max(began_s + first_end_s - time.monotonic(), 0.0))
        last_end_s = began_s + first_end_s + ends_within_s
        swept_ms = puts.windows("ending", until_s=last_end_s)
        while (left := puts.rows_left()) > 0 and time.monotonic() < last_end_s + SWEPT_WITHIN_S:
            swept_ms += puts.windows("ended", until_s=0.0)
        if left > 0:
            results.trouble.append(f"{left:,} rows that have ended are not swept")
    results.judge("kv sweep", ratio(median(swept_ms), median(calm_ms)))
    return results


class _Puts:
    """Windows of puts, one after the other."""

    def __init__(self, node: Node, table: Table, results: Results, window_s: float) -> None:
        self._node, self._table, self._results, self._window_s = node, table, results, window_s
        self._first = 0

    def windows(self, rows: str, *, until_s: float) -> list[float]:
        """At least one window, and others while they begin before `until_s` (monotonic): the p99 of each, in ms."""
        p99_ms = [self._window(rows)]
        while time.monotonic() < until_s:
            p99_ms.append(self._window(rows))
        return p99_ms

    def rows_left(self) -> int:
        """Rows that are stored beside those of the puts."""
        return round(value_of(self._node.metrics(), "queen_kv_rows") or 0) - self._first

    def _window(self, rows: str) -> float:
        template = calls.put_template("beside", 1)
        job = PacedJob(template, PUTS_PER_S, CONNECTIONS, self._window_s, self._first)
        before_s = self._node.cpu_s
        outcome = load.run(self._node.port, job, JOB_S_MAX)
        self._first += outcome.items
        number = len(self._table.rows) + 1
        self._results.trouble += outcome.trouble(f"window {number}")
        took = outcome.latency_ms
        p50, p99, most = (took.p50, took.p99, took.max) if took else (None, None, None)
        cores = ratio(self._node.cpu_s - before_s, outcome.seconds)
        self._table.rows.append([rows, number, self.rows_left(), p50, p99, most, cores, outcome.load_cores])
        return p99 or 0.0
