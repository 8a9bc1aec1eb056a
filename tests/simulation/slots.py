"""Where a call's result arrives, and how it gets to the client: the connection between a client and a process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, TypeAlias

from queen_node.answers import Rendered, read_result
from queen_node.broker import Unavailable
from tests.simulation.world import SECOND

NODE_TIMEOUT_US: Final = 2 * SECOND  # the node's own limit of a call

Result: TypeAlias = bytes | Unavailable | None  # None: the connection broke, or the client gave up


class CallSlot:
    """A `ResultSlot`. deliver: called once, with the result. ended: told when nobody waits for it any more.

    withdraw, hand_back: what the door does when its client has gone before, or after, a pop was answered (PA-23).
    committed_before: for reads, what was committed when the read came. render: what makes a document of the result.
    """

    __slots__ = ("_deliver", "answered", "committed_before", "ended", "hand_back", "number", "render", "withdraw")

    def __init__(self, number: int, deliver: Callable[[Result], None]) -> None:
        self.number = number
        self._deliver = deliver
        self.answered = False
        self.committed_before = 0
        self.ended: Callable[[CallSlot], None] = _nobody
        self.withdraw: Callable[[], None] | None = None
        self.hand_back: Callable[[], None] | None = None
        self.render: Callable[[bytes], Rendered] = read_result

    def answer(self, result: bytes | Unavailable) -> None:
        """The first result counts."""
        if not self.answered:
            self.answered = True
            self.ended(self)
            self._deliver(result)

    def connection_broke(self) -> None:
        """The process died."""
        if not self.answered:
            self.answered = True
            self._deliver(None)


def numbers() -> Callable[[], int]:
    """Numbers for the slots of one run: they order what has no other order."""
    return count(1).__next__


def _nobody(_slot: CallSlot) -> None:
    """Nobody has the call in hand."""
