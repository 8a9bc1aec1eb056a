"""Each scene plays as it is written, and would not with the fault in the core that it is there to exclude."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raft.core import Core
from raft.invariants import InvariantBroken
from tests.unit.raft.mutants import FOUND_BY_SCENES
from tests.unit.raft.scene import run_scene

FOLDER = Path(__file__).parent / "scenes"
SCENES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCENES, ids=[path.stem for path in SCENES])
def test_scene(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    played = run_scene(expected)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    else:
        assert played == expected


@pytest.mark.parametrize(("mutant", "name"), FOUND_BY_SCENES)
def test_a_broken_core_plays_the_scene_differently(mutant: Callable[..., Core], name: str) -> None:
    expected = (FOLDER / f"{name}.txt").read_text()
    try:
        played = run_scene(expected, mutant)
    except (InvariantBroken, IndexError):
        # It broke an invariant, or there was no write left where the scene completes one.
        return
    assert played != expected
