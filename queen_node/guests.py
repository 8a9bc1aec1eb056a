"""Calls that other nodes took and sent to this one because it leads: what is under way of them, so that one that comes
twice stands in the log once, and whom to tell when one comes to nothing.

A write is not answered here: the node that took it applies it too (M-42).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from queen_node.broker import Unavailable
from queen_node.parked_pops import WaitingPop
from queen_node.peer_calls import Forward, ForwardPop, Nothing, NotTaken, PeerCall

Tell = Callable[[int, PeerCall], None]  # (node, what)
SEEN_TICKS: Final = 20  # 2 s; what a network brings late or twice comes before, or its client has given up
SEEN_MAX: Final = 50_000  # ids, twice: some 10 MB when all forwarded calls of a node are one group's


class Guest:
    """A write of another node's client, until it is applied. Fields as of `calls.Pending`."""

    __slots__ = ("command", "node", "places", "request_id", "sent_term")

    def __init__(self, node: int, call: Forward) -> None:
        self.node, self.request_id, self.command, self.places = node, call.request_id, call.command, call.places
        self.sent_term = int(call.repeat)


class GuestSlot:
    """Where the group says what became of another node's pop, unless it shows in the log. Implements
    `slots.ResultSlot`.
    """

    __slots__ = ("_node", "_request_id", "_tell", "answered")

    def __init__(self, node: int, request_id: bytes, tell: Tell) -> None:
        self._node, self._request_id, self._tell = node, request_id, tell
        self.answered = False

    def answer(self, result: bytes | Unavailable) -> None:
        """Nothing was claimed, or nothing was tried."""
        if not self.answered:
            self.answered = True
            gone = NotTaken if isinstance(result, Unavailable) else Nothing
            self._tell(self._node, gone(self._request_id))


def pop_of(node: int, call: ForwardPop, now_s: float, tell: Tell) -> WaitingPop:
    """Another node's pop as this group takes it."""
    pop = WaitingPop(
        call.command, lease_id=call.lease_id, queue=call.queue, reader=(call.group, call.partition),
        slot=GuestSlot(node, call.request_id, tell), waits=call.waits, answer_by_s=now_s + call.wait_ms / 1000,
        is_guest=True)
    pop.sent_term = int(call.repeat)
    return pop


class Guests:
    """What a leader knows of other nodes' calls. reads: by the number of the read here, (node, its number there)."""

    __slots__ = ("_seen", "_seen_before", "_ticks", "pops", "reads", "writes")

    def __init__(self) -> None:
        self.writes: dict[bytes, Guest] = {}
        self.pops: dict[bytes, WaitingPop] = {}
        self.reads: dict[int, tuple[int, int]] = {}
        self._seen: set[bytes] = set()
        self._seen_before: set[bytes] = set()
        self._ticks = 0

    def is_late(self, call: Forward | ForwardPop) -> bool:
        """Whether this is the first sending of a call that is known already: the network brought it twice, or behind
        its own repeat. Only what says that it is a repeat is stepped over where it applies (CL-27); this one would be
        carried out again, which moved a timer that was pending or had fired.
        """
        request_id = call.request_id
        is_known = request_id in self._seen or request_id in self._seen_before
        self._seen.add(request_id)
        if len(self._seen) > SEEN_MAX:
            self._forget_seen()
        return is_known and not call.repeat

    def tick(self) -> None:
        """Raft's unit of time has passed."""
        self._ticks += 1
        if self._ticks % SEEN_TICKS == 0:
            self._forget_seen()

    def _forget_seen(self) -> None:
        self._seen_before, self._seen = self._seen, set()

    def clear(self) -> None:
        """This node leads no longer: whoever took the calls sends them elsewhere."""
        self.writes, self.pops, self.reads = {}, {}, {}
