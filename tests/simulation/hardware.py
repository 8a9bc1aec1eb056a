"""A machine: its clocks and its disk, which outlive the process and, as far as they do in the world, the power.

The disk is a fake that keeps what was written apart from what was synced (`FakeDisk`); here it gets slow, stuck,
failing and forgetful. What is written on it, and what that means, is the log's and the store's business.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from queen_node.ids import IdMint
from queen_node.snapshots import Stage
from raft.messages import NUMBER_MAX
from tests.simulation.world import EPOCH_US, MS, SECOND, World
from tests.support.fake_disk import FakeDisk
from tests.support.memory_engine import MemoryEngine

PPM: Final = 1_000_000
BOOT_AGE_US: Final = 5 * SECOND  # how long a machine had been up when its node started
FLIP_TRIES_MAX: Final = 8


class Clocks:
    """A `TimeSource` in virtual time: BOOTTIME that drifts, and a wall clock that jumps."""

    def __init__(self, world: World, dice: Random, drift_ppm: int) -> None:
        self._world, self._dice, self._rate = world, dice, PPM + drift_ppm
        self.wall_offset_us = dice.randint(-SECOND, SECOND)
        self._booted_at_us = -BOOT_AGE_US
        self.boot_id = dice.randbytes(16)

    def boottime_us(self) -> int:
        return (self._world.now_us - self._booted_at_us) * self._rate // PPM

    def wall_us(self) -> int:
        return EPOCH_US + self._world.now_us + self.wall_offset_us

    def virtual_delay_us(self, boottime_us: int) -> int:
        """How long from now until this machine's BOOTTIME shows `boottime_us`, rounded up."""
        return max(0, -(-(boottime_us - self.boottime_us()) * PPM // self._rate) + 1)

    def reboot(self) -> None:
        """The machine was off: BOOTTIME counts from anew."""
        self._booted_at_us = self._world.now_us
        self.boot_id = self._dice.randbytes(16)


class Hardware:
    """One machine. slow: factor on every fsync. stuck_until_us: none ends before. fails_next: the next one fails.
    while_writing: how many sectors, and what is called once, in the middle of the next fsync of so many. in_install:
    what is called once, and at which stage of the next install of a snapshot.

    safe_bytes: of each log file, the bytes that a later synced record names as synced: a bad record there is damage
    and not a torn tail (M-12). promised: what the process told its group to be on this disk, for `rules`.
    """

    def __init__(self, world: World, node_id: int, drift_ppm: int, fsync_us: tuple[int, int], *, life: int = 0) -> None:
        """life: how many disks the node has lost before."""
        self._dice = world.dice(f"hardware {node_id}" + (f" {life}" if life else ""))
        self._number_dice = world.dice(f"process numbers {node_id} {life}")
        self.clocks = Clocks(world, self._dice, drift_ppm)
        self.disk = FakeDisk()
        self.engine = MemoryEngine()
        self.identity = self._dice.randbytes(16)
        self.slow = 1
        self.stuck_until_us = 0
        self.fails_next = False
        self.while_writing: tuple[int, Callable[[], None]] | None = None
        self.in_install: tuple[Stage, Callable[[], None]] | None = None
        self.is_damaged = False
        self.safe_bytes: dict[str, int] = {}
        self._world, self._fsync_us = world, fsync_us

    def next_process_number(self) -> int:
        """Of a process that begins here: no other process of the node's ever had it."""
        return self._number_dice.randrange(NUMBER_MAX)

    def mint(self) -> IdMint:
        """Ids of a process on this machine."""
        return IdMint(wall_ns=lambda: self.clocks.wall_us() * MS, random_bytes=self._dice.randbytes)

    def fsync_us(self) -> int:
        """An fsync begins: how long it takes."""
        usual_us = self._dice.randint(*self._fsync_us) * self.slow
        lasts_us = max(usual_us, self.stuck_until_us - self._world.now_us)
        if self.while_writing is not None and len(self.disk.unsynced()) >= self.while_writing[0]:
            self._world.after(lasts_us // 2, self.while_writing[1])
            self.while_writing = None
        return lasts_us

    def process_died(self) -> None:
        """What was written stays, synced or not; the store keeps any prefix of its batches since the last flush (M-82).
        """
        self.disk = self.disk.copy()
        self._store_crashes()

    def power_lost(self) -> None:
        """Of unsynced sectors any may have reached the disk; names that were not synced may have been kept."""
        unsynced = self.disk.unsynced()
        kept_share = self._dice.choice((0.0, 0.5, 0.9, 1.0))
        kept = [place for place in unsynced if self._dice.random() < kept_share]
        if 0 < len(kept) < len(unsynced):
            self._world.reached("torn write")
        self.disk = self.disk.after_power_loss(kept, names_kept=self._dice.random() < 0.5)
        self._store_crashes()

    def flip_bit(self) -> str | None:
        """Damage a bit of what is synced and named so; returns where, None if there is nothing yet."""
        for _ in range(FLIP_TRIES_MAX):
            places = sorted((path, size) for path, size in self.safe_bytes.items() if path in self.disk.files and size)
            if not places:
                return None
            path, size = self._dice.choice(places)
            position = self._dice.randrange(min(size, self.disk.size_bytes(path)))
            if self.disk.files[path].content[position]:
                self.disk.flip(path, position, self._dice.randrange(8))
                self.is_damaged = True
                return f"{path}:{position}"
        return None

    def _store_crashes(self) -> None:
        unflushed = len(self.engine.unflushed)
        kept = self._dice.choice((0, unflushed, self._dice.randint(0, unflushed)))
        if kept < unflushed:
            self._world.reached("store fell behind its log")
        self.engine = self.engine.crashed(kept)
