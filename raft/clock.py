"""The group clock: the only time that decides what is due (M-20 to M-23).

It is µs since 1970, on the leader's BOOTTIME from an offset that is fixed for the term; no wall clock steers it.
Everybody else holds an estimate that is never ahead, so a change of leader makes things late by the age of the last
sample, and never early. Who leads, and how a sample travels, does not belong here.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from raft.invariants import must

US_PER_MS: Final = 1000
RATE_NUMERATOR: Final = 9995  # a follower's clock runs slow by 500 ppm: never ahead of a leader's oscillator
RATE_DENOMINATOR: Final = 10000
BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")


class ClockReading(NamedTuple):
    """One look at this machine's clocks: boot id (16 bytes), µs since boot, µs since 1970."""

    boot_id: bytes
    boottime_us: int
    wall_us: int


class TimeSource(Protocol):
    """This machine's clocks. boottime_us also runs while the machine sleeps; it counts from anew after a reboot, and
    then boot_id differs.
    """

    @property
    def boot_id(self) -> bytes: ...

    def boottime_us(self) -> int: ...

    def wall_us(self) -> int: ...


class SystemTime:
    """The real clocks.

    clock_name, is_exact: which clock stands for BOOTTIME, and whether it is the real one: the node says so once at boot
    when it is not.
    """

    def __init__(self) -> None:
        self.is_exact: Final = hasattr(time, "CLOCK_BOOTTIME")
        self.clock_name: Final = "CLOCK_BOOTTIME" if self.is_exact else "CLOCK_MONOTONIC"
        self._clock: Final = int(getattr(time, self.clock_name))
        try:
            self._boot_id = uuid.UUID(BOOT_ID_PATH.read_text().strip()).bytes
        except (OSError, ValueError):
            self._boot_id = os.urandom(16)  # unknown: each start counts as a reboot, and estimates are weak

    @property
    def boot_id(self) -> bytes:
        return self._boot_id

    def boottime_us(self) -> int:
        return time.clock_gettime_ns(self._clock) // 1000

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class ShiftedWallTime:
    """Test hook QUEEN_TEST_CLOCK_FILE: the wall clock is off by as many ms as the file says; it is read each time. No
    file: by nothing.
    """

    def __init__(self, real: TimeSource, offset_path: Path) -> None:
        self._real = real
        self._offset_path = offset_path

    @property
    def boot_id(self) -> bytes:
        return self._real.boot_id

    def boottime_us(self) -> int:
        return self._real.boottime_us()

    def wall_us(self) -> int:
        """Raises ValueError when the file holds no number."""
        try:
            text = self._offset_path.read_text()
        except FileNotFoundError:
            text = "0"
        return self._real.wall_us() + int(text.strip() or "0") * US_PER_MS


def read_clocks(source: TimeSource) -> ClockReading:
    return ClockReading(source.boot_id, source.boottime_us(), source.wall_us())


class Estimate(NamedTuple):
    """What a member thinks the group clock is. It travels with vote grants.

    is_weak: it rests on a wall clock, across a reboot. A member that knows nothing has a weak 0.
    """

    clock_us: int
    is_weak: bool


NOTHING_KNOWN: Final = Estimate(0, is_weak=True)


def elapsed_at_least_us(elapsed_us: int) -> int:
    """Of a stretch measured here, what has surely passed for any oscillator that differs by less than 500 ppm."""
    return max(0, elapsed_us) * RATE_NUMERATOR // RATE_DENOMINATOR


def estimate_after_restart(clock_us: int, clock_offset_us: int, recorded: ClockReading, now: ClockReading) -> Estimate:
    """What the log's last record of a group's clock says about now (M-22).

    clock_us: the group's clock when `recorded` was read; 0: unknown; below zero: of an older term's clock than the last
    entry's. clock_offset_us: 0 unless this node led then. Within one boot the wall clock does not count, and a clock
    that this node ran itself goes on exactly. Across a reboot only the wall clock knows how long the machine was off.
    """
    if not clock_us:
        return NOTHING_KNOWN
    if clock_us < 0:
        older = estimate_after_restart(-clock_us, 0, recorded, now)
        return older._replace(is_weak=True)
    if now.boot_id != recorded.boot_id:
        return Estimate(clock_us + max(0, now.wall_us - recorded.wall_us), is_weak=True)
    elapsed_us = now.boottime_us - recorded.boottime_us
    gone_us = max(0, elapsed_us) if clock_offset_us else elapsed_at_least_us(elapsed_us)
    return Estimate(clock_us + gone_us, is_weak=False)


def start_of_term_us(last_stamp_us: int, estimates: Sequence[Estimate], voters: int) -> int:
    """Where a new leader's clock starts (M-21, M-22). estimates: its own and those of all who granted it their vote;
    voters: how many the group has.

    The highest, but weak ones count only when all are weak, and then the highest that fewer than a majority of the
    voters can't have raised: machines whose wall clocks went forward while they rebooted must not make timers early
    (M-23). Of all three voters, or of all five, that is the lower median; of the three of five who elect it is the
    lowest, where the median would be that of two hasty ones.
    """
    must(len(estimates) > 0, "a leader without an estimate of its own")
    strong = [estimate.clock_us for estimate in estimates if not estimate.is_weak]
    if strong:
        return max(last_stamp_us, *strong)
    weak = sorted(estimate.clock_us for estimate in estimates)
    return max(last_stamp_us, weak[max(0, len(weak) - 1 - voters // 2)])


class GroupClock:
    """The clock of one group at one member, leading or not."""

    __slots__ = (
        "_base_boottime_us", "_base_us", "_boottime_us", "_is_weak", "_log_term_at_start", "_term", "last_stamp_us",
        "offset_us",
    )  # fmt: skip

    def __init__(
        self, source: TimeSource, estimate: Estimate = NOTHING_KNOWN, last_stamp_us: int = 0, log_term: int = 0,
    ) -> None:
        """estimate: for now, from `estimate_after_restart`. last_stamp_us: of the last entry that the log or the state
        holds. log_term: of the log's last entry; an estimate that is not weak is of that term's clock or a later one's.
        """
        self._boottime_us = source.boottime_us
        self._base_us, self._is_weak = estimate
        self._base_boottime_us = source.boottime_us()
        self._term, self._log_term_at_start = 0, log_term
        self.offset_us: int | None = None  # while leading
        self.last_stamp_us = last_stamp_us

    @classmethod
    def born(cls, source: TimeSource, clock_us: int) -> GroupClock:
        """The clock of a new group: group 0's when it was made, the stamp of that entry.

        Only weakly: a member that opens the group later, when it has a past, must not take group 0's clock for it. In a
        new group all are weak, and it starts from there: behind group 0 by the first election, with nothing due yet.
        """
        return cls(source, Estimate(clock_us, is_weak=True), clock_us)

    @classmethod
    def first_ever(cls, source: TimeSource) -> GroupClock:
        """The clock of a new cluster's group 0: the only moment at which a wall clock is believed.

        As weakly as after a reboot: of several founders the lower median counts, not one whose wall clock is ahead.
        """
        return cls(source, Estimate(source.wall_us(), is_weak=True))

    def lead(self, term: int, start_us: int) -> int:
        """This node leads `term` from now on, from `start_of_term_us`. Returns the offset, a constant of the term
        (M-20).
        """
        must(start_us >= self.last_stamp_us, "a term's clock starts before the last stamp",
             start_us=start_us, last_stamp_us=self.last_stamp_us)  # fmt: skip
        self._term = term
        self.offset_us = start_us - self._boottime_us()
        return self.offset_us

    def follow(self) -> None:
        """This node leads no longer: what was its clock is an estimate from now on."""
        if self.offset_us is not None:
            self._rest_on(self.now_us())
            self.offset_us = None

    def hear(self, term: int, clock_us: int) -> None:
        """The leader of `term` said that its clock was clock_us (its offset + its BOOTTIME), a moment ago."""
        if term < self._term:
            return
        self.follow()
        # Within a term a sample that was long under way may be older than what is known. Another leader's clock is
        # another clock.
        known_us = self.estimate().clock_us if term == self._term and not self._is_weak else self.last_stamp_us
        self._term = term
        self._rest_on(max(clock_us, known_us))

    def see_stamp(self, stamp_us: int) -> None:
        """An entry with this stamp was appended or applied: the group clock is not below it."""
        self.last_stamp_us = max(self.last_stamp_us, stamp_us)

    def now_us(self) -> int:
        """The group clock: exact at the leader, an estimate that is never ahead elsewhere. Never below the last stamp.
        """
        if self.offset_us is None:
            return self._estimate_us()
        now_us = self.offset_us + self._boottime_us()
        return now_us if now_us > self.last_stamp_us else self.last_stamp_us

    def stamp(self) -> int:
        """The leader's stamp for an entry that it appends now. Never below the last one."""
        must(self.offset_us is not None, "a stamp by a node that does not lead")
        self.last_stamp_us = self.now_us()
        return self.last_stamp_us

    def estimate(self) -> Estimate:
        """For a vote grant, and for the log's records (a weak one is not recorded: it would come back looking strong).
        """
        if self.offset_us is not None:
            return Estimate(self.now_us(), is_weak=False)
        return Estimate(self._estimate_us(), self._is_weak)

    def estimate_for(self, log_term: int) -> Estimate:
        """For the election of a leader whose log ends with an entry of log_term.

        Only weakly, if all that is known is of an older term's clock: when a majority rebooted meanwhile, that term's
        clock began behind this one, and what it handed out must not become due earlier for it (M-23).
        """
        estimate = self.estimate()
        return estimate._replace(is_weak=estimate.is_weak or self._is_older_than(log_term))

    def _is_older_than(self, log_term: int) -> bool:
        return max(self._term, self._log_term_at_start) < log_term

    def _estimate_us(self) -> int:
        elapsed_us = self._boottime_us() - self._base_boottime_us
        now_us = self._base_us + (elapsed_us * RATE_NUMERATOR // RATE_DENOMINATOR if elapsed_us > 0 else 0)
        return now_us if now_us > self.last_stamp_us else self.last_stamp_us

    def boottime_at(self, clock_us: int) -> int:
        """What this machine's BOOTTIME is when the group clock says so; elsewhere than at the leader as far as is known
        now."""
        if self.offset_us is not None:
            return clock_us - self.offset_us
        return self._boottime_us() + clock_us - self.now_us()

    def to_record(self, log_term: int) -> tuple[int, int]:
        """(clock_us, clock_offset_us) for a write to the log, of a log that ends with an entry of log_term then.

        (0, 0) when only a weak estimate is known: what was recorded before stays. Below zero when it is of an older
        term's clock: it must not come back as one of this log's.
        """
        estimate = self.estimate()
        if estimate.is_weak:
            return 0, 0
        if self._is_older_than(log_term):
            return -estimate.clock_us, 0
        return estimate.clock_us, self.offset_us or 0

    def _rest_on(self, clock_us: int) -> None:
        self._base_us, self._base_boottime_us, self._is_weak = clock_us, self._boottime_us(), False
