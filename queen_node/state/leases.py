"""Consumer leases: granted by a pop, ended by an ack, by time, or by giving them back (pop-ack.md 6).

A lease id may hold several partitions; each is released by itself (PA-38). The cursor says what is held and until when;
the lease's own row says only where to look. Mere expiry changes nothing (PA-63): a lease that has run out stays in its
cursor until somebody else claims the partition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from queen_node.state import ready
from queen_node.state.groups import cursor_key
from queen_node.state.keys import COUNTERS, LEASE
from queen_node.state.queues import find_queue, partition_of_id
from queen_node.state.rows import CursorRow, LeaseRow, PartitionRow, QueueRow
from queen_node.state.step import Step
from queen_node.state.store import Store

EXTEND_MIN_S, EXTEND_MAX_S = 1, 86_400


class Extended(NamedTuple):
    """What is answered to an extension: new_expires_us is the earliest of them, None when nothing was renewed."""

    lease_id: bytes
    renewed: int
    new_expires_us: int | None


class Held(NamedTuple):
    """A partition that a lease id holds, with the shared rows."""

    queue: QueueRow
    partition: PartitionRow
    cursor: CursorRow


def is_live(cursor: CursorRow, now_us: int) -> bool:
    """Whether anybody holds a live lease there; `now_us`: stamp of the entry that asks (PA-35)."""
    return bool(cursor.lease_id) and now_us < cursor.lease_expires_us


def grant(step: Step, cursor: CursorRow, lease_id: bytes, first: int, last: int, lease_ms: int) -> None:
    """Give `first` to `last` to the holder of `lease_id`. The caller puts the cursor and the row of the lease back."""
    cursor.lease_id = lease_id
    cursor.lease_first, cursor.lease_last = first, last
    cursor.lease_expires_us = step.now_us + lease_ms * 1000
    _count(step.store, 1)


def release(step: Step, partition: PartitionRow, cursor: CursorRow) -> None:
    """End the lease that a cursor names, live or run out. The caller puts the cursor back and files the partition."""
    store = step.store
    key = LEASE + cursor.lease_id
    row = store.row(key, LeaseRow)
    if row is not None:
        if partition.partition_id in row.partitions:
            row.partitions.remove(partition.partition_id)
        if row.partitions:
            store.put_row(key, row)
        else:
            store.delete(key)
    cursor.lease_id = b""
    cursor.lease_first = cursor.lease_last = cursor.lease_expires_us = 0
    _count(store, -1)


def apply_extend(step: Step, command: list[Any]) -> Extended:
    """New expiry = max(old, now + seconds), for every live partition of the lease (PA-37)."""
    lease_id: bytes = command[2]
    seconds = min(max(command[3], EXTEND_MIN_S), EXTEND_MAX_S)
    store, now_us = step.store, step.now_us
    row = store.row(LEASE + lease_id, LeaseRow)
    if row is None:
        return Extended(lease_id, 0, None)
    renewed = 0
    earliest_us: int | None = None
    for held in _held(store, lease_id, row):
        cursor = held.cursor
        if not is_live(cursor, now_us):
            continue
        renewed += 1
        wanted_us = now_us + seconds * 1_000_000
        if wanted_us > cursor.lease_expires_us:
            cursor.lease_expires_us = wanted_us
            ready.file(step, held.queue, row.group, held.partition, cursor)
            store.put_row(cursor_key(held.partition.partition_id, row.group), cursor)
        if earliest_us is None or cursor.lease_expires_us < earliest_us:
            earliest_us = cursor.lease_expires_us
    return Extended(lease_id, renewed, earliest_us)


def apply_hand_back(step: Step, command: list[Any]) -> None:
    """Release what a pop claimed that nobody received, and do not count the attempt (PA-23, G-Q8)."""
    lease_id: bytes = command[2]
    store = step.store
    row = store.row(LEASE + lease_id, LeaseRow)
    if row is None:
        return
    for held in _held(store, lease_id, row):
        cursor = held.cursor
        if cursor.attempt_offset == cursor.lease_first and cursor.attempt:
            cursor.attempt -= 1
        release(step, held.partition, cursor)
        ready.file(step, held.queue, row.group, held.partition, cursor)
        store.put_row(cursor_key(held.partition.partition_id, row.group), cursor)
        step.wake(held.queue.name, 1)
        step.tally.handed_back += 1


def is_held(store: Store, lease_id: bytes) -> bool:
    """Whether there is anything that a hand-back of this lease would release."""
    return store.row(LEASE + lease_id, LeaseRow) is not None


def _held(store: Store, lease_id: bytes, row: LeaseRow) -> list[Held]:
    """The partitions that still name this lease. At most as many as one pop may claim."""
    found = []
    for partition_id in row.partitions:
        partition = partition_of_id(store, partition_id)
        queue = find_queue(store, partition.queue) if partition is not None else None
        cursor = store.row(cursor_key(partition_id, row.group), CursorRow)
        if partition is None or queue is None or cursor is None or queue.queue_id != partition.queue_id:
            continue  # deleted with its queue or group
        if cursor.lease_id == lease_id:
            found.append(Held(queue, partition, cursor))
    return found


def _count(store: Store, change: int) -> None:
    counters = store.counters()
    counters.leases_live += change
    store.put_row(COUNTERS, counters)
