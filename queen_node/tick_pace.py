"""Which groups a heartbeat period ticks, when more are awake than this machine can tick (M-30 to M-32).

3,000 groups ticked at once kept the loop for 270 ms. A frame between nodes takes several passes of the loop, so it
arrived later than an election timeout: elections without end, and nobody slept again. Therefore a period ticks only as
many as leave the loop in time; where more are awake each is ticked less often, on every node alike, and its time slows.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final, Generic, TypeVar

A = TypeVar("A")

QUOTA_MAX: Final = 512
QUOTA_MIN: Final = 16
QUOTA_STEP: Final = 16
LATE_SHARE: Final = 0.25  # of a period: a loop that comes so late has too much to do


class TickPace(Generic[A]):
    """The groups that are awake, by life: who was ticked longest ago is first."""

    __slots__ = ("_late_s", "awake", "quota")

    def __init__(self, period_s: float) -> None:
        self.awake: OrderedDict[int, A] = OrderedDict()
        self.quota = QUOTA_MAX
        self._late_s = period_s * LATE_SHARE

    def next(self, late_s: float) -> tuple[int, list[A]]:
        """A period has passed, and the loop has come to it so late: how many periods lie between two ticks of a group,
        and the groups that are ticked now."""
        if late_s > self._late_s:
            self.quota = max(QUOTA_MIN, self.quota // 2)
        else:
            self.quota = min(QUOTA_MAX, self.quota + QUOTA_STEP)
        periods = -(-len(self.awake) // self.quota)
        lives = list(islice(self.awake, self.quota))
        for life in lives:
            self.awake.move_to_end(life)
        return periods, [self.awake[life] for life in lives]
