"""What a person reads when a seed fails: STYLE.md's form."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from raft.invariants import InvariantBroken
from tests.simulation.cluster import Cluster
from tests.simulation.world import Broken, World, clock_text

FAULTS_SHOWN_MAX: Final = 12
ROOT: Final = Path(__file__).parents[2]


def report(world: World, cluster: Cluster, error: Broken | InvariantBroken, *, length_s: float | None) -> str:
    """BROKEN, SEEN, FAULTS (the last ones), NODES, AGAIN. length_s: as it was given; None: it was drawn."""
    promise, seen = (error.promise, error.seen) if isinstance(error, Broken) else ("an invariant", str(error))
    place = f"seed {world.seed}, commit {_commit()}, at {clock_text(world.now_us)}, step {world.events}"
    faults = [f"{clock_text(at_us)} {what}" for at_us, what in world.journal[-FAULTS_SHOWN_MAX:]]
    if world.driving is not None:
        seen = f"node {world.driving[0]}, group {world.driving[1]}: {seen}"
    return "\n".join((
        f"BROKEN   {promise}   {place}",
        f"SEEN     {seen}",
        f"FAULTS   {'; '.join(faults) or 'none'}",
        f"NODES    {'; '.join(map(str, cluster.nodes.values()))}",
        f"AGAIN    {_again(world.seed, length_s)}",
    ))


def _again(seed: int, length_s: float | None) -> str:
    """What takes the same course: a length that was given is part of it."""
    if length_s is None:
        return f"./scripts/test simulation --seed {seed}"
    return f"./scripts/simulate --seed {seed} --length {length_s!r}"


def _commit() -> str:
    """Short name of the commit that runs; "unknown" outside of a repository."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
