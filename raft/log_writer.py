"""The actor that writes the log: all that waits becomes one batch, one write and one fsync, while the next batch
gathers (M-14).

What to write where is decided in `wal`; the disk's work is done by a hand, which is the place where a process, or
nothing at all, stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import trio

from raft.clock import ClockReading
from raft.disk import Step
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
        inbox_max: int = INBOX_MAX,
    ) -> None:
        self._wal = wal
        self._hand = hand
        self._read_clocks = read_clocks
        self._observer = observer or Unobserved()
        self._inbox, self._receive = trio.open_memory_channel[tuple[GroupWrite, Report]](inbox_max)
        self._left: tuple[GroupWrite, Report] | None = None  # was taken from the inbox and did not fit the batch

    @property
    def wal(self) -> Wal:
        """For reads, releases and figures; they belong to the same thread."""
        return self._wal

    @property
    def waiting_count(self) -> int:
        """Writes in the inbox."""
        return self._receive.statistics().current_buffer_used

    def submit_nowait(self, write: GroupWrite, report: Report) -> None:
        """Write this with the next batch; `report` is called on the loop when it is durable, and must neither block nor
        raise.

        Raises trio.WouldBlock when the inbox is full, LogFailed when the log has stopped.
        """
        try:
            self._inbox.send_nowait((write, report))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LogFailed("the log writer has stopped") from error

    async def submit(self, write: GroupWrite, report: Report) -> None:
        """As submit_nowait, but waits while the inbox is full: a checkpoint only then. Cancelled while it waits, it
        wrote nothing. Raises LogFailed.
        """
        try:
            self.submit_nowait(write, report)
            return
        except trio.WouldBlock:
            pass  # thousands of groups may write in one pass of the loop
        try:
            await self._inbox.send((write, report))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LogFailed("the log writer has stopped") from error

    def stop(self) -> None:
        """Take nothing more; `run` returns when all that was submitted is durable and the files are closed."""
        self._inbox.close()

    async def run(self) -> None:
        """Write until `stop`. Raises LogFailed when the disk failed: nothing of that batch was reported, nothing more
        will be.

        Cancelled, it ends after the batch that is being written.
        """
        try:
            while (batch := await self._next_batch()) is not None:
                await self._write(batch)
            if not self._wal.is_idle:
                await self._write([])  # names the last batch as synced: damage to it will be noticed
        finally:
            self._receive.close()
            await self._hand.aclose()
            self._wal.close()

    async def _next_batch(self) -> list[tuple[GroupWrite, Report]] | None:
        """All that waits, within bounds. Empty: it is time for a mark. None: stopped, and nothing waits."""
        first, self._left = self._left, None
        if first is None:
            try:
                first = self._receive.receive_nowait()
            except trio.WouldBlock:
                with trio.move_on_after(CLOCKS_EVERY_S if self._wal.is_idle else MARK_AFTER_S):
                    try:
                        first = await self._receive.receive()
                    except trio.EndOfChannel:
                        return None
            except trio.EndOfChannel:
                return None
        return [] if first is None else self._with_those_behind(first)

    def _with_those_behind(self, first: tuple[GroupWrite, Report]) -> list[tuple[GroupWrite, Report]]:
        batch = [first]
        size_bytes = _data_bytes(first[0])
        while len(batch) < BATCH_WRITES_MAX:
            try:
                following = self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            size_bytes += _data_bytes(following[0])
            if size_bytes > BATCH_BYTES_MAX:
                self._left = following
                break
            batch.append(following)
        return batch

    async def _write(self, batch: list[tuple[GroupWrite, Report]]) -> None:
        writes = [write for write, _ in batch]
        await self._carry_out(self._wal.begin(writes, self._read_clocks()), batch)

        steps = self._wal.tidy()
        if steps:
            began_at = trio.current_time()
            await self._do(steps)
            self._observer.tidied(trio.current_time() - began_at)
        self._wal.tidied()

    async def _carry_out(self, steps: Sequence[Step], batch: list[tuple[GroupWrite, Report]]) -> None:
        began_at = trio.current_time()
        await self._do(steps)
        self._wal.finish()
        for _, report in batch:
            report()
        self._observer.wrote(
            len(batch),
            sum([len(write.entries) for write, _ in batch]),
            sum([_data_bytes(write) for write, _ in batch]),
            trio.current_time() - began_at,
        )

    async def _do(self, steps: Sequence[Step]) -> None:
        try:
            await self._hand.carry_out(steps)
        except OSError as error:
            raise self._wal.fail(error) from error


def _data_bytes(write: GroupWrite) -> int:
    return sum([len(entry.data) for entry in write.entries])
