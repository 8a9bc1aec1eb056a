"""A machine's clocks under a test's hand: they move only when they are told to."""

from __future__ import annotations

SECOND = 1_000_000
EPOCH = 1_700_000_000 * SECOND


class FakeMachine:
    """A machine's clocks, as a test sets them."""

    def __init__(self, boot: int = 1, boottime_us: int = 500 * SECOND, wall_us: int = EPOCH) -> None:
        self.boot_id = bytes([boot]) * 16
        self.now_us = boottime_us
        self.now_wall_us = wall_us

    def boottime_us(self) -> int:
        return self.now_us

    def wall_us(self) -> int:
        return self.now_wall_us

    def pass_time(self, us: int) -> None:
        self.now_us += us
        self.now_wall_us += us

    def reboot(self, off_for_us: int) -> None:
        self.boot_id = bytes([self.boot_id[0] + 1]) * 16
        self.now_us = 3 * SECOND
        self.now_wall_us += off_for_us
