"""Claiming: which messages of which partitions one pop gets (PA-10..15, PA-24, PA-35, PA-40).

Here a pop that may read is carried out. Who may read, and from where, is decided in `consume.py` and `groups.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from queen_node.state import groups, leases, ready
from queen_node.state.groups import cursor_key
from queen_node.state.keys import PARTITION_OF_QUEUE, read_u64, two_u64, u64
from queen_node.state.messages import created_at_us_of, message_stem, payload_bytes_of
from queen_node.state.queues import find_partition, partition_of_id
from queen_node.state.ready import Place
from queen_node.state.rows import CursorRow, GroupRow, PartitionRow, QueueRow
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken, must

LOOK_MAX = 256  # ready partitions looked at by one pop; existing partitions filed for a new group by one pop
PARTITIONS_MAX = 64  # claimed by one pop (PA-1)
# Claimed by one pop (M-50): applying and rendering that many holds the loop for 28 ms, far below an election.
MESSAGES_MAX = 5_000


class Claim(NamedTuple):
    """What a pop took of one partition: consecutive messages in their stored form, from `first_offset` on."""

    partition_id: int
    partition: bytes
    first_offset: int
    attempt: int
    messages: list[bytes]


class Popping:
    """A pop while it is being applied: what it may still take, what it has taken.

    partitions: the most it may claim; 0 or less: of what is ready now its share among that many pops, 0 meaning 1
    (PA-41). lease_ms None: the queue's leaseTime. commit: the cursor moves at once, nothing is leased (PA-40).
    """

    __slots__ = (
        "bytes_left", "claims", "commit", "full", "group", "lease_id", "lease_ms", "messages_left", "partitions",
        "queue", "step",
    )

    def __init__(
        self, step: Step, queue: QueueRow, group: GroupRow, *, lease_id: bytes, batch: int, partitions: int,
        lease_ms: int | None, commit: bool, max_bytes: int,
    ) -> None:
        self.step, self.queue, self.group = step, queue, group
        self.lease_id = lease_id
        self.lease_ms = queue.options.lease_time * 1000 if lease_ms is None else lease_ms
        self.commit = commit
        self.partitions = min(partitions, PARTITIONS_MAX)
        self.messages_left = min(batch, MESSAGES_MAX)
        self.bytes_left = max_bytes
        self.full = False  # the next message would have crossed the cap on bytes
        self.claims: list[Claim] = []

    @property
    def done(self) -> bool:
        """Whether nothing more may be taken."""
        return self.full or self.messages_left <= 0 or len(self.claims) >= self.partitions


def claim_named(popping: Popping, name: bytes) -> None:
    """Claim the partition of that name if it is ready."""
    popping.partitions = 1
    step, group = popping.step, popping.group
    partition = find_partition(step.store, popping.queue, name)
    if partition is None:
        return
    key = cursor_key(partition.partition_id, group.name)
    cursor = step.store.row(key, CursorRow)
    if cursor is None:
        cursor = groups.new_cursor(step.store, group, partition, appended=False)
    if cursor is None:
        return
    at_us = ready.moment(step.store, popping.queue.options, partition, cursor)
    if at_us is not None and at_us <= step.now_us:
        _claim(popping, partition, cursor, key)


def claim_ready(popping: Popping) -> None:
    """Claim the partitions that have been ready longest (PA-12). Looks at no more than LOOK_MAX of them."""
    step, queue, group = popping.step, popping.queue, popping.group
    if group.filed_below < group.partitions_before:
        _file_existing(step, queue, group)
    if ready.has_outdated(step.store, queue, group.name):
        _file_outdated(step, queue, group)
    shares = 0
    if popping.partitions <= 0:
        shares, popping.partitions = max(-popping.partitions, 1), 1
    looks_left = LOOK_MAX
    while looks_left > 0 and not popping.done:
        wanted = looks_left if shares else min(popping.partitions - len(popping.claims), looks_left)
        places = ready.front(step.store, queue, group.name, step.now_us + 1, wanted)
        if shares:
            popping.partitions = min(max(-(-len(places) // shares), 1), PARTITIONS_MAX)
            shares = 0
        looked = _claim_places(popping, places)
        looks_left -= looked
        if looked:
            ready.pass_over(step, queue, group.name, places[looked - 1])
        if len(places) < wanted:
            return


def at_place(store: Store, group: bytes, place: Place) -> tuple[PartitionRow, CursorRow]:
    """What a row of a ready list stands for."""
    partition = partition_of_id(store, place.partition_id)
    cursor = store.row(cursor_key(place.partition_id, group), CursorRow)
    if partition is None or cursor is None:
        broken("a ready list leads nowhere", group=group, partition=place.partition_id)
    must(
        cursor.ready_sequence == place.sequence and cursor.ready_at_us == place.ready_at_us,
        "a ready list and a cursor disagree", group=group, partition=place.partition_id, sequence=place.sequence)
    return partition, cursor


def _claim_places(popping: Popping, places: list[Place]) -> int:
    """Claim what is really ready, file the rest again. Returns how many places were dealt with."""
    step, queue, group = popping.step, popping.queue, popping.group
    looked = 0
    for place in places:
        if popping.done:
            break
        partition, cursor = at_place(step.store, group.name, place)
        key = cursor_key(place.partition_id, group.name)
        at_us = ready.moment(step.store, queue.options, partition, cursor)
        if at_us is None or at_us > step.now_us:
            ready.file(step, queue, group.name, partition, cursor)
            step.store.put_row(key, cursor)
        elif not _claim(popping, partition, cursor, key):
            break
        looked += 1
    return looked


def _claim(popping: Popping, partition: PartitionRow, cursor: CursorRow, key: bytes) -> bool:
    """Claim a ready partition. False: its first message would cross the cap on bytes; nothing was changed."""
    step = popping.step
    first = max(cursor.committed + 1, partition.log_start)
    messages = _take(popping, partition, first)
    if not messages:
        return False
    last = first + len(messages) - 1
    if cursor.lease_id:
        step.tally.leases_expired += 1
        leases.release(step, partition, cursor)
    attempt = 1
    if popping.commit:
        cursor.total_consumed += last - cursor.committed
        cursor.committed = last
        cursor.last_consumed_us = step.now_us
        cursor.retries = cursor.attempt = 0
        cursor.attempt_offset = -1
    else:
        if cursor.attempt_offset == first:
            attempt = cursor.attempt + 1
        cursor.attempt, cursor.attempt_offset = attempt, first
        leases.grant(step, cursor, popping.lease_id, first, last, popping.lease_ms)
        step.store.claim_ids.keep(partition.partition_id, first, messages)
    ready.file(step, popping.queue, popping.group.name, partition, cursor)
    if popping.commit and cursor.ready_at_us >= 0:
        step.wake(popping.queue.name, 1)  # what is left can be claimed at once, by another pop
    step.store.put_row(key, cursor)
    step.tally.popped += len(messages)
    popping.claims.append(Claim(partition.partition_id, partition.name, first, attempt, messages))
    return True


def _take(popping: Popping, partition: PartitionRow, first: int) -> list[bytes]:
    """Visible messages from `first` on, as far as the budgets allow; `first` itself is known to be visible."""
    step = popping.step
    get, stem = step.store.get_young, message_stem(partition.partition_id)
    delay_us = popping.queue.options.delayed_processing * ready.SECOND_US
    messages: list[bytes] = []
    for offset in range(first, min(partition.next_offset, first + popping.messages_left)):
        stored = get(stem + u64(offset))
        if stored is None:
            broken("a retained message is missing", partition=partition.partition_id, offset=offset)
        # Stamps never decrease with the offset (PU-40): the first that is still held back ends the claim.
        if delay_us and created_at_us_of(stored) + delay_us > step.now_us:
            break
        size = payload_bytes_of(stored)
        if size > popping.bytes_left and (messages or popping.claims):
            popping.full = True
            break
        messages.append(stored)
        popping.bytes_left -= size
    popping.messages_left -= len(messages)
    return messages


def _file_existing(step: Step, queue: QueueRow, group: GroupRow) -> None:
    """File partitions that existed when the group registered, in order of creation, a bounded number of them."""
    store = step.store
    pairs = store.scan(
        PARTITION_OF_QUEUE + two_u64(queue.queue_id, group.filed_below),
        PARTITION_OF_QUEUE + two_u64(queue.queue_id, group.partitions_before),
        LOOK_MAX,
    )
    group.filed_below = group.partitions_before
    for pair_key, _ in pairs:
        partition_id = read_u64(pair_key[-8:])
        if len(pairs) == LOOK_MAX:
            group.filed_below = partition_id + 1
        partition = partition_of_id(store, partition_id)
        if partition is None:
            broken("a queue's partition is missing", queue=queue.name, partition=partition_id)
        key = cursor_key(partition_id, group.name)
        if store.row(key, CursorRow) is None:  # else an append, an ack or a pop of this partition filed it
            cursor = groups.new_cursor(store, group, partition, appended=False)
            if cursor is not None:
                ready.file(step, queue, group.name, partition, cursor)
                store.put_row(key, cursor)
    groups.put(store, queue, group)


def _file_outdated(step: Step, queue: QueueRow, group: GroupRow) -> None:
    """File again what stands under delays that the queue no longer has (QU-5), a bounded number of partitions."""
    store = step.store
    for place in ready.take_outdated(step, queue, group.name, LOOK_MAX):
        key = cursor_key(place.partition_id, group.name)
        cursor = store.row(key, CursorRow)
        partition = partition_of_id(store, place.partition_id)
        if cursor is None or partition is None or cursor.ready_sequence != place.sequence:
            continue  # filed again since, by whoever changed the cursor
        ready.file(step, queue, group.name, partition, cursor)
        store.put_row(key, cursor)
