"""Each scene plays as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.raft.scene import run_scene

SCENES = sorted((Path(__file__).parent / "scenes").glob("*.txt"))


@pytest.mark.parametrize("path", SCENES, ids=[path.stem for path in SCENES])
def test_scene(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    played = run_scene(expected)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    else:
        assert played == expected
