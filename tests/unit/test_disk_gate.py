"""The disk gate: closes before the disk is full, with a band, and gives its ballast once (CL-127, M-6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from queen_node.disk_gate import (
    BALLAST_BYTES,
    BALLAST_FILE,
    REPORT_COUNTS_S,
    DiskGate,
    DiskReports,
    Step,
    give_ballast,
    lay_ballast,
    used_percent,
)


def test_it_closes_at_one_bound_and_opens_below_the_other() -> None:
    gate = DiskGate(85, 80)
    seen = [(percent, gate.look(percent), gate.closed) for percent in (84.9, 85.0, 90.0, 80.0, 84.0, 79.9, 84.9, 85.0)]
    assert seen == [
        (84.9, [], False), (85.0, [Step.CLOSED], True), (90.0, [], True), (80.0, [], True), (84.0, [], True),
        (79.9, [Step.OPENED], False), (84.9, [], False), (85.0, [Step.CLOSED], True),
    ]


def test_the_ballast_is_wanted_once_for_each_time_the_volume_fills_up() -> None:
    gate = DiskGate(85, 80)
    percents = (94.9, 95.0, 94.0, 96.9, 80.0, 96.0, 79.9, 94.0, 96.0, 99.0)
    given = [percent for percent in percents if gate.gives_ballast(percent)]
    assert given == [95.0, 96.0]


def test_the_ballast_is_laid_where_there_is_room_for_it_whatever_the_other_volumes_do() -> None:
    gate = DiskGate(85, 80)
    assert gate.may_lay_ballast(84.9) and not gate.may_lay_ballast(85.0)
    gate.look(90.0)
    assert gate.closed
    assert gate.may_lay_ballast(79.9) and not gate.may_lay_ballast(80.0)


def test_from_97_percent_on_only_what_empties_the_system_is_taken() -> None:
    """README 26, M-6."""
    gate = DiskGate(85, 80)
    assert gate.look(96.9) == [Step.CLOSED] and not gate.drains_only
    assert gate.look(97.0) == [Step.DRAINS_ONLY] and gate.drains_only
    assert gate.look(99.0) == gate.look(96.0) == gate.look(80.0) == [] and gate.drains_only
    assert gate.look(79.9) == [Step.OPENED] and not gate.drains_only
    assert gate.look(100.0) == [Step.CLOSED, Step.DRAINS_ONLY]


def test_the_fullest_volume_of_those_that_live_counts() -> None:
    """CL-127: a report that is older than a few seconds says nothing of now, one of a dead node neither."""
    reports = DiskReports()
    assert reports.fullest(40.0, now_s=0.0) == (40.0, None)
    reports.hear(2, 90, now_s=10.0)
    reports.hear(3, 70, now_s=12.0)
    assert reports.fullest(40.0, now_s=12.0) == (90, 2)
    assert reports.fullest(95.0, now_s=12.0) == (95.0, None)
    assert reports.fullest(40.0, now_s=10.1 + REPORT_COUNTS_S) == (70, 3)
    reports.hear(2, 50, now_s=13.0)
    assert reports.fullest(40.0, now_s=13.0) == (70, 3)
    assert reports.fullest(40.0, now_s=60.0) == (40.0, None)


def test_ballast_takes_room_and_gives_it_back(tmp_path: Path) -> None:
    lay_ballast(tmp_path)
    ballast = tmp_path / BALLAST_FILE
    assert ballast.stat().st_blocks * 512 >= BALLAST_BYTES
    lay_ballast(tmp_path)
    assert give_ballast(tmp_path) and not ballast.exists()
    assert not give_ballast(tmp_path)


def test_a_volume_without_room_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    lay_ballast(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_volume_is_between_empty_and_full(tmp_path: Path) -> None:
    assert 0.0 < used_percent(tmp_path) < 100.0
