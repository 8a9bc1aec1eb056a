"""Writes a process's log in virtual time: one batch at a time, durable after an fsync that takes as long as it is told.

The real log writer is a task on trio; this is the same loop without one, around the real `Wal`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import Final

from raft.clock import read_clocks
from raft.disk import Reached, Sync, WriteAt
from raft.group import LogWrite
from raft.log_writer import CLOCKS_EVERY_S, MARK_AFTER_S
from raft.wal import Wal
from tests.simulation.hardware import Hardware
from tests.simulation.world import SECOND, World

BATCH_WRITES_MAX: Final = 64


class LogHand:
    """One life of a log writer. written: hears of each batch that is durable; failed: of an fsync that failed; later:
    has something happen in the process, if it lives then.
    """

    def __init__(
        self, world: World, hardware: Hardware, wal: Wal, *, written: Callable[[list[LogWrite]], None],
        failed: Callable[[], None], later: Callable[..., None],
    ) -> None:
        self.wal = wal
        self._world, self._hardware, self._disk = world, hardware, hardware.disk
        self._written, self._failed, self._later = written, failed, later
        self._waiting: deque[LogWrite] = deque()
        self._busy = False
        self._quiet_turn = 0
        self._rest()

    def submit(self, write: LogWrite) -> None:
        """Write this with the next batch."""
        self._waiting.append(write)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_WRITES_MAX))]
        self._busy = True
        self._quiet_turn += 1
        steps = self.wal.begin([write.group_write for write in batch], read_clocks(self._hardware.clocks))
        write, sync = [step for step in steps if type(step) is not Reached]
        if type(write) is not WriteAt:
            raise AssertionError(f"a batch begins with {write}")
        self._disk.do(write)
        self._later(self._hardware.fsync_us(), self._synced, batch, sync, (write.path, write.position))

    def _synced(self, batch: list[LogWrite], sync: Sync, position: tuple[str, int]) -> None:
        hardware = self._hardware
        if hardware.fails_next:
            hardware.fails_next = False
            self.wal.fail(OSError(errno.EIO, "the simulated disk fails"))
            self._failed()
            return
        self._disk.do(sync)
        self.wal.finish()
        self._tidy()
        path, begin = position
        hardware.safe_bytes[path] = begin
        self._busy = False
        self._written(batch)
        if self._busy:
            return
        if self._waiting:
            self._begin()
        else:
            self._rest()

    def _tidy(self) -> None:
        steps = self.wal.tidy()
        if steps:
            self._world.reached("segment begun or removed")
            self._disk.carry_out(steps)
        self.wal.tidied()

    def _rest(self) -> None:
        """When nothing comes, name what is synced, and later the clocks (M-12, M-22)."""
        self._quiet_turn += 1
        seconds = CLOCKS_EVERY_S if self.wal.is_idle else MARK_AFTER_S
        self._later(round(seconds * SECOND), self._mark, self._quiet_turn)

    def _mark(self, turn: int) -> None:
        if turn == self._quiet_turn and not self._busy:
            self._begin()
