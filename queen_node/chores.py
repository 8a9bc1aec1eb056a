"""What a group proposes by itself: fire timers, forget message ids, sweep rows whose lifetime is over.

When each is due is read from the state, so that a new leader goes on where the last one was; of each, one step at most
is on its way at a time. What the steps do stands in the state's rooms.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from queen_node.state import kv, push, timers
from queen_node.state.store import Store


class Chores(NamedTuple):
    """Which of them an entry holds."""

    fires: bool = False
    forgets: bool = False
    sweeps: bool = False


NOTHING_DUE: Final = Chores()


class _Flight(NamedTuple):
    """An entry of ours in the log's unapplied tail."""

    log_index: int
    chores: Chores


class ChoreList:
    """When which is due.

    firing: whether timers fire at all. sweep_every_us: what ends up to a whole multiple of it is swept together.
    sweep_pause_us: between two sweeps of a backlog, in which others are served.
    deadline_us: when the wheel must tell us, on the group clock; None: nothing is pending.
    """

    def __init__(self, *, firing: bool, sweep_every_us: int, sweep_pause_us: int) -> None:
        self._firing, self._sweep_every_us, self._sweep_pause_us = firing, sweep_every_us, sweep_pause_us
        self._flights: deque[_Flight] = deque()
        self._fire_wanted = False
        # Read from the state after each entry: hints that spare a look; the commands look for themselves.
        self._fire_at_us: int | None = None
        self._forget_at_us: int | None = None
        self._sweep_at_us: int | None = None
        self._sweep_from_us = 0  # not before then
        self.deadline_us: int | None = None

    def look(self, store: Store) -> None:
        """Read from the state when something is due next."""
        self._fire_at_us = timers.next_deadline_us(store)
        self._forget_at_us = push.next_ids_deadline_us(store)
        end_us, every_us = kv.next_end_us(store), self._sweep_every_us
        self._sweep_at_us = None if end_us is None else max(-(-end_us // every_us) * every_us, self._sweep_from_us)
        fire_at_us = self._fire_at_us if self._firing else None
        pending = [at_us for at_us in (fire_at_us, self._forget_at_us, self._sweep_at_us) if at_us is not None]
        self.deadline_us = min(pending, default=None)

    def next_sweep_us(self, now_us: int) -> int | None:
        """When a backlog that is being swept goes on, on the group clock: sooner than the wheel would tell. None: no
        such moment lies ahead."""
        goes_on = self._sweep_at_us == self._sweep_from_us and self._sweep_from_us > now_us
        return self._sweep_from_us if goes_on else None

    def want_fire(self) -> None:
        """The wheel says that a deadline may have passed, or an entry that fires did not get into the log."""
        self._fire_wanted = True

    def take_due(self, now_us: int) -> Chores:
        """What the next entry has to hold."""
        if not self._fire_wanted and not _passed(self.deadline_us, now_us):
            return NOTHING_DUE
        held = [flight.chores for flight in self._flights]
        fires = self._fire_wanted and self._firing and not any(chores.fires for chores in held)
        if fires:
            self._fire_wanted = False
        return Chores(
            fires and _passed(self._fire_at_us, now_us),
            _passed(self._forget_at_us, now_us) and not any(chores.forgets for chores in held),
            _passed(self._sweep_at_us, now_us) and not any(chores.sweeps for chores in held))

    def proposed(self, index: int, chores: Chores, now_us: int) -> None:
        """An entry with these is in the log."""
        self._flights.append(_Flight(index, chores))
        if chores.sweeps:
            self._sweep_from_us = now_us + self._sweep_pause_us

    def forget_flights(self) -> None:
        """Another leader's entries may stand where ours would have: a fire among those would hold back all fires."""
        self._flights.clear()

    def applied(self, index: int) -> None:
        """The entry at `index` was applied."""
        while self._flights and self._flights[0].log_index <= index:
            if self._flights.popleft().chores.fires:
                self._fire_wanted = True  # carries on at once while more are due; asked of the calendar, not assumed


def _passed(at_us: int | None, now_us: int) -> bool:
    return at_us is not None and at_us <= now_us
