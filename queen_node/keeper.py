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
from queen_node.disk_gate import OPEN, DiskGate, DiskReports, Fullest, Gates, Step, give_ballast, lay_ballast
from queen_node.scrub import Scrub
from queen_node.state.incarnations import Incarnations
from queen_node.state.rocks import RocksEngine
from raft.wal import Wal

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

UNFLUSHED_MAX_S = 60.0  # M-2: not on a short beat, or a quiet node writes tens of thousands of tiny files a day
LOOK_EVERY_S = 1.0  # at the store's own backlog, while there are writes
DISK_LOOK_EVERY_S = 2.0  # a full write of 100 MB a second is 200 MB between two looks


def release_log(wal: Wal, incarnations: Incarnations, life: int, through_index: int) -> None:
    """The store holds a group's entries up to there, durably: the log needs them no longer.

    Not while the log has not been told of a snapshot that the state was flipped to: writes from before it may still
    wait for a slow disk, and they continue a log that holds what they follow. The record that tells it frees the rest.
    """
    if incarnations.flipped(life) is None:
        wal.release(life, through_index)


class Keeper:
    """Plain state, three loops. `release(life, index)`: the log no longer needs a group's entries up to there."""

    def __init__(
        self, engine: RocksEngine, applied: Callable[[], Mapping[int, int]], debt: Debt, *,
        release: Callable[[int, int], None], reached: Reached, directory: Path, gate: DiskGate,
        tell_gates: Callable[[Gates], None], used_percent: Callable[[], float], scrub: Scrub,
    ) -> None:
        """applied: applied index of every group, by life; tell_gates: hears the gates when one of them has changed;
        used_percent: of the data directory's volume, asked in a thread."""
        self.gates = OPEN
        self.used_percent = 0.0
        self._reports = DiskReports()
        self.durable_index: dict[int, int] = dict(applied())
        self._engine, self._applied, self._debt = engine, applied, debt
        self._release, self._reached = release, reached
        self._directory, self._gate, self._tell_gates = directory, gate, tell_gates
        self._ask_used_percent, self._scrub = used_percent, scrub

    async def run(self) -> None:
        """Until cancelled. Raises what a flush raises: a store that cannot be flushed stops the node."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_durable)
            nursery.start_soon(self._watch_disk)
            nursery.start_soon(self._scrub.run)

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

    # --- the disk

    def hear_disk(self, node: int, used_percent: float) -> None:
        """Another node says how full its volume is."""
        is_news = used_percent != self._reports.of(node)
        self._reports.hear(node, used_percent, trio.current_time())
        if is_news:  # mostly it is not; whose word has aged shows at the next look at the own volume
            self._judge_disks()

    def disk_of(self, node: int) -> float | None:
        """How full another node's volume is; None: it never said."""
        return self._reports.of(node)

    def fullest(self) -> Fullest:
        """The fullest volume of the nodes that live."""
        return self._reports.fullest(self.used_percent, trio.current_time())

    def _judge_disks(self) -> None:
        fullest = self.fullest()
        for step in self._gate.look(fullest.used_percent):
            self._tell_step(step, fullest)
        self._set_gates(self.gates._replace(storage_full=self._gate.closed, drains_only=self._gate.drains_only))

    def _tell_step(self, step: Step, fullest: Fullest) -> None:
        used_percent = round(fullest.used_percent, 1)
        if step is Step.OPENED:
            log.info(step.value, used_percent=used_percent)
        elif fullest.node is not None:  # that node's own line asks for a person
            log.warning(f"{step.value}, the volume of another node is too full", node=fullest.node,
                        used_percent=used_percent)
        elif step is Step.CLOSED:
            log.error(
                "disk gate closed: only what frees space is taken; make room on the data directory's volume",
                used_percent=used_percent)
        else:
            log.error(
                "the volume is full but for a little: only what empties the system is taken",
                used_percent=used_percent)

    async def _watch_disk(self) -> None:
        directory, gate = self._directory, self._gate
        while True:
            percent = self.used_percent = await trio.to_thread.run_sync(self._ask_used_percent)
            self._judge_disks()
            if gate.gives_ballast(percent) and await trio.to_thread.run_sync(give_ballast, directory):
                log.error("ballast given back: the volume is nearly full", used_percent=round(percent, 1))
            if gate.may_lay_ballast(percent):
                await trio.to_thread.run_sync(lay_ballast, directory)
            await trio.sleep(DISK_LOOK_EVERY_S)
