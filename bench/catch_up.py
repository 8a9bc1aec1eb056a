"""A node that was away while the others took a gigabyte: how long until it serves, and what that costs the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import calls
from bench.cluster import Cluster, running
from bench.http import Client
from bench.results import Results, Table
from bench.stats import ratio, spread
from bench.surroundings import Bench

MISSED_BYTES = 1 << 30
MISSED_BYTES_QUICK = 32 << 20
MESSAGE_BYTES = 8 << 10
MESSAGES_A_CALL = 64
WRITES_PER_S = 50
QUIET_S = 20.0
CATCH_UP_S_MAX = 600.0
PUSH = b'{"items":[{"queue":"beside","payload":1}]}'


def measure(bench: Bench) -> Results:
    results = Results("catch_up")
    results.notes.append(
        f"messages of {MESSAGE_BYTES} bytes, {MESSAGES_A_CALL} a call; beside it {WRITES_PER_S} pushes a second to the "
        "leader, one a call, one after the other")
    folder = bench.new_folder()
    with running(folder) as cluster:
        _fall_behind_and_return(bench, cluster, results)
    bench.remove(folder)
    return results


def _fall_behind_and_return(bench: Bench, cluster: Cluster, results: Results) -> None:
    leader_id = cluster.leader_id()
    leader = cluster.nodes[leader_id]
    away_id = next(node_id for node_id in cluster.nodes if node_id != leader_id)
    with _writing(leader.port) as quiet_s:
        time.sleep(bench.choose(QUIET_S, 2.0))
    cluster.nodes[away_id].kill()
    missed = bench.choose(MISSED_BYTES, MISSED_BYTES_QUICK)
    fill_s = _fill(leader.port, missed, results)
    began_s = time.monotonic()
    with _writing(leader.port) as beside_s:
        cluster.start(away_id).wait_until_healthy(CATCH_UP_S_MAX)
        took_s = time.monotonic() - began_s
    quiet, beside = spread(quiet_s), spread(beside_s)
    if quiet is None or beside is None:
        results.trouble.append("no write came through beside")
        return
    columns = ["MiB missed", "written in s", "healthy after s", "writes", "p50 ms", "p99 ms", "quiet p99 ms"]
    table = Table("A node returns", columns)
    results.tables.append(table)
    table.rows.append([
        missed >> 20, round(fill_s, 1), round(took_s, 1), beside.count,
        *(round(seconds * 1000, 2) for seconds in (beside.p50, beside.p99, quiet.p99))])
    results.judge("catch-up", took_s)
    results.judge("catch-up p99", ratio(beside.p99, quiet.p99))


def _fill(port: int, size: int, results: Results) -> float:
    """Pushes messages of `size` bytes together; the seconds that it took."""
    began_s = time.monotonic()
    with Client(port, timeout_s=60) as client:
        for number in range(-(-size // (MESSAGE_BYTES * MESSAGES_A_CALL))):
            body = calls.bulk_body("bulk", number, MESSAGES_A_CALL, MESSAGE_BYTES)
            answer = client.call("POST", "/api/v1/push", body)
            if answer.status != 201:
                results.trouble.append(f"a push was answered {answer.status}: {calls.error_text(answer.body)}")
    return time.monotonic() - began_s


@contextmanager
def _writing(port: int) -> Iterator[list[float]]:
    """Small pushes at a steady rate for as long as the `with` lasts: the seconds that each took."""
    waits: list[float] = []
    over = threading.Event()

    def write() -> None:
        with Client(port, timeout_s=60) as client:
            due_s = time.monotonic()
            while not over.wait(max(0.0, due_s - time.monotonic())):
                began_s = time.monotonic()
                client.call("POST", "/api/v1/push", PUSH)
                waits.append(time.monotonic() - began_s)
                due_s = max(due_s + 1 / WRITES_PER_S, time.monotonic())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield waits
    finally:
        over.set()
        writer.join()
