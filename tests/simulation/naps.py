"""Times in which nobody calls a tenant, long enough for its group to fall asleep; timers end in them (M-31, M-32)."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.simulation.calls import KNOCK_US, Script
from tests.simulation.clients import Client
from tests.simulation.shape import NAP_US
from tests.simulation.world import MS

AWAKE_US: Final = (200 * MS, 1500 * MS)
WITH_TIMERS: Final = 0.8  # of the naps


def naps(client: Client, dice: Random) -> Script:
    """Again and again everybody's calls stop for a while; before that come some timers that end meanwhile."""
    hours, world = client.ground.hours, client.ground.world
    while not hours.is_open and not hours.stopping:
        yield KNOCK_US
    while not hours.stopping:
        yield dice.randint(*AWAKE_US)
        lasts_us = dice.randint(*NAP_US)
        if dice.random() < WITH_TIMERS:
            yield from client.schedule_several(within_ms=lasts_us // MS)
        hours.silent_until_us = world.now_us + lasts_us
        yield lasts_us
