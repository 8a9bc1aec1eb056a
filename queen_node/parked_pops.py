"""Pops that wait at the leader: whom a message serves first, who is told at the deadline that there was nothing.

A pop that cannot be served proposes nothing (CL-26); it stands here, in memory, and is lost with the leader: the node
that took the call sends it again. Plain code; the group asks and tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from queen_node import commands
from queen_node.slots import ResultSlot

Reader = tuple[bytes, bytes | None]  # consumer group, partition or None for any of the queue

WOKEN_BY_TIME_MAX = 8  # pops of one reader tried when a lease or a delay ends; the next follow when these are served


class WaitingPop:
    """A pop of this node's client, or of another node's at the leader. Times in seconds of the monotonic clock."""

    __slots__ = (
        "answer_by_s", "command", "gone", "in_lane", "is_guest", "lease_id", "parked", "queue", "reader", "request_id",
        "sent_at_s", "sent_term", "slot", "waits",
    )

    def __init__(
        self, command: bytes, *, lease_id: bytes, queue: bytes, reader: Reader, slot: ResultSlot, waits: bool,
        answer_by_s: float, is_guest: bool = False,
    ) -> None:
        self.command = command
        self.request_id = commands.request_id_of(command)
        self.is_guest = is_guest  # another node's: that node answers it when it applies the claim
        self.sent_term = 0  # as in `calls.Pending`
        self.sent_at_s = 0.0
        self.lease_id = lease_id
        self.queue = queue
        self.reader = reader
        self.slot = slot
        self.waits = waits  # False: try once
        self.answer_by_s = answer_by_s  # its deadline less the margin of PA-22: from then on it claims nothing
        self.parked = False
        self.in_lane = False  # it is about to be proposed
        self.gone = False  # the client left: what it claims is handed back


class ParkedPops:
    """All parked pops of one group, oldest first a reader."""

    def __init__(self) -> None:
        self._queues: dict[bytes, dict[Reader, deque[WaitingPop]]] = {}
        self._by_lease: dict[bytes, WaitingPop] = {}
        self._deadlines: list[tuple[float, int, WaitingPop]] = []
        self._chances: list[tuple[int, int, bytes, Reader]] = []  # when time alone makes something deliverable
        self._chance_of: dict[tuple[bytes, Reader], int] = {}  # the earliest of a reader; later ones need no place
        self._order = count()
        self.own_count = 0  # of them those of this node's clients

    def __len__(self) -> int:
        return len(self._by_lease)

    def park(self, pop: WaitingPop, chance_at_us: int | None) -> None:
        """Let `pop` wait. chance_at_us: group clock, when a lease or a delay ends that may serve it; None: unknown."""
        if pop.reader not in self._queues.setdefault(pop.queue, {}):
            self._queues[pop.queue][pop.reader] = deque()
        self._queues[pop.queue][pop.reader].append(pop)
        self._by_lease[pop.lease_id] = pop
        self.own_count += not pop.is_guest
        pop.parked = True
        if len(self._deadlines) > 2 * len(self._by_lease) + 64:  # most of them were served long ago
            self._deadlines = [row for row in self._deadlines if row[2].parked]
            heapify(self._deadlines)
        heappush(self._deadlines, (pop.answer_by_s, next(self._order), pop))
        if chance_at_us is not None:
            self.expect(pop.queue, pop.reader, chance_at_us)

    def expect(self, queue: bytes, reader: Reader, at_us: int) -> None:
        """From `at_us` (group clock) on it is worth looking again for this reader."""
        known = self._chance_of.get((queue, reader))
        if known is None or at_us < known:
            self._chance_of[queue, reader] = at_us
            heappush(self._chances, (at_us, next(self._order), queue, reader))

    def withdraw(self, lease_id: bytes) -> bool:
        """Forget a pop whose client left. False: it is not parked (any more)."""
        pop = self._by_lease.get(lease_id)
        if pop is None:
            return False
        self._remove(pop)
        return True

    def count(self, queue: bytes, reader: Reader) -> int:
        """How many pops of one reader wait."""
        return len(self._queues.get(queue, {}).get(reader, ()))

    def readers(self, queue: bytes) -> list[Reader]:
        """Who waits on a queue."""
        return list(self._queues.get(queue, ()))

    def take(self, queue: bytes, reader: Reader, at_most: int) -> Iterator[WaitingPop]:
        """The oldest pops of a reader, no longer parked. Their order is the order in which they are tried (PA-12)."""
        waiting = self._queues.get(queue, {}).get(reader)
        for _ in range(at_most):
            if not waiting:
                return
            pop = waiting[0]
            self._remove(pop)
            yield pop

    def take_expired(self, now_s: float) -> list[WaitingPop]:
        """Pops that must be answered empty now."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            pop = heappop(self._deadlines)[2]
            if pop.parked:
                self._remove(pop)
                expired.append(pop)
        return expired

    def take_chances(self, now_us: int) -> list[tuple[bytes, Reader]]:
        """Readers for whom time alone may have made something deliverable."""
        due: dict[tuple[bytes, Reader], None] = {}
        while self._chances and self._chances[0][0] <= now_us:
            at_us, _, queue, reader = heappop(self._chances)
            if self._chance_of.get((queue, reader)) == at_us:
                del self._chance_of[queue, reader]
            due[queue, reader] = None
        return list(due)

    def next_deadline_s(self) -> float | None:
        """When `take_expired` has something next, at the earliest."""
        while self._deadlines and not self._deadlines[0][2].parked:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def next_chance_us(self) -> int | None:
        """When `take_chances` has something next."""
        return self._chances[0][0] if self._chances else None

    def take_all(self) -> list[WaitingPop]:
        """Everyone, when the group stops or loses its leadership."""
        everyone = list(self._by_lease.values())
        for pop in everyone:
            self._remove(pop)
        return everyone

    def _remove(self, pop: WaitingPop) -> None:
        readers = self._queues[pop.queue]
        waiting = readers[pop.reader]
        if waiting[0] is pop:
            waiting.popleft()
        else:
            waiting.remove(pop)
        if not waiting:
            del readers[pop.reader]
            if not readers:
                del self._queues[pop.queue]
        del self._by_lease[pop.lease_id]
        self.own_count -= not pop.is_guest
        pop.parked = False
