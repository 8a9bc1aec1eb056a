"""Message ids whose time is over are forgotten, and none earlier (PU-55, PU-56)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.state import push
from queen_node.state.keys import CALENDAR, MESSAGE, MESSAGE_ID, MESSAGE_ID_MORE
from queen_node.state.messages import message_key
from raft.invariants import InvariantBroken
from tests.support.inward import SECOND, Inward

GRAIN_S = push.FORGET_GRAIN_US // SECOND


def forget_all_due(node: Inward, *, at_most: int = 1000, keep_at_least_s: int = 0) -> int:
    """Forget as a leader does: go on while more are due. Returns how many were forgotten."""
    total = 0
    while True:
        count, more = node.forget(at_most=at_most, keep_at_least_s=keep_at_least_s)
        assert count <= at_most
        total += count
        if not more:
            return total


def wait_for_visit(node: Inward) -> None:
    """Let the clock go on to the next moment at which ids are looked at."""
    at_us = push.next_ids_deadline_us(node.store)
    assert at_us is not None
    node.now_us = max(node.now_us, at_us)


def test_nothing_is_due_where_nothing_was_pushed() -> None:
    node = Inward()
    assert push.next_ids_deadline_us(node.store) is None
    assert node.forget() == (0, False)


def test_ids_are_forgotten_when_their_time_is_over_and_all_rows_go() -> None:
    """PU-55; FAULTS: expired dedup rows were never freed."""
    node = Inward()
    node.configure(dedup_window_seconds=100)
    node.push_ids("a", "b")
    wait_for_visit(node)
    assert 100 * SECOND < node.now_us - node.messages()[0].created_at_us <= (100 + GRAIN_S) * SECOND
    assert node.forget() == (2, False)
    assert not node.rows(MESSAGE_ID, MESSAGE_ID_MORE, CALENDAR)
    assert push.next_ids_deadline_us(node.store) is None
    assert len(node.messages()) == 2  # the messages stay
    assert node.push_ids("a") == [("queued", 2)]
    assert push.next_ids_deadline_us(node.store) is not None


@pytest.mark.parametrize(("options", "keep_at_least_s", "kept_s"), [
    ({"dedup_window_seconds": 300}, 0, 300),
    ({"dedup_window_seconds": 300}, 900, 900),
    ({"dedup_window_seconds": 0}, 900, 900),
    ({"dedup_window_seconds": 300, "completed_retention_seconds": 500, "retention_enabled": True}, 0, 500),
    ({"dedup_window_seconds": 300, "completed_retention_seconds": 500}, 0, 300),
])
def test_ids_are_kept_for_the_longest_of_three_times(
    options: dict[str, object], keep_at_least_s: int, kept_s: int,
) -> None:
    """PU-55: window, completed retention where it is on, and the setting."""
    node = Inward()
    node.configure(options=options)
    node.push_ids("a")
    began_us = node.now_us
    while node.rows(MESSAGE_ID):
        wait_for_visit(node)
        node.forget(keep_at_least_s=keep_at_least_s)
    kept_us = node.now_us - began_us
    assert kept_s * SECOND < kept_us <= (kept_s + 2 * GRAIN_S) * SECOND


def test_an_id_as_old_as_its_keep_time_stays() -> None:
    """PU-51, PU-55: at age = window it is still a duplicate, so it is still there."""
    node = Inward()
    node.now_us -= node.now_us % (GRAIN_S * SECOND)  # so that the visit would fall on the very moment
    node.configure(dedup_window_seconds=100)
    node.push_ids("a")
    node.wait(100)
    assert node.forget() == (0, False)
    assert node.push_ids("a") == [("duplicate", 0)]


def test_a_busy_partition_is_visited_once_a_grain() -> None:
    """Else every append would cost an entry of its own when its time is over."""
    node = Inward()
    node.configure(dedup_window_seconds=100)
    for number in range(200):
        node.push_ids(f"t{number}")
        node.wait(0.5)
    visits = 0
    while push.next_ids_deadline_us(node.store) is not None:
        wait_for_visit(node)
        node.forget()
        visits += 1
    assert visits <= 100 // GRAIN_S + 1
    assert not node.rows(MESSAGE_ID)


def test_one_command_looks_at_a_bounded_number() -> None:
    """Apply never holds the loop: the answer says whether to go on, and nothing is skipped."""
    node = Inward()
    for number in range(10):
        node.push(*(node.item(f"t{number}-{place}", partition=f"p{place}") for place in range(3)))
    wait_for_visit(node)
    steps = []
    while True:
        steps.append(node.forget(at_most=4))
        if not steps[-1][1]:
            break
    assert [count for count, _ in steps] == [4, 4, 4, 4, 4, 4, 4, 2]
    assert not node.rows(MESSAGE_ID, CALENDAR)


def test_a_longer_window_keeps_ids_that_were_to_be_forgotten() -> None:
    """PU-55: a change of the window applies at once to the ids still kept."""
    node = Inward()
    node.configure(dedup_window_seconds=100)
    node.push_ids("a")
    node.configure(dedup_window_seconds=10_000)
    wait_for_visit(node)
    assert forget_all_due(node) == 0
    node.wait(9000)
    assert node.push_ids("a") == [("duplicate", 0)]


def test_a_shorter_window_frees_ids_within_a_day() -> None:
    """FAULTS: retention off for an hour, memory flat; the old deadline may have been years away."""
    node = Inward()
    node.configure(dedup_window_seconds=1 << 40)
    node.push_ids("a")
    node.configure(dedup_window_seconds=1)
    wait_for_visit(node)
    assert node.now_us - node.messages()[0].created_at_us <= push.FORGET_VISIT_AT_LATEST_US + push.FORGET_GRAIN_US
    assert forget_all_due(node) == 1


def test_a_visit_before_the_window_ends_costs_a_look_and_files_the_next() -> None:
    node = Inward()
    node.configure(dedup_window_seconds=3 * 24 * 3600)
    node.push_ids("a")
    for _ in range(3):
        wait_for_visit(node)
        assert node.forget() == (0, False)
        assert len(node.rows(CALENDAR)) == 1
    wait_for_visit(node)
    assert node.forget() == (1, False)


def test_the_row_that_a_removed_message_left_for_its_id_goes_with_the_id() -> None:
    """PU-56: retention leaves a row without payload below the log's start, until the id is forgotten."""
    node = Inward()
    node.push_ids("a", "b", "c")
    partition = node.partition()
    partition.log_start = 2
    wait_for_visit(node)
    assert forget_all_due(node) == 3
    assert [key for key, _ in node.rows(MESSAGE)] == [message_key(partition.partition_id, 2)]
    assert not node.rows(MESSAGE_ID)


def test_a_message_that_left_before_its_id_is_a_broken_invariant() -> None:
    node = Inward()
    node.push_ids("a")
    node.store.delete(message_key(node.partition().partition_id, 0))
    wait_for_visit(node)
    with pytest.raises(InvariantBroken):
        node.forget()


def test_ids_repeated_while_the_window_was_0_are_forgotten_one_by_one() -> None:
    """PU-55."""
    node = Inward()
    node.configure(dedup_window_seconds=0)
    for _ in range(4):
        node.push_ids("a")
        node.wait(30)
    node.configure(dedup_window_seconds=100)
    node.wait(5)
    assert node.push_ids("a") == [("duplicate", 1)]  # 125 s, 95 s, 65 s and 35 s old
    kept = []
    while node.rows(MESSAGE_ID):
        wait_for_visit(node)
        node.forget()
        kept.append(len(node.rows(MESSAGE_ID_MORE)))
    assert kept == sorted(kept, reverse=True)
    assert not node.rows(MESSAGE_ID_MORE, CALENDAR)


@given(st.data())
def test_memory_is_bounded_and_no_duplicate_is_missed(data: st.DataObject) -> None:
    """PU-51, PU-55: forgetting at any moments changes no answer, and leaves no id older than keep time and grain."""
    node, twin = Inward(), Inward()
    for each in (node, twin):
        each.configure(dedup_window_seconds=20)
    for _ in range(data.draw(st.integers(1, 20))):
        wait_s = data.draw(st.integers(0, 30))
        names = data.draw(st.lists(st.sampled_from("abcd"), max_size=3))
        for each in (node, twin):
            each.wait(wait_s)
        assert node.push_ids(*names) == twin.push_ids(*names)
        if data.draw(st.booleans()):
            forget_all_due(node, at_most=data.draw(st.integers(1, 3)))
            oldest_us = node.now_us - max(20 * SECOND, push.FORGET_VISIT_AT_EARLIEST_US) - 2 * push.FORGET_GRAIN_US
            messages = node.messages() if node.rows(MESSAGE) else []
            ids_start = node.partition().ids_start if messages else 0
            assert all(message.created_at_us > oldest_us for message in messages[ids_start:])
            assert len(node.rows(MESSAGE_ID, MESSAGE_ID_MORE)) == len(messages) - ids_start
