"""Which groups a period ticks where more are awake than the machine can tick."""

from __future__ import annotations

from queen_node.tick_pace import LATE_SHARE, QUOTA_MAX, QUOTA_MIN, TickPace

PERIOD_S = 0.1
LATE_S = PERIOD_S * LATE_SHARE * 2


def awake(count: int) -> TickPace[int]:
    pace = TickPace[int](PERIOD_S)
    pace.awake.update((life, life) for life in range(count))
    return pace


def test_few_groups_are_all_ticked_in_each_period_however_late_the_loop_is() -> None:
    pace = awake(QUOTA_MIN)
    for late_s in (0.0, LATE_S, 10.0, 10.0, 10.0, 10.0, 10.0):
        assert pace.next(late_s) == (1, list(range(QUOTA_MIN)))


def test_of_many_groups_each_has_its_turn_and_is_told_how_long_it_waited() -> None:
    pace = awake(3 * QUOTA_MAX - 1)
    for _ in range(2):
        ticked: list[int] = []
        for _ in range(3):
            periods, groups = pace.next(0.0)
            assert periods == 3 and len(groups) == QUOTA_MAX
            ticked += groups
        assert len(set(ticked)) == 3 * QUOTA_MAX - 1


def test_a_late_loop_ticks_fewer_and_one_in_time_more_again() -> None:
    pace = awake(4 * QUOTA_MAX)
    for _ in range(20):
        periods, groups = pace.next(LATE_S)
    assert len(groups) == QUOTA_MIN and periods == 4 * QUOTA_MAX // QUOTA_MIN
    for _ in range(QUOTA_MAX):
        periods, groups = pace.next(0.0)
    assert len(groups) == QUOTA_MAX and periods == 4


def test_one_that_sleeps_has_no_turn_and_one_that_wakes_is_the_last() -> None:
    pace = awake(3)
    del pace.awake[1]
    assert pace.next(0.0) == (1, [0, 2])
    pace.awake[1] = 1
    assert pace.next(0.0)[1] == [0, 2, 1]
