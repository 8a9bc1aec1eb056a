"""Options of every campaign: how often, and with which dice; and what holds for every property.

    ./scripts/test faults -k kill --rounds 50       a campaign
    ./scripts/test faults --seed 8841027            the same dice again
"""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, settings

ROUNDS_DEFAULT = 12
CLUSTER_ROUNDS_DEFAULT = 2  # each takes some seconds: a fault, and until every node serves again

# A property that fails because the machine was busy says nothing: no deadline an example, no limit on drawing one.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of campaigns."""
    group = parser.getgroup("campaigns")
    group.addoption("--rounds", type=int, default=None, help="rounds of faults in one run")
    group.addoption("--fault", default=None, help="on three nodes: only this one of tests/faults/nemesis.py")
    group.addoption("--seed", type=int, default=None, help="seed of the dice; each run draws one and prints it")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a run does its fault."""
    return _rounds(request, ROUNDS_DEFAULT)


@pytest.fixture
def cluster_rounds(request: pytest.FixtureRequest) -> int:
    """The same, of a run on three nodes."""
    return _rounds(request, CLUSTER_ROUNDS_DEFAULT)


def _rounds(request: pytest.FixtureRequest, default: int) -> int:
    given = request.config.getoption("--rounds")
    return default if given is None else int(given)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run's dice, printed so that a failure can be had again."""
    given = request.config.getoption("--seed")
    chosen = int(given) if given is not None else secrets.randbelow(10**7)
    print(f"seed {chosen}")
    return chosen


@pytest.fixture
def only_fault(request: pytest.FixtureRequest) -> str | None:
    """The one kind of fault that a run on three nodes is to have; None: all."""
    given = request.config.getoption("--fault")
    return None if given is None else str(given)


@pytest.fixture
def again(request: pytest.FixtureRequest, seed: int) -> str:
    """The command that repeats this test with the same dice."""
    given = {name: request.config.getoption(f"--{name}") for name in ("rounds", "fault")}
    options = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    return f"./scripts/test {request.node.nodeid} --seed {seed}{options}"
