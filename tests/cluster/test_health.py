"""What /health says of three real nodes: who lost the majority, who is behind (cluster.md 13 and 16, CL-92)."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.cluster.test_three_nodes import clients, push
from tests.support.cluster_process import IDS, cluster
from tests.support.node_process import POLL_S, NodeProcess

PATIENCE_S = 60.0
READY_QUORUM_S = 5.0


def condition(node: NodeProcess) -> dict[str, Any]:
    """The `raft` part of its health."""
    while not (body := node.health_body()):  # a busy machine keeps one waiting
        assert node.is_running()
    raft: dict[str, Any] = msgspec.json.decode(body)["raft"]
    return raft


def node_that_answers(node: NodeProcess) -> int:
    """Which node a client of this one is told of, by all routes that are about the node asked."""
    connection = HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE_S)
    documents: dict[str, Any] = {}
    for path in ("/api/v1/raft/status", "/api/v1/raft/members", "/api/v1/raft/liveness", "/metrics", "/health"):
        connection.request("GET", path)
        answer = connection.getresponse()
        documents[path] = msgspec.json.decode(answer.read())
        assert answer.status == 200 or path == "/health", (path, answer.status)
    connection.close()
    assert documents["/metrics"]["raft"]["role"] and documents["/health"]["raft"]["role"]
    told: int = documents["/api/v1/raft/status"]["nodeId"]
    assert documents["/api/v1/raft/liveness"]["live"][str(told)] == 0, "it has heard itself"
    return told


def until_unready(node: NodeProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while node.health_status() != 503:
        assert time.monotonic() < deadline, "it vouches for a quorum that is gone"
        time.sleep(POLL_S)


def test_a_leader_that_lost_its_majority_says_so(tmp_path: Path) -> None:
    """503 from 5 s on, though it gives up leading after 3; 200 when the majority is back. CL-37: each node answers for
    itself what is asked about it, whoever leads, and when nobody does."""
    with cluster(tmp_path) as three:
        leader = three.leader_id()
        assert [node_that_answers(three.nodes[node_id]) for node_id in IDS] == list(IDS)
        others = [three.nodes[node_id] for node_id in IDS if node_id != leader]
        others[0].kill()
        lost_at_s = time.monotonic()
        others[1].kill()
        until_unready(three.nodes[leader])
        assert time.monotonic() - lost_at_s >= READY_QUORUM_S
        assert node_that_answers(three.nodes[leader]) == leader
        others[0].start()
        three.nodes[leader].wait_until_ready()


def test_a_follower_of_a_leader_that_is_gone_with_the_majority_says_so(tmp_path: Path) -> None:
    with cluster(tmp_path) as three:
        leader = three.leader_id()
        survivor, other = (three.nodes[node_id] for node_id in IDS if node_id != leader)
        other.kill()
        lost_at_s = time.monotonic()
        three.nodes[leader].kill()
        until_unready(survivor)
        assert time.monotonic() - lost_at_s >= READY_QUORUM_S
        assert condition(survivor)["quorumAckMs"] > READY_QUORUM_S * 1000


def test_a_plain_failover_dips_for_no_longer_than_the_election(tmp_path: Path) -> None:
    """cluster.md 16: on the survivors, until one of them leads. How long that takes is bench/failover's."""
    with cluster(tmp_path) as three:
        leader = three.leader_id()
        survivors = [three.nodes[node_id] for node_id in IDS if node_id != leader]
        three.nodes[leader].kill()
        deadline = time.monotonic() + PATIENCE_S
        while not {"leader", "follower"} <= {condition(node)["role"].removesuffix("+leader") for node in survivors}:
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        for node in survivors:
            node.wait_until_ready()


async def test_a_follower_that_is_behind_says_so(tmp_path: Path) -> None:
    """Its disk is slow: it applies nothing that it has not flushed (M-3), and is sent no clients meanwhile."""
    settings = {
        "QUEEN_RAFT_READY_LAG_ENTRIES": "5", "QUEEN_RAFT_READY_LAG_MS": "200", "QUEEN_TEST_HOOKS": "1"}
    with cluster(tmp_path, settings) as three:
        leader = three.leader_id()
        slow = three.nodes[next(node_id for node_id in IDS if node_id != leader)]
        slow.kill()
        slow.start({"QUEEN_TEST_FSYNC_DELAY_MS": "1500"})
        async with clients(three, leader) as (client,), trio.open_nursery() as nursery:
            async def go_on() -> None:
                number = 0
                while True:
                    assert (await client.post("/api/v1/push", push(f"{number}"))).status == 201
                    number += 1

            nursery.start_soon(go_on)
            found = await trio.to_thread.run_sync(until_behind, slow)
            assert found["status"] == "settling"
            nursery.cancel_scope.cancel()
        slow.wait_until_ready()


def until_behind(node: NodeProcess) -> dict[str, Any]:
    """Its health, as soon as it says that the tenant's group lags."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found: dict[str, Any] = msgspec.json.decode(node.health_body())
        if found["groups"]["behind"]:
            return found
        time.sleep(POLL_S)
    raise AssertionError("it never said that it is behind")
