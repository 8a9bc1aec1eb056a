"""The actor of the node's snapshots: carries words between the room and the peers, events to the groups, and flushes.

All that is decided stands in `snapshots`. One task does a step at a time and lets the loop breathe; a second one waits
for the store's flush, which blocks in a thread, so that what is sent meanwhile goes on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

import structlog
import trio

from queen_node.crash_points import Reached
from queen_node.events import SnapshotEnded, SnapshotEvent, SnapshotFlipped
from queen_node.group import Group
from queen_node.group_on_node import GroupOnNode
from queen_node.snapshots import Snapshots, carry_out
from queen_node.state.incarnations import Incarnations
from queen_node.state.store import Engine
from raft.snapshot_messages import MalformedSnapshot
from raft.waiting import Bell

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

WORDS_MAX = 256  # that wait to be looked at; more are lost, and said again


class SnapshotPeers(Protocol):
    """The other nodes, as snapshots see them."""

    def send_snapshot(self, peer: int, life: int, word: bytes) -> None:
        """By bulk. What cannot be sent is lost, and said again."""
        ...


class SnapshotActor:
    """One a node. peers: None for a node without any."""

    def __init__(
        self, engine: Engine, incarnations: Incarnations, *, groups: Callable[[], Mapping[int, GroupOnNode]],
        peers: SnapshotPeers | None, reached: Reached, has_room: Callable[[], bool],
    ) -> None:
        """has_room: see `Snapshots`."""
        self._engine, self._groups, self._peers = engine, groups, peers
        self._words: deque[tuple[int, int, bytes]] = deque()
        self._bell, self._flush_bell = Bell(), Bell()
        self._flushing = False
        self.room = Snapshots(
            engine, incarnations, groups=self._group, new_id=lambda: os.urandom(16), now_s=trio.current_time(),
            reached=reached, has_room=has_room)

    async def run(self) -> None:
        """Until cancelled. Raises StoreDamaged for a store that cannot be read, written or flushed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush)
            while True:
                while self._words:
                    self._take(*self._words.popleft())
                wait_s = self.room.work(trio.current_time())
                self._tell()
                if self.room.wants_flush and not self._flushing:
                    self._flushing = True
                    self._flush_bell.ring()
                if self._words or wait_s == 0.0:
                    await trio.lowlevel.checkpoint()
                else:
                    with trio.move_on_after(inf if wait_s is None else wait_s):
                        await self._bell.wait()

    # --- what others on this node say; none of it waits

    def hear(self, peer: int, life: int, word: bytes) -> None:
        """A peer says something about a snapshot."""
        if len(self._words) < WORDS_MAX:
            self._words.append((peer, life, word))
            self._bell.ring()

    def send_to(self, life: int, peer: int) -> None:
        """A member needs what the log of this node, which leads, no longer holds on disk."""
        if self.room.send_to(life, peer, trio.current_time()):
            log.info("sending a snapshot", group=life, node=peer)
        self._bell.ring()

    def carry_out(self, group: Group, event: SnapshotEvent) -> None:
        """In the group's own turn: what one of `SnapshotEvent` asks of it."""
        carry_out(group, event, self.room, trio.current_time())
        if isinstance(event, SnapshotFlipped):
            log.info("state taken from a snapshot", group=group.raft.life, index=group.machine.applied_index)
        self._bell.ring()

    def log_told(self, life: int, index: int) -> None:
        """The group's log says on disk that it starts behind this entry."""
        self.room.log_told(life, index)
        self._bell.ring()

    # --- inside

    def _group(self, life: int) -> Group | None:
        actor = self._groups().get(life)
        return None if actor is None else actor.group

    def _take(self, peer: int, life: int, word: bytes) -> None:
        try:
            self.room.hear(peer, life, word, trio.current_time())
        except MalformedSnapshot as error:
            log.warning("a peer says what no release of ours does", peer=peer, error=str(error))

    def _tell(self) -> None:
        room = self.room
        if self._peers is not None:
            for peer, life, word in room.outgoing:
                self._peers.send_snapshot(peer, life, word)
        room.outgoing.clear()
        for life, event in room.events:
            if isinstance(event, SnapshotEnded):
                log.info("snapshot sent" if event.index else "snapshot not taken", group=life, node=event.peer)
            actor = self._groups().get(life)
            if actor is not None:
                actor.inbox.put(event)
        room.events.clear()

    async def _flush(self) -> None:
        while True:
            await self._flush_bell.wait()
            waited = self.room.begin_flush()
            await trio.to_thread.run_sync(self._engine.flush)
            self.room.flushed(waited)
            self._flushing = False
            self._bell.ring()
