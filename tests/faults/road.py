"""The way of a shared client (`tests.workloads`) to a real node, and the node settings that its workload needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

import trio

from tests.checkers.failing import BACKOFF_MS
from tests.checkers.history import Call, Outcome
from tests.faults.load import World, now_ns, told
from tests.support.http_client import HttpClient
from tests.workloads.failing import FAILING
from tests.workloads.road import Road, Told

FAILING_SETTINGS: Mapping[int, Mapping[str, str]] = {
    1: {"QUEEN_TEST_FIRE_FAIL_QUEUE": FAILING}, 2: {"QUEEN_TEST_FIRE_FAIL_QUEUE": f"{FAILING}:transient"}, 3: {},
}
MENDS = 3  # the node whose fires do not fail
BACKOFF = {"QUEEN_SWEEPER_BACKOFF_MIN_MS": str(BACKOFF_MS), "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS": str(BACKOFF_MS)}
FAILING_PAUSE_S = 0.05  # between two calls: what fails is tried five times, and is to leave the machine to the others


class HttpRoad:
    """A `Road`: one connection to one of the world's nodes."""

    def __init__(self, world: World, number: int) -> None:
        self.http = HttpClient(world.ports[number % len(world.ports)])
        self.prefix, self.next_version = world.prefix, world.next_version
        self._world = world

    async def call(self, method: str, target: str, document: Mapping[str, Any] | None = None) -> Told:
        """See `Road`."""
        start_ns, answer, outcome, why = await told(self.http, self._world, method, target, document)
        body = answer.json() if answer is not None and answer.body and outcome is Outcome.OK else None
        return Told(start_ns, now_ns(), outcome, why, body)

    async def pause(self, seconds: float) -> None:
        """See `Road`."""
        await trio.sleep(seconds)

    def note(self, call: Call) -> None:
        """See `Road`."""
        self._world.note(call)

    def reached(self, mark: str) -> None:
        """Nobody counts them here: what is reached hangs on the machine's pace."""


class Stepping(Protocol):
    """A shared client."""

    async def step(self) -> None:
        """What it does next."""


async def work(
    world: World, make: Callable[[Road, int, Random], Stepping], number: int, dice: Random, pause_s: float = 0,
) -> None:
    """Take step after step until the world stops."""
    road = HttpRoad(world, number)
    client = make(road, number, dice)
    async with road.http:
        while not world.stopping:
            await client.step()
            await trio.sleep(pause_s)
