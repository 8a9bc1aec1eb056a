"""Acks: which message an item means, what becomes of cursor, lease and dead letters, and what is answered (PA-45..60).

The items of a call are judged in parts, one per (partition, lease): a part is fenced, its ids are looked up, the
arithmetic of `rulings.py` decides, and only then is anything written. A part that is refused writes nothing. A
transaction judges and carries out with the same functions, but never recalls what an earlier ack was answered (TX-33).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from queen_node.commands import AckStatus
from queen_node.state import ack_memory, deadletters, groups, leases, lookup, ready
from queen_node.state.groups import QUEUE_MODE, cursor_key
from queen_node.state.messages import message_key, unpack
from queen_node.state.queues import find_queue, partition_of_id
from queen_node.state.rows import CursorRow, GroupRow, PartitionRow, QueueRow
from queen_node.state.rulings import Ruling, rule
from queen_node.state.step import Step
from queen_node.state.verdicts import (
    ALREADY_COMMITTED,
    CONSUMER_NOT_FOUND,
    DLQ,
    DONE,
    INVALID_LEASE,
    NOOP,
    REDELIVERS,
    UNRESOLVABLE,
)

RETRIES_EXHAUSTED = b"Retries exhausted"
ID_MAX = (1 << 64) - 1

# [transaction id, partition id, AckStatus, lease id, error text or None]: commands.AckItem as it comes out of CBOR
Item = Sequence[Any]


class Acked(NamedTuple):
    """What is answered for one item. verdict: flags of `verdicts.py`; released: whether its part ended a lease."""

    transaction_id: bytes
    verdict: int
    released: bool


class Place(NamedTuple):
    """Where a part of an ack applies, with the shared rows."""

    queue: QueueRow
    partition: PartitionRow
    group: bytes
    cursor: CursorRow


class Part(NamedTuple):
    """A part of an ack, judged. offsets: which message each item means; marks: offset above the cursor -> the
    strongest status said of it."""

    place: Place
    items: Sequence[Item]
    offsets: list[int | None]
    marks: dict[int, int]
    ruling: Ruling


def apply_ack(step: Step, command: list[Any]) -> list[Acked]:
    """Judge and carry out an ack: one answer per item, in the order of the call."""
    group: bytes = command[2]
    items: Sequence[Item] = command[3]
    if len(items) == 1:
        return _ack_part(step, group, items)
    parts: dict[tuple[int, bytes], list[int]] = {}
    for index, item in enumerate(items):
        parts.setdefault((item[1], item[3]), []).append(index)
    answers: list[Acked | None] = [None] * len(items)
    for indexes in parts.values():
        for index, answer in zip(indexes, _ack_part(step, group, [items[index] for index in indexes]), strict=True):
            answers[index] = answer
    return [answer for answer in answers if answer is not None]


def _ack_part(step: Step, group: bytes, items: Sequence[Item]) -> list[Acked]:
    """The items of one partition and lease (PA-46)."""
    place = find_place(step, group, items[0])
    if isinstance(place, Place):
        return carry_out(step, judge(step, place, items))
    if place == INVALID_LEASE:
        return _repeated(step, group, items)
    return [Acked(item[0], place, False) for item in items]


def find_place(step: Step, group: bytes, item: Item) -> Place | int:
    """Where a part applies, of which `item` is one; or the verdict on all of its items when it applies nowhere."""
    store = step.store
    _, partition_id, _, lease_id, _ = item
    partition = partition_of_id(store, partition_id) if 0 < partition_id <= ID_MAX else None
    queue = find_queue(store, partition.queue) if partition is not None else None
    if partition is None or queue is None or queue.queue_id != partition.queue_id:
        return CONSUMER_NOT_FOUND
    cursor = store.row(cursor_key(partition_id, group), CursorRow)
    if lease_id:  # fenced, before anything else is asked of the group (PA-47)
        if cursor is None or cursor.lease_id != lease_id or not leases.is_live(cursor, step.now_us):
            return INVALID_LEASE
    else:
        cursor = _cursor_of(step, queue, partition, group, cursor)
        if cursor is None:
            return CONSUMER_NOT_FOUND
    return Place(queue, partition, group, cursor)


def judge(step: Step, place: Place, items: Sequence[Item]) -> Part:
    """Look the items of a part up and rule. Writes nothing."""
    cursor = place.cursor
    offsets = lookup.offsets_of_items(
        step.store, place.partition, cursor, [item[0] for item in items], fenced=bool(items[0][3]))
    marks: dict[int, int] = {}
    for item, offset in zip(items, offsets, strict=True):
        if offset is not None and offset > cursor.committed:
            marks[offset] = max(marks.get(offset, 0), item[2])
    ruling = rule(cursor.committed, marks, retries=cursor.retries, retry_limit=place.queue.options.retry_limit)
    return Part(place, items, offsets, marks, ruling)


def carry_out(step: Step, part: Part) -> list[Acked]:
    """Write what was ruled, and answer."""
    place, items, offsets, marks, ruling = part
    filed = _file_dead_letters(step, place, items, offsets, marks, ruling)
    committed = place.cursor.committed
    verdicts = [
        verdict_on(item[2], offset, committed, ruling, filed) for item, offset in zip(items, offsets, strict=True)]
    released = bool(marks) and _move(step, place, items, ruling, verdicts)
    return [Acked(item[0], verdict, released) for item, verdict in zip(items, verdicts, strict=True)]


def _cursor_of(
    step: Step, queue: QueueRow, partition: PartitionRow, group: bytes, cursor: CursorRow | None,
) -> CursorRow | None:
    """Where a lease-less ack of the group stands; None for what PA-53's table calls `consumer not found`."""
    if group == QUEUE_MODE:  # it has no record: a cursor must have been used
        return cursor if cursor is not None and _was_used(cursor) else None
    if cursor is not None:
        return cursor
    record = groups.find(step.store, queue, group)
    return None if record is None else _start(step, record, partition)


def _was_used(cursor: CursorRow) -> bool:
    """Whether the group ever claimed or acked anything there; a cursor also stands where something waits for it."""
    return cursor.attempt_offset >= 0 or cursor.last_consumed_us > 0


def _start(step: Step, record: GroupRow, partition: PartitionRow) -> CursorRow:
    """Where a registered group without a cursor stands: below what it would read first, or at the end."""
    cursor = groups.new_cursor(step.store, record, partition, appended=False)
    return cursor if cursor is not None else CursorRow(partition.queue_id, partition.next_offset - 1)


def _repeated(step: Step, group: bytes, items: Sequence[Item]) -> list[Acked]:
    """An ack under a lease that is not live: the same again as the first time, else refused (PA-47, PA-59)."""
    store = step.store
    _, partition_id, _, lease_id, _ = items[0]
    partition = partition_of_id(store, partition_id)
    memory = ack_memory.recall(store, partition_id, group, lease_id, step.now_us)
    if memory is None or partition is None:
        return [Acked(item[0], INVALID_LEASE, False) for item in items]
    if memory.digest == _digest(items):
        return [
            Acked(item[0], verdict, True)
            for item, verdict in zip(items, memory.verdicts_of(len(items)), strict=True)
        ]
    completed = {item[0] for item in items if item[2] == AckStatus.COMPLETED}
    passed = lookup.known_at_or_below(store, partition, completed, memory.reached)
    return [
        Acked(item[0], DONE | NOOP if item[2] == AckStatus.COMPLETED and item[0] in passed else INVALID_LEASE, False)
        for item in items
    ]


def _file_dead_letters(
    step: Step, place: Place, items: Sequence[Item], offsets: Sequence[int | None], marks: dict[int, int],
    ruling: Ruling,
) -> dict[int, int]:
    """File what leaves as a dead letter. Returns the verdict of each offset that leaves so (PA-55, PA-56)."""
    if not ruling.filed:
        return {}
    options, partition = place.queue.options, place.partition
    keeps_exhausted = options.dead_letter_queue or options.dlq_after_max_retries
    reasons: dict[int, bytes] = {}  # offset -> the text that came with the status that decided
    for item, item_offset in zip(items, offsets, strict=True):
        if item[4] and item_offset is not None and item[2] == marks.get(item_offset):
            reasons.setdefault(item_offset, item[4])
    verdicts = {}
    for offset, attempts in ruling.filed.items():
        if marks[offset] == AckStatus.FAILED and not keeps_exhausted:
            verdicts[offset] = DONE
            continue
        is_retained = offset >= partition.log_start
        stored = step.store.get_young(message_key(partition.partition_id, offset)) if is_retained else None
        if stored is None:  # retention was faster: the cursor passes, nothing is left to file
            verdicts[offset] = DONE | NOOP
            continue
        message = unpack(stored)
        deadletters.file(
            step, place.queue, partition, group=place.group, offset=offset, transaction_id=message.transaction_id,
            payload=message.payload, payload_flags=message.payload_flags,
            error=reasons.get(offset, RETRIES_EXHAUSTED), attempts=attempts,
            producer_sub=message.producer_sub, created_at_us=message.created_at_us)
        step.tally.dead_letters += 1
        verdicts[offset] = DONE | DLQ
    return verdicts


def verdict_on(status: int, offset: int | None, committed: int, ruling: Ruling, filed: dict[int, int]) -> int:
    """What is answered for one item (the table of pop-ack.md 8)."""
    if offset is None:
        return UNRESOLVABLE
    if offset <= committed:
        return DONE | NOOP if status == AckStatus.COMPLETED else ALREADY_COMMITTED
    stop = ruling.stop
    if stop is None or offset < stop:
        return filed.get(offset, DONE)
    if offset == stop:
        return DONE | REDELIVERS if status == AckStatus.COMPLETED else DONE
    return DONE if status == AckStatus.RETRY else DONE | REDELIVERS


def _move(step: Step, place: Place, items: Sequence[Item], ruling: Ruling, verdicts: Sequence[int]) -> bool:
    """Move the cursor, end the lease if that is due (PA-38, PA-50, PA-52). Returns whether a lease was released."""
    queue, partition, group, cursor = place
    moved = ruling.reached - max(cursor.committed, partition.log_start - 1)
    cursor.committed = ruling.reached
    cursor.retries = ruling.retries
    if moved > 0:
        cursor.last_consumed_us = step.now_us
        cursor.total_consumed += moved
        step.tally.acked += moved
        ready.count_acked(step, queue, group, moved)
    lease_id = cursor.lease_id
    released = False
    if lease_id and (ruling.final or ruling.reached >= cursor.lease_last):
        released = leases.is_live(cursor, step.now_us)
        leases.release(step, partition, cursor)
        if released:
            ack_memory.remember(
                step.store, partition.partition_id, group, ack_memory.ReleasedRow(
                    lease_id, step.now_us, ruling.reached, _digest(items), ack_memory.packed(verdicts)))
    if not cursor.lease_id:
        ready.file(step, queue, group, partition, cursor)
        if lease_id and cursor.ready_at_us >= 0:
            step.wake(queue.name, 1)
    step.store.put_row(cursor_key(partition.partition_id, group), cursor)
    return released


def _digest(items: Sequence[Item]) -> bytes:
    """Of what a repeat must say alike: ids, statuses and reasons, in order."""
    said = [(transaction_id, status, error or b"") for transaction_id, _, status, _, error in items]
    return blake2b(_encode(said), digest_size=16).digest()


_encode = msgspec.msgpack.Encoder().encode
