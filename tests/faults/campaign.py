"""One run: a node under load, faults put upon it, then the final phase and the judgement.

The final phase (guarantees.md 3): the node is healed, every timer is waited out, the worker group drains both
queues, and a reader of its own reads the whole log. Nothing here is judged by how long something took, except that
it ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from urllib.parse import quote

import pytest
import trio

from tests.checkers import verdict
from tests.checkers.history import History
from tests.faults.load import TIMER_QUEUE, WORK_QUEUE, Client, Shape, World, now_ns
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess

EMPTY_POLLS = 8  # guarantees.md 3: drained when so many long polls in a row came back empty
FINAL_PHASE_S = 60.0  # its own limit; a run that does not finish is no pass
LIST_EVERY_S = 0.1
LIST_LIMIT = 1000
WITNESS = "witness"
WITNESS_BATCH = 1000
PARTITIONS_MAX = 64
QUEUE_OPTIONS = {"leaseTime": 30, "retryLimit": 100_000, "deadLetterQueue": True, "dedupWindowSeconds": 86_400}


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
        self.world = World(self.node.port, self.shape)

    @property
    def history(self) -> History:
        """What the clients saw so far."""
        return self.world.history

    async def begin(self, extra: Mapping[str, str] | None = None) -> None:
        """Start the node and make the two queues, with options under which nothing ends by itself."""
        await trio.to_thread.run_sync(self.node.start, extra)
        async with HttpClient(self.node.port) as http:
            for queue in (TIMER_QUEUE, WORK_QUEUE):
                answer = await http.post("/api/v1/configure", {"queue": queue, "options": QUEUE_OPTIONS})
                assert answer.status == 200, answer

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Clients at work while the block runs; they end their last call when it does."""
        self.world.stopping = False
        async with trio.open_nursery() as nursery:
            for number in range(self.shape.clients):
                client = Client(self.world, number, Random(self.dice.random()))
                nursery.start_soon(client.run)
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
        """Wait the timers out, drain, read the log, judge. Fails the test with a report; prints it when all is well."""
        with trio.move_on_after(FINAL_PHASE_S) as limit:
            await self._wait_for_timers()
            async with trio.open_nursery() as nursery:
                for queue in (TIMER_QUEUE, WORK_QUEUE):
                    nursery.start_soon(self._drain, queue)
            for queue in (TIMER_QUEUE, WORK_QUEUE):
                await self._witness(queue)
            self.history.drained = True
        if limit.cancelled_caught:
            pytest.fail(f"unknown: the final phase did not end\n{verdict.report(self.history, [], again=self.again)}")
        violations = await trio.to_thread.run_sync(verdict.judge, self.history)
        text = verdict.report(self.history, violations, again=self.again)
        if violations:
            pytest.fail(text)
        print(text)
        assert await trio.to_thread.run_sync(self.node.health_status) == 200
        self.node.check_log()

    async def _wait_for_timers(self) -> None:
        """Until none is pending, or long enough that one which still is has broken its promise (G-M4)."""
        with trio.move_on_after(self.shape.delay_ms_max / 1000 + 7.0):
            while self.history.still_pending != (found := await self._pending()) or found:
                self.history.still_pending = found
                await trio.sleep(LIST_EVERY_S)

    async def _pending(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        after = ""
        async with HttpClient(self.node.port) as http:
            while True:
                answer = await http.get(f"/api/v1/timers/{TIMER_QUEUE}?limit={LIST_LIMIT}&after={quote(after)}")
                assert answer.status == 200, answer
                page = answer.json()
                found += [(row["queue"], row["timerKey"]) for row in page["rows"]]
                if not page["truncated"]:
                    return found
                after = page["nextAfter"]

    async def _drain(self, queue: str) -> None:
        client = Client(self.world, 1000, Random(0))
        # So many empty polls in a row outlast every lease that a dead client left behind.
        timeout_ms = 1000 * self.shape.lease_s_max // EMPTY_POLLS + 100
        options = {"wait": "true", "timeout": str(timeout_ms)}
        empty = 0
        while empty < EMPTY_POLLS:
            pop = await client.pop(queue, lease_s=30, batch=500, partitions=PARTITIONS_MAX, options=options)
            if pop.messages:
                empty = 0
                await client.ack(pop)
            else:
                empty += 1

    async def _witness(self, queue: str) -> None:
        """Read every message of every partition from offset 0 on, as a group that nobody else uses."""
        world = World(self.node.port)
        client = Client(world, 1001, Random(0))
        while True:
            pop = await client.pop(
                queue, lease_s=30, batch=WITNESS_BATCH, partitions=PARTITIONS_MAX, group=WITNESS,
                options={"commitOnDelivery": "true"},
            )
            assert pop.why == "", pop
            if not pop.messages:
                return
            self.history.log += pop.messages
