"""How fast the simulation is: what `./scripts/simulate --figures` prints.

Three nodes, three tenants and group 0, no faults; CPU seconds of one core, so that what else runs does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.simulation.garbage import collected_afterwards
from tests.simulation.run import Simulation
from tests.simulation.shape import TENANTS_CALLED_MAX, Shape, draw_shape
from tests.simulation.world import MS, SECOND, World

SEED: Final = 1
BUSY_S: Final = 120
IDLE_S: Final = 600
CLIENTS: Final = 12
THINK_US: Final = 360 * MS  # with the calls of a step this makes 50 calls a second


def _shape(*, clients: int) -> Shape:
    """A cluster as it usually is; the rest as a seed draws it."""
    world = World(SEED)
    drawn = draw_shape(world.dice("shape"), world.dice("snapshots"), world.dice("sleep"))
    raft = replace(
        drawn.raft, election_ticks=10, heartbeat_ticks=1, quorum_ticks=30, max_append_bytes=65536,
        max_inflight_bytes=1 << 20, max_apply_bytes=1 << 20, pre_vote=True, kept_bytes=1 << 20,
        kept_for_followers_bytes=8 << 20)
    return replace(
        drawn, node_ids=(1, 2, 3), raft=raft, tick_us=100 * MS, wheel_us=50 * MS, segment_bytes=1 << 20,
        flush_every_us=2 * SECOND, fsync_us=(500, 5 * MS), wire_us=(100, 300), clients=clients, think_us=THINK_US,
        delay_ms_max=1500, lease_s_max=2, partitions=3, trouble=0.0, drift_ppm=(0, 0, 0), log_budget_bytes=1 << 20,
        tenants_begin_us=(0,) * TENANTS_CALLED_MAX, founded_in_peace=True, spare_ids=(),
        called_tenants=TENANTS_CALLED_MAX, naps=False)


def measure(name: str, *, clients: int, virtual_s: int) -> str:
    """One line: what ran, how many times faster than real time, events a second."""
    simulation = Simulation(SEED, shape=_shape(clients=clients))
    world = simulation.world
    simulation.begin()
    world.run_until(world.now_us + 2 * SECOND)  # every tenant has its group
    events, calls, began_s = world.events, simulation.calls, time.process_time()
    world.run_until(world.now_us + virtual_s * SECOND)
    seconds = time.process_time() - began_s
    return (f"{name:<8} {virtual_s / seconds:6.0f} x real time, {(world.events - events) / seconds:7,.0f} events/s, "
            f"{(simulation.calls - calls) / virtual_s:.0f} calls/s of virtual time, {seconds:.1f} s of one core")


def lines() -> Iterator[str]:
    """All figures."""
    with collected_afterwards():
        yield measure("BUSY", clients=CLIENTS, virtual_s=BUSY_S)
    with collected_afterwards():
        yield measure("IDLE", clients=0, virtual_s=IDLE_S)
