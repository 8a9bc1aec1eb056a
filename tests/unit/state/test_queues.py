"""Queues and partitions: made by a push, made and edited by configure (push.md 5, queues.md 1)."""

from __future__ import annotations

from typing import Any

import pytest

from queen_node.state import queues
from queen_node.state.keys import COUNTERS, PARTITION_OF_QUEUE, read_two_u64
from queen_node.state.rows import QueueOptions
from tests.support.inward import START_US, Inward

# One value, other than the default, for every option.
OTHER: dict[str, object] = {
    "lease_time": 7, "retry_limit": 9, "dead_letter_queue": False, "dlq_after_max_retries": False,
    "dedup_window_seconds": 11, "delayed_processing": 12, "window_buffer": 13, "retention_enabled": True,
    "retention_seconds": 14, "completed_retention_seconds": 15, "max_wait_time_seconds": 16, "encryption_enabled": True,
    "min_pop_wait_time": 17, "priority": 18, "max_size": 19, "ttl": 20, "retry_delay": 21,
    "retention_sink_hold": "sink", "retention_sink_hold_max_seconds": 61,
}


def options_of(answer: Any) -> dict[str, object]:
    return dict(answer[4])


def defaults() -> dict[str, object]:
    options = QueueOptions()
    return {name: getattr(options, name) for name in QueueOptions.__struct_fields__}


@pytest.mark.parametrize(("name", "namespace", "task"), [
    (b"billing.invoices.x", b"billing", b"invoices"), (b"orders", b"orders", b""), (b"a.b", b"a", b"b"),
    (b".x", b"", b"x"), (b"a..b", b"a", b""),
])
def test_labels_of_a_pushed_queue_come_from_its_name(name: bytes, namespace: bytes, task: bytes) -> None:
    """PU-30."""
    node = Inward()
    node.push(node.item("a", queue=name.decode()))
    queue = queues.find_queue(node.store, name)
    assert queue is not None
    assert (queue.namespace, queue.task, queue.created_at_us) == (namespace, task, START_US)


def test_a_pushed_queue_leases_60_seconds_and_a_configured_one_300() -> None:
    """PU-30, QU section 8, 2."""
    node = Inward()
    node.push_ids("a")
    node.configure("configured")
    pushed, configured = (queues.find_queue(node.store, name) for name in (b"orders", b"configured"))
    assert pushed is not None and configured is not None
    assert (pushed.options.lease_time, configured.options.lease_time) == (60, 300)
    assert configured.options == QueueOptions()
    assert (configured.namespace, configured.task) == (b"", b"")


def test_configuring_makes_no_partition_and_a_push_finds_the_queue() -> None:
    """QU-3."""
    node = Inward()
    uuid = node.configure(labels=(b"ns", None), retry_limit=1)[0]
    assert not node.rows(PARTITION_OF_QUEUE)
    node.push_ids("a")
    queue = queues.find_queue(node.store, b"orders")
    assert queue is not None
    assert (queue.uuid, queue.namespace, queue.task, queue.options.lease_time) == (uuid, b"ns", b"", 300)


def test_ids_are_never_reused_and_partitions_stand_in_order_of_creation() -> None:
    """README 27."""
    node = Inward()
    for partition in ("b", "a", "c"):
        node.push(node.item("t", partition=partition))
    queue = queues.find_queue(node.store, b"orders")
    assert queue is not None
    listed = [read_two_u64(key, 1) for key, _ in node.rows(PARTITION_OF_QUEUE)]
    assert listed == [(queue.queue_id, node.partition(partition=name).partition_id) for name in ("b", "a", "c")]
    counters = node.store.counters()
    assert counters.next_partition_id > max(partition_id for _, partition_id in listed)
    assert node.rows(COUNTERS)


def test_queues_made_by_pushes_have_ids_that_differ_and_are_uuids() -> None:
    """README 2: derived from the entry, never random."""
    node, twin = Inward(), Inward()
    for each in (node, twin):
        each.push(each.item("a", queue="one"), each.item("a", queue="two"))
    uuids = []
    for name in (b"one", b"two"):
        queue, same = queues.find_queue(node.store, name), queues.find_queue(twin.store, name)
        assert queue is not None and same is not None
        assert queue.uuid == same.uuid
        assert (queue.uuid[6] >> 4, queue.uuid[8] >> 6) == (8, 2)
        uuids.append(queue.uuid)
    assert uuids[0] != uuids[1]


@pytest.mark.parametrize("option", OTHER)
def test_each_option_alone_over_a_full_queue(option: str) -> None:
    """QU-1: absent keeps, null is the default, a value is that value, replace resets what is absent."""
    node = Inward()
    node.configure(options=OTHER)
    assert options_of(node.configure(options={option: None})) == OTHER | {option: defaults()[option]}
    assert options_of(node.configure(options={option: OTHER[option]})) == OTHER
    assert options_of(node.configure(mode="replace", options={option: OTHER[option]})) == (
        defaults() | {option: OTHER[option]})


def test_every_option_has_a_value_in_these_tests() -> None:
    assert OTHER.keys() == defaults().keys()
    assert all(value != defaults()[option] for option, value in OTHER.items())


def test_labels_keep_change_and_go_back() -> None:
    """QU-1."""
    node = Inward()
    assert node.configure(labels=(b"ns", b"task"))[2:4] == (b"ns", b"task")
    assert node.configure(labels=(None, b"other"))[2:4] == (b"ns", b"other")
    assert node.configure(labels=(b"", None))[2:4] == (b"", b"other")
    assert node.configure(mode="replace", labels=(b"new", None))[2:4] == (b"new", b"")


def test_an_answer_shows_the_queue_as_that_edit_left_it() -> None:
    """QU-1, QU-3: two edits in one entry merge one after the other."""
    node = Inward()
    first = node.configure(retry_limit=1)
    second = node.configure(lease_time=5)
    assert (options_of(first)["retry_limit"], options_of(first)["lease_time"]) == (1, 300)
    assert (options_of(second)["retry_limit"], options_of(second)["lease_time"]) == (1, 5)
    assert first[:2] == second[:2]


def test_a_second_create_of_the_sdk_resets_what_it_sends() -> None:
    """QU-2."""
    node = Inward()
    create = {
        "lease_time": 300, "retry_limit": 3, "priority": 0, "delayed_processing": 0, "window_buffer": 0, "max_size": 0,
        "retention_seconds": 0, "completed_retention_seconds": 0, "encryption_enabled": False,
    }
    node.configure(options=OTHER)
    assert options_of(node.configure(options=create)) == OTHER | create


def test_editing_keeps_identity_and_messages_and_wakes_parked_pops() -> None:
    """QU-5."""
    node = Inward()
    node.push_ids("a")
    before = queues.find_queue(node.store, b"orders")
    assert before is not None
    uuid, queue_id = before.uuid, before.queue_id
    answer = node.configure(retry_limit=1)
    assert answer[0] == uuid
    assert options_of(answer)["lease_time"] == 60  # a push made it
    after = queues.find_queue(node.store, b"orders")
    assert after is not None and after.queue_id == queue_id
    assert node.push_ids("a") == [("duplicate", 0)]
    node.configure()
    assert node.step is not None
    assert node.step.wakes == {b"orders": queues.WAKE_ALL}
