"""Three nodes as processes, one cluster, with a faulty network between them if a test wants one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.ports import free_port
from tests.support.node_process import BOOT_TIMEOUT_S, POLL_S, NodeFailed, NodeProcess

IDS = (1, 2, 3)


class ClusterProcess:
    """nodes: by their ids. raft_ports: where each listens for its peers."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, fronts: Mapping[int, int] | None = None,
    ) -> None:
        """fronts: ports of the network in front of each node's own, through which its peers reach it."""
        self.raft_ports = {node_id: free_port() for node_id in IDS}
        self.nodes = {node_id: NodeProcess(folder / f"node-{node_id}", settings) for node_id in IDS}
        reached = fronts or self.raft_ports
        peers = ",".join(
            f"{node_id}=127.0.0.1:{reached[node_id]}/127.0.0.1:{node.port}" for node_id, node in self.nodes.items())
        for node_id, node in self.nodes.items():
            node.settings |= {
                "QUEEN_RAFT_REPLICATOR": "raft", "QUEEN_RAFT_PEERS": peers, "QUEEN_RAFT_NODE_ID": str(node_id),
                "QUEEN_RAFT_LISTEN": f"127.0.0.1:{self.raft_ports[node_id]}", "QUEEN_RAFT_TOKEN": "a-token-of-tests",
            }

    def start(self) -> None:
        """Start all and wait until each is ready."""
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_ready()

    def leader_id(self, timeout_s: float = BOOT_TIMEOUT_S) -> int:
        """Who leads the one tenant's group, or group 0 while there is none; as soon as one that runs says so."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for node_id, node in self.nodes.items():
                if node.is_running() and _leads(node):
                    return node_id
            time.sleep(POLL_S)
        raise NodeFailed(f"nobody led within {timeout_s} s")

    def close(self) -> None:
        """End all, however they stand."""
        for node in self.nodes.values():
            node.close()


def role_of(node: NodeProcess) -> str:
    """What the node says it is; empty when it does not answer."""
    body = node.health_body()
    return msgspec.json.decode(body)["raft"]["role"] if body else ""


def _leads(node: NodeProcess) -> bool:
    body = node.health_body()
    if not body:
        return False
    health = msgspec.json.decode(body)
    groups, leads_cell = health["groups"], health["raft"]["leader"]
    return bool(groups["leading"] > (leads_cell if groups["hosted"] > 1 else 0))


@contextmanager
def cluster(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[ClusterProcess]:
    """Three nodes that serve; ended with the block. A line of level error that nobody announced is a failure."""
    three = ClusterProcess(folder, settings)
    try:
        three.start()
        yield three
    finally:
        three.close()
    for node_id, node in three.nodes.items():
        errors = node.unannounced_errors()
        if errors:
            raise NodeFailed(f"node {node_id} has said: {errors}")
