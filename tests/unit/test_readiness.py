"""What /health says of quorum and lag (cluster.md 13 and 16, CL-92)."""

from __future__ import annotations

import pytest

from queen_node.readiness import QuorumWatch, lag_ms

USUAL_MS = 300
LIMIT_MS = 5000  # QUEEN_RAFT_READY_QUORUM_MS


def within(watch: QuorumWatch, now_s: float) -> bool:
    silent_ms = watch.silent_ms(now_s)
    return silent_ms is not None and silent_ms <= LIMIT_MS


def test_a_node_that_never_knew_of_a_majority_knows_none() -> None:
    assert QuorumWatch(USUAL_MS).silent_ms(1000.0) is None


@pytest.mark.parametrize("last_said_ms", [0, 100])
@pytest.mark.parametrize("before_s", [0.0, 0.1])
def test_a_quorum_that_is_lost_is_told_5_to_7_s_later(last_said_ms: int, before_s: float) -> None:
    """cluster.md 16: however long before the loss the last word of the leader came, and the last answer to it."""
    watch = QuorumWatch(USUAL_MS)
    lost_at_s = 100.0
    watch.hear(last_said_ms, lost_at_s - before_s)
    assert all(within(watch, lost_at_s + tenths / 10) for tenths in range(51))
    assert not any(within(watch, lost_at_s + tenths / 10) for tenths in range(54, 200))


def test_a_leader_that_hears_nobody_says_so_to_those_who_follow_it() -> None:
    """CL-53, CL-92: its frames still come; before, a follower took their coming for a majority."""
    watch = QuorumWatch(USUAL_MS)
    for tenths in range(80):
        watch.hear(tenths * 100, 100.0 + tenths / 10)
        assert within(watch, 100.0 + tenths / 10) == (tenths <= 53)


def test_an_older_word_takes_nothing_back() -> None:
    """The next leader has a majority while frames of the last one are still on their way."""
    watch = QuorumWatch(USUAL_MS)
    watch.hear(0, 100.0)
    watch.hear(4000, 100.1)
    assert watch.silent_ms(100.3) == 0
    assert watch.silent_ms(101.0) == 700


def lag(applied_index: int, commit_index: int, stamp_us: int = 7_000_000) -> int:
    return lag_ms(
        applied_index=applied_index, gap_entries=commit_index - applied_index, stamp_us=stamp_us, now_us=9_500_000,
        caught_up_entries=1000)


def test_lag_is_the_age_of_what_was_applied_last_once_there_is_much_to_catch_up() -> None:
    assert [lag(5, 5), lag(5, 1005), lag(5, 1006)] == [0, 0, 2500]
    assert lag(5, 1006, stamp_us=9_600_000) == 0, "an estimate of the group clock may be below the last stamp"


def test_a_node_that_applied_nothing_counts_from_the_epoch() -> None:
    assert lag(0, 0, stamp_us=0) == lag(0, 5, stamp_us=0) == 9500
    assert lag_ms(applied_index=0, gap_entries=0, stamp_us=0, now_us=0, caught_up_entries=1000) > 0, "never 0"
