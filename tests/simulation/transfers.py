"""What one life of a process gives and takes of snapshots: the real room, and what its actor does, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from queen_node.group import Group
from queen_node.snapshots import Install, Snapshots, Stage
from raft.snapshot_messages import Refusal, Refused, Wanted, decode
from tests.simulation.hardware import Hardware
from tests.simulation.world import MS, SECOND, World

if TYPE_CHECKING:
    from tests.simulation.process import Process

STEP_US: Final = MS  # of work, a chunk or so


class SnapshotWord(NamedTuple):
    """What a node says to another about a snapshot of a group."""

    sender: int
    life: int
    data: bytes


class Transfers:
    """Drives `Snapshots` for one process."""

    def __init__(
        self, world: World, process: Process, new_snapshots: Callable[..., Snapshots], hardware: Hardware,
        chunk_bytes: int,
    ) -> None:
        self._world, self._process, self._hardware = world, process, hardware
        dice = world.dice(f"transfers {process.node_id} {process.number}")
        self.room = new_snapshots(
            hardware.engine, process.incarnations, groups=self._group,
            new_id=lambda: dice.randbytes(16), now_s=process.now_s, chunk_bytes=chunk_bytes)
        self._works_at_us = 1 << 62
        self._flushing = False

    def start(self) -> None:
        """The process begins: what an earlier one left is removed."""
        if self._process.incarnations.leftovers():
            self._world.reached("leftovers of a snapshot found at a start")
        self._wake()

    def hear(self, word: SnapshotWord) -> None:
        """A word of another node."""
        self.room.hear(word.sender, word.life, word.data, self._process.now_s)
        self._wake()

    def send_to(self, life: int, peer: int) -> None:
        """A member of a group needs a snapshot."""
        self.room.send_to(life, peer, self._process.now_s)
        self._wake()

    def log_told(self, life: int, index: int) -> None:
        """A group's log says on disk that it starts behind this entry."""
        self.room.log_told(life, index)
        self._wake()

    def _group(self, life: int) -> Group | None:
        driver = self._process.groups.get(life)
        return None if driver is None else driver.group

    def _wake(self, delay_us: int = 0) -> None:
        at_us = self._world.now_us + max(delay_us, STEP_US)
        if at_us < self._works_at_us:
            self._works_at_us = at_us
            self._process.later(at_us - self._world.now_us, self._work, at_us)

    def _work(self, at_us: int) -> None:
        if at_us != self._works_at_us:
            return
        self._works_at_us = 1 << 62
        wait_s = self.room.work(self._process.now_s)
        self._carry_out()
        if wait_s is not None:
            self._wake(round(wait_s * SECOND))

    def _carry_out(self) -> None:
        room, process = self.room, self._process
        for peer, life, data in room.outgoing:
            self._note(data)
            process.tell_snapshot(peer, SnapshotWord(process.node_id, life, data))
        room.outgoing.clear()
        events, room.events = room.events, []
        for life, event in events:
            process.groups[life].inbox.put(event)
            self._wake()
        if room.wants_flush and not self._flushing:
            self._flushing = True
            process.later(self._hardware.fsync_us(), self._flushed, room.begin_flush())
        self._perhaps_crash()

    def _flushed(self, waited: list[tuple[Install, Stage]]) -> None:
        self._flushing = False
        self._hardware.engine.flush()
        self.room.flushed(waited)
        self._carry_out()
        self._wake()

    def _note(self, data: bytes) -> None:
        word = decode(data)
        if isinstance(word, Wanted) and word.again and word.number > 1:
            self._world.reached("a snapshot went on after a loss")
        elif isinstance(word, Refused) and word.reason is Refusal.NOT_NEEDED:
            self._world.reached("a snapshot came to a member that was ahead of it")

    def _perhaps_crash(self) -> None:
        planned = self._hardware.in_install
        if planned is not None and any(self.room.stage_of(life) is planned[0] for life in self._process.groups):
            self._hardware.in_install = None
            self._world.after(0, planned[1])
