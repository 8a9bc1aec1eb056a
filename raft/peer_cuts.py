"""Test hook QUEEN_TEST_NET_FILE: what some peers say, or are told, is lost while the connections stand (partition, deaf
leader).

The file holds words: `from:2`, nothing of node 2 is heard; `to:2`, nothing reaches node 2. It is read for each frame,
so that a test changes it at any moment; no file cuts nothing. Lost is lost: no sender is told.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from raft.messages import NodeId
from raft.peer_frames import Call, Frame, Hello, NodeFrame
from raft.transport import Transport, TransportObserver


class PeerCuts:
    """What the file says now."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hears(self, peer: NodeId) -> bool:
        """Whether what this peer says is heard here. Raises ValueError for a file of other words."""
        return f"from:{peer}" not in self._words()

    def reaches(self, peer: NodeId) -> bool:
        """Whether what is said here is heard there. Raises ValueError for a file of other words."""
        return f"to:{peer}" not in self._words()

    def _words(self) -> list[str]:
        try:
            words = self._path.read_text().split()
        except FileNotFoundError:
            return []
        for word in words:
            way, _, node = word.partition(":")
            if way not in ("from", "to") or not node.isdecimal():
                raise ValueError(f"{self._path}: {word!r} is neither from:<node> nor to:<node>")
        return words


class CutTransport(Transport):
    """A transport whose frames may be lost."""

    def __init__(
        self, mine: Hello, token: bytes, *, cuts: PeerCuts, take: Callable[[Hello, Frame], None],
        observer: TransportObserver, random: Random,
    ) -> None:
        super().__init__(
            mine, token, take=lambda hello, frame: take(hello, frame) if cuts.hears(hello.node_id) else None,
            observer=observer, random=random)
        self._cuts = cuts

    def send_node_frame(self, peer: NodeId, frame: NodeFrame) -> bool:
        """See `Transport`."""
        return not self._cuts.reaches(peer) or super().send_node_frame(peer, frame)

    def send_message(self, peer: NodeId, life: int, message: bytes, *, by_bulk: bool = False) -> bool:
        """See `Transport`."""
        return not self._cuts.reaches(peer) or super().send_message(peer, life, message, by_bulk=by_bulk)

    def send_call(self, peer: NodeId, call: Call) -> bool:
        """See `Transport`."""
        return not self._cuts.reaches(peer) or super().send_call(peer, call)

    def send_snapshot(self, peer: NodeId, life: int, data: bytes) -> bool:
        """See `Transport`."""
        return not self._cuts.reaches(peer) or super().send_snapshot(peer, life, data)
