"""Whether an empty node may found a cluster with the others of its list (CL-105, CL-106).

A node whose disk was lost comes back empty under an id that voted. It must not vote again: so an empty node founds only
together with all the others, when each of them says that it knows this node by this very data directory. A node of a
cluster that runs knows the directory that was lost, and never says so. Each founder keeps all the directories, and from
then on takes no other one for that node.

Plain code: what the others say goes in, the founders' directories come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raft.peer_frames import Hello


class Founding:
    """An empty node, until it has founded a cluster or was added to one. listed: all nodes of its list."""

    def __init__(self, node_id: int, directory_id: bytes, listed: tuple[int, ...]) -> None:
        self._node_id, self._directory_id = node_id, directory_id
        self.others = tuple(node for node in listed if node != node_id)
        self._said: dict[int, tuple[int, Mapping[int, bytes]]] = {}

    def hear(self, node: int, process_number: int, directories: Mapping[int, bytes]) -> None:
        """Another node says which directory it takes each node to have. process_number: of its present run."""
        self._said[node] = process_number, directories

    def founders(self, hello_of: Callable[[int], Hello | None]) -> dict[int, bytes] | None:
        """The directory of each founder; None: not all are here, or not all take this node for one."""
        directories = {self._node_id: self._directory_id}
        for node in self.others:
            hello, said = hello_of(node), self._said.get(node)
            if hello is None or said is None or said[0] != hello.process_number:
                return None
            if said[1].get(self._node_id) != self._directory_id:
                return None
            directories[node] = hello.directory_id
        return directories

    def missing(self, hello_of: Callable[[int], Hello | None]) -> list[int]:
        """The others that do not answer, or take another directory for this node's."""
        return [node for node in self.others if hello_of(node) is None or (
            self._said.get(node, (0, {}))[1].get(self._node_id) != self._directory_id)]
