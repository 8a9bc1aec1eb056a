"""Which groups have something due: one deadline a group in memory, looked at once a tick.

The wheel runs on the machine's monotonic clock, in µs of BOOTTIME; a group's deadline is on the group clock. The group
translates when it arms: `deadline - offset of its clock`, rounded to nothing, so that at the tick that tells it the
group clock has reached the deadline. What the wheel says is a hint: the group looks into its calendar, and the fire's
entry looks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

import trio

from raft.invariants import broken, must

REMIND_US = 1_000_000  # a group that was told and did not arm anew is told again: a hint may be lost, a timer not
DOZE_AFTER_S = 1.0  # without work
DOZE_S = 5.0
TOLD_A_TICK_MAX = 1000  # groups; the rest are told at the next tick, before those that became due later

G = TypeVar("G", bound=Hashable)


class TimerWheel(Generic[G]):
    """Deadlines of groups in slots of one tick. A tick at which nothing is due costs one look-up, however many wait.

    Whoever ticks and whoever arms call it on one thread. Times are µs of one monotonic clock.
    """

    def __init__(self, *, tick_us: int, now_us: int) -> None:
        must(tick_us > 0, "a wheel that does not turn", tick_us=tick_us)
        self._tick_us = tick_us
        self._slot = now_us // tick_us  # the slot that time is in; all lower ones are empty
        self._slots: dict[int, dict[G, int]] = {}
        self._armed: dict[G, tuple[int, int]] = {}  # group -> (deadline, its slot)
        self._due: deque[G] = deque()  # deadline passed, not told yet
        self._order: list[int] = []  # a heap of the slots that were filled, some of them empty again
        self._dozes_until_us: int | None = None
        self._rouse: Callable[[], None] = _nobody_dozes

    def __len__(self) -> int:
        """Groups that have a deadline."""
        return len(self._armed)

    def arm(self, group: G, at_us: int | None) -> None:
        """Set a group's one deadline; None: it has none. A deadline in the past is told at the next tick."""
        before = self._armed.pop(group, None)
        if before is not None:
            _deadline, slot = before
            groups = self._slots.get(slot)
            if groups is not None and groups.pop(group, None) is not None and not groups:
                del self._slots[slot]
        if at_us is not None:
            slot = max(at_us // self._tick_us, self._slot)
            self._armed[group] = at_us, slot
            groups = self._slots.get(slot)
            if groups is None:
                groups = self._slots[slot] = {}
                heappush(self._order, slot)
            groups[group] = at_us
            if self._dozes_until_us is not None and at_us < self._dozes_until_us:
                self._rouse()

    def earliest_us(self) -> int | None:
        """The earliest deadline, 0 if one has passed and was not told yet, None if there is none."""
        if self._due:
            return 0
        while self._order and self._order[0] not in self._slots:
            heappop(self._order)
        return min(self._slots[self._order[0]].values()) if self._order else None

    def doze(self, until_us: int, rouse: Callable[[], None]) -> None:
        """Whoever ticks does not look before `until_us`: `rouse` is called when a group arms for earlier."""
        self._dozes_until_us, self._rouse = until_us, rouse

    def wake(self) -> None:
        """Every tick is looked at again."""
        self._dozes_until_us, self._rouse = None, _nobody_dozes

    def due(self, now_us: int, at_most: int = TOLD_A_TICK_MAX) -> list[G]:
        """Groups whose deadline has passed (at_us <= now_us), earliest first.

        Each is armed again REMIND_US from now: whoever takes notice arms anew, whoever does not is reminded.
        """
        self._turn_to(now_us)
        told: list[G] = []
        while self._due and len(told) < at_most:
            group = self._due.popleft()
            armed = self._armed.get(group)
            if armed is not None and armed[0] <= now_us:  # else it armed anew in the meantime
                told.append(group)
                self.arm(group, now_us + REMIND_US)
        return told

    def _turn_to(self, now_us: int) -> None:
        """Move groups whose deadline has passed out of their slots."""
        slot_now = now_us // self._tick_us
        if slot_now - self._slot > len(self._slots):  # the machine slept: fewer slots are filled than went by
            passed = sorted(slot for slot in self._slots if slot < slot_now)
        else:
            passed = [slot for slot in range(self._slot, slot_now) if slot in self._slots]
        for slot in passed:
            self._due.extend(_by_deadline(self._slots.pop(slot)))
        self._slot = max(self._slot, slot_now)
        groups = self._slots.get(slot_now)
        if groups is not None:
            passed_now = {group: at_us for group, at_us in groups.items() if at_us <= now_us}
            self._due.extend(_by_deadline(passed_now))
            for group in passed_now:
                del groups[group]
            if not groups:
                del self._slots[slot_now]


def _nobody_dozes() -> None:
    broken("a wheel that does not doze was roused")


def _by_deadline(groups: dict[G, int]) -> list[G]:
    return sorted(groups, key=groups.__getitem__)


async def run_wheel(
    wheel: TimerWheel[G],
    *,
    tick_ms: int,
    clock_us: Callable[[], int],
    tell: Callable[[G], None],
    observe_late_s: Callable[[float], None],
    work_done: Callable[[], int] | None = None,
) -> None:
    """Tick for ever: tell groups that they are due, and how late each tick came.

    work_done: a number that moves while the node has work. While it stands still the ticks pause, until the earliest
    deadline and for DOZE_S at most: twenty wake-ups a second cost an idle node more than a hundredth of a core.

    clock_us: the clock that the wheel's deadlines are on; trio's clock only paces the ticks. The n-th tick is due n
    ticks after the start, so lateness of one never adds to the next; ticks that were missed are not made up for.
    tell: must not block.
    """
    tick_s = tick_ms / 1000
    start_s = trio.current_time()
    tick = 0
    seen, still_since_s = -1, start_s
    while True:
        if work_done is not None:
            done = work_done()
            if done != seen:
                seen, still_since_s = done, trio.current_time()
            elif trio.current_time() - still_since_s >= DOZE_AFTER_S:
                await _doze(wheel, clock_us)
        tick = max(tick + 1, int((trio.current_time() - start_s) / tick_s) + 1)
        due_s = start_s + tick * tick_s
        await trio.sleep_until(due_s)
        observe_late_s(trio.current_time() - due_s)
        for group in wheel.due(clock_us()):
            tell(group)


async def _doze(wheel: TimerWheel[G], clock_us: Callable[[], int]) -> None:
    """Sleep until the earliest deadline, for DOZE_S at most, and no longer than until a group arms for earlier."""
    now_us = clock_us()
    earliest_us = wheel.earliest_us()
    until_us = now_us + round(DOZE_S * 1_000_000)
    if earliest_us is not None:
        until_us = min(until_us, max(earliest_us, now_us))
    with trio.CancelScope(deadline=trio.current_time() + (until_us - now_us) / 1_000_000) as scope:
        wheel.doze(until_us, scope.cancel)
        try:
            await trio.sleep_forever()
        finally:
            wheel.wake()
