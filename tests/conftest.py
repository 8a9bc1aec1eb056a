"""Options of every campaign: how often, and with which dice; and what holds for every property.

    ./scripts/test faults -k kill --rounds 50       a campaign
    ./scripts/test faults --seed 8841027            the same dice again
"""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, settings

ROUNDS_DEFAULT = 12

# A property that fails because the machine was busy says nothing: no deadline an example, no limit on drawing one.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of campaigns."""
    group = parser.getgroup("campaigns")
    group.addoption("--rounds", type=int, default=ROUNDS_DEFAULT, help="rounds of faults in one run")
    group.addoption("--seed", type=int, default=None, help="seed of the dice; each run draws one and prints it")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a run does its fault."""
    return int(request.config.getoption("--rounds"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run's dice, printed so that a failure can be had again."""
    given = request.config.getoption("--seed")
    chosen = int(given) if given is not None else secrets.randbelow(10**7)
    print(f"seed {chosen}")
    return chosen


@pytest.fixture
def again(request: pytest.FixtureRequest, seed: int, rounds: int) -> str:
    """The command that repeats this test with the same dice."""
    return f"./scripts/test {request.node.nodeid} --seed {seed} --rounds {rounds}"
