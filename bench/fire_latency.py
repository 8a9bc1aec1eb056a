"""How late a timer's message can be read: readable minus deliverAt, by rate, by others pending, by tick."""

from __future__ import annotations

import math

from bench import calls, load
from bench.jobs import FireJob
from bench.node import Node
from bench.results import Results, Table
from bench.surroundings import Bench

RATES_PER_S = (100, 1_000, 5_000)
PENDING = (0, 100_000, 1_000_000)
PENDING_QUICK = (0, 20_000)
TICKS_MS = (50, 5)
JUDGED_PENDING = 1_000_000
FIRE_S_MAX = 60.0
GOALS = {  # tick, rate: goals for p99 and max
    (50, 1_000): ("fire p99", "fire max"),
    (5, 1_000): ("fire p99 tick 5", None),
    (50, 5_000): ("fire p99 at 5,000", None),
}


def measure(bench: Bench) -> Results:
    results = Results("fire_latency")
    results.notes += [
        "readable = the answer of a waiting pop is there; deliverAt is read on the node's own clock, whose distance to "
        "ours is enclosed by calls (the last column says how closely)",
        f"{calls.LANES} partitions, {calls.PAYLOAD_BYTES} bytes; pops commit on delivery: with leases the consumer's "
        "acks would decide when the next is readable",
    ]
    cases, late = ["tick ms", "pending", "fires/s", "fired"], ["p50 ms", "p99 ms", "max ms"]
    table = Table("Readable − deliverAt", [*cases, *late, "node cores", "load cores", "clock ± ms"])
    results.tables.append(table)
    bench.yardstick(results)
    folder = bench.new_folder()
    filled = 0
    for pending in bench.choose(PENDING, PENDING_QUICK):
        for tick_ms in TICKS_MS:
            # The data stays from one start to the next: only the tick changes, and the pending timers become more.
            with Node(folder, {"QUEEN_RAFT_TIMER_TICK_MS": str(tick_ms)}) as node:
                node.wait_until_healthy()
                if pending > filled:
                    bench.fill(node, pending - filled, results, queue=f"pending-{pending}")
                    filled = pending
                for per_second in bench.choose(RATES_PER_S, RATES_PER_S[1:2]):
                    _fire(bench, node, results, table, (tick_ms, pending, per_second))
                node.stop()
    if bench.quick:
        results.notes.append(f"the goals are for {JUDGED_PENDING:,} pending: a quick run does not judge them")
    return results


def _fire(bench: Bench, node: Node, results: Results, table: Table, case: tuple[int, int, int]) -> None:
    tick_ms, pending, per_second = case
    what = f"tick {tick_ms} ms, {pending:,} pending, {per_second:,}/s"
    seconds = bench.choose(5.0, 2.0)
    job = FireJob(f"fires-{tick_ms}-{pending}-{per_second}", per_second, seconds, node.pid)
    outcome = load.run(node.port, job, FIRE_S_MAX)
    results.trouble += outcome.trouble(what)
    latency = outcome.latency_ms
    p50, p99, most = (latency.p50, latency.p99, latency.max) if latency else (math.nan, math.nan, math.nan)
    by_whom = [outcome.node_cores, outcome.load_cores, outcome.clock_error_ms]
    table.rows.append([tick_ms, pending, per_second, outcome.items, p50, p99, most, *by_whom])
    goal_p99, goal_max = GOALS.get((tick_ms, per_second), (None, None))
    if pending != JUDGED_PENDING:
        return
    if goal_p99 is not None:
        results.judge(goal_p99, p99)
    if goal_max is not None:
        results.judge(goal_max, most)
