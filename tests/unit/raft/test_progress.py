"""A follower as its leader sees it: modes, window, answers that were overtaken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raft.progress import Mode, Progress, Window


def replicating(match_index: int = 5, max_inflight_bytes: int = 100) -> Progress:
    progress = Progress(next_index=match_index + 1, max_inflight_bytes=max_inflight_bytes)
    progress.accepted(match_index)
    return progress


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=40))
def test_the_window_knows_what_is_on_its_way(moves: list[tuple[bool, int]]) -> None:
    """Against a plain dict of what was sent and not answered."""
    window = Window(max_bytes=60)
    twin: dict[int, int] = {}
    last_index = 0
    for sends, number in moves:
        if sends:
            last_index += 1
            window.add(last_index, number)
            twin[last_index] = number
        else:
            window.free_through(number)
            twin = {index: size for index, size in twin.items() if index > number}
        assert window.used_bytes == sum(twin.values())
        assert window.full == (sum(twin.values()) >= 60)


def test_a_probe_goes_alone_until_it_is_answered() -> None:
    """Raft paper §5.3: where the logs agree is found one append at a time."""
    progress = Progress(next_index=8, max_inflight_bytes=100)
    assert progress.may_send
    progress.sent(9, 10)
    assert not progress.may_send and progress.next_index == 8
    progress.rejected(7, agreeing_index=4)
    assert progress.may_send and progress.next_index == 5
    progress.sent(9, 10)
    assert progress.accepted(9)
    assert (progress.mode, progress.match_index, progress.next_index) == (Mode.REPLICATE, 9, 10)


def test_the_window_opens_with_acceptances_and_lets_one_large_append_through() -> None:
    progress = replicating()
    progress.sent(6, 1000)
    assert not progress.may_send
    progress.accepted(6)
    assert progress.may_send


def test_a_probe_always_goes_back_and_never_below_what_is_known() -> None:
    progress = Progress(next_index=8, max_inflight_bytes=100)
    progress.rejected(7, agreeing_index=7)
    assert progress.next_index == 7
    progress = replicating()
    progress.sent(9, 10)
    progress.rejected(9, agreeing_index=2)
    assert (progress.mode, progress.next_index) == (Mode.PROBE, 6)


def test_overtaken_answers_are_ignored() -> None:
    progress = replicating()
    progress.sent(9, 10)
    progress.rejected(5, agreeing_index=1)
    assert (progress.mode, progress.next_index) == (Mode.REPLICATE, 10)
    assert not progress.accepted(3)
    assert (progress.match_index, progress.next_index) == (5, 10)
    probe = Progress(next_index=8, max_inflight_bytes=100)
    probe.rejected(5, agreeing_index=1)
    assert probe.next_index == 8


def test_a_lost_last_append_is_asked_for_at_the_second_heartbeat_that_moved_nothing() -> None:
    progress = replicating()
    assert not progress.nudge()
    progress.sent(6, 10)
    assert progress.nudge()
    progress.accepted(6)
    assert not progress.nudge()
    assert not progress.nudge()


def test_only_what_left_since_the_last_heartbeat_stands_for_one() -> None:
    """Else a disk that acknowledges one append a period would keep the member from hearing of its leader at all."""
    progress = replicating()
    progress.sent(6, 10)
    progress.sent(7, 10)
    assert not progress.took_since_heartbeat()
    progress.accepted(6)
    assert not progress.took_since_heartbeat()
    progress.accepted(7)
    assert not progress.took_since_heartbeat()
    progress.sent(8, 10)
    progress.accepted(8)
    assert progress.took_since_heartbeat()
    assert not progress.took_since_heartbeat()


def test_who_is_left_behind_is_never_spared_a_heartbeat() -> None:
    """By its answers it is asked what it holds."""
    progress = left_behind()
    progress.supplied(20)
    progress.accepted(12)
    assert not progress.took_since_heartbeat()


def left_behind(next_index: int = 9) -> Progress:
    progress = replicating()
    progress.next_index = next_index
    progress.leave_behind()
    assert progress.wants_naming
    progress.wants_naming = False
    return progress


def test_who_was_left_behind_gets_nothing_until_it_accepts() -> None:
    progress = left_behind()
    assert not progress.may_send
    progress.rejected(20, agreeing_index=12)  # it was asked what it holds; that it may agree there shows nothing
    assert (progress.mode, progress.next_index, progress.wants_naming) == (Mode.LEFT_BEHIND, 9, False)
    assert progress.nudge()
    assert progress.accepted(20)
    assert (progress.mode, progress.next_index) == (Mode.REPLICATE, 21)


def test_what_was_supplied_is_waited_for() -> None:
    progress = left_behind()
    progress.supplied(15)
    assert progress.accepted(12)
    assert (progress.mode, progress.match_index, progress.next_index) == (Mode.LEFT_BEHIND, 12, 13)
    assert progress.accepted(15)
    assert (progress.mode, progress.next_index) == (Mode.REPLICATE, 16)


def test_what_was_supplied_and_did_not_arrive_is_asked_for_again() -> None:
    progress = left_behind()
    progress.supplied(15)
    assert progress.nudge() and not progress.wants_naming
    assert progress.nudge() and progress.wants_naming
    progress.wants_naming = False
    assert progress.accepted(11)  # it did, late; what is on its way by now begins at 9 again
    assert (progress.mode, progress.next_index) == (Mode.REPLICATE, 12)


def test_what_was_supplied_and_does_not_follow_is_asked_for_from_further_back() -> None:
    progress = left_behind()
    progress.supplied(15)
    progress.rejected(8, agreeing_index=6)
    assert (progress.mode, progress.next_index, progress.wants_naming) == (Mode.LEFT_BEHIND, 7, True)


def test_who_takes_a_snapshot_is_asked_and_goes_on_from_it() -> None:
    """CL-112."""
    progress = left_behind()
    progress.begin_snapshot()
    for _ in range(5):
        assert progress.nudge() and not progress.wants_naming and not progress.may_send
    progress.rejected(8, agreeing_index=6)
    assert (progress.mode, progress.next_index) == (Mode.SNAPSHOT, 9)
    progress.end_snapshot(30)
    assert (progress.mode, progress.match_index, progress.next_index) == (Mode.LEFT_BEHIND, 5, 31)
    assert progress.wants_naming


def test_silence_ends_with_any_answer_and_rounds_never_fall() -> None:
    progress = replicating()
    progress.silent_ticks = 7
    progress.answered(3)
    progress.answered(2)
    assert (progress.silent_ticks, progress.answered_round) == (0, 3)
