"""Linearizable reads of this node's clients: asked for, confirmed, served once the state is new enough (M-40).

Here: which of them is where. Not here: who confirms (`group.py`), what they read (`queries.py`).
"""

from __future__ import annotations

from queen_node.broker import Unavailable
from queen_node.calls import RESEND_S, PendingRead
from queen_node.parked_pops import WaitingPop
from queen_node.slots import ResultSlot


class Reads:
    """By number. A guest's number is of the same count: a confirmation names a number and nothing else."""

    __slots__ = ("_asked", "_confirmed", "_last_number", "_unasked")

    def __init__(self) -> None:
        self._last_number = 0
        self._unasked: dict[int, PendingRead | None] = {}  # None: a guest's
        self._asked: dict[int, PendingRead] = {}
        self._confirmed: list[tuple[int, PendingRead]] = []  # from which index on

    def __bool__(self) -> bool:
        return bool(self._unasked or self._asked or self._confirmed)

    @property
    def has_unasked(self) -> bool:
        """Whether `take_unasked` gives anything."""
        return bool(self._unasked)

    def add(self, read: PendingRead) -> None:
        """A read begins."""
        self._last_number += 1
        self._unasked[self._last_number] = read

    def number_for_guest(self) -> int:
        """The number of another node's read, to be asked for with ours."""
        self._last_number += 1
        self._unasked[self._last_number] = None
        return self._last_number

    def take_unasked(self, now_s: float) -> list[int]:
        """Numbers to ask for now."""
        numbers = list(self._unasked)
        for number, read in self._unasked.items():
            if read is not None:
                read.asked_at_s = now_s
                self._asked[number] = read
        self._unasked = {}
        return numbers

    def ask_again(self) -> None:
        """Whoever was asked leads no longer. Guests ask by themselves, pops go to the next leader as pops."""
        waiting = {**self._asked, **self._unasked}
        self._unasked = {number: read for number, read in waiting.items() if read is not None and read.pop is None}
        self._asked = {}
        self._confirmed = [row for row in self._confirmed if row[1].pop is None]

    def ask_silent_again(self, now_s: float) -> None:
        """Those that a leader elsewhere has not answered: a frame may be lost."""
        for number, read in list(self._asked.items()):
            if read.asked_at_s <= now_s - RESEND_S:
                self._unasked[number] = self._asked.pop(number)

    def confirmed(self, number: int, index: int, now_us: int) -> None:
        """This read may be served once the state has reached `index`, at the leader's time `now_us`. A second
        confirmation does nothing."""
        read = self._asked.pop(number, None) or self._unasked.pop(number, None)
        if read is not None:
            read.now_us = now_us
            self._confirmed.append((index, read))

    def take_servable(self, applied_index: int) -> list[PendingRead]:
        """Reads for which the state is new enough."""
        if not self._confirmed:
            return []
        servable = [read for index, read in self._confirmed if index <= applied_index]
        if servable:
            self._confirmed = [row for row in self._confirmed if row[0] > applied_index]
        return servable

    def give_up(self, now_s: float) -> list[WaitingPop]:
        """Refuse those whose deadline has passed: a read changes nothing. The pops among them."""
        pops = []
        for reads in (self._unasked, self._asked):
            for number, read in list(reads.items()):
                if read is not None and read.give_up_at_s <= now_s:
                    del reads[number]
                    read.slot.answer(Unavailable("no_leader"))
                    if read.pop is not None:
                        pops.append(read.pop)
        return pops

    def take_all(self) -> list[ResultSlot]:
        """Whoever waits."""
        waiting = [read for read in (*self._unasked.values(), *self._asked.values()) if read is not None]
        waiting += [read for _, read in self._confirmed]
        self._unasked, self._asked, self._confirmed = {}, {}, []
        return [read.slot for read in waiting]
