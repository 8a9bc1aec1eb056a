"""The keeper: the durable point, the pace at which the log may shrink, the disk gate.

RocksDB tells nobody what it has flushed, so the durable point is ours to know (M-2): note how far each group has
applied, flush in a thread, and when that returns those indexes are durable, all groups with one flush.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import trio

from queen_node.crash_points import Reached
from queen_node.debt import Debt
from queen_node.disk_gate import OPEN, DiskGate, Gates, Step, give_ballast, lay_ballast, used_percent
from queen_node.state.rocks import RocksEngine

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

UNFLUSHED_MAX_S = 60.0  # M-2: not on a short beat, or a quiet node writes tens of thousands of tiny files a day
LOOK_EVERY_S = 1.0  # at the store's own backlog, while there are writes
DISK_LOOK_EVERY_S = 5.0


class Keeper:
    """Plain state, two loops. `release(life, index)`: the log no longer needs a group's entries up to there."""

    def __init__(
        self, engine: RocksEngine, applied: Callable[[], Mapping[int, int]], debt: Debt, *,
        release: Callable[[int, int], None], reached: Reached, directory: Path, gate: DiskGate,
        tell_gates: Callable[[Gates], None],
    ) -> None:
        """applied: applied index of every group, by life; tell_gates: hears the gates when one of them has changed."""
        self.gates = OPEN
        self.used_percent = 0.0  # of the data directory's volume
        self.durable_index: dict[int, int] = dict(applied())
        self._engine, self._applied, self._debt = engine, applied, debt
        self._release, self._reached = release, reached
        self._directory, self._gate, self._tell_gates = directory, gate, tell_gates

    async def run(self) -> None:
        """Until cancelled. Raises what a flush raises: a store that cannot be flushed stops the node."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_durable)
            nursery.start_soon(self._watch_disk)

    async def _keep_durable(self) -> None:
        debt = self._debt
        while True:
            await debt.began.wait()
            flush_by_s = debt.since_s + UNFLUSHED_MAX_S
            while not debt.full.is_set() and trio.current_time() < flush_by_s:
                with trio.move_on_after(LOOK_EVERY_S):
                    await debt.full.wait()
                self._look_at_store()
            await self.make_durable()
            self._look_at_store()

    def _look_at_store(self) -> None:
        self._set_gates(self.gates._replace(store_full=self._engine.full()))

    def _set_gates(self, gates: Gates) -> None:
        if gates != self.gates:
            self.gates = gates
            self._tell_gates(gates)

    async def make_durable(self) -> None:
        """Flush the store and let the log forget what the flush made durable."""
        applied = self._applied()
        self._debt.clear()
        self._reached("store.before_flush")
        await trio.to_thread.run_sync(self._engine.flush)
        self._reached("store.after_flush")
        for life, index in applied.items():
            if index > self.durable_index.get(life, 0):
                self.durable_index[life] = index
                self._release(life, index)

    async def _watch_disk(self) -> None:
        directory = self._directory
        while True:
            percent = self.used_percent = await trio.to_thread.run_sync(used_percent, directory)
            for step in self._gate.look(percent):
                if step is Step.CLOSED:
                    log.error(
                        "disk gate closed: only what frees space is taken; make room on the data directory's volume",
                        used_percent=round(percent, 1))
                elif step is Step.OPENED:
                    log.info("disk gate open", used_percent=round(percent, 1))
                elif step is Step.DRAINS_ONLY:
                    log.error(
                        "the volume is full but for a little: only what empties the system is taken",
                        used_percent=round(percent, 1))
                elif await trio.to_thread.run_sync(give_ballast, directory):
                    log.error("ballast given back: the volume is nearly full", used_percent=round(percent, 1))
            self._set_gates(self.gates._replace(
                storage_full=self._gate.closed, drains_only=self._gate.drains_only))
            if not self._gate.closed:
                await trio.to_thread.run_sync(lay_ballast, directory)
            await trio.sleep(DISK_LOOK_EVERY_S)
