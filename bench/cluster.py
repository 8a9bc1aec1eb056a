"""Three nodes on this machine: schedules a second at the leader and at a follower."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import calls, load
from bench.http import Client
from bench.node import Node, ServerFailed
from bench.ports import free_port
from bench.results import Results
from bench.surroundings import Bench
from bench.throughput import Rounds

NODES = (1, 2, 3)
ITEMS = 100
LEADER_S_MAX = 30.0
LOOK_EVERY_S = 0.01
FIRST_WRITE = b'{"items":[{"queue":"first","payload":1}]}'


class Cluster:
    """Three nodes, each on its folder and ports through any number of starts."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder, self._settings = folder, settings or {}
        self._ports = {node_id: free_port() for node_id in NODES}
        raft_ports = {node_id: free_port() for node_id in NODES}
        self._peers = ",".join(
            f"{node_id}=127.0.0.1:{raft_ports[node_id]}/127.0.0.1:{self._ports[node_id]}" for node_id in NODES)
        self._raft_ports = raft_ports
        self.nodes: dict[int, Node] = {}

    def start(self, node_id: int) -> Node:
        """Starts one and does not wait."""
        node = self.nodes[node_id] = Node(self._folder / f"node-{node_id}", {
            "QUEEN_RAFT_REPLICATOR": "raft", "QUEEN_RAFT_PEERS": self._peers, "QUEEN_RAFT_NODE_ID": str(node_id),
            "QUEEN_RAFT_LISTEN": f"127.0.0.1:{self._raft_ports[node_id]}", **self._settings,
        }, port=self._ports[node_id])
        return node

    def leader_id(self) -> int:
        """Who leads now, as soon as one says so. Raises ServerFailed."""
        deadline = time.monotonic() + LEADER_S_MAX
        while time.monotonic() < deadline:
            for node_id, node in self.nodes.items():
                if node.leads():
                    return node_id
            time.sleep(LOOK_EVERY_S)
        raise ServerFailed(f"nobody led within {LEADER_S_MAX:.0f} s")

    def kill(self) -> None:
        """All at once."""
        for node in self.nodes.values():
            node.kill()

    @property
    def cpu_s(self) -> float:
        """Of all nodes."""
        return sum(node.cpu_s for node in self.nodes.values())

    def must_live(self) -> None:
        """Raises ServerFailed."""
        for node in self.nodes.values():
            node.must_live()


@contextmanager
def running(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Three healthy nodes; killed at the end. settings: of all of them, beside what makes them a cluster."""
    cluster = Cluster(folder, settings)
    with ExitStack() as stack:
        stack.callback(cluster.kill)
        for node_id in NODES:
            cluster.start(node_id)
        for node in cluster.nodes.values():
            node.wait_until_healthy()
        with Client(cluster.nodes[NODES[0]].port) as client:
            client.call("POST", "/api/v1/push", FIRST_WRITE)  # the tenant's first write makes its group
        yield cluster


def measure(bench: Bench) -> Results:
    results = Results("cluster")
    results.notes.append(f"load: {load.GENERATOR}; payload {calls.PAYLOAD_BYTES} bytes; all nodes share the machine")
    folder = bench.new_folder()
    with running(folder) as cluster:
        _throughput(bench, cluster, results)
    bench.remove(folder)
    return results


def _throughput(bench: Bench, cluster: Cluster, results: Results) -> None:
    seconds = bench.choose(4, 1)
    rounds = Rounds(bench, cluster, results, f"Schedules, {load.CONNECTIONS} connections, three nodes")
    what_one, what_many = "one a call, leader", f"{ITEMS} a call, leader"
    for _ in range(bench.choose(3, 1)):
        queue = f"timers-{rounds.begin()}"
        one, many = calls.schedule_template(queue, 1), calls.schedule_template(f"{queue}-many", ITEMS)
        leader_id = cluster.leader_id()
        leader = cluster.nodes[leader_id]
        follower = next(node for node_id, node in cluster.nodes.items() if node_id != leader_id)
        rounds.take(what_one, load.send, leader.port, one, seconds)
        rounds.take(what_many, load.send, leader.port, many, seconds)
        rounds.take("one a call, follower", load.send, follower.port, calls.schedule_template(f"{queue}-f", 1), seconds)
    results.judge("cluster one", rounds.ratio_of(what_one))
    results.judge("cluster many", rounds.ratio_of(what_many))
