"""Members come and go while the cell serves (cluster.md 10; M-71): real processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from bench.ports import free_port
from tests.cluster.test_three_nodes import PATIENCE_S, clients, make_group, pop_texts, push, schedule
from tests.support.cluster_process import ClusterProcess, cluster, role_of
from tests.support.http_client import Answer, HttpClient
from tests.support.node_process import NodeProcess

MEMBERSHIP = "/api/v1/system/raft/membership"


@contextmanager
def fourth(three: ClusterProcess, folder: Path, node_id: int = 4) -> Iterator[dict[str, Any]]:
    """Another node that waits to be added, started; what adds it."""
    node = NodeProcess(folder / f"node-{node_id}")
    raft_port = free_port()
    settings = three.nodes[1].settings
    address = f"127.0.0.1:{raft_port}/127.0.0.1:{node.port}"
    node.settings |= settings | {
        "QUEEN_RAFT_NODE_ID": str(node_id), "QUEEN_RAFT_LISTEN": f"127.0.0.1:{raft_port}", "QUEEN_RAFT_JOIN": "1",
        "QUEEN_RAFT_PEERS": f"{settings['QUEEN_RAFT_PEERS']},{node_id}={address}"}
    three.nodes[node_id] = node
    node.launch()
    try:
        yield {"id": node_id, "raft": f"127.0.0.1:{raft_port}", "http": f"127.0.0.1:{node.port}"}
    finally:
        node.close()


async def wait_for_role(node: NodeProcess, role: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            if await trio.to_thread.run_sync(role_of, node) == role:
                return
            await trio.sleep(0.01)


def refused(answer: Answer) -> tuple[int, str]:
    document = answer.json()
    assert document["ok"] is False and document["error"]
    return answer.status, document["code"]


async def wait_for_all_groups(client: HttpClient, voters: list[int]) -> None:
    """Until each group that this node hosts has these voters, as far as it knows."""
    with trio.fail_after(PATIENCE_S):
        while True:
            groups = (await client.get("/api/v1/raft/status")).json()["groups"]
            if len(groups) == 2 and all(group["voters"] == voters for group in groups):
                return
            await trio.sleep(0.01)


async def test_a_node_is_added_promoted_and_removed(tmp_path: Path) -> None:
    """CL-100, CL-101, CL-103, CL-106: asked of any node, and through door processes."""
    with cluster(tmp_path, {"QUEEN_DOORS": "1"}) as three, fourth(three, tmp_path) as new:
        await make_group(three)
        async with clients(three, 1, 2, 3, 4) as nodes:
            assert (await nodes[0].post("/api/v1/push", push("before"))).status == 201
            await wait_for_role(three.nodes[4], "learner")
            assert three.nodes[4].health_status() == 503
            assert refused(await nodes[0].post(f"{MEMBERSHIP}/promote", {"ids": [4]})) == (400, "not_a_member")

            added = await nodes[1].post(f"{MEMBERSHIP}/learners", new)
            assert (added.status, added.json()["ok"]) == (200, True), added
            again = await nodes[2].post(f"{MEMBERSHIP}/learners", new)
            assert again.json()["membership"]["learners"] == [4]
            moved = await nodes[2].post(f"{MEMBERSHIP}/learners", new | {"http": "127.0.0.1:9"})
            assert refused(moved) == (409, "address_mismatch")

            promoted = await nodes[2].post(f"{MEMBERSHIP}/promote", {"ids": [4]})
            assert promoted.status == 200, promoted
            view = promoted.json()["membership"]  # of the node that was asked; others may be a moment behind
            assert (view["voters"], view["learners"], view["changeInFlight"]) == ([1, 2, 3, 4], [], False)
            assert [member["http"] for member in view["members"]][3] == new["http"]
            await wait_for_all_groups(nodes[3], [1, 2, 3, 4])
            again = await nodes[0].request("PUT", f"{MEMBERSHIP}/voters", {"voters": [4, 3, 2, 1]})
            assert again.status == 200, again
            sixth = {"id": 5, "raft": "127.0.0.1:1", "http": "127.0.0.1:2"}
            nobody = await nodes[0].post(f"{MEMBERSHIP}/learners?timeoutMs=300", sixth)
            assert refused(nobody) == (504, "timeout")  # it is waited for until it answers
            assert (await nodes[3].post("/api/v1/push", push("at the new one"))).status == 201
            assert sorted(await pop_texts(nodes[3], 2)) == ["at the new one", "before"]

            moved = await nodes[3].post("/api/v1/system/raft/transfer", {"group": 0, "to": 4})
            assert (moved.status, moved.json()["leader"]) == (200, 4), moved
            removed = await nodes[3].delete(f"{MEMBERSHIP}/members/4")  # asked of the very node, which leads
            assert removed.status == 200, removed
            assert (await nodes[1].delete(f"{MEMBERSHIP}/members/4")).status == 200
            assert refused(await nodes[1].delete(f"{MEMBERSHIP}/members/5")) == (400, "not_a_member")
            await wait_for_role(three.nodes[4], "stopped")
            await wait_for_all_groups(nodes[0], [1, 2, 3])
            assert (await nodes[0].post("/api/v1/push", push("after"))).status == 201
            assert await pop_texts(nodes[1], 1) == ["after"]
        assert three.nodes[4].stop() == 0


async def test_a_node_that_lost_its_disk_does_not_vote_and_is_replaced_in_order(tmp_path: Path) -> None:
    """CL-105, CL-107: in the wrong order it is refused and says so; a leader that counted it would lose entries."""
    with cluster(tmp_path, {"QUEEN_STMT_TIMEOUT_MS": "1500"}) as three:
        await make_group(three)
        lost = three.nodes[3]
        async with clients(three, 1, 2) as nodes:
            assert (await nodes[0].post("/api/v1/push", push("kept"))).status == 201
            await wait_until_live(nodes[0], [True, True, True])
            lost.kill()
            shutil.rmtree(lost.data)
            lost.launch()  # as before, without a word to anybody
            await wait_for_line(lost, "DELETE /api/v1/system/raft/membership/members/3")
            assert lost.health_status() == 503
            assert any("another data directory" in line for line in three.nodes[1].log_lines())
            await wait_until_live(nodes[0], [True, True, False])
            three.nodes[2].kill()  # with the lost one's vote there would be a majority
            stuck = await nodes[0].post("/api/v1/timers", schedule("in doubt", 0))
            assert stuck.status == 503, stuck
            three.nodes[2].launch()
            await trio.to_thread.run_sync(three.nodes[2].wait_until_ready)

            lost.kill()
            removed = await nodes[0].delete(f"{MEMBERSHIP}/members/3")
            assert removed.status == 200, removed
            lost.launch({"QUEEN_RAFT_JOIN": "1"})
            port = three.raft_ports[3]
            lost_one = {"id": 3, "raft": f"127.0.0.1:{port}", "http": f"127.0.0.1:{lost.port}"}
            added = await nodes[0].post(f"{MEMBERSHIP}/learners", lost_one)
            assert added.status == 200, added
            assert (await nodes[1].post(f"{MEMBERSHIP}/promote", {"id": 3})).status == 200
            await trio.to_thread.run_sync(lost.wait_until_ready)
        three.nodes[2].kill()
        async with clients(three, 3) as (back,):
            assert (await back.post("/api/v1/push", push("with its vote"))).status == 201
            texts = await pop_texts(back, 2)
            assert sorted(set(texts) - {"in doubt"}) == ["kept", "with its vote"]


async def test_an_older_copy_of_a_nodes_directory_is_let_in_by_nobody(tmp_path: Path) -> None:
    """CL-105, CL-134: it may have voted, and acknowledged entries, that the copy does not hold."""
    with cluster(tmp_path) as three:
        await make_group(three)
        copied = three.nodes[3]
        assert await trio.to_thread.run_sync(copied.stop) == 0
        shutil.copytree(copied.data, tmp_path / "copy")
        copied.launch()
        await trio.to_thread.run_sync(copied.wait_until_ready)
        async with clients(three, 3) as (node,):
            assert (await node.post("/api/v1/push", push("acknowledged"))).status == 201
        assert await trio.to_thread.run_sync(copied.stop) == 0
        copied.launch()  # the directory itself is welcome
        await trio.to_thread.run_sync(copied.wait_until_ready)
        copied.kill()
        shutil.rmtree(copied.data)
        shutil.copytree(tmp_path / "copy", copied.data)
        copied.launch()
        for node_id in (1, 2):
            await wait_for_line(three.nodes[node_id], "an older copy of its data directory")
        assert await health_of(copied) == 503
        async with clients(three, 1) as (node,):
            assert await pop_texts(node, 1) == ["acknowledged"]


async def health_of(node: NodeProcess) -> int:
    """What it says once its door is open; others may hear of it before."""
    with trio.fail_after(PATIENCE_S):
        while True:
            status = node.health_status()
            if status is not None:
                return status
            await trio.sleep(0.01)


async def wait_for_line(node: NodeProcess, text: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            if any(text in line for line in node.log_lines()):
                return
            await trio.sleep(0.01)


async def wait_until_live(client: HttpClient, live: list[bool]) -> None:
    """Until just these members answer, in this node's view."""
    with trio.fail_after(PATIENCE_S):
        while True:
            view = (await client.get(MEMBERSHIP)).json()["membership"]
            if [member["live"] for member in view["members"]] == live:
                return
            await trio.sleep(0.01)


async def test_a_survivor_of_a_lost_majority_goes_on_alone_and_is_joined_by_empty_nodes(tmp_path: Path) -> None:
    """CL-108, CL-134: what it held is kept; who lost its disk comes back empty; left set, the variable stops the boot.
    """
    with cluster(tmp_path) as three:
        await make_group(three)
        one, two = three.nodes[1], three.nodes[2]
        async with clients(three, 1) as (client,):
            assert (await client.post("/api/v1/push", push("kept"))).status == 201
            assert (await client.post("/api/v1/timers", schedule("fires after it", 3000))).status == 200
        for node in three.nodes.values():
            node.kill()
        one.launch({"QUEEN_RAFT_FORCE_RECOVER": "2"})
        one.announced.append("QUEEN_RAFT_FORCE_RECOVER")
        assert await trio.to_thread.run_sync(one.wait, PATIENCE_S) > 0

        recovering = {"QUEEN_RAFT_FORCE_RECOVER": "1"}
        one.launch(recovering)
        await trio.to_thread.run_sync(one.wait_until_ready)
        async with clients(three, 1) as (client,):
            assert sorted(await pop_texts(client, 2)) == ["fires after it", "kept"]
            assert (await client.post("/api/v1/push", push("alone"))).status == 201
            view = (await client.get(MEMBERSHIP)).json()["membership"]
            assert (view["voters"], [member["nodeId"] for member in view["members"]]) == ([1], [1])
        one.kill()
        one.launch(recovering)  # it is that already
        await trio.to_thread.run_sync(one.wait_until_ready)

        shutil.rmtree(two.data)
        two.launch({"QUEEN_RAFT_JOIN": "1"})
        async with clients(three, 1) as (client,):
            second = {"id": 2, "raft": f"127.0.0.1:{three.raft_ports[2]}", "http": f"127.0.0.1:{two.port}"}
            added = await client.post(f"{MEMBERSHIP}/learners", second)
            assert added.status == 200, added
            assert (await client.post(f"{MEMBERSHIP}/promote", {"ids": [2]})).status == 200
            assert sorted(await pop_texts(client, 1)) == ["alone"]
        one.kill()
        one.launch(recovering)
        one.announced.append("it would lose them")
        assert await trio.to_thread.run_sync(one.wait, PATIENCE_S) > 0
        told = next(line for line in reversed(one.log_lines()) if "it would lose them" in line)
        two.kill()
        one.launch({"QUEEN_RAFT_FORCE_RECOVER": told.split("set it to ")[1].strip()})  # by which its operator means it
        await trio.to_thread.run_sync(one.wait_until_ready)
        async with clients(three, 1) as (client,):
            assert (await client.get(MEMBERSHIP)).json()["membership"]["voters"] == [1]
            assert (await client.post("/api/v1/push", push("alone again"))).status == 201
