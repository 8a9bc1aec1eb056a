"""Three nodes, one of which has a smaller disk: the fullest closes the gates of all (CL-127; FAULTS: unequal disks)."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.cluster.test_three_nodes import clients, pop_texts, push, schedule
from tests.support.cluster_process import IDS, ClusterProcess
from tests.support.figures import at_least, wait_for_metric
from tests.support.http_client import HttpClient

SMALL = 3  # the node whose disk it is
FULL = "queen_raft_storage_full"
FULLEST = 'queen_disk_used_percent{of="cluster"}'


def say(path: Path, percent: float) -> None:
    """Whole or not at all: the node reads it at any moment."""
    written = path.with_suffix(".new")
    written.write_text(str(percent))
    written.replace(path)


async def push_status(client: HttpClient, text: str) -> int:
    return (await client.post("/api/v1/push", push(text))).status


async def until_open(*nodes: HttpClient) -> None:
    for node in nodes:
        await wait_for_metric(node, FULL, lambda found: found == 0)


async def test_the_fullest_disk_closes_the_gates_of_all(tmp_path: Path) -> None:
    """From 85 % on nothing that grows storage is taken anywhere, from 97 % on no configuring (README 26); a node that
    is dead does not hold the gates of the others closed."""
    said = {node_id: tmp_path / f"disk-{node_id}" for node_id in IDS}
    three = ClusterProcess(tmp_path, {"QUEEN_TEST_HOOKS": "1"})
    for node_id, process in three.nodes.items():
        say(said[node_id], 40.0)
        process.settings["QUEEN_TEST_DISK_FILE"] = str(said[node_id])
    three.nodes[SMALL].announced += ["disk gate closed", "the volume is full but for a little", "ballast given back"]
    try:
        three.start()
        async with clients(three, *IDS) as nodes:
            assert (await nodes[0].post("/api/v1/timers", schedule("pending", 3_600_000))).status == 200
            assert await push_status(nodes[0], "before") == 201

            say(said[SMALL], 85.4)
            for node in nodes:
                await wait_for_metric(node, FULL, at_least(1))
                await wait_for_metric(node, FULLEST, at_least(85))
                assert await push_status(node, "refused") == 507
            assert (await nodes[0].post("/api/v1/configure", {"queue": "other"})).status == 200
            cancelled = await nodes[1].delete("/api/v1/timers/orders/pending?txn=txn-pending")
            assert cancelled.json()["status"] == "cancelled"
            assert await pop_texts(nodes[0], 1) == ["before"]

            say(said[SMALL], 97.0)
            for node in nodes:
                await wait_for_metric(node, FULLEST, at_least(97))
                assert (await node.post("/api/v1/configure", {"queue": "other"})).status == 507

            say(said[SMALL], 60.0)
            await until_open(*nodes)
            assert await push_status(nodes[0], "room again") == 201

            say(said[SMALL], 90.0)
            for node in nodes:
                await wait_for_metric(node, FULL, at_least(1))
            three.nodes[SMALL].kill()
            await until_open(nodes[0], nodes[1])
            with trio.fail_after(30):
                assert await push_status(nodes[0], "without it") == 201
    finally:
        three.close()
    for process in three.nodes.values():
        process.check_log()
