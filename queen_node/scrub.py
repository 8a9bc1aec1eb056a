"""Reads all that this node has on disk again, at a bounded pace, to find damage before it is needed (CL-125, CL-128).

The sealed segments of the log, record by record, and every row of the store, with the checksum of each block. (Filters
of the store are not looked at: a bad one only makes reads slow.) What is found is told once, with the file's name, and
the node is not ready from then on: it goes on, but must be replaced. Not here: damage that a call meets, and that a
start meets (`opening`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
import trio

import queen_node
from queen_node.metrics import Metrics
from queen_node.scrub_process import DAMAGED, SLICE_BYTES, SLICE_ROWS_MAX, pause_s
from queen_node.state.rocks import StoreDamaged
from raft.disk import FileDisk
from raft.wal_format import Damaged
from raft.wal_scrub import check_segment

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Segments(Protocol):
    """The log, as far as its sealed segments go; `raft.wal.Wal`."""

    def sealed_segments(self) -> Sequence[int]:
        """Numbers of those that must be on disk now."""
        ...


class Pace(NamedTuple):
    """every_s: from the end of one round to the next. rows_a_s: of the store, or records of the log. 0: never."""

    every_s: float
    rows_a_s: int


class Scrub:
    """See the module. damage: what was found; empty while nothing was."""

    def __init__(
        self, segments: Segments, *, log_directory: Path, identity: bytes, store_directory: Path, pace: Pace,
        metrics: Metrics,
    ) -> None:
        """identity: of the log."""
        self.damage = ""
        self._segments, self._log_directory, self._identity = segments, log_directory, identity
        self._store_directory, self._pace, self._metrics = store_directory, pace, metrics

    async def run(self) -> None:
        """Until cancelled, or until damage was found; returns at once when it is switched off."""
        if not self._pace.every_s or not self._pace.rows_a_s:
            return
        try:
            while True:
                await trio.sleep(self._pace.every_s)
                await self._check_log()
                await self._check_store()
                self._metrics.scrub_rounds += 1
        except (Damaged, StoreDamaged, OSError) as error:
            self.damage = str(error)
            self._metrics.storage_damaged = 1
            log.error("what is on disk is not what was written: this node must be replaced from its peers",
                      error=self.damage)

    async def _check_log(self) -> None:
        for segment in self._segments.sealed_segments():
            disk = FileDisk()  # of this thread; the log's own belongs to the loop
            records = check_segment(disk, str(self._log_directory), segment, self._identity)
            try:
                size_bytes = 1
                while size_bytes:
                    rows, size_bytes = await trio.to_thread.run_sync(_take, records, self._slice_rows)
                    await trio.sleep(pause_s(rows, size_bytes, self._pace.rows_a_s))
            except FileNotFoundError:
                if segment in self._segments.sealed_segments():  # else nobody needs it any more
                    raise
            finally:
                disk.close()

    @property
    def _slice_rows(self) -> int:
        return min(SLICE_ROWS_MAX, self._pace.rows_a_s)

    async def _check_store(self) -> None:
        """In a process of its own: see `state.rocks_check`."""
        search = os.pathsep.join(filter(None, (
            str(Path(queen_node.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))))
        ended: subprocess.CompletedProcess[bytes] = await trio.run_process(
            [sys.executable, "-P", "-m", "queen_node.scrub_process", str(self._store_directory),
             str(self._pace.rows_a_s)],
            capture_stdout=True, capture_stderr=True, check=False, env={**os.environ, "PYTHONPATH": search})
        if ended.returncode == DAMAGED:
            raise StoreDamaged(ended.stdout.decode(errors="replace").strip())
        if ended.returncode:
            log.warning("the store could not be read again: it is tried with the next round",
                        exit_code=ended.returncode, said=ended.stderr.decode(errors="replace")[-500:])


def _take(records: Iterator[int], rows_max: int) -> tuple[int, int]:
    """Check some records of a segment: how many, and their bytes; 0 bytes at its end. Raises Damaged, OSError."""
    rows = size_bytes = 0
    while rows < rows_max and size_bytes < SLICE_BYTES and (length := next(records, 0)):
        rows += 1
        size_bytes += length
    return rows, size_bytes
