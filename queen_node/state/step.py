"""One entry while it is being applied: its stamp, the store, and what is to be told afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queen_node.state.rows import PartitionRow, QueueRow
from queen_node.state.store import Store
from raft.invariants import broken

if TYPE_CHECKING:
    from queen_node.state.tenants import Tenant

SEQUENCES_AN_ENTRY = 1 << 24  # far above 10,000 partitions appended to, each filed for 1,000 consumer groups


class Tally:
    """What an entry did, for the figures. Lost with the node; decides nothing."""

    __slots__ = (
        "acked", "cancelled", "dead_letters", "duplicates", "fire_lag_us", "fired", "handed_back",
        "leases_expired", "popped", "pushed", "scheduled", "timer_dead_letters", "timer_duplicates", "timer_failures",
        "timer_failures_transient",
    )

    def __init__(self) -> None:
        self.pushed = self.duplicates = self.popped = self.acked = self.dead_letters = 0
        self.leases_expired = self.handed_back = 0
        self.scheduled = self.cancelled = self.fired = self.timer_duplicates = 0
        self.timer_failures = self.timer_failures_transient = self.timer_dead_letters = 0
        self.fire_lag_us: list[int] = []


class Step:
    """The stamp (time, index, sequence), the store to read and write through, and the effects.

    Effects are hints and may be lost with their leader; a new leader finds the same in the store.
    """

    __slots__ = ("_sequence", "index", "now_us", "store", "tally", "tenants", "touched", "wakes")

    def __init__(self, store: Store, *, now_us: int, index: int) -> None:
        self.store = store
        self.now_us = now_us  # group clock, µs since 1970: the only time there is in here
        self.index = index
        self._sequence = 0
        self.wakes: dict[bytes, int] = {}  # queue name -> messages that became deliverable in it
        self.touched: dict[int, tuple[QueueRow, PartitionRow]] = {}  # partition id -> appended to by this command
        self.tenants: list[Tenant] = []  # that got a group by this entry: a node starts it
        self.tally = Tally()

    def sequence(self) -> int:
        """A number above all that were handed out before, in this entry and in all earlier ones: breaks ties."""
        self._sequence += 1
        if self._sequence >= SEQUENCES_AN_ENTRY:  # not `must`: it is called for each timer of a batch
            broken("an entry used up its sequence numbers", index=self.index)
        return self.index * SEQUENCES_AN_ENTRY + self._sequence

    def wake(self, queue: bytes, count: int) -> None:
        """`count` messages more can be delivered in `queue`: pops that wait there are worth another try (PA-21)."""
        self.wakes[queue] = self.wakes.get(queue, 0) + count
