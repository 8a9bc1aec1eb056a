"""Calls of this node's clients, from their arrival until the state answers them, and where they are meanwhile.

A call is known by its request id. It goes to whoever leads, this node or another; when that changes it goes again,
marked as a repeat, so that nothing is lost with a leader and nothing is done twice (CL-27, CL-140). It is answered when
this node applies it (M-42).
"""

from __future__ import annotations

from collections.abc import Iterator

from queen_node import commands
from queen_node.broker import Lane, Unavailable
from queen_node.parked_pops import WaitingPop
from queen_node.slots import ResultSlot

RESEND_S = 0.5  # after so long without a sign of it a call is sent again: frames are lost with their connection
RESEND_POP_S = 5.0  # the same for a pop, which may wait long: its leader's end or a lost connection show earlier
LEADERLESS_MAX_S = 8.0  # CL-140
GONE_KEPT_S = 60.0  # how late the claim of a pop may apply that was given up, and then be handed back
POP_PATIENCE_S = 1.0  # beyond its deadline, for a leader's word, with its majority's, that there was nothing (PA-7)


class Pending:
    """A command that waits to be proposed, or for its entry to be applied. Times: s of the monotonic clock."""

    __slots__ = (
        "came_at_s", "command", "give_up_at_s", "lane", "places", "request_id", "sent_at_s", "sent_term", "slot",
    )

    def __init__(
        self, command: bytes, slot: ResultSlot, *, give_up_at_s: float, places: tuple[bytes, ...] = (),
        lane: Lane = Lane.DRAINING,
    ) -> None:
        self.command, self.slot, self.lane = command, slot, lane
        self.give_up_at_s = give_up_at_s
        self.places = places  # where it may append, once a message
        self.request_id = commands.request_id_of(command)
        self.came_at_s = self.sent_at_s = 0.0
        self.sent_term = 0  # in which it was proposed, or sent to a leader, last; 0: it never was


class PendingRead:
    """A linearizable read: waits for its read index, then for the state to reach it. `pop`: an empty answer to confirm.
    """

    __slots__ = ("asked_at_s", "give_up_at_s", "now_us", "pop", "query", "slot")

    def __init__(self, query: bytes, slot: ResultSlot, *, give_up_at_s: float, pop: WaitingPop | None = None) -> None:
        self.query = query
        self.slot = slot
        self.give_up_at_s = give_up_at_s
        self.pop = pop
        self.asked_at_s = 0.0
        self.now_us = 0  # of the leader's group clock when it was confirmed: the instant that is read (KV-22)


class NobodyWaits:
    """The slot of a call that this node makes by itself. Implements `slots.ResultSlot`."""

    answered = False

    def answer(self, result: bytes | Unavailable) -> None:
        """It was done, or is in vain."""


class Calls:
    """The writes and pops of this node's clients, in the order in which they came."""

    def __init__(self) -> None:
        self.writes: dict[bytes, Pending] = {}
        self.pops: dict[bytes, WaitingPop] = {}

    def __bool__(self) -> bool:
        return bool(self.writes or self.pops)

    def take_all(self) -> list[ResultSlot]:
        """Whoever waits."""
        slots: list[ResultSlot] = [call.slot for call in self.writes.values()]
        slots += [pop.slot for pop in self.pops.values() if not pop.gone]
        self.writes, self.pops = {}, {}
        return slots

    def give_up(self, now_s: float, leaderless_since_s: float | None) -> None:
        """Answer writes whose deadline has passed, and pops that no leader told of theirs.

        What was never sent surely did not happen (G-D5). leaderless_since_s: None while a leader is known.
        """
        hopeless_s = None if leaderless_since_s is None else now_s - LEADERLESS_MAX_S
        for call in list(self.writes.values()):
            hopeless = hopeless_s is not None and not call.sent_term and (
                max(call.came_at_s, leaderless_since_s or 0.0) <= hopeless_s)
            if hopeless or call.give_up_at_s <= now_s:
                del self.writes[call.request_id]
                call.slot.answer(Unavailable("timeout" if call.sent_term else "no_leader"))
        for request_id, pop in list(self.pops.items()):
            if pop.gone:
                if pop.answer_by_s + GONE_KEPT_S <= now_s:
                    del self.pops[request_id]
            elif not pop.parked and pop.answer_by_s + POP_PATIENCE_S <= now_s:
                pop.gone = True
                pop.slot.answer(Unavailable("timeout" if pop.sent_term else "no_leader"))

    def silent(self, now_s: float) -> Iterator[Pending | WaitingPop]:
        """Those that were sent to a leader elsewhere so long ago that it may not have heard of them."""
        for call in self.writes.values():
            if call.sent_at_s <= now_s - RESEND_S:
                yield call
        for pop in self.pops.values():
            if not pop.gone and pop.sent_at_s <= now_s - RESEND_POP_S:
                yield pop
