"""An entry in the making: what is in it so far, and which pops ride behind what it appends.

What waits to go in, and when an entry is made, is decided in `group.py`.
"""

from __future__ import annotations

from collections import Counter

from queen_node.calls import Pending
from queen_node.guests import Guest
from queen_node.parked_pops import ParkedPops, WaitingPop
from queen_node.places import queue_and_partition
from queen_node.state import consume

RIDERS_MAX = 64  # pops that ride behind the pushes of one entry (M-41)

Waiting = Pending | Guest | WaitingPop


class Draft:
    """places: where it appends -> how many messages; pops: with their places in the batch; repeats: places of calls
    that may have been applied before; room, room_bytes: for further calls.
    """

    __slots__ = ("_term", "batch", "places", "pops", "repeats", "room", "room_bytes")

    def __init__(self, term: int, room: int, room_bytes: int) -> None:
        self._term, self.room, self.room_bytes = term, room, room_bytes
        self.batch: list[bytes] = []
        self.repeats: list[int] = []
        self.places: dict[bytes, int] = {}
        self.pops: list[tuple[int, WaitingPop]] = []

    def add(self, command: bytes) -> None:
        """One of the group's own, always."""
        self.batch.append(command)

    def take(self, waiting: Waiting) -> None:
        """A call's. From now on it may be in the log."""
        place = len(self.batch)
        if waiting.sent_term:
            self.repeats.append(place)
        waiting.sent_term = self._term
        if isinstance(waiting, WaitingPop):
            self.pops.append((place, waiting))
        self.batch.append(waiting.command)
        self.room -= 1
        self.room_bytes -= len(waiting.command)

    def add_riders(self, parked: ParkedPops) -> None:
        """Parked pops of the places that this entry appends to, behind the appends: one commit serves both (M-41)."""
        riders = 0
        for packed, count in self.places.items():
            queue, partition = queue_and_partition(packed)
            for reader in parked.readers(queue):
                if reader[1] is None or reader[1] == partition:
                    for pop in parked.take(queue, reader, min(count, RIDERS_MAX - riders)):
                        self.take(pop)
                        riders += 1
            if riders >= RIDERS_MAX:
                return

    def tell_how_many_share(self, parked: ParkedPops) -> None:
        """Pops that leave their size to the broker are told with how many they share what is ready (PA-41)."""
        if not self.pops or len(self.pops) + len(parked) < 2:
            return
        batched = Counter((pop.queue, pop.reader) for _, pop in self.pops)
        for place, pop in self.pops:
            sharing = batched[pop.queue, pop.reader] + parked.count(pop.queue, pop.reader)
            self.batch[place] = consume.shared_among(pop.command, sharing)
