"""Ports of tests and benches: one that two servers get makes a node fail at its start, seldom and somewhere else."""

from __future__ import annotations

import fcntl
import os
import random
import socket

import pytest

from bench import ports
from bench.ports import claims_folder, free_port


@pytest.fixture
def one_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The only port that can be drawn; it is free, and nobody claimed it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    monkeypatch.setattr(ports, "PORT_TRIES_MAX", 3)
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: port)
    return port


def test_no_port_is_given_twice_though_the_same_seed_returns() -> None:
    given = []
    for _ in range(20):
        random.seed(7)
        given.append(free_port())
    assert len(set(given)) == len(given)


def test_a_port_that_was_given_is_not_given_again_while_its_server_is_down(one_port: int) -> None:
    assert free_port() == one_port
    with pytest.raises(ports.NoFreePort):
        free_port()


def test_a_port_that_another_claims_is_left_to_it(one_port: int) -> None:
    claim = os.open(claims_folder() / str(one_port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX)  # the lock is of the open file: one of another process would be the same
        with pytest.raises(ports.NoFreePort):
            free_port()
    finally:
        os.close(claim)
    assert free_port() == one_port


def test_a_port_on_which_somebody_listens_is_left_to_it(one_port: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", one_port))
        listener.listen()
        with pytest.raises(ports.NoFreePort):
            free_port()
