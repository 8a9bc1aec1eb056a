"""Whether the tick keeps its time while schedules, pushes and pops run flat out, and what a timer feels of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench import calls, load
from bench.jobs import EndToEndJob, FireJob, Outcome
from bench.node import Node
from bench.prometheus import Histogram, histogram_of
from bench.results import Results, Table
from bench.surroundings import Bench

TICK_LATE = "queen_timers_tick_late_seconds"
FIRES_PER_S = 200
SCHEDULING_CONNECTIONS = 32
BATCH = 100
FIRE_S_MAX = 60.0
LOADS_START_S = 1.5  # until all load processes are at work
LOADS_OUTLAST_S = 4  # the loads beside the fires go on a little longer than these


def measure(bench: Bench) -> Results:
    results = Results("ticks_under_load")
    results.notes += [
        f"{TICK_LATE} is a histogram: a percentile is known as the upper bound of its bucket",
        f"at once: single schedules on {SCHEDULING_CONNECTIONS} connections, push-pop-ack in batches of {BATCH} over "
        f"{calls.LANES} partitions, {FIRES_PER_S} fires a second",
    ]
    ticks = Table("Lateness of the tick, at most", ["load", "ticks", "p50 ms", "p99 ms", "max ms"])
    fires = Table("Readable − deliverAt meanwhile", ["load", "fires", "p50 ms", "p99 ms", "max ms"])
    rates = Table("What the loads reached", ["load", "items/s", "p50 ms", "p99 ms", "load cores"])
    results.tables += [ticks, fires, rates]
    bench.yardstick(results)
    seconds = bench.choose(15.0, 4.0)
    with bench.node() as node:
        before = _ticks(node)
        calm = load.run(node.port, FireJob("calm", FIRES_PER_S, seconds / 2), FIRE_S_MAX)
        _note_ticks(ticks, "fires only", _ticks(node).since(before))
        _note_fires(fires, "fires only", calm, results)
        with ThreadPoolExecutor() as threads:  # each only waits for a load process of its own
            one, long_s = calls.schedule_template("timers", 1), seconds + LOADS_OUTLAST_S
            through = EndToEndJob("through", BATCH, long_s)
            loads = {
                "schedule, beside all else": threads.submit(load.send, node.port, one, long_s, SCHEDULING_CONNECTIONS),
                "push, pop and ack, beside all else": threads.submit(load.run, node.port, through, FIRE_S_MAX),
            }
            fired = threads.submit(load.run, node.port, FireJob("busy", FIRES_PER_S, seconds), FIRE_S_MAX)
            time.sleep(LOADS_START_S)
            before, before_s, before_ns = _ticks(node), node.cpu_s, time.monotonic_ns()
            busy = fired.result()
            busy_s = (time.monotonic_ns() - before_ns) / 1e9
            _note_ticks(ticks, "flat out", _ticks(node).since(before))
            results.notes.append(f"flat out, the node took {(node.cpu_s - before_s) / busy_s:.2f} cores")
            _note_fires(fires, "flat out", busy, results)
            for what, running in loads.items():
                _note_rate(rates, what, running.result(), results)
    return results


def _ticks(node: Node) -> Histogram:
    return histogram_of(node.metrics(), TICK_LATE)


def _note_ticks(table: Table, what: str, gained: Histogram) -> None:
    late_ms = [gained.at_most(percent) * 1000 for percent in (50, 99, 100)]
    table.rows.append([what, round(gained.count), *late_ms])


def _note_fires(table: Table, what: str, outcome: Outcome, results: Results) -> None:
    results.trouble += outcome.trouble(f"fires, {what}")
    late = outcome.latency_ms
    table.rows.append([what, outcome.items, *((late.p50, late.p99, late.max) if late else (None, None, None))])


def _note_rate(table: Table, what: str, outcome: Outcome, results: Results) -> None:
    results.trouble += outcome.trouble(f"{what}, flat out")
    took = outcome.latency_ms
    p50, p99 = (took.p50, took.p99) if took else (None, None)
    table.rows.append([what, round(outcome.items_per_s), p50, p99, outcome.load_cores])
