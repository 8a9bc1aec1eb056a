"""Who may bring a body now: the bytes under way have a bound, and a full disk or store takes nothing that grows it.

Runs in the tasks of the calls, on the side of the door, so that the answer for nearly every call is there at once.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from queen_node.disk_gate import Gates
from queen_node.errors import OVERLOADED, STORAGE_FULL, Refused
from queen_node.metrics import Metrics

ADMIT_STEP_S = 0.05  # how often a held call looks whether there is room


class Admission:
    """The count of bytes under way, and what follows from it (CL-34).

    max_bytes: that may be under way before new ones are held, 0 switches that off; hold_s: how long they are held
    before 429, give or take a quarter. gates: of the node's disk and store, now.
    """

    def __init__(
        self, metrics: Metrics, *, max_bytes: int, hold_s: float, gates: Callable[[], Gates],
        jitter: Callable[[], float],
    ) -> None:
        self._metrics, self._max_bytes, self._hold_s = metrics, max_bytes, hold_s
        self._gates, self._jitter = gates, jitter
        self.bytes_under_way = 0

    def takes_changes(self) -> bool:
        """See `broker.Broker`."""
        return not self._gates().drains_only

    def takes_growth(self) -> bool:
        """See `broker.Broker`."""
        return not self._gates().storage_full

    def admits(self, body_bytes: int, *, grows: bool = True) -> bool:
        """See `broker.Broker`."""
        if (grows and self._gates().storage_full) or not self._has_room(body_bytes):
            return False
        self._metrics.admit_total["admitted"] += 1
        return True

    async def admit(self, body_bytes: int, *, grows: bool = True) -> None:
        """Hold a call until there is room for it; raises Refused (OVERLOADED, STORAGE_FULL)."""
        if self.admits(body_bytes, grows=grows):
            return
        if grows and self._gates().storage_full:
            raise Refused(STORAGE_FULL)
        give_up_at_s = trio.current_time() + self._hold_s * (0.75 + 0.5 * self._jitter())
        while not self._has_room(body_bytes):
            if trio.current_time() >= give_up_at_s:
                self._metrics.admit_total["refused"] += 1
                raise Refused(OVERLOADED)
            await trio.sleep(ADMIT_STEP_S)
        self._metrics.admit_total["held"] += 1

    def _has_room(self, body_bytes: int) -> bool:
        if self._gates().store_full:
            return False
        if not self._max_bytes or not self.bytes_under_way:  # one larger than the whole budget goes alone
            return True
        return self.bytes_under_way + body_bytes <= self._max_bytes
