"""Acks: which message an item means, what becomes of cursor, lease and dead letters, and what is answered (PA-45..60).

The items of a call are judged in parts, one per (partition, lease): a part is fenced, its ids are looked up, the
arithmetic of `rulings.py` decides, and only then is anything written. A part that is refused writes nothing. A
transaction judges and carries out with the same functions, but never recalls what an earlier ack was answered (TX-33).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Any

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
COMPLETED = int(AckStatus.COMPLETED)
ALL_DONE = bytes((DONE,))

# [transaction id, partition id, AckStatus, lease id, error text or None]: commands.AckItem as it comes out of an entry
Item = Sequence[Any]


# What is answered for one item: (transaction id, flags of `verdicts.py`, whether its part ended a lease)
Acked = tuple[bytes, int, bool]


class Said(msgspec.Struct, frozen=True, gc=False):
    """The items of a part in columns: what nearly every ack says is judged as a whole, not item by item."""

    ids: Sequence[bytes]
    partition_id: int
    statuses: Sequence[int]
    lease_id: bytes
    errors: Sequence[bytes | None]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a part of an ack applies, with the shared rows."""

    queue: QueueRow
    partition: PartitionRow
    group: bytes
    cursor: CursorRow


class Part(msgspec.Struct, frozen=True, gc=False):
    """A part of an ack, judged. offsets: which message each item means; marks: offset above the cursor -> the
    strongest status said of it. all_done: every item is `completed`, of a message above the cursor."""

    place: Place
    said: Said
    offsets: list[int | None]
    marks: dict[int, int]
    ruling: Ruling
    all_done: bool


def apply_ack(step: Step, command: list[Any]) -> list[Acked]:
    """Judge and carry out an ack: one answer per item, in the order of the call."""
    group: bytes = command[2]
    items: Sequence[Item] = command[3]
    if not items:
        return []
    ids, partition_ids, statuses, lease_ids, errors = zip(*items, strict=True)
    if partition_ids.count(partition_ids[0]) == len(ids) == lease_ids.count(lease_ids[0]):
        return _ack_part(step, group, Said(ids, partition_ids[0], statuses, lease_ids[0], errors))
    parts: dict[tuple[int, bytes], list[int]] = {}
    for index, item in enumerate(items):
        parts.setdefault((item[1], item[3]), []).append(index)
    answers: list[Acked | None] = [None] * len(items)
    for indexes in parts.values():
        part = in_columns([items[index] for index in indexes])
        for index, answer in zip(indexes, _ack_part(step, group, part), strict=True):
            answers[index] = answer
    return [answer for answer in answers if answer is not None]


def in_columns(items: Sequence[Item]) -> Said:
    """Items of one partition and lease, at least one of them."""
    ids, partition_ids, statuses, lease_ids, errors = zip(*items, strict=True)
    return Said(ids, partition_ids[0], statuses, lease_ids[0], errors)


def _ack_part(step: Step, group: bytes, part: Said) -> list[Acked]:
    """The items of one partition and lease (PA-46)."""
    place = find_place(step, group, part.partition_id, part.lease_id)
    if isinstance(place, Place):
        verdicts, released = carry_out(step, judge(step, place, place.cursor, part))
        return _answers(part.ids, verdicts, released)
    if place == INVALID_LEASE:
        return _repeated(step, group, part)
    return _answers(part.ids, [place] * len(part.ids), False)


def _answers(ids: Sequence[bytes], verdicts: Sequence[int], released: bool) -> list[Acked]:
    return list(zip(ids, verdicts, repeat(released, len(ids)), strict=True))


def find_place(step: Step, group: bytes, partition_id: int, lease_id: bytes) -> Place | int:
    """Where a part applies; or the verdict on all of its items when it applies nowhere."""
    store = step.store
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


def judge(step: Step, place: Place, cursor: CursorRow, part: Said) -> Part:
    """Look the items of a part up and rule. Writes nothing. cursor: as it will stand when the part's turn comes."""
    committed = cursor.committed
    offsets = lookup.offsets_of_items(
        step.store, place.partition, cursor, part.ids, fenced=bool(part.lease_id))
    known = [offset for offset in offsets if offset is not None]
    all_done = not any(part.statuses) and len(known) == len(offsets) and min(known) > committed
    marks: dict[int, int] = {}
    if all_done:
        marks = dict.fromkeys(known, COMPLETED)
    else:
        for status, offset in zip(part.statuses, offsets, strict=True):
            if offset is not None and offset > committed:
                marks[offset] = max(marks.get(offset, 0), status)
    ruling = rule(committed, marks, retries=cursor.retries, retry_limit=place.queue.options.retry_limit)
    return Part(place, part, offsets, marks, ruling, all_done)


def carry_out(step: Step, part: Part) -> tuple[Sequence[int], bool]:
    """Write what was ruled: (the verdict on each item, whether a lease was released)."""
    place, offsets, ruling = part.place, part.offsets, part.ruling
    if part.all_done:
        verdicts: Sequence[int] = ALL_DONE * len(offsets)
    else:
        filed = _file_dead_letters(step, part)
        committed = place.cursor.committed
        verdicts = [
            verdict_on(status, offset, committed, ruling, filed)
            for status, offset in zip(part.said.statuses, offsets, strict=True)]
    return verdicts, bool(part.marks) and _move(step, place, part.said, ruling, verdicts)


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


def _repeated(step: Step, group: bytes, part: Said) -> list[Acked]:
    """An ack under a lease that is not live: the same again as the first time, else refused (PA-47, PA-59)."""
    store = step.store
    ids = part.ids
    partition = partition_of_id(store, part.partition_id)
    memory = ack_memory.recall(store, part.partition_id, group, part.lease_id, step.now_us)
    if memory is None or partition is None:
        return _answers(ids, [INVALID_LEASE] * len(ids), False)
    if memory.digest == _digest(part):
        return _answers(ids, memory.verdicts_of(len(ids)), True)
    items = list(zip(ids, part.statuses, strict=True))
    completed = {transaction_id for transaction_id, status in items if status == COMPLETED}
    passed = lookup.known_at_or_below(store, partition, completed, memory.reached)
    return [
        (transaction_id, DONE | NOOP if status == COMPLETED and transaction_id in passed else INVALID_LEASE, False)
        for transaction_id, status in items
    ]


def _file_dead_letters(step: Step, judged: Part) -> dict[int, int]:
    """File what leaves as a dead letter. Returns the verdict of each offset that leaves so (PA-55, PA-56)."""
    place, said, marks, ruling = judged.place, judged.said, judged.marks, judged.ruling
    if not ruling.filed:
        return {}
    options, partition = place.queue.options, place.partition
    keeps_exhausted = options.dead_letter_queue or options.dlq_after_max_retries
    reasons: dict[int, bytes] = {}  # offset -> the text that came with the status that decided
    for status, error, item_offset in zip(said.statuses, said.errors, judged.offsets, strict=True):
        if error and item_offset is not None and status == marks.get(item_offset):
            reasons.setdefault(item_offset, error)
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
        return DONE | NOOP if status == COMPLETED else ALREADY_COMMITTED
    stop = ruling.stop
    if stop is None or offset < stop:
        return filed.get(offset, DONE)
    if offset == stop:
        return DONE | REDELIVERS if status == COMPLETED else DONE
    return DONE if status == AckStatus.RETRY else DONE | REDELIVERS


def _move(step: Step, place: Place, said: Said, ruling: Ruling, verdicts: Sequence[int]) -> bool:
    """Move the cursor, end the lease if that is due (PA-38, PA-50, PA-52). Returns whether a lease was released."""
    queue, partition, group, cursor = place.queue, place.partition, place.group, place.cursor
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
                    lease_id, step.now_us, ruling.reached, _digest(said), ack_memory.packed(verdicts)))
    if not cursor.lease_id:
        ready.file(step, queue, group, partition, cursor)
        if lease_id and cursor.ready_at_us >= 0:
            step.wake(queue.name, 1)
    step.store.put_row(cursor_key(partition.partition_id, group), cursor)
    return released


def _digest(said: Said) -> bytes:
    """Of what a repeat must say alike: ids, statuses and reasons, in order."""
    errors = [error or b"" for error in said.errors]
    return blake2b(_encode((said.ids, said.statuses, errors)), digest_size=16).digest()


_encode = msgspec.msgpack.Encoder().encode
