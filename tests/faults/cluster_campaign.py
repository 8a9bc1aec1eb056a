"""A run on three nodes: several tenants under load through every node, faults put upon nodes, network and clocks, then
the final phase and the judgement of each tenant's history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import trio

from bench.ports import free_port
from tests.checkers.digests import Digests
from tests.cluster.relay import Front
from tests.cluster.relay_process import RelayProcess, relay_process
from tests.faults import final_phase, road
from tests.faults.kv_load import KvClient
from tests.faults.load import Client, Shape, World, now_ns
from tests.support.cluster_process import IDS, ClusterProcess
from tests.support.http_client import HttpClient, NotSent, Unanswered
from tests.support.node_process import POLL_S
from tests.workloads.failing import FAILING, FailingClient
from tests.workloads.locks import LockClient
from tests.workloads.pipeline import PipelineClient

SHAPE = Shape(clients=3, delay_ms_max=1500, lease_s_max=2, partitions=4)
SETTINGS = {
    "QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "1", "QUEEN_TEST_HOOKS": "1",
    "QUEEN_RAFT_SEGMENT_BYTES": str(4 * 1024 * 1024), **road.BACKOFF,
}
TENANTS = ("a", "b", "c")  # as many as nodes: each leads one group at first
KV_CLIENTS = LOCK_CLIENTS = 2
RECOVERY_S = 30.0  # guarantees.md, G-D6: a call that still fails so long after the last fault was healed
PROBE_TIMEOUT_S = 5.0
PROBE = {"items": [{"queue": "probe", "payload": 1}]}


class ClusterCampaign:
    """Three nodes, the network between them, their tenants' clients and what these saw."""

    def __init__(
        self, three: ClusterProcess, network: RelayProcess, fronts: Mapping[int, int], folder: Path, seed: int,
        again: str,
    ) -> None:
        """fronts: ports through which each node's peers reach it."""
        self.nodes, self.network, self.dice = three.nodes, network, Random(seed)
        self.offsets = {node_id: folder / f"clock-{node_id}" for node_id in IDS}
        for node_id, path in self.offsets.items():
            path.write_text("0")
            three.nodes[node_id].settings |= {
                "QUEEN_TEST_CLOCK_FILE": str(path), **road.FAILING_SETTINGS[node_id]}
        ports = [node.port for node in three.nodes.values()]
        self.worlds = [
            World(ports, SHAPE, prefix=f"{name}-", tenant=f"00000000-0000-4000-8000-00000000000{name}")
            for name in TENANTS
        ]
        self.fronts = fronts
        self._three, self._again = three, again

    async def begin(self) -> None:
        """Start all, and make each tenant's queues."""
        await trio.to_thread.run_sync(self._three.start)
        for world in self.worlds:
            await final_phase.configure(world)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Clients of every tenant on every node while the block runs; they end their last call when it does."""
        async with trio.open_nursery() as nursery:
            for world in self.worlds:
                world.stopping = False
                for number in range(world.shape.clients):
                    nursery.start_soon(Client(world, number, Random(self.dice.random())).run)
                for number in range(KV_CLIENTS):
                    nursery.start_soon(KvClient(world, number, Random(self.dice.random())).run)
                for number in range(LOCK_CLIENTS):
                    nursery.start_soon(road.work, world, LockClient, 2 - number, Random(self.dice.random()))
                nursery.start_soon(
                    road.work, world, FailingClient, self.dice.randrange(3), Random(self.dice.random()),
                    road.FAILING_PAUSE_S)
                nursery.start_soon(
                    road.work, world, PipelineClient, self.dice.randrange(3), Random(self.dice.random()))
            try:
                yield
            finally:
                for world in self.worlds:
                    world.stopping = True

    async def calls(self, at_most: int) -> None:
        """Until up to so many more calls of one tenant were answered."""
        await self.dice.choice(self.worlds).wait_for_calls(self.dice.randint(1, at_most))

    @asynccontextmanager
    async def outage(self, name: str) -> AsyncIterator[None]:
        """A fault and its healing: what is due meanwhile may wait for its end, that is until every node serves all."""
        begun_ns = now_ns()
        yield
        healed_ns = now_ns()
        await self.until_served()
        lasted_s, waited_s = (healed_ns - begun_ns) / 1e9, (now_ns() - healed_ns) / 1e9
        print(f"FAULT    {name}: healed after {lasted_s:.2f} s, all served {waited_s:.2f} s later")
        for world in self.worlds:
            world.history.outages.append((begun_ns, now_ns()))

    async def until_served(self) -> None:
        """Until every node has taken a write of every tenant (G-D6)."""
        with trio.fail_after(RECOVERY_S):
            async with trio.open_nursery() as nursery:
                for world in self.worlds:
                    for port in world.ports:
                        nursery.start_soon(_probe, port, world)

    async def finish(self) -> None:
        """The final phase and the judgement, of every tenant; what the nodes logged; an orderly end."""
        for world in self.worlds:
            await self._mend(world)
        async with trio.open_nursery() as nursery:
            for world in self.worlds:
                nursery.start_soon(final_phase.settle, world, self._again)
        for world in self.worlds:
            await final_phase.judge(world, self._again)
        for node in self.nodes.values():
            await trio.to_thread.run_sync(node.wait_until_ready)
        await self._must_agree()
        for node in self.nodes.values():
            assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
            node.check_log()

    async def _mend(self, world: World) -> None:
        """Let every group be led where no fire fails, until none of those timers is pending."""
        async with HttpClient(self.nodes[road.MENDS].port) as http:
            with trio.fail_after(RECOVERY_S):
                while await final_phase.pending(world, FAILING):
                    for row in (await http.get("/api/v1/raft/status")).json()["groups"]:
                        await http.post(
                            "/api/v1/system/raft/transfer", {"group": row["group"], "to": road.MENDS})
                    await trio.sleep(POLL_S)

    async def _must_agree(self) -> None:
        """G-D7: looked at until all nodes stand at the same entry of every group."""
        digests = Digests()
        with trio.fail_after(RECOVERY_S):
            while True:
                for node_id, node in self.nodes.items():
                    async with HttpClient(node.port) as http:
                        digests.hear(node_id, (await http.get("/api/v1/raft/status?limit=1000")).json()["groups"])
                if digests.meet:
                    break
                await trio.sleep(POLL_S)
        assert digests.check() == []

    # --- what faults need

    def draw(self) -> int:
        """A node."""
        return self.dice.choice(IDS)

    def others(self, node_id: int) -> list[int]:
        """The rest, in random order."""
        return self.dice.sample([each for each in IDS if each != node_id], 2)

    async def leader_id(self) -> int:
        """A node that leads a tenant's group."""
        return await trio.to_thread.run_sync(self._three.leader_id)

    async def start(self, *ids: int) -> None:
        """Start these and wait until they are ready."""
        for node_id in ids:
            self.nodes[node_id].launch()
        for node_id in ids:
            await trio.to_thread.run_sync(self.nodes[node_id].wait_until_ready)

    async def pause(self, at_most_s: float) -> None:
        """How long a fault lasts."""
        await trio.sleep(self.dice.uniform(0, at_most_s))


async def _probe(port: int, world: World) -> None:
    async with HttpClient(port, timeout_s=PROBE_TIMEOUT_S) as http:
        while True:
            try:
                if (await http.post("/api/v1/push", PROBE, headers=world.headers)).status == 201:
                    return
            except (NotSent, Unanswered):
                pass  # not yet: asked again until RECOVERY_S is over
            await trio.sleep(POLL_S)


@contextmanager
def cluster_campaign(folder: Path, seed: int, again: str) -> Iterator[ClusterCampaign]:
    """Nodes that are not started yet, with a network between them; all ended with the block."""
    fronts = {node_id: free_port() for node_id in IDS}
    three = ClusterProcess(folder, SETTINGS, fronts=fronts)
    targets = {node_id: Front(port, three.raft_ports[node_id]) for node_id, port in fronts.items()}
    with relay_process(targets) as network:
        try:
            yield ClusterCampaign(three, network, fronts, folder, seed, again)
        finally:
            three.close()
            for node_id, node in three.nodes.items():
                print(f"--- node {node_id}", node.log_tail(), sep="\n")
