"""What a crash now would cost: the entries to be replayed."""

from __future__ import annotations

import trio

REPLAY_COMMANDS_MAX = 20_000  # M-2
REPLAY_BYTES_MAX = 16 << 20


class Debt:
    """What would have to be replayed after a crash now: the keeper pays it with a flush (M-2).

    since_s: of the first write that is not flushed. began: there is one. full: it must be paid now. entries: applied
    since the start.
    """

    __slots__ = ("began", "bytes", "commands", "entries", "full", "since_s")

    def __init__(self) -> None:
        self.entries = 0
        self.clear()

    def clear(self) -> None:
        """Everything so far is about to be flushed."""
        self.commands = self.bytes = 0
        self.since_s = 0.0
        self.began, self.full = trio.Event(), trio.Event()

    def add(self, commands: int, size: int) -> None:
        """An entry was applied."""
        self.entries += 1
        self.commands += commands
        self.bytes += size
        if not self.began.is_set():
            self.since_s = trio.current_time()
            self.began.set()
        if self.commands >= REPLAY_COMMANDS_MAX or self.bytes >= REPLAY_BYTES_MAX:
            self.full.set()
