"""An actor's inbox: many senders, one reader that takes everything at once.

Not trio's memory channel, for two reasons. Reports of work under way (a write is on disk) always fit, while senders of
new work are held back at the bound: there are never more reports than accepted work. And the reader wants all that
waits in one step, because what it takes together becomes one log entry (0.11 µs an event; the channel takes 0.34).
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

from raft.invariants import must

E = TypeVar("E")


class Inbox(Generic[E]):
    """Holds events until its one reader takes them all. `bound`: how many may wait before senders of new work must."""

    __slots__ = ("_events", "_reader", "bound", "peak")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.peak = 0  # the most that ever waited at once, for the figures
        self._events: list[E] = []
        self._reader: trio.lowlevel.Task | None = None

    def __len__(self) -> int:
        return len(self._events)

    @property
    def full(self) -> bool:
        """Whether a sender of new work must hold back."""
        return len(self._events) >= self.bound

    def put(self, event: E) -> None:
        """Add an event and wake the reader. The caller of new work has looked at `full` in the same step."""
        self._events.append(event)
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    async def take_all(self) -> list[E]:
        """Everything that waits, at least one event; always a checkpoint."""
        if not self._events:
            must(self._reader is None, "two tasks read one inbox")
            self._reader = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._reader = None
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        else:
            await trio.lowlevel.checkpoint()
        events, self._events = self._events, []
        if len(events) > self.peak:
            self.peak = len(events)
        return events
