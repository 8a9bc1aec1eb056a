"""M-20, M-21, M-23: stamps never fall along the log, and the group clock never runs ahead of real time by more than an
oscillator may: so no timer is early and no lease short, whatever the wall clocks do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.messages import Entry, EntryKind
from tests.simulation.shape import DRIFT_PPM_MAX
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.driver import GroupDriver

ROUNDING_US = 2


class ClockRule:
    """A leader's first look at its clock is the zero that later ones are measured from: that of the leader whose
    command is the first in the log. Nobody was promised anything by the clocks of those that led before, nor is by one
    that still takes itself for a leader: each term before that one is measured by itself.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._first_term = 0  # of the first command
        self._zeros: dict[int, tuple[int, int]] = {}  # by term: real time, group clock
        self._stamps: dict[int, int] = {}

    def looked(self, driver: GroupDriver) -> None:
        """At a leader's."""
        clock = driver.raft.clock
        if clock.offset_us is None:
            return
        now_us, clock_us = self._world.now_us, clock.now_us()
        term = min(driver.core.term, self._first_term or driver.core.term)
        zero_us, zero_clock_us = self._zeros.setdefault(term, (now_us, clock_us))
        elapsed_us = now_us - zero_us
        allowed_us = zero_clock_us + elapsed_us + elapsed_us * DRIFT_PPM_MAX // 1_000_000 + ROUNDING_US
        if clock_us > allowed_us:
            raise Broken(
                "M-23, the group clock is never ahead",
                f"node {driver.node_id}'s is {clock_us - allowed_us} µs ahead in term {driver.core.term}")

    def applied(self, entry: Entry, stamp_us: int) -> None:
        """Indexes come in order at the node that is first; what others replay is equal (state machine safety)."""
        index = entry.index
        if not self._first_term and entry.kind is EntryKind.COMMANDS:
            self._first_term = entry.term
        self._stamps.setdefault(index, stamp_us)
        before_us = self._stamps.get(index - 1, 0)
        if stamp_us < before_us:
            raise Broken("M-20, stamps never fall", f"entry {index} has {stamp_us}, the one before it {before_us}")
