"""An empty node founds a cluster only with all others, and only if none of them knew it by another disk (CL-105)."""

from __future__ import annotations

import pytest

from queen_node.founding import Founding
from raft.peer_frames import Hello

DIRECTORIES = {1: b"1" * 16, 2: b"2" * 16, 3: b"3" * 16}


def hello(node: int, process: int = 7) -> Hello:
    return Hello(b"cell", node, DIRECTORIES[node], b"b" * 16, process, 1, 1)


class Here:
    """Node 3 with the connections that it has."""

    def __init__(self, *connected: int, process: int = 7) -> None:
        self.founding = Founding(3, DIRECTORIES[3], (1, 2, 3))
        self.hellos = {node: hello(node, process) for node in connected}

    def hear(self, node: int, known: dict[int, bytes], process: int = 7) -> None:
        self.founding.hear(node, process, known)

    @property
    def founders(self) -> dict[int, bytes] | None:
        return self.founding.founders(self.hellos.get)


def test_all_are_here_and_take_this_node_for_one_of_them() -> None:
    """CL-106: every node of a new cluster may begin with the identical list."""
    here = Here(1, 2)
    here.hear(1, {3: DIRECTORIES[3]})
    assert here.founders is None
    here.hear(2, DIRECTORIES)
    assert here.founders == DIRECTORIES


@pytest.mark.parametrize("known", [{}, {1: DIRECTORIES[1]}, {3: b"lost" * 4}])
def test_a_node_that_was_known_by_another_disk_founds_nothing(known: dict[int, bytes]) -> None:
    """CL-105: the disk that was lost may have voted."""
    here = Here(1, 2)
    here.hear(1, DIRECTORIES)
    here.hear(2, known)
    assert here.founders is None
    assert here.founding.missing(here.hellos.get) == [2]


def test_who_is_not_here_may_be_a_cluster_that_knows_another_disk() -> None:
    """Two disks lost at once: the two are no majority of what was."""
    here = Here(1)
    here.hear(1, DIRECTORIES)
    here.hear(2, DIRECTORIES)  # and then the connection ended
    assert here.founders is None


def test_a_word_of_an_earlier_run_does_not_count() -> None:
    here = Here(1, 2, process=8)
    for node in (1, 2):
        here.hear(node, DIRECTORIES, process=7)
    assert here.founders is None
    for node in (1, 2):
        here.hear(node, DIRECTORIES, process=8)
    assert here.founders == DIRECTORIES
