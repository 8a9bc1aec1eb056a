"""What thousands of tenants cost that do nothing, on three nodes, and what a first write, a restart and a leader's end
cost with them (issue 4)."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from bench.cluster import NODES, Cluster, running
from bench.http import Client
from bench.node import Node, ServerFailed
from bench.results import Results, Table
from bench.stats import median
from bench.surroundings import Bench

SETTINGS = {"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "1"}
TENANTS, TENANTS_QUICK = 10_000, 300
CLIENTS = 16
PUSH = b'{"items":[{"queue":"idle","payload":1}]}'
QUIET_S_MAX = 180.0
MOVED_ROUNDS_MAX = 5
ORPHANS = 100  # timers, one in each of so many tenants
FIRED = re.compile(r'^queen_timers_fired_total\{result="appended"\} (\d+)', re.MULTILINE)
FIRED_S_MAX = 60.0
LOOK_EVERY_S = 0.25  # a scrape counts the timers of all groups: more often it would be a load of its own


def measure(bench: Bench) -> Results:
    results = Results("idle_tenants")
    tenants = bench.choose(TENANTS, TENANTS_QUICK)
    folder = bench.new_folder()
    with running(folder, SETTINGS) as cluster:
        try:
            _with_tenants(bench, cluster, tenants, results)
        except ServerFailed as problem:  # what was found until then took minutes
            results.trouble.append(f"ended early: {problem}")
    bench.remove(folder)
    return results


def _with_tenants(bench: Bench, cluster: Cluster, tenants: int, results: Results) -> None:
    made_s = _make(cluster, range(tenants))
    _wait_until_quiet(cluster, tenants)
    results.notes.append(f"{tenants:,} tenants with a message each, made in {made_s:.0f} s by {CLIENTS} clients")
    _idle(bench, cluster, results)
    _first_writes(bench, cluster, tenants, results)
    _restart(cluster, tenants, results)
    _orphaned(bench, cluster, tenants, results)


def tenant(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def _each(numbers: Iterable[int], port_of: Callable[[int], int], do: Callable[[Client, int], None]) -> None:
    """Does it for each number, by CLIENTS connections at once. Raises what it raises."""
    todo = list(numbers)

    def work(share: list[int]) -> None:
        for number in share:
            with Client(port_of(number)) as client:
                do(client, number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, [todo[at::CLIENTS] for at in range(CLIENTS)]))


def _push(client: Client, number: int) -> None:
    answer = client.call("POST", "/api/v1/push", PUSH, tenant(number))
    if answer.status != 201:
        raise ServerFailed(f"a push was answered {answer.status}: {answer.body[:200]!r}")


def _make(cluster: Cluster, numbers: range) -> float:
    began_s = time.monotonic()
    _each(numbers, lambda number: cluster.nodes[NODES[number % 3]].port, _push)
    return time.monotonic() - began_s


def _groups(node: Node) -> dict[str, int]:
    with Client(node.port) as client:
        groups: dict[str, int] = json.loads(client.call("GET", "/health").body)["groups"]
    return groups


def _wait_until_quiet(cluster: Cluster, tenants: int) -> None:
    """Until every tenant's group sleeps on every node that runs, led by one of them: just after a node's end its groups
    still sleep. Raises ServerFailed.
    """
    deadline = time.monotonic() + QUIET_S_MAX
    while True:
        seen = [_groups(node) for node in cluster.nodes.values() if node.runs()]
        led = sum(groups["leading"] for groups in seen)
        if all(groups["quiet"] >= tenants and led >= groups["hosted"] for groups in seen):
            return
        if time.monotonic() > deadline:
            raise ServerFailed(f"not all {tenants} groups slept, led, within {QUIET_S_MAX:.0f} s: {seen}")
        time.sleep(LOOK_EVERY_S)


def _idle(bench: Bench, cluster: Cluster, results: Results) -> None:
    seconds = bench.choose(20.0, 3.0)
    table = Table("All groups asleep, no client", ["node", "% of a core", "resident MB"])
    results.tables.append(table)
    before = {node_id: node.cpu_s for node_id, node in cluster.nodes.items()}
    time.sleep(seconds)
    for node_id, node in cluster.nodes.items():
        percent = (node.cpu_s - before[node_id]) / seconds * 100
        table.rows.append([node_id, round(percent, 2), round(node.resident_bytes / 1e6)])
    results.judge("idle tenants", max(float(row[1] or 0) for row in table.rows))
    results.judge("idle tenants memory", max(float(row[2] or 0) for row in table.rows))


def _first_writes(bench: Bench, cluster: Cluster, tenants: int, results: Results) -> None:
    """One client after another: a tenant that is new, one that sleeps, and that one again."""
    table = Table("A push, ms", ["tenant", "median", "longest"])
    results.tables.append(table)
    count, port = bench.choose(50, 5), cluster.nodes[NODES[0]].port
    took: dict[str, list[float]] = {"new": [], "asleep": [], "awake": []}
    with Client(port) as client:
        for number in range(count):
            for kind, whose in (("new", tenants + number), ("asleep", number), ("awake", number)):
                began_s = time.monotonic()
                _push(client, whose)
                took[kind].append((time.monotonic() - began_s) * 1000)
    for kind, times in took.items():
        table.rows.append([kind, round(median(times), 1), round(max(times), 1)])
    results.judge("first write", median(took["new"]) - median(took["awake"]))


def _restart(cluster: Cluster, tenants: int, results: Results) -> None:
    """In order, and after a kill: the log is replayed then."""
    table = Table("Restart of one node", ["ended by", "healthy after s", "all asleep after s"])
    results.tables.append(table)
    for how, end in (("SIGTERM", Node.stop), ("kill -9", Node.kill)):
        end(cluster.nodes[NODES[2]])
        _wait_until_quiet(cluster, tenants)
        began_s = time.monotonic()
        cluster.start(NODES[2]).wait_until_healthy()
        healthy_s = time.monotonic() - began_s
        _wait_until_quiet(cluster, tenants)
        table.rows.append([how, round(healthy_s, 2), round(time.monotonic() - began_s, 1)])
    results.judge("restart of tenants", max(float(row[1] or 0) for row in table.rows))


def _orphaned(bench: Bench, cluster: Cluster, tenants: int, results: Results) -> None:
    """All groups led by one node; timers due at the moment of its end."""
    victim_id, survivor = NODES[2], cluster.nodes[NODES[0]]
    _lead_all(cluster, victim_id, tenants)
    _wait_until_quiet(cluster, tenants)
    leading = _groups(cluster.nodes[victim_id])["leading"]
    victims = range(0, tenants, max(1, tenants // ORPHANS))[:ORPHANS]
    before = _fired(survivor)
    due_s = time.monotonic() + bench.choose(20.0, 8.0)

    def schedule(client: Client, number: int) -> None:
        delay_ms = round((due_s - time.monotonic()) * 1000)
        payload = base64.b64encode(b"1").decode()
        body = {"operations": [{"op": "schedule", "queue": "due", "timerKey": "k", "txn": "t", "delayMs": delay_ms,
                                "payload": payload}]}
        answer = client.call("POST", "/api/v1/timers", json.dumps(body).encode(), tenant(number))
        if answer.status != 200:
            raise ServerFailed(f"a schedule was answered {answer.status}")

    _each(victims, lambda _number: survivor.port, schedule)
    _wait_until_quiet(cluster, tenants)
    slept_s = due_s - time.monotonic()
    time.sleep(max(0.0, slept_s - 0.1))
    cluster.nodes[victim_id].kill()
    fired, late_s = 0, 0.0
    while fired < len(victims):
        if time.monotonic() > due_s + FIRED_S_MAX:
            raise ServerFailed(f"{fired} of {len(victims)} timers fired within {FIRED_S_MAX:.0f} s")
        time.sleep(LOOK_EVERY_S)
        fired, late_s = _fired(survivor) - before, time.monotonic() - due_s
    table = Table(
        f"kill -9 of a leader of quiet groups, a timer due in {len(victims)} of them at that moment",
        ["groups it led", "all fired after s, at most", "all asleep after s"])
    results.tables.append(table)
    _wait_until_quiet(cluster, tenants)
    table.rows.append([leading, round(late_s, 2), round(time.monotonic() - due_s, 1)])
    results.notes.append(f"the groups had slept again {slept_s:.1f} s before; looked every {LOOK_EVERY_S} s")
    results.judge("orphaned fires", late_s)


def _lead_all(cluster: Cluster, to: int, tenants: int) -> None:
    """Has a node lead every tenant's group; lives are numbered from 1."""
    def transfer(client: Client, life: int) -> None:
        client.call("POST", "/api/v1/system/raft/transfer", json.dumps({"group": life, "to": to}).encode())

    for _ in range(MOVED_ROUNDS_MAX):
        _each(range(1, tenants + 1), lambda _life: cluster.nodes[to].port, transfer)
        if _groups(cluster.nodes[to])["leading"] >= tenants:
            return


def _fired(node: Node) -> int:
    found = FIRED.search(node.metrics())
    return int(found[1]) if found is not None else 0
