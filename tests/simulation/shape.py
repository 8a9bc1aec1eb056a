"""What a run looks like: nodes, settings and the temper of its faults, all drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from queen_node import commands
from queen_node.group import GroupSettings
from raft.settings import Settings
from tests.simulation.world import MS, SECOND

CLOCK_CENTRE_PPM = 60
CLOCK_SPREAD_PPM = 240  # any two differ by less than the 500 ppm that the group clock allows for (M-21)
DRIFT_PPM_MAX = CLOCK_CENTRE_PPM + CLOCK_SPREAD_PPM
KEEP_IDS_S = 900
TENANTS_MAX = 5
TENANTS_CALLED_MAX = 3
NAPS = 0.4  # of the runs
NAP_US = (4 * SECOND, 12 * SECOND)
STEPS_GROW_EVERY_S = 5  # of a given length: long runs leave snapshots and fires no more steps than short ones do


@dataclass(frozen=True, slots=True)
class Shape:
    """Times in µs of virtual time, rates in calls a second.

    trouble: how often faults come, 1 being the usual. fsync_us, wire_us: the usual range of one. log_budget_bytes: of
    log that a node keeps for members that lag; chunk_bytes: of a snapshot's. tenants_begin_us: when each tenant comes,
    and with its first write its group; the first before there are faults; clients call the first called_tenants.
    fire_bounds: of one step, timers and bytes. fails_fires: some nodes refuse some, see `failing_fires`.
    naps: at times nobody calls a tenant, and its group falls asleep. pairs_a_word: of lists of groups that sleep.
    """

    node_ids: tuple[int, ...]
    raft: Settings
    group: GroupSettings
    tick_us: int
    wheel_us: int
    segment_bytes: int
    flush_every_us: int
    fsync_us: tuple[int, int]
    wire_us: tuple[int, int]
    length_us: int
    clients: int
    think_us: int
    delay_ms_max: int
    lease_s_max: int
    partitions: int
    trouble: float
    drift_ppm: tuple[int, ...]
    log_budget_bytes: int
    chunk_bytes: int
    tenants_begin_us: tuple[int, ...]
    founded_in_peace: bool
    spare_ids: tuple[int, ...]
    called_tenants: int
    naps: bool
    pairs_a_word: int
    fire_bounds: tuple[int, int]
    fails_fires: bool = False

    @property
    def all_ids(self) -> tuple[int, ...]:
        """Every node that there may be."""
        return (*self.node_ids, *self.spare_ids)

    @property
    def longest_delay_us(self) -> int:
        """Of any timer."""
        return max(self.delay_ms_max * MS, NAP_US[1] if self.naps else 0)


def draw_shape(dice: Random, more_dice: Random, sleep_dice: Random, *, length_s: float | None = None) -> Shape:
    """A run. length_s: for how long faults come; None: drawn, short. more_dice: for what came to be drawn later;
    sleep_dice: for what concerns groups that sleep.
    """
    steps = max(1, round((length_s or 0) / STEPS_GROW_EVERY_S))
    kept_bytes, kept_for_followers_bytes = more_dice.choice(((0, 0), (0, 500), (2000, 10_000), (2000, 1 << 20)))
    node_ids = dice.choice(((1, 2, 3),) * 7 + ((1, 2, 3, 4, 5),))
    election_ticks = dice.choice((5, 10))
    raft = Settings(
        election_ticks=election_ticks, heartbeat_ticks=dice.choice((1, 2)),
        quorum_ticks=election_ticks * dice.choice((1, 2)),
        max_append_bytes=dice.choice((200, 4096, 65536)), max_inflight_bytes=dice.choice((300, 65536, 1 << 20)),
        max_apply_bytes=dice.choice((1, 1 << 20)), pre_vote=dice.random() < 0.8,
        kept_bytes=kept_bytes, kept_for_followers_bytes=kept_for_followers_bytes,
    )
    batch_max_commands, batch_max_bytes = dice.choice((1, 3, 256)), dice.choice((500, 1 << 20))
    fire_bounds = dice.choice((5, 256)) * steps, dice.choice((60, 4 << 20)) * steps
    group = GroupSettings(
        batch_max_commands=batch_max_commands, batch_max_bytes=batch_max_bytes, firing=True,
        fire=fire_command(fire_bounds, commands.RulesOfFire()),
        forget_ids=commands.forget_ids(at_most=10, keep_at_least_s=KEEP_IDS_S),
        sweep_kv=commands.sweep_kv(at_most=8), sweep_every_us=SECOND, sweep_pause_us=20_000,
    )
    centre_ppm = dice.randint(-CLOCK_CENTRE_PPM, CLOCK_CENTRE_PPM)
    # Four disks, from fast to slow. A fire step is a commit: on slower ones the smallest would not keep up (G-M4).
    fsync_us = dice.choice(((50, 500), (500, 5 * MS), (4 * MS, 40 * MS), (15 * MS, 30 * MS)))
    length_us = round((dice.uniform(1.5, 5.0) if length_s is None else length_s) * SECOND)
    later_tenants = more_dice.choice((0, 1, TENANTS_CALLED_MAX - 1))
    naps = sleep_dice.random() < NAPS
    if naps and length_s is None:
        length_us += sleep_dice.randint(*NAP_US)
    idle_tenants = sleep_dice.choice((0, TENANTS_MAX - TENANTS_CALLED_MAX)) if naps else 0
    return Shape(
        node_ids=node_ids, raft=raft, group=group, tick_us=dice.choice((50, 100)) * MS,
        wheel_us=dice.choice((20, 50)) * MS, segment_bytes=dice.choice((4096, 16384, 65536)),
        flush_every_us=min(
            dice.choice((SECOND // 5, 2 * SECOND, 60 * SECOND)), more_dice.choice((SECOND // 5, 60 * SECOND))),
        fsync_us=fsync_us, wire_us=(100, dice.choice((300, 3 * MS, 20 * MS))),
        length_us=length_us,
        tenants_begin_us=(0, *(more_dice.randrange(length_us // 2) for _ in range(later_tenants + idle_tenants))),
        founded_in_peace=more_dice.random() < 0.8,
        spare_ids=(4,) if more_dice.random() < 0.4 and len(node_ids) == 3 else (),
        clients=dice.choice((2, 4, 6)), think_us=dice.choice((30, 100, 200)) * MS,
        delay_ms_max=dice.choice((300, 1500)), lease_s_max=dice.choice((1, 2)), partitions=dice.choice((1, 3)),
        trouble=dice.choice((0.0, 0.5, 1.0, 1.0, 2.0)),
        drift_ppm=tuple(centre_ppm + dice.choice((-1, 1, 0)) * CLOCK_SPREAD_PPM for _ in node_ids),
        log_budget_bytes=more_dice.choice((1, 1, 5000, 50_000)),
        chunk_bytes=more_dice.choice((200, 2000, 65536)) * steps,
        called_tenants=1 + later_tenants, naps=naps, pairs_a_word=sleep_dice.choice((1, 1, 2, 4096)),
        fire_bounds=fire_bounds,
    )


def fire_command(bounds: tuple[int, int], rules: commands.RulesOfFire) -> bytes:
    """What a group proposes when timers are due."""
    at_most, max_bytes = bounds
    return commands.fire(at_most=at_most, max_bytes=max_bytes, rules=rules)
