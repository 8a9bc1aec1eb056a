"""One run: a node under load, faults put upon it, then the final phase and the judgement."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import trio

from tests.checkers.history import History
from tests.faults import final_phase
from tests.faults.kv_load import KvClient
from tests.faults.load import Client, Shape, World, now_ns
from tests.faults.road import work
from tests.support.node_process import NodeProcess
from tests.workloads.locks import LockClient
from tests.workloads.pipeline import PipelineClient

KV_CLIENTS = LOCK_CLIENTS = 2


@dataclass(slots=True)
class Campaign:
    """A node, its clients and what they saw."""

    node: NodeProcess
    seed: int
    shape: Shape = field(default_factory=Shape)
    again: str = ""  # the command that repeats the run
    world: World = field(init=False)
    dice: Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.world = World((self.node.port,), self.shape)

    @property
    def history(self) -> History:
        """What the clients saw so far."""
        return self.world.history

    async def begin(self, extra: Mapping[str, str] | None = None) -> None:
        """Start the node and make the two queues, with options under which nothing ends by itself."""
        await trio.to_thread.run_sync(self.node.start, extra)
        await final_phase.configure(self.world)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Clients at work while the block runs; they end their last call when it does."""
        self.world.stopping = False
        async with trio.open_nursery() as nursery:
            for number in range(self.shape.clients):
                client = Client(self.world, number, Random(self.dice.random()))
                nursery.start_soon(client.run)
            for number in range(KV_CLIENTS):
                nursery.start_soon(KvClient(self.world, number, Random(self.dice.random())).run)
            for number in range(LOCK_CLIENTS):
                nursery.start_soon(work, self.world, LockClient, number, Random(self.dice.random()))
            nursery.start_soon(work, self.world, PipelineClient, self.dice.randrange(3), Random(self.dice.random()))
            try:
                yield
            finally:
                self.world.stopping = True

    async def kill(self) -> None:
        """SIGKILL now."""
        self.history.outages.append((now_ns(), now_ns()))
        await trio.to_thread.run_sync(self.node.kill)

    async def die_while_starting(self, end: Callable[[], None], *, within_s: float) -> None:
        """Six starts, each ended by `end` at a random moment of its first `within_s`. The node is down before."""
        for _ in range(6):
            self.node.launch()
            await trio.sleep(self.dice.uniform(0, within_s))
            if self.node.is_running():
                await trio.to_thread.run_sync(end)

    async def restart(self, extra: Mapping[str, str] | None = None) -> None:
        """Start again on the same folder and port; ends the outage that `kill` (or a death) began."""
        await trio.to_thread.run_sync(self.node.start, extra)
        outages = self.history.outages
        outages[-1] = (outages[-1][0], now_ns())

    async def finish(self) -> None:
        """The final phase and the judgement. Fails the test with a report; prints it when all is well."""
        await final_phase.finish(self.world, self.again)
        assert await trio.to_thread.run_sync(self.node.health_status) == 200
        self.node.check_log()
