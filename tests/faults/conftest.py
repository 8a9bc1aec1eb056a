"""Options and the node of the fault tests.

    ./scripts/test faults                           about a dozen rounds of kill -9, and every named crash point once
    ./scripts/test faults -k kill --rounds 50       a campaign
    ./scripts/test faults --seed 8841027            the same dice again
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_process import NodeProcess

ROUNDS_DEFAULT = 12
SEGMENT_BYTES = 4 * 1024 * 1024  # room is made in advance, and the folders of many tests are kept for a while


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of campaigns."""
    group = parser.getgroup("faults")
    group.addoption("--rounds", type=int, default=ROUNDS_DEFAULT, help="rounds of kill -9 in one run")
    group.addoption("--seed", type=int, default=None, help="seed of the dice; each run draws one and prints it")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a run kills its node. The default also holds when this file was read after the command line."""
    return int(request.config.getoption("--rounds", default=ROUNDS_DEFAULT))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run's dice, printed so that a failure can be had again."""
    given = request.config.getoption("--seed", default=None)
    chosen = int(given) if given is not None else secrets.randbelow(10**7)
    print(f"seed {chosen}")
    return chosen


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node not yet started, with test hooks; its log is shown when the test fails."""
    process = NodeProcess(tmp_path / "node", {"QUEEN_RAFT_SEGMENT_BYTES": str(SEGMENT_BYTES)}, hooks=True)
    yield process
    process.close()
    print(process.log_tail())


@pytest.fixture
def again(request: pytest.FixtureRequest, seed: int, rounds: int) -> str:
    """The command that repeats this test with the same dice."""
    return f"./scripts/test {request.node.nodeid} --seed {seed} --rounds {rounds}"
