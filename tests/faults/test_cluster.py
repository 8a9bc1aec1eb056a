"""Three real nodes under load, one fault after another: what one node promises holds for the cluster (issue 4, 10).

    ./scripts/test faults/test_cluster.py                          a few faults, drawn
    ./scripts/test faults/test_cluster.py --rounds 100             a campaign: every kind comes again and again
    ./scripts/test faults/test_cluster.py --fault deaf --rounds 9  one kind
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.faults.cluster_campaign import cluster_campaign
from tests.faults.nemesis import FAULTS

CALLS_BEFORE_MAX = 100


def drawn(dice: Random, rounds: int, only: str | None) -> Sequence[str]:
    """Which faults come: each kind once before any comes again."""
    names: list[str] = []
    while len(names) < rounds:
        names += [only] if only else dice.sample(list(FAULTS), len(FAULTS))
    return names[:rounds]


async def test_faults_under_load(
    tmp_path: Path, seed: int, cluster_rounds: int, again: str, only_fault: str | None,
) -> None:
    """G-D1, G-D6, CL-91, G-Q1 … G-Q6, G-M1 … G-M8 of three tenants, over any faults that a majority can heal."""
    with cluster_campaign(tmp_path, seed, again) as run:
        await run.begin()
        async with run.load():
            for name in drawn(run.dice, cluster_rounds, only_fault):
                await run.calls(CALLS_BEFORE_MAX)
                async with run.outage(name):
                    await FAULTS[name](run)
                    run.network.heal_all()
        await run.finish()
