"""Boots that must not go on (config.md, CL-124): a code that says failure and one line that says why."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import SEGMENT_BYTES
from tests.support.node_process import POLL_S, NodeProcess, is_error_line

REFUSAL_TIMEOUT_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node not yet started, without hooks."""
    process = NodeProcess(tmp_path / "node", {"QUEEN_RAFT_SEGMENT_BYTES": str(SEGMENT_BYTES)})
    yield process
    process.close()
    print(process.log_tail())


def refusal(node: NodeProcess) -> str:
    """The one line of a node that ends by itself with a failure."""
    node.launch()
    assert node.wait(REFUSAL_TIMEOUT_S) > 0
    errors = [line for line in node.log_lines() if is_error_line(line)]
    assert len(errors) == 1, node.log_lines()
    return errors[0]


@pytest.mark.parametrize(("name", "value"), [
    ("PORT", "http"), ("PORT", "70000"), ("QUEEN_LOG_JSON", "perhaps"), ("QUEEN_RAFT_TIMER_TICK_MS", "-1"),
    ("QUEEN_KV_WRITE_RATE", "fast"), ("QUEEN_CONSUME_FAST", "1"), ("JWT_ENABLED", "true"),
    ("QUEEN_TENANCY_HEADER", "true"), ("QUEEN_ENCRYPTION_KEY", "00" * 32), ("QUEEN_TEST_FSYNC_DELAY_MS", "5"),
    ("QUEEN_TEST_CRASH_AT", "wal.after_write"), ("QUEEN_RAFT_PEERS", "2=h:1/h:2"), ("QUEEN_RAFT_REPLICATOR", "raft"),
])
def test_a_bad_value_is_named(node: NodeProcess, name: str, value: str) -> None:
    """README 24, config.md 10: what is wrong, unsafe or not built stops the boot and names the variable."""
    node.settings[name] = value
    assert name in refusal(node)


def test_hooks_that_do_not_exist(node: NodeProcess) -> None:
    """A crash point nobody has: a test that asks for it must not pass by never being hit."""
    node.settings.update({"QUEEN_TEST_HOOKS": "1", "QUEEN_TEST_CRASH_AT": "wal.nowhere"})
    assert "wal.nowhere" in refusal(node)


def test_a_port_in_use(node: NodeProcess, tmp_path: Path) -> None:
    """One line with the port."""
    node.start()
    second = NodeProcess(tmp_path / "second", {"PORT": str(node.port)})
    assert str(node.port) in refusal(second)


def test_a_data_directory_in_use(node: NodeProcess, tmp_path: Path) -> None:
    """Two nodes never share a directory: the second is refused, the first goes on."""
    node.start()
    second = NodeProcess(tmp_path / "second", {"QUEEN_RAFT_DIR": str(node.data)})
    assert str(node.data) in refusal(second)
    assert node.health_status() == 200


def test_data_of_another_node(node: NodeProcess) -> None:
    """CL-124: a directory belongs to the node id that made it."""
    node.start()
    assert node.stop() == 0
    node.settings["QUEEN_RAFT_NODE_ID"] = "2"
    assert "QUEEN_RAFT_NODE_ID" in refusal(node)


def test_the_port_is_bound_only_when_the_store_is_open(node: NodeProcess) -> None:
    """CL-130: a TCP connect is the probe of start and of life. Here the log's lock is held by somebody else for a
    while, as by the writer of a process that was killed."""
    node.start()
    assert node.stop() == 0
    lock = node.data / "log" / "lock"
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        node.launch()
        while not has_open(node, lock):
            assert node.is_running(), node.log_tail()
            time.sleep(POLL_S)
        assert not takes_connections(node), "it would pass for alive while its store is not open"
        fcntl.flock(held, fcntl.LOCK_UN)
    while not takes_connections(node):
        assert node.is_running(), node.log_tail()
        time.sleep(POLL_S)
    assert node.health_status() is not None, "who can connect is answered"


def has_open(node: NodeProcess, path: Path) -> bool:
    """Whether the process has opened a file."""
    for descriptor in Path(f"/proc/{node.process_id}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if descriptor.readlink() == path.resolve():
                return True
    return False


def takes_connections(node: NodeProcess) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", node.port)) == 0
