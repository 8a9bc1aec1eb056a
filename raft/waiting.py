"""Three ways to wait: together with all that has the same period, for another task's ring, longer after each failure.
"""

from __future__ import annotations

from random import Random

import trio


def next_multiple_s(period_s: float) -> float:
    """When trio's clock shows the next multiple of the period: what waits until then wakes an idle node together."""
    return (trio.current_time() // period_s + 1) * period_s


class Bell:
    """Wakes the one task that waits for it. Rung before, the next wait ends at once; several rings are one."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Wake it in the loop's next pass."""
        self._rung.set()

    async def wait(self) -> None:
        """Until it rings."""
        await self._rung.wait()
        self._rung = trio.Event()


class Backoff:
    """Waits that double from `first_s` to `last_s`, each shortened at random by up to a half, so that nodes that failed
    together do not come back together."""

    __slots__ = ("_first_s", "_last_s", "_next_s", "_random")

    def __init__(self, random: Random, *, first_s: float, last_s: float) -> None:
        self._random, self._first_s, self._last_s = random, first_s, last_s
        self._next_s = first_s

    def take_s(self) -> float:
        """How long to wait after this failure."""
        wait_s, self._next_s = self._next_s, min(self._next_s * 2, self._last_s)
        return wait_s * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """It worked."""
        self._next_s = self._first_s
