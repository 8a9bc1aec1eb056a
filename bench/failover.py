"""What a leader's end costs a client of another node: killed, and asked to stop."""

from __future__ import annotations

import time

from bench.cluster import Cluster, running
from bench.http import Client
from bench.node import Node, ServerFailed
from bench.results import Results, Table
from bench.stats import median
from bench.surroundings import Bench

SETTLED_S = 1.0  # between a node's return and the next round
STOP_S_MAX = 30.0
PUSH = b'{"items":[{"queue":"failover","payload":1}]}'


def measure(bench: Bench) -> Results:
    results = Results("failover")
    folder = bench.new_folder()
    with running(folder) as cluster:
        _killed(bench, cluster, results)
        _stopped(bench, cluster, results)
    bench.remove(folder)
    return results


def _killed(bench: Bench, cluster: Cluster, results: Results) -> None:
    """A push is sent to a survivor at the moment of the kill; it is held, and answered by the next leader's commit."""
    table = Table("kill -9 of the leader, and a push to a survivor at once", ["round", "killed", "answered after s"])
    results.tables.append(table)
    for number in range(1, bench.choose(20, 3) + 1):
        leader_id, survivor = _leader_and_another(cluster)
        with Client(survivor.port) as client:
            cluster.nodes[leader_id].kill()
            table.rows.append([number, leader_id, round(_push(client, results), 2)])
        _come_back(cluster, leader_id)
    gaps = _numbers(table, "answered after s")
    results.judge("failover", median(gaps))
    results.judge("failover max", max(gaps))


def _stopped(bench: Bench, cluster: Cluster, results: Results) -> None:
    """Pushes go to another node, one after the other, until the leader has ended: the slowest tells the gap."""
    table = Table(
        "SIGTERM of the leader, pushes to another node one after the other",
        ["round", "stopped", "pushes", "slowest after s", "ended after s"])
    results.tables.append(table)
    for number in range(1, bench.choose(20, 3) + 1):
        leader_id, other = _leader_and_another(cluster)
        leader = cluster.nodes[leader_id]
        gaps = []
        with Client(other.port) as client:
            began_s = time.monotonic()
            leader.ask_to_stop()
            while leader.runs():
                if time.monotonic() - began_s > STOP_S_MAX:
                    raise ServerFailed(f"no orderly stop within {STOP_S_MAX:.0f} s")
                gaps.append(_push(client, results))
            ended_s = time.monotonic() - began_s
        table.rows.append([number, leader_id, len(gaps), round(max(gaps), 3), round(ended_s, 2)])
        _come_back(cluster, leader_id)
    results.judge("hand-over max", max(_numbers(table, "slowest after s")))


def _leader_and_another(cluster: Cluster) -> tuple[int, Node]:
    leader_id = cluster.leader_id()
    return leader_id, next(node for node_id, node in cluster.nodes.items() if node_id != leader_id)


def _push(client: Client, results: Results) -> float:
    """Seconds to its answer."""
    began_s = time.monotonic()
    answer = client.call("POST", "/api/v1/push", PUSH)
    if answer.status != 201:
        results.trouble.append(f"a push was answered {answer.status}")
    return time.monotonic() - began_s


def _come_back(cluster: Cluster, node_id: int) -> None:
    cluster.start(node_id).wait_until_healthy()
    time.sleep(SETTLED_S)


def _numbers(table: Table, column: str) -> list[float]:
    at = table.columns.index(column)
    return [float(cell) for row in table.rows if isinstance(cell := row[at], int | float)]
