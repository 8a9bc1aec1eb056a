"""One node for the whole folder, and what a test needs to speak with it.

Tests share the node and stay out of each other's way by names: every queue comes from `queue` or begins with it.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from queen import Queen

from tests.conformance.calls import PATIENCE_S, Calls
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess

Scene = Callable[[Any], Awaitable[None]]
Run = Callable[[Scene], None]

# A node of narrow limits, so that a few requests reach each of them.
NARROW = {
    "QUEEN_KV_WRITE_RATE": "1",
    "QUEEN_KV_WRITE_BURST": "5",
    "QUEEN_MAX_BODY_BYTES": str(1024 * 1024),
    "QUEEN_TIMERS_MAX_PAYLOAD_BYTES": "64",
    "QUEEN_TIMERS_MAX_HORIZON_S": "60",
    "QUEEN_TIMERS_MAX_OPS_PER_CALL": "3",
}


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The node of nearly all tests here, with the settings a fresh clone has (the rate apart)."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("conformance")))


@pytest.fixture(scope="session")
def shared_narrow_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with NARROW limits."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("narrow"), NARROW))


@pytest.fixture
def node(shared_node: NodeProcess) -> Iterator[NodeProcess]:
    """The shared node; what it logs as an error during a test fails that test."""
    yield from watched(shared_node)


@pytest.fixture
def narrow_node(shared_narrow_node: NodeProcess) -> Iterator[NodeProcess]:
    """The narrow node, watched alike."""
    yield from watched(shared_narrow_node)


@pytest.fixture
async def http(node: NodeProcess) -> AsyncIterator[HttpClient]:
    """A connection of the test's own."""
    async with HttpClient(node.port) as client:
        yield client


@pytest.fixture
async def narrow(narrow_node: NodeProcess) -> AsyncIterator[HttpClient]:
    """A connection to the narrow node."""
    async with HttpClient(narrow_node.port) as client:
        yield client


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    """1, 2, 3 … over the whole run."""
    return itertools.count(1)


@pytest.fixture
def queue(request: pytest.FixtureRequest, numbers: Iterator[int]) -> str:
    """A queue name that no other test has."""
    return f"{request.node.originalname}.{next(numbers)}"


@pytest.fixture
def calls(http: HttpClient, queue: str) -> Calls:
    """The usual calls on the test's queue."""
    return Calls(http, queue)


def running(process: NodeProcess) -> Iterator[NodeProcess]:
    """Start, lend, end."""
    process.start()
    yield process
    process.close()


def watched(process: NodeProcess) -> Iterator[NodeProcess]:
    """Lend for one test, which fails for what is logged as an error meanwhile."""
    process.unannounced_errors()
    lines_before = len(process.log_lines())
    yield process
    print("\n".join(process.log_lines()[lines_before:]))
    process.check_log()


@pytest.fixture
def run(node: NodeProcess) -> Iterator[Run]:
    """Runs a scene with a client of its own, closed afterwards, all within a bound."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run_scene(scene: Scene) -> None:
        async def bounded() -> None:
            async with Queen(f"http://127.0.0.1:{node.port}") as client:
                await asyncio.wait_for(scene(client), PATIENCE_S)

        asyncio.run(bounded())

    yield run_scene
    for number, handler in kept.items():  # the client takes them for itself and does not give them back
        signal.signal(number, handler)
