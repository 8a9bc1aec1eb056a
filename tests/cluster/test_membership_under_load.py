"""The cell changes, and its leader dies, while clients go on: what they were told holds (CL-132, M-71)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel

from tests.cluster.test_membership import MEMBERSHIP, fourth, wait_for_role
from tests.cluster.test_three_nodes import PATIENCE_S, clients, pop_texts, push
from tests.support.cluster_process import ClusterProcess, cluster
from tests.support.http_client import HttpClient, NotSent, Unanswered
from tests.support.node_process import NodeProcess

TENANTS = 60  # 200 groups a second: the change takes long enough to be met half-way
HEADER = {"QUEEN_TENANCY_HEADER": "1", "QUEEN_KV_TRUSTED_PROXY": "1"}


class Load:
    """Clients that push, each as the published one: another node when one does not answer, no call given up."""

    def __init__(self, nodes: list[NodeProcess], name: str) -> None:
        self._nodes, self._name = nodes, name
        self.pushed: list[str] = []
        self.failed: list[Any] = []
        self.stop = trio.Event()

    async def run(self) -> None:
        """Until `stop`."""
        made = [HttpClient(node.port) for node in self._nodes]
        try:
            for number in count():
                if self.stop.is_set():
                    return
                await self._push(made, f"{self._name}-{number}")
        finally:
            for client in made:
                await client.aclose()

    async def _push(self, made: list[HttpClient], text: str) -> None:
        for turn in range(3 * len(made)):
            try:
                answer = await made[turn % len(made)].post("/api/v1/push", push(text))
            except (NotSent, Unanswered):
                await trio.sleep(0.01)
                continue  # once more under the same transaction id, at the next node
            if answer.status == 201:
                self.pushed.append(text)
            else:
                self.failed.append(answer)
            return
        self.failed.append(f"{text}: nobody answered")


async def until(done: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            if done():
                return
            await trio.sleep(0.01)


async def pushed_more(load: Load, more: int) -> None:
    before = len(load.pushed)
    await until(lambda: len(load.pushed) >= before + more)


async def check(load: Load, node: NodeProcess) -> None:
    """Nothing failed, and all that was acknowledged is there."""
    assert load.failed == []
    async with HttpClient(node.port) as client:
        assert set(load.pushed) <= set(await pop_texts(client, len(set(load.pushed))))


async def leader_of_cell(client: HttpClient) -> int:
    leader: int = (await client.get(MEMBERSHIP)).json()["membership"]["leader"]
    return leader


async def make_tenants(client: HttpClient) -> None:
    for number in range(TENANTS):
        tenant = {"x-queen-tenant": f"00000000-0000-0000-0001-{number:012d}"}
        assert (await client.post("/api/v1/push", push("one"), headers=tenant)).status == 201


async def wait_for_voters(client: HttpClient, voters: list[int]) -> None:
    """Until the change is through and every group of this node has these voters."""
    with trio.fail_after(PATIENCE_S):
        while True:
            view = (await client.get(MEMBERSHIP)).json()["membership"]
            groups = (await client.get("/api/v1/raft/status?limit=1000")).json()["groups"]
            if not view["changeInFlight"] and all(group["voters"] == voters for group in groups):
                assert len(groups) == TENANTS + 2
                return
            await trio.sleep(0.05)


async def test_a_change_goes_on_when_its_leader_dies_half_way_under_load(tmp_path: Path) -> None:
    """M-71; cluster.md 16: an empty node becomes a voter under load."""
    with cluster(tmp_path, HEADER) as three, fourth(three, tmp_path) as new:
        async with clients(three, 1, 2, 3) as nodes:
            await make_tenants(nodes[0])
            leader = await leader_of_cell(nodes[0])
            staying = [node_id for node_id in (1, 2, 3) if node_id != leader]
            load = Load([three.nodes[node_id] for node_id in staying], "load")
            asked = nodes[staying[0] - 1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                await pushed_more(load, 20)
                await wait_for_role(three.nodes[4], "learner")
                added = await asked.post(f"{MEMBERSHIP}/learners", new)
                assert added.status == 200, added

                async def promote() -> None:
                    answer = await asked.post(f"{MEMBERSHIP}/promote", {"ids": [4]})
                    assert answer.status in (200, 503), answer  # 503: the leader died before it said that it began

                nursery.start_soon(promote)
                async with HttpClient(three.nodes[staying[1]].port) as watching:
                    await until_half_way(watching)
                    three.nodes[leader].kill()
                    await pushed_more(load, 20)
                    await wait_for_voters(watching, [1, 2, 3, 4])
                load.stop.set()
        await check(load, three.nodes[4])


async def until_half_way(client: HttpClient) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            job = (await client.get(MEMBERSHIP)).json()["membership"]["job"]
            if job["number"] == 2 and not job["done"] and 0 < job["groupsLeft"] < TENANTS:
                return
            assert not (job["number"] == 2 and job["done"]), "the change was through before it was looked at"
            await trio.lowlevel.checkpoint()


async def test_every_node_is_restarted_in_turn_without_a_failed_call(tmp_path: Path) -> None:
    """CL-131, CL-132: one at a time, the next when /health says 200."""
    with cluster(tmp_path) as three:
        load = [
            Load([three.nodes[(first + turn) % 3 + 1] for turn in range(3)], f"client-{first}") for first in range(3)]
        async with trio.open_nursery() as nursery:
            for each in load:
                nursery.start_soon(each.run)
            for each in load:
                await pushed_more(each, 10)
            for node_id in (1, 2, 3):
                await restart(three, node_id)
                for each in load:
                    await pushed_more(each, 5)
            for each in load:
                each.stop.set()
        for each in load:
            assert each.failed == []
        pushed = {text for each in load for text in each.pushed}
        async with clients(three, 1) as (client,):
            assert pushed <= set(await pop_texts(client, len(pushed)))


async def restart(three: ClusterProcess, node_id: int) -> None:
    node = three.nodes[node_id]
    node.signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(node.wait, PATIENCE_S) == 0
    node.launch()
    await trio.to_thread.run_sync(node.wait_until_ready)
