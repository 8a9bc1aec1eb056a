"""The place where one request's result arrives, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from queen_node.broker import Unavailable
from raft.invariants import must


class ResultSlot(Protocol):
    """Where a group puts a result, whoever waits for it and wherever."""

    @property
    def answered(self) -> bool: ...

    def answer(self, result: bytes | Unavailable) -> None: ...


class Slot:
    """One waiter, one result. An Event and a scope a request cost twice as much as the rest of the hand-over."""

    __slots__ = ("_result", "_waiter", "_watch")

    def __init__(self) -> None:
        self._result: bytes | Unavailable | None = None
        self._waiter: trio.lowlevel.Task | None = None
        self._watch: trio.CancelScope | None = None  # of the waiter, while it looks whether the client goes

    @property
    def answered(self) -> bool:
        """Whether the result is there."""
        return self._result is not None

    def answer(self, result: bytes | Unavailable) -> None:
        """Give the result. The first counts: a call that was given up may still be decided later."""
        if self._result is not None:
            return
        self._result = result
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)
            self._waiter = None
        elif self._watch is not None:
            self._watch.cancel()

    async def wait(self) -> bytes:
        """The result. Raises Unavailable when that is the result. A checkpoint only if it has to wait."""
        if self._result is None:
            must(self._waiter is None, "two tasks wait for one result")
            self._waiter = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._waiter = None
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        result = self._result
        if isinstance(result, Unavailable):
            raise result
        must(result is not None, "woken without a result")
        return result  # type: ignore[return-value]

    async def wait_watching(self, client_gone: Callable[[], Awaitable[None]], withdraw: Callable[[], None]) -> bytes:
        """The result of a long poll; if the client goes first, withdraw it and wait for what became of it (PA-23).

        The waiter itself watches: a task beside it, and its nursery, cost 50 us a poll.
        """
        if self._result is None:
            with trio.CancelScope() as self._watch:
                await client_gone()
            if self._result is None:
                withdraw()
        return await self.wait()
