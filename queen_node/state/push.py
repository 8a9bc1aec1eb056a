"""Messages in: the one append path, pushes, and the forgetting of message ids whose time is over (push.md).

A push, a fired timer, a transaction and a replay all append with `Appender`, so that all of them check for duplicates,
number, file and wake alike (PU-30, PU-58).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any

from queen_node.state import calendar, dedup
from queen_node.state.dedup import MessageIdRow
from queen_node.state.keys import CALENDAR_MESSAGE_IDS, PARTITION, read_u64, u64
from queen_node.state.known_ids import Place, place_of, places_of
from queen_node.state.messages import (
    created_at_us_of,
    message_key,
    message_stem,
    pack,
    pack_plain,
    transaction_id_of,
)
from queen_node.state.queues import (
    destination,
    find_partition,
    find_queue,
    partition_of_id,
    takes_no_clear_text,
)
from queen_node.state.rows import PartitionRow, QueueRow
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken, must

SECOND_US = 1_000_000
COLUMNS_MIN = 4  # messages; of fewer, columns are no quicker
# Moments at which ids are forgotten are rounded up to this: a busy partition is visited once in ten seconds, not once a
# message, and many partitions share a visit.
FORGET_GRAIN_US = 10 * SECOND_US
# A window that was shortened is noticed at the next visit, so there must be one before the old window ends.
FORGET_VISIT_AT_LATEST_US = 24 * 3600 * SECOND_US
# At an append the least keep time is not known (a setting, it comes with the command); a window of 0 must not mean a
# visit for every message.
FORGET_VISIT_AT_EARLIEST_US = 60 * SECOND_US

# What is answered for one item: (message id, transaction id, queue, whether it is a duplicate, offset); of a duplicate,
# message id and offset are the original's.
Placed = tuple[bytes, bytes, bytes, bool, int]
Item = Sequence[Any]  # commands.PushItem as it comes out of an entry
PushAnswer = list[Placed] | bytes  # or the name of the queue that takes no clear text


class _Tail:
    """Where a partition's next message goes, with the shared rows; looked up once a command."""

    __slots__ = ("appended", "firsts", "id_stem", "known_ids", "message_stem", "partition", "queue", "window_us")

    def __init__(self, store: Store, queue: QueueRow, partition: PartitionRow) -> None:
        self.queue, self.partition = queue, partition
        self.known_ids = store.known_ids.of(partition.partition_id)
        self.window_us = queue.options.dedup_window_seconds * SECOND_US
        self.id_stem, self.message_stem = dedup.id_stem(partition.partition_id), message_stem(partition.partition_id)
        # Ids of this command where the window is 0, which switches the check off (PU-51); elsewhere the store knows.
        self.firsts: dict[bytes, tuple[int, bytes]] = {}
        self.appended = 0


class Appender:
    """The one append path, for what one command appends: pushes, fired timers, both in a transaction (PU-30, PU-58).

    Rows that do not belong to a message are written once, by `finish`, however many messages there were.
    """

    __slots__ = ("_digests", "_fresh", "_step", "_tails")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._digests: dict[bytes, bytes] = {}  # of ids that `first_stored` has looked for
        self._tails: dict[tuple[bytes, bytes], _Tail] = {}
        # Of items that `first_stored` knows to be new, each in a partition that is there: all of them, or nothing.
        self._fresh: dict[bytes, tuple[_Tail, Place]] = {}  # key of the id -> where it goes

    def append(
        self,
        queue_name: bytes,
        partition_name: bytes,
        transaction_id: bytes,
        message_id: bytes,
        payload: bytes,
        payload_flags: int = 0,
        trace_id: bytes | None = None,
        producer_sub: bytes | None = None,
    ) -> tuple[int, bytes | None]:
        """Append one message unless its transaction id is inside the partition's dedup window.

        Queue and partition are made when missing. Returns (offset, None) when appended; for a duplicate the original's
        (offset, message id), and nothing was written (PU-53). Check and append are one step (PU-54).
        """
        tail = self._tail(queue_name, partition_name)
        step, partition = self._step, tail.partition
        store, now_us, offset = step.store, step.now_us, partition.next_offset
        digest = self._digests.get(transaction_id) or dedup.hash_of(transaction_id)
        id_key, known_ids, place = tail.id_stem + digest, tail.known_ids, place_of(digest)
        known = store.get(id_key) if known_ids is None or known_ids.may_hold(place) else None
        if known is None and tail.window_us:
            store.put_fresh(id_key, dedup.encode_new(offset, now_us, message_id))
        else:
            original = self._original(tail, transaction_id, id_key, known, MessageIdRow(offset, now_us, message_id))
            if original is not None:
                step.tally.duplicates += 1
                return original
        if known_ids is not None:
            known_ids.add_one(place, offset)
        store.put_young(
            tail.message_stem + u64(offset),
            pack(now_us, message_id, transaction_id, payload, payload_flags, trace_id, producer_sub))
        partition.next_offset = offset + 1
        tail.appended += 1
        return offset, None

    def _append_run(self, items: Sequence[Item]) -> list[Placed]:
        """Append messages to one partition, in their order: what `append` does with each of them.

        Where all are new and plain, as in nearly every push, whole columns are written at once, in half the time.
        """
        count = len(items)
        if count < COLUMNS_MIN:
            return self._append_each(items)
        (queue_name, *_), (partition_name, *_), transaction_ids, message_ids, payloads, flags, traces, producers = zip(
            *items, strict=True)
        tail = self._tail(queue_name, partition_name)
        is_plain = not any(flags) and traces.count(None) == count == producers.count(None)
        digests = list(map(dedup.hash_of, transaction_ids))
        if not is_plain or not tail.window_us or len(set(digests)) < count or self._any_known(tail, digests):
            return self._append_each(items)
        store, now_us, partition = self._step.store, self._step.now_us, tail.partition
        first = partition.next_offset
        id_stem, stem = tail.id_stem, tail.message_stem
        store.put_all_fresh(
            [id_stem + digest for digest in digests], dedup.encode_rows(first, now_us, message_ids))
        store.put_all_young(
            [stem + u64(offset) for offset in range(first, first + count)],
            pack_plain(now_us, message_ids, transaction_ids, payloads))
        if tail.known_ids is not None:
            tail.known_ids.add(places_of(digests), first)
        partition.next_offset = first + count
        tail.appended += count
        return list(zip(
            message_ids, transaction_ids, repeat(queue_name, count), repeat(False, count), range(first, first + count),
            strict=True))

    def first_stored(self, items: Sequence[Item]) -> tuple[int, MessageIdRow] | None:
        """The first item that repeats what is stored inside its partition's window: (index, the original). Writes
        nothing.

        What repeats another item of the call is no matter of this: `append` answers it (TX-22).
        """
        store, now_us = self._step.store, self._step.now_us
        fresh: dict[bytes, tuple[_Tail, Place]] = {}
        for index, item in enumerate(items):
            tail = self._tail_that_is_there(item[0], item[1])
            if tail is None or not tail.window_us:
                continue  # nothing is there to be repeated, or nobody wants to know (PU-51)
            digest = self._digests[item[2]] = dedup.hash_of(item[2])
            id_key, place = tail.id_stem + digest, place_of(digest)
            is_perhaps_known = tail.known_ids is None or tail.known_ids.may_hold(place)
            first = dedup.lowest(store, id_key) if is_perhaps_known else None
            if first is None:
                fresh[id_key] = tail, place
                continue
            original = dedup.oldest_inside(
                store, id_key, first, now_us - tail.window_us, tail.partition.next_offset)
            if original is not None:
                return index, original
        if len(fresh) == len(items):  # fewer: one is not new, or the same as another one
            self._fresh = fresh
        return None

    def append_all(self, items: Sequence[Item]) -> list[Placed]:
        """Append messages in their order: what `append` does with each of them.

        Those that `first_stored` was asked about, and was sure of, are looked for no more: that halves the time.
        """
        fresh, self._fresh = self._fresh, {}
        if not fresh:
            placed: list[Placed] = []
            for _, run in groupby(items, itemgetter(0, 1)):
                placed += self._append_run(list(run))
            return placed
        return self._append_fresh(fresh, items)

    def _append_fresh(self, fresh: dict[bytes, tuple[_Tail, Place]], items: Sequence[Item]) -> list[Placed]:
        store, now_us = self._step.store, self._step.now_us
        keys: list[bytes] = []
        messages: list[bytes] = []
        ids: list[bytes] = []
        placed: list[Placed] = []
        for (tail, place), item in zip(fresh.values(), items, strict=True):
            queue_name, _partition_name, transaction_id, message_id, payload, flags, trace_id, producer_sub = item
            partition, known_ids = tail.partition, tail.known_ids
            offset = partition.next_offset
            partition.next_offset = offset + 1
            tail.appended += 1
            if known_ids is not None:
                known_ids.add_one(place, offset)
            ids.append(dedup.encode_new(offset, now_us, message_id))
            keys.append(tail.message_stem + u64(offset))
            messages.append(pack(now_us, message_id, transaction_id, payload, flags, trace_id, producer_sub))
            placed.append((message_id, transaction_id, queue_name, False, offset))
        store.put_all_fresh(list(fresh), ids)
        store.put_all_young(keys, messages)
        return placed

    def _append_each(self, items: Sequence[Item]) -> list[Placed]:
        placed: list[Placed] = []
        for queue_name, partition_name, transaction_id, message_id, payload, flags, trace_id, producer_sub in items:
            offset, original = self.append(
                queue_name, partition_name, transaction_id, message_id, payload, flags, trace_id, producer_sub)
            placed.append((original or message_id, transaction_id, queue_name, original is not None, offset))
        return placed

    def _any_known(self, tail: _Tail, digests: Sequence[bytes]) -> bool:
        """Whether any of these ids is remembered, whatever its age."""
        get, stem = self._step.store.get, tail.id_stem
        perhaps = range(len(digests)) if tail.known_ids is None else tail.known_ids.perhaps(places_of(digests))
        return any(get(stem + digests[number]) is not None for number in perhaps)

    def _tail(self, queue_name: bytes, partition_name: bytes) -> _Tail:
        tail = self._tails.get((queue_name, partition_name))
        if tail is None:
            tail = self._tails[queue_name, partition_name] = _Tail(
                self._step.store, *destination(self._step, queue_name, partition_name))
        return tail

    def _tail_that_is_there(self, queue_name: bytes, partition_name: bytes) -> _Tail | None:
        tail = self._tails.get((queue_name, partition_name))
        if tail is None:
            store = self._step.store
            queue = find_queue(store, queue_name)
            partition = None if queue is None else find_partition(store, queue, partition_name)
            if queue is None or partition is None:
                return None
            tail = self._tails[queue_name, partition_name] = _Tail(store, queue, partition)
        return tail

    def finish(self) -> None:
        """Write what the messages since the last call changed beside themselves."""
        step = self._step
        for tail in self._tails.values():
            if not tail.appended:
                continue
            queue, partition = tail.queue, tail.partition
            partition.last_write_us = step.now_us
            if not partition.ids_deadline_us:
                _visit_at(step, partition, step.now_us + max(_kept_us(queue), FORGET_VISIT_AT_EARLIEST_US) + 1)
            step.store.put_row(PARTITION + u64(partition.partition_id), partition)
            step.touched[partition.partition_id] = (queue, partition)
            step.tally.pushed += tail.appended
            step.wake(queue.name, tail.appended)
            tail.appended = 0

    def _original(
        self, tail: _Tail, transaction_id: bytes, id_key: bytes, known: bytes | None, row: MessageIdRow,
    ) -> tuple[int, bytes] | None:
        """What a message would repeat; if nothing, its id is remembered. known: the stored row of the id."""
        store = self._step.store
        if not tail.window_us:
            twin = tail.firsts.get(transaction_id)
            if twin is not None:  # the first of a call wins, whatever the window (PU-52)
                return twin
            tail.firsts[transaction_id] = row.offset, row.message_id
        if known is None:
            store.put(id_key, dedup.encode_row(row))
            return None
        first = dedup.decode_row(known)
        if tail.window_us:
            original = dedup.oldest_inside(store, id_key, first, row.created_at_us - tail.window_us, row.offset)
            if original is not None:
                return original.offset, original.message_id
        dedup.remember_again(store, id_key, first, row)
        return None


def apply_push(step: Step, command: list[Any]) -> PushAnswer:
    """Append the items of a push in their order (PU-40). An answer, never an exception, for what a client did wrong."""
    items: Sequence[Item] = command[2]
    in_clear = first_in_clear(step.store, items)
    if in_clear is not None:
        queue_name: bytes = items[in_clear][0]
        return queue_name
    appender = Appender(step)
    placed = appender.append_all(items)
    appender.finish()
    return placed


def first_in_clear(store: Store, items: Sequence[Item]) -> int | None:
    """The first item whose queue wants encrypted payloads (PU-71): the flag is state, so apply decides."""
    looked_at = None
    for index, item in enumerate(items):
        name: bytes = item[0]
        if name != looked_at:
            if takes_no_clear_text(store, name):
                return index
            looked_at = name
    return None


def apply_forget_ids(step: Step, command: list[Any]) -> tuple[int, bool]:
    """Forget message ids whose time is over (PU-55): (how many, whether more are due now).

    One command looks at `at_most` ids or partitions, so that it never holds the loop; the leader proposes another one
    while more are due.
    """
    at_most: int = command[2]
    keep_at_least_us: int = command[3] * SECOND_US
    must(at_most > 0, "a command that forgets nothing", at_most=at_most)
    due = calendar.due(step.store, CALENDAR_MESSAGE_IDS, step.now_us, at_most + 1)
    forgotten = 0
    budget = at_most
    for at_us, sequence, owner in due:
        if budget <= 0:
            return forgotten, True
        partition = partition_of_id(step.store, read_u64(owner))
        if partition is None or partition.ids_deadline_us != at_us:  # deleted with its queue
            calendar.remove(step.store, CALENDAR_MESSAGE_IDS, at_us, sequence)
            budget -= 1
            continue
        count = _forget_in(step, partition, keep_at_least_us, budget)
        forgotten += count
        budget -= max(count, 1)
        if partition.ids_deadline_us == at_us:
            return forgotten, True
    return forgotten, False


def next_ids_deadline_us(store: Store) -> int | None:
    """The earliest moment (group clock) at which message ids can be forgotten, or None."""
    return calendar.earliest(store, CALENDAR_MESSAGE_IDS)


def _forget_in(step: Step, partition: PartitionRow, keep_at_least_us: int, at_most: int) -> int:
    """Forget the partition's oldest ids as far as their time is over, and file the next visit. Returns how many.

    The ids are found by walking the messages from `ids_start` on. A message that retention takes away while its id is
    still kept must therefore leave its row behind, with an empty payload: below `log_start` nobody reads it, and it
    goes here, together with its id. So a removed message is still known as a duplicate (PU-56), and no row outlives
    its use.
    """
    store, partition_id = step.store, partition.partition_id
    queue = find_queue(store, partition.queue)
    if queue is None or queue.queue_id != partition.queue_id:  # deleted; whoever removes its rows takes the ids too
        _strike_visit(step, partition)
        return 0
    keep_us = max(_kept_us(queue), keep_at_least_us)
    first = offset = partition.ids_start
    end = min(partition.next_offset, first + at_most)
    visit_us = step.now_us if end < partition.next_offset else 0
    while offset < end:
        key = message_key(partition_id, offset)
        stored = store.get(key)
        if stored is None:
            broken("a message left before its id was forgotten", partition=partition_id, offset=offset)
        over_us = created_at_us_of(stored) + keep_us + 1
        if over_us > step.now_us:
            visit_us = over_us
            break
        dedup.forget_lowest(store, dedup.id_key(partition_id, transaction_id_of(stored)), offset)
        if offset < partition.log_start:
            store.delete(key)
        offset += 1
    partition.ids_start = offset
    known_ids = store.known_ids.of(partition_id)
    if known_ids is not None:
        known_ids.forget_below(offset)
    if visit_us == 0:
        _strike_visit(step, partition)
    elif visit_us > step.now_us:
        _strike_visit(step, partition)
        _visit_at(step, partition, visit_us)
    store.put_row(PARTITION + u64(partition_id), partition)
    return offset - first


def _kept_us(queue: QueueRow) -> int:
    """How long the queue's ids are kept at least (PU-55); a setting may lengthen it."""
    options = queue.options
    completed_s = options.completed_retention_seconds if options.retention_enabled else 0
    return max(options.dedup_window_seconds, completed_s) * SECOND_US


def _visit_at(step: Step, partition: PartitionRow, at_us: int) -> None:
    """File when the partition's ids are looked at; the caller puts the row back."""
    at_us = min(at_us, step.now_us + FORGET_VISIT_AT_LATEST_US)
    at_us += -at_us % FORGET_GRAIN_US
    partition.ids_deadline_us = at_us
    calendar.put(step.store, CALENDAR_MESSAGE_IDS, at_us, partition.partition_id, u64(partition.partition_id))


def _strike_visit(step: Step, partition: PartitionRow) -> None:
    calendar.remove(step.store, CALENDAR_MESSAGE_IDS, partition.ids_deadline_us, partition.partition_id)
    partition.ids_deadline_us = 0
