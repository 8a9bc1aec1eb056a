"""What pending timers cost: memory, disk, the restart after a kill, and the node's idle hours."""

from __future__ import annotations

import math
import time
from pathlib import Path

from bench import calls, load
from bench.http import BadAnswer, Client
from bench.jobs import SendJob
from bench.machine import disk_bytes
from bench.node import Node, ServerFailed
from bench.results import Cell, Results, Table
from bench.stats import median, ratio
from bench.surroundings import Bench

BASE = 1_000
PENDING = (BASE, 300_000, 1_000_000)
PENDING_QUICK = (BASE, 20_000)
OVERDUE = 100
OVERDUE_DELAY_MS = 4_000
LOAD_BEFORE_KILL_S = 2.0  # so that the log holds commands which the store has not flushed
DOWN_S = 4.0  # what was overdue when the node was killed surely is when it comes back
RESTART_S_MAX = 60.0
LOOK_EVERY_S = 0.002
CALL_S_MAX = 10.0
SETTLED_CORES = 0.02
SETTLE_WINDOW_S = 3.0
STILL_FALLING = 0.9  # of the window before: something in the background is coming to its end
SETTLE_S_MAX = 90.0
IDLE_WINDOWS = 3
TICKS_PER_S = 20
STORE_SUFFIX = ".sst"


def measure(bench: Bench) -> Results:
    results = Results("scale")
    bench.yardstick(results)
    bytes_each = ["bytes of memory", "bytes of disk", "of that store files"]
    held = Table(
        f"Pending timers with a payload of {calls.PAYLOAD_BYTES} bytes",
        ["pending", "filled/s", *bytes_each, "idle % of a core", "µs a tick"],
    )
    restarts = Table(
        "From exec to the first overdue message, after kill -9 under load",
        ["pending", "try", "listening s", "first message s"],
    )
    results.tables += [held, restarts]
    results.notes += [
        "memory: growth of VmRSS over the empty node; disk: all files after an orderly stop and start, node at rest",
        "idle: timers pending, no client; a tick's cost is the idle node's processor time over its ticks",
    ]
    for pending in bench.choose(PENDING, PENDING_QUICK):
        folder = bench.new_folder()
        held.rows.append(_hold(bench, folder, pending, results))
        if pending > BASE:
            for number in range(1, bench.choose(3, 1) + 1):
                listening_s, first_s = _restart(folder, f"overdue-{number}", results)
                restarts.rows.append([pending, number, listening_s, first_s])
        bench.remove(folder)
    _judge(held, restarts, results)
    return results


def _hold(bench: Bench, folder: Path, pending: int, results: Results) -> list[Cell]:
    """One row of the first table: what a node holds and does with so many timers pending."""
    with Node(folder) as node:
        node.wait_until_healthy()
        bench.fill(node, 100, results, queue="warm-up")
        empty_bytes = node.resident_bytes
        filled = bench.fill(node, pending, results)
        _settle(node)
        memory_bytes = (node.resident_bytes - empty_bytes) / pending
        idle_cores = median(_cores(node, bench.choose(10.0, 1.0)) for _ in range(IDLE_WINDOWS))
        node.stop()
    with Node(folder) as node:
        node.wait_until_healthy()
        _settle(node)
        used = disk_bytes(node.data)
        node.stop()
    on_disk, in_store = sum(used.values()) / pending, used.get(STORE_SUFFIX, 0) / pending
    tick_us = idle_cores / TICKS_PER_S * 1e6
    return [pending, round(filled.items_per_s), memory_bytes, on_disk, in_store, idle_cores * 100, tick_us]


def _settle(node: Node) -> None:
    """Waits until the node has nothing left to do in the background, at most SETTLE_S_MAX.

    A low figure alone says little: a store that compacts a million timers now and then takes less than an idle loop.
    """
    deadline = time.monotonic() + SETTLE_S_MAX
    before = math.inf
    while time.monotonic() < deadline:
        node.must_live()
        cores = _cores(node, SETTLE_WINDOW_S)
        if STILL_FALLING * before <= cores < SETTLED_CORES:
            return
        before = cores


def _cores(node: Node, seconds: float) -> float:
    """What the node takes of the processor in the next `seconds`."""
    before_s, before_ns = node.cpu_s, time.monotonic_ns()
    time.sleep(seconds)
    return (node.cpu_s - before_s) / ((time.monotonic_ns() - before_ns) / 1e9)


def _restart(folder: Path, queue: str, results: Results) -> tuple[float, float]:
    """Kills a node under load and starts it again; seconds from exec until it listens, and until an overdue message."""
    with Node(folder) as node:
        node.wait_until_healthy()
        overdue = SendJob(calls.schedule_template(queue, OVERDUE, OVERDUE_DELAY_MS), 1, CALL_S_MAX, calls=1)
        results.trouble += load.run(node.port, overdue, CALL_S_MAX).trouble("scheduling what will be overdue")
        load.send(node.port, calls.schedule_template(f"{queue}-beside", 1), LOAD_BEFORE_KILL_S)
        node.kill()
    time.sleep(DOWN_S)
    started = time.monotonic()
    with Node(folder) as node:
        return _first_message(node, queue, started)


def _first_message(node: Node, queue: str, started: float) -> tuple[float, float]:
    """Asks until an overdue message comes, as an impatient consumer would. Raises ServerFailed."""
    target = f"/api/v1/pop/queue/{queue}?wait=true&timeout=1000"
    listening_s = math.nan
    while time.monotonic() - started < RESTART_S_MAX:
        node.must_live()
        try:
            with Client(node.port, timeout_s=5) as client:
                if math.isnan(listening_s):
                    listening_s = time.monotonic() - started
                if client.call("GET", target).status == 200:
                    return listening_s, time.monotonic() - started
        except (OSError, BadAnswer):
            pass  # not listening yet
        time.sleep(LOOK_EVERY_S)
    raise ServerFailed(f"no overdue message within {RESTART_S_MAX:.0f} s of the start")


def _judge(held: Table, restarts: Table, results: Results) -> None:
    """Sets what was found beside the goals, as far as the sizes they speak of were measured."""
    rows = {row[0]: row for row in held.rows}
    middle, most = PENDING[1:]
    if most not in rows:
        results.notes.append(f"the goals are for {middle:,} and {most:,} pending: a quick run does not judge them")
        return
    memory, memory_of_fewer = float(rows[most][2] or 0), float(rows[middle][2] or 0)
    results.judge("memory", memory)
    results.judge("memory growth", ratio(memory, memory_of_fewer))
    results.judge("disk", float(rows[most][3] or 0))
    first_s, first_s_of_most = (
        median(float(row[3] or 0) for row in restarts.rows if row[0] == pending) for pending in (middle, most)
    )
    results.judge("restart", first_s)
    results.judge("restart growth", ratio(first_s_of_most, first_s))
    results.judge("idle growth", ratio(float(rows[most][6] or 0), float(rows[BASE][6] or 0)))
    results.judge("idle", float(rows[most][5] or 0))
