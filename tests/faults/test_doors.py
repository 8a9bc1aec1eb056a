"""Door processes live and die with their node (CL-131; the node stops rather than go on wounded)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from tests.support.node_process import NodeProcess

WAIT_S = 10.0


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def doors(node: NodeProcess) -> list[int]:
    """The door processes, known by their arguments."""
    found = [each for each in children(pid_of(node)) if b"queen_node.doorway.process" in command_line(each)]
    assert found, "the node has no door process"
    return found


def pid_of(node: NodeProcess) -> int:
    assert node._process is not None
    return node._process.pid


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def until(holds: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_at_s, "it never came to hold"
        time.sleep(0.01)


def call(node: NodeProcess, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", node.port, timeout=WAIT_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture(params=["1", "2"])
def with_doors(request: pytest.FixtureRequest, node: NodeProcess) -> NodeProcess:
    node.settings["QUEEN_DOORS"] = request.param
    node.start()
    assert len(doors(node)) == int(request.param)
    return node


def test_a_door_that_dies_stops_the_node(with_doors: NodeProcess) -> None:
    node = with_doors
    node.announced.append("a door process ended by itself")
    everyone = children(pid_of(node))
    os.kill(doors(node)[0], signal.SIGKILL)
    assert node.wait(WAIT_S) == 4
    assert len([line for line in node.log_lines() if "a door process ended by itself" in line]) == 1
    assert not any(command_line(each) for each in everyone)
    node.check_log()
    node.start()
    assert call(node, "GET", "/health")[0] == 200


def test_doors_end_with_a_node_that_is_killed_and_leave_it_its_port(with_doors: NodeProcess) -> None:
    node = with_doors
    orphans = doors(node)
    node.kill()
    node.start()  # at once: on the same port, which a door may still hold
    until(lambda: not any(command_line(each) for each in orphans))
    assert call(node, "GET", "/health")[0] == 200
    node.check_log()


def test_signals_to_a_door_alone_change_nothing(with_doors: NodeProcess) -> None:
    """A Ctrl-C reaches the whole process group: the node alone decides."""
    node = with_doors
    for door in doors(node):
        os.kill(door, signal.SIGINT)
        os.kill(door, signal.SIGTERM)
    assert call(node, "GET", "/health")[0] == 200
    assert node.stop() == 0
    node.check_log()


def test_a_stop_answers_parked_polls_and_keeps_what_was_promised(with_doors: NodeProcess) -> None:
    """CL-131: under load, every push that was answered is there afterwards, and a parked poll is answered empty."""
    node = with_doors
    answers: list[int] = []
    accepted: list[int] = []

    def poll() -> None:
        answers.append(call(node, "GET", "/api/v1/pop/queue/empty?wait=true&timeout=9000")[0])

    def push() -> None:
        for number in range(100_000):
            item = {"queue": "full", "payload": number, "transactionId": str(number)}
            try:
                status, _ = call(node, "POST", "/api/v1/push", {"items": [item]})
            except OSError:
                return  # the node takes no new connections
            if status == 201:
                accepted.append(number)

    threads = [Thread(target=poll), Thread(target=push)]
    for thread in threads:
        thread.start()
    until(lambda: len(accepted) > 20 and b"queen_parked_long_polls 1.0" in call(node, "GET", "/metrics/prometheus")[1])
    assert node.stop() == 0
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == [204]
    node.check_log()
    node.start()
    path = "/api/v1/pop/queue/full?batch=100000&subscriptionMode=all"
    popped = json.loads(call(node, "GET", path)[1])["messages"]
    assert {message["data"] for message in popped} >= set(accepted)


def test_a_client_that_leaves_takes_its_poll_with_it(with_doors: NodeProcess) -> None:
    """PA-23: what is pushed afterwards goes to the next reader at once."""
    node = with_doors
    leaving = HTTPConnection("127.0.0.1", node.port, timeout=WAIT_S)
    leaving.request("GET", "/api/v1/pop/queue/q?wait=true&timeout=30000&subscriptionMode=all")
    until(lambda: b"queen_parked_long_polls 1.0" in call(node, "GET", "/metrics/prometheus")[1])
    leaving.close()
    until(lambda: b"queen_parked_long_polls 0.0" in call(node, "GET", "/metrics/prometheus")[1])
    assert call(node, "POST", "/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})[0] == 201
    status, body = call(node, "GET", "/api/v1/pop/queue/q?subscriptionMode=all")
    assert (status, len(json.loads(body)["messages"])) == (200, 1)
