"""Positions: where a consumer group reads on in a partition, set from outside (transactions.md 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queen_node.state import groups, leases, ready
from queen_node.state.groups import cursor_key
from queen_node.state.queues import find_partition, find_queue, make_partition
from queen_node.state.rows import CursorRow, GroupRow, PartitionRow, QueueRow
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken

Position = Sequence[Any]  # commands.PositionItem as it comes out of an entry


def first_without_queue(store: Store, positions: Sequence[Position]) -> int | None:
    """The first position whose queue does not exist: none is made for it. Writes nothing."""
    for index, position in enumerate(positions):
        if find_queue(store, position[0]) is None:
            return index
    return None


def carry_out(step: Step, positions: Sequence[Position]) -> None:
    """Set positions in their order. A group or a partition that is missing is made; a lease of the group there ends."""
    store = step.store
    for queue_name, partition_name, group_name, offset, mode in positions:
        queue = find_queue(store, queue_name)
        if queue is None:
            broken("a position in a queue that is not there was let through", queue=queue_name)
        partition = find_partition(store, queue, partition_name) or make_partition(step, queue, partition_name)
        group = groups.find(store, queue, group_name) or groups.register(step, queue, group_name, mode, 0)
        cursor = store.row(cursor_key(partition.partition_id, group_name), CursorRow)
        if offset is None:
            _forget(step, queue, partition, group, cursor)
        else:
            _set(step, queue, partition, group_name, cursor or CursorRow(partition.queue_id), offset)


def _set(
    step: Step, queue: QueueRow, partition: PartitionRow, group: bytes, cursor: CursorRow, offset: int,
) -> None:
    _end_lease(step, partition, cursor)
    # Behind the end there is nothing yet: what is appended there must not be passed over unseen.
    cursor.committed = min(offset, partition.next_offset) - 1
    cursor.retries = cursor.attempt = 0  # as after a seek (PA-33)
    cursor.attempt_offset = -1
    _file(step, queue, partition, group, cursor)


def _forget(
    step: Step, queue: QueueRow, partition: PartitionRow, group: GroupRow, cursor: CursorRow | None,
) -> None:
    """The group stands there as if it had never read: where its record says that it begins (PA-30)."""
    if cursor is not None:
        _end_lease(step, partition, cursor)
        cursor.committed = partition.next_offset - 1  # owed nothing, so struck from the list
        ready.file(step, queue, group.name, partition, cursor)
        step.store.delete(cursor_key(partition.partition_id, group.name))
    begun = groups.new_cursor(step.store, group, partition, appended=False)
    if begun is not None:
        _file(step, queue, partition, group.name, begun)


def _file(step: Step, queue: QueueRow, partition: PartitionRow, group: bytes, cursor: CursorRow) -> None:
    ready.file(step, queue, group, partition, cursor)
    step.store.put_row(cursor_key(partition.partition_id, group), cursor)
    if cursor.ready_at_us >= 0:
        step.wake(queue.name, 1)


def _end_lease(step: Step, partition: PartitionRow, cursor: CursorRow) -> None:
    if cursor.lease_id:
        leases.release(step, partition, cursor)
