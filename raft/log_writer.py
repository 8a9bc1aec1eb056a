"""The actor that writes the log: all that waits becomes one batch, one write and one fsync, while the next batch
gathers (M-14).

What to write where is decided in `wal`; the disk's work is done by a hand, which is the place where a process, or
nothing at all, stands for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import trio

from raft.clock import ClockReading
from raft.wal import GroupWrite, LogFailed, Wal
from raft.wal_hand import Hand

INBOX_MAX: Final = 4096
BATCH_WRITES_MAX: Final = 4096
BATCH_BYTES_MAX: Final = 8 << 20  # one write may be larger, and then goes alone
MARK_AFTER_S: Final = 0.1  # M-12
CLOCKS_EVERY_S: Final = 10.0  # M-22

Report: TypeAlias = Callable[[], None]


class LogObserver(Protocol):
    """Hears the log writer's figures, for metrics."""

    def wrote(self, write_count: int, entry_count: int, data_bytes: int, seconds: float) -> None:
        """A batch is durable. seconds: from its hand-over to being told."""

    def tidied(self, seconds: float) -> None:
        """A segment was begun, or some were removed."""


class Unobserved:
    """Hears the figures and forgets them."""

    def wrote(self, write_count: int, entry_count: int, data_bytes: int, seconds: float) -> None:
        pass

    def tidied(self, seconds: float) -> None:
        pass


class LogWriter:
    """One a node. Groups submit writes; each is reported, in order of submission, once it is durable."""

    def __init__(
        self,
        wal: Wal,
        hand: Hand,
        read_clocks: Callable[[], ClockReading],
        observer: LogObserver | None = None,
        *,
        later: Callable[[Callable[[], None]], None] | None = None,
        inbox_max: int = INBOX_MAX,
    ) -> None:
        """later: calls what it is given soon, when other groups have submitted too what they are about to submit. What
        waits by then is one batch; without it, and after a batch that was one write, who finds nothing on its way
        begins a batch alone."""
        self._wal = wal
        self._hand = hand
        self._read_clocks = read_clocks
        self._observer = observer or Unobserved()
        self._later = later or _at_once
        self._inbox_max = inbox_max
        self._waiting: deque[tuple[GroupWrite, Report]] = deque()
        self._room = trio.lowlevel.ParkingLot()  # of those who found the inbox full
        self._flight: list[tuple[GroupWrite, Report]] | None = None  # what the hand writes now; empty: a mark
        self._was_alone = False  # the last batch was one write
        self._is_running = self._is_stopping = self._has_ended = False
        self._began_s = self._worked_at_s = 0.0  # when the last batch began; when one last began or ended
        self._quiet = trio.CancelScope()  # of waiting for batches, until a mark may be due

    @property
    def wal(self) -> Wal:
        """For reads, releases and figures; they belong to the same thread."""
        return self._wal

    @property
    def waiting_count(self) -> int:
        """Writes in the inbox."""
        return len(self._waiting)

    def submit_nowait(self, write: GroupWrite, report: Report) -> None:
        """Write this with the next batch; `report` is called on the loop when it is durable, and must neither block nor
        raise.

        Raises trio.WouldBlock when the inbox is full, LogFailed when the log has stopped.
        """
        if self._is_stopping or self._has_ended:
            raise LogFailed("the log writer has stopped")
        if len(self._waiting) >= self._inbox_max:
            raise trio.WouldBlock
        self._waiting.append((write, report))
        if self._flight is None and len(self._waiting) == 1:
            # Where one group writes there is nobody to wait for: the disk works while it applies its last entry. From
            # push to delivery took 0.4 ms less.
            if self._was_alone:
                self._begin_waiting()
            else:
                self._later(self._begin_waiting)

    async def submit(self, write: GroupWrite, report: Report) -> None:
        """As submit_nowait, but waits while the inbox is full: a checkpoint only then. Cancelled while it waits, it
        wrote nothing. Raises LogFailed.
        """
        while True:
            try:
                self.submit_nowait(write, report)
                return
            except trio.WouldBlock:  # thousands of groups may write in one pass of the loop
                await self._room.park()

    def stop(self) -> None:
        """Take nothing more; `run` returns when all that was submitted is durable and the files are closed."""
        self._is_stopping = True
        if self._flight is None and not self._waiting:
            self._quiet.cancel()

    async def run(self) -> None:
        """Write until `stop`. Raises LogFailed when the disk failed: nothing of that batch was reported, nothing more
        will be.

        Cancelled, it ends after the batch that is being written.
        """
        self._is_running, self._worked_at_s = True, trio.current_time()
        try:
            while self._waiting or not self._is_stopping:
                # A scope a mark, and not one a batch: making and leaving it took as long as a batch's bookkeeping.
                with trio.CancelScope(deadline=self._mark_due_s()) as self._quiet:
                    await self._write_batches()
                if not self._is_stopping and not self._waiting and self._mark_due_s() <= trio.current_time():
                    await self._write_mark()
            if not self._wal.is_idle:
                await self._write_mark()  # names the last batch as synced: damage to it will be noticed
        except OSError as error:
            raise self._wal.fail(error) from error
        finally:
            self._has_ended = True
            self._room.unpark_all()
            await self._hand.aclose()
            self._wal.close()

    async def _write_batches(self) -> None:
        """Batch after batch, until all is written that came before `stop`."""
        self._begin_waiting()
        while self._flight is not None or not self._is_stopping:
            try:
                await self._hand.done()
            except trio.Cancelled:
                if self._flight is not None:  # what is on its way to the disk cannot be called back
                    await self._finish_begun()
                raise
            await self._finish()
            self._begin_waiting()

    async def _write_mark(self) -> None:
        self._begin([])
        await self._finish_begun()

    def _mark_due_s(self) -> float:
        return self._worked_at_s + (CLOCKS_EVERY_S if self._wal.is_idle else MARK_AFTER_S)

    def _begin_waiting(self) -> None:
        """Begin a batch of all that waits, within bounds, if none is on its way."""
        waiting = self._waiting
        if self._flight is not None or not waiting or not self._is_running or self._has_ended:
            return
        batch = [waiting.popleft()]
        size_bytes = _data_bytes(batch[0][0])
        while waiting and len(batch) < BATCH_WRITES_MAX:
            size_bytes += _data_bytes(waiting[0][0])
            if size_bytes > BATCH_BYTES_MAX:
                break
            batch.append(waiting.popleft())
        self._was_alone = len(batch) == 1
        self._begin(batch)

    def _begin(self, batch: list[tuple[GroupWrite, Report]]) -> None:
        self._began_s = self._worked_at_s = trio.current_time()
        self._hand.begin(self._wal.begin([write for write, _ in batch], self._read_clocks()))
        self._flight = batch
        mark_due_s = self._began_s + MARK_AFTER_S
        if self._quiet.deadline > mark_due_s:  # it was made when the log was idle
            self._quiet.deadline = mark_due_s

    async def _finish_begun(self) -> None:
        with trio.CancelScope(shield=True):
            await self._hand.done()
            await self._finish()

    async def _finish(self) -> None:
        """The hand has done the batch: report it. A checkpoint only when a segment is begun or removed."""
        batch, now_s = self._flight or [], trio.current_time()
        self._worked_at_s = now_s
        self._wal.finish()
        for _, report in batch:
            report()
        self._observer.wrote(
            len(batch),
            sum([len(write.entries) for write, _ in batch]),
            sum([_data_bytes(write) for write, _ in batch]),
            now_s - self._began_s,
        )
        steps = self._wal.tidy()
        if steps:
            with trio.CancelScope(shield=True):
                self._hand.begin(steps)
                await self._hand.done()
            self._observer.tidied(trio.current_time() - now_s)
        self._wal.tidied()
        self._flight = None
        # Not where the batch was begun: at the end of a pass no task may be woken.
        self._room.unpark(count=self._inbox_max - len(self._waiting))


def _at_once(act: Callable[[], None]) -> None:
    act()


def _data_bytes(write: GroupWrite) -> int:
    return sum([len(entry.data) for entry in write.entries])
