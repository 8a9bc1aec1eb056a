"""Pushes, as the state machine applies them (push.md 5 to 7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node import commands
from queen_node.state import push
from queen_node.state.keys import MESSAGE, MESSAGE_ID, PARTITION, QUEUE
from queen_node.state.messages import message_key
from queen_node.state.queues import find_queue
from tests.support.inward import START_US, Inward


def test_offsets_start_at_0_and_have_no_gaps_and_duplicates_take_none() -> None:
    """PU-40."""
    node = Inward()
    assert node.push_ids("a", "b", "a", "c") == [("queued", 0), ("queued", 1), ("duplicate", 0), ("queued", 2)]
    assert node.push_ids("c", "d") == [("duplicate", 2), ("queued", 3)]
    assert [message.transaction_id for message in node.messages()] == [b"a", b"b", b"c", b"d"]


def test_items_of_one_call_go_where_they_say_and_share_their_stamp() -> None:
    """PU-40, section 10, 1: mixed items over three partitions."""
    node = Inward()
    items = [
        node.item("a", partition="p1"), node.item("a", partition="p2"), node.item("b", partition="p1"),
        node.item("a", queue="bills", partition="p1"), node.item("a", partition="p2"),
    ]
    assert node.push(*items) == [("queued", 0), ("queued", 0), ("queued", 1), ("queued", 0), ("duplicate", 0)]
    assert {message.created_at_us for message in node.messages("orders", "p1")} == {START_US}
    assert node.messages("bills", "p1")[0].transaction_id == b"a"


RUNS = st.lists(st.tuples(
    st.sampled_from("abcdefghijkl"), st.sampled_from([0, 0, 0, 1]), st.sampled_from([None, None, None, b"t" * 16]),
    st.sampled_from([None, None, None, b"me"])), min_size=push.COLUMNS_MIN, max_size=9, unique_by=lambda item: item[0])


@given(st.lists(RUNS, min_size=1, max_size=4), st.booleans())
def test_a_run_that_is_written_as_columns_is_what_its_items_would_be_one_by_one(
    runs: list[list[tuple[str, int, bytes | None, bytes | None]]], restarts: bool,
) -> None:
    """PU-30, M-81: the same answers, and the same bytes on disk; also where the filter has seen nothing."""
    told = []
    for columns_min in (push.COLUMNS_MIN, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(push, "COLUMNS_MIN", columns_min)
            node = Inward()
            answers = []
            for run in runs:
                if restarts:
                    node.store.reopen(1)
                answers.append(node.apply(commands.push(b"r", [
                    (*node.item(txn)[:5], flags, trace_id, producer) for txn, flags, trace_id, producer in run])))
            told.append((answers, node.store.meta.digest))
    assert told[0] == told[1]


def test_an_answer_names_the_original_message() -> None:
    """PU-52, PU-54: message id and offset of a duplicate are the original's."""
    node = Inward()
    first, again, other = node.item("a"), node.item("a"), node.item("b")
    assert node.apply(commands.push(b"r", [first, again])) == [
        [(first[3], b"a", b"orders", False, 0), (first[3], b"a", b"orders", True, 0)]]
    assert node.apply(commands.push(b"r", [other]), commands.push(b"r", [again])) == [
        [(other[3], b"b", b"orders", False, 1)], [(first[3], b"a", b"orders", True, 0)]]


def test_a_duplicate_writes_nothing_at_all() -> None:
    """PU-53."""
    node = Inward()
    node.push_ids("a")
    before = node.rows(QUEUE, PARTITION, MESSAGE, MESSAGE_ID)
    node.wait(5)
    assert node.push_ids("a") == [("duplicate", 0)]
    assert node.rows(QUEUE, PARTITION, MESSAGE, MESSAGE_ID) == before
    assert node.step is not None
    assert (node.step.wakes, node.step.touched, node.step.tally.duplicates) == ({}, {}, 1)


@pytest.mark.parametrize(("age_s", "status"), [(3600, "duplicate"), (3600.000001, "queued")])
def test_age_equal_to_the_window_is_a_duplicate(age_s: float, status: str) -> None:
    """PU-51: now − createdAt ≤ window."""
    node = Inward()
    node.push_ids("a")
    node.wait(age_s)
    assert node.push_ids("a")[0][0] == status


def test_a_duplicate_does_not_renew_the_window() -> None:
    """PU-51."""
    node = Inward()
    node.push_ids("a")
    node.wait(3000)
    assert node.push_ids("a") == [("duplicate", 0)]
    node.wait(1000)
    assert node.push_ids("a") == [("queued", 1)]


def test_the_first_of_a_call_wins_even_without_a_window() -> None:
    """PU-52: whatever the window, 0 included; over calls and commands the window of 0 checks nothing."""
    node = Inward()
    node.configure(dedup_window_seconds=0)
    assert node.push_ids("a", "a", "b", "a") == [("queued", 0), ("duplicate", 0), ("queued", 1), ("duplicate", 0)]
    assert node.push_ids("a", "a") == [("queued", 2), ("duplicate", 2)]


def test_a_repeat_in_a_call_is_known_by_partition() -> None:
    """PU-50: the scope is the partition, also for the check inside a call."""
    node = Inward()
    node.configure(dedup_window_seconds=0)
    items = [node.item("a", partition=name) for name in ("p", "q", "p")]
    assert node.push(*items) == [("queued", 0), ("queued", 0), ("duplicate", 0)]


def test_a_changed_window_judges_the_ids_still_kept() -> None:
    """PU-55, section 10, 3: raised and lowered on stored ids."""
    node = Inward()
    node.configure(dedup_window_seconds=100)
    node.push_ids("a")
    node.wait(50)
    node.configure(dedup_window_seconds=10)
    assert node.push_ids("a") == [("queued", 1)]
    node.configure(dedup_window_seconds=100)
    node.wait(60)
    assert node.push_ids("a") == [("duplicate", 1)]  # offset 0 is 110 s old now, offset 1 is 60 s old
    node.configure(dedup_window_seconds=1000)
    assert node.push_ids("a") == [("duplicate", 0)]


def test_a_duplicate_of_a_message_that_retention_removed_is_still_answered() -> None:
    """PU-56."""
    node = Inward()
    item = node.item("a")
    node.push(item)
    partition = node.partition()
    node.store.delete(message_key(partition.partition_id, 0))
    partition.log_start = 1
    assert node.apply(commands.push(b"r", [node.item("a")])) == [
        [(item[3], b"a", b"orders", True, 0)]]


def test_ids_are_compared_by_their_exact_bytes() -> None:
    """PU-20, PU-50: no trimming, folding or normalising."""
    ids = ["a", "A", " a", "a ", "\u00e9", "e\u0301", "", "a\0", "\U0001f600"]
    node = Inward()
    assert node.push_ids(*ids) == [("queued", offset) for offset in range(len(ids))]


def test_names_that_run_together_are_different_partitions() -> None:
    """PU-20: keys are unambiguous for every byte."""
    node = Inward()
    places = [("a", "bc"), ("ab", "c"), ("a/b", "c"), ("a", "b/c"), ("a\x01", "\x01"), ("a", "\x01\x01")]
    items = [node.item("t", queue=queue, partition=partition) for queue, partition in places]
    assert node.push(*items) == [("queued", 0)] * len(places)
    assert len({node.partition(queue, partition).partition_id for queue, partition in places}) == len(places)


def test_all_that_belongs_to_a_message_is_stored() -> None:
    """PU-12, PU-13, PU-40."""
    node = Inward()
    payload = b'{"a":1.0, "a":1e400}'
    node.apply(commands.push(b"r", [(b"q", b"p", b"t", b"m" * 16, payload, 0, b"c" * 16, "Jürgen".encode())]))
    message = node.messages("q", "p")[0]
    assert (message.payload, message.trace_id, message.producer_sub) == (payload, b"c" * 16, "Jürgen".encode())
    assert (message.message_id, message.created_at_us, message.payload_flags) == (b"m" * 16, START_US, 0)


def test_a_push_tells_whom_it_may_concern() -> None:
    """PU-44, M-41: wakes count messages a queue, and every partition appended to is named for the ready lists."""
    node = Inward()
    node.push(node.item("a"), node.item("b"), node.item("a", queue="bills"), node.item("a"))
    step = node.step
    assert step is not None
    assert step.wakes == {b"orders": 2, b"bills": 1}
    assert {partition.queue: queue.name for queue, partition in step.touched.values()} == {
        b"orders": b"orders", b"bills": b"bills"}
    assert (step.tally.pushed, step.tally.duplicates) == (3, 1)


def test_a_clear_payload_for_an_encrypted_queue_refuses_the_whole_command() -> None:
    """PU-71: the flag is state, so apply compares it, and nothing of the command is stored."""
    node = Inward()
    node.configure("vault", encryption_enabled=True)
    items = [node.item("a"), node.item("b", queue="vault")]
    assert node.apply(commands.push(b"r", items)) == [b"vault"]
    assert find_queue(node.store, b"orders") is None
    assert not node.rows(MESSAGE, MESSAGE_ID)
    node.configure("vault", encryption_enabled=False)
    assert node.push(*items) == [("queued", 0), ("queued", 0)]
