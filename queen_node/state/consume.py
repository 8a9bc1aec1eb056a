"""Messages out: who may read (pop-ack.md 5), and what makes a partition ready when it is appended to.

Claims are made from state and stamp alone (PA-62). A pop looks at a bounded number of ready partitions; when that was
not enough it answers nothing, `can_serve` still says True, and the leader proposes it once more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cbor2

from queen_node import packed
from queen_node.state import acks, groups, leases, ready
from queen_node.state.claims import Claim, Popping, at_place, claim_named, claim_ready
from queen_node.state.groups import QUEUE_MODE, cursor_key
from queen_node.state.keys import LEASE, PARTITION_OF_QUEUE, after, u64
from queen_node.state.queues import LEASE_TIME_OF_A_PUSH_S, find_partition, find_queue, labels_of, make_queue
from queen_node.state.rows import CursorRow, GroupRow, LeaseRow, QueueOptions, QueueRow
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken

EXACT_LOOKS_MAX = 64  # rows that `can_serve` checks exactly before it says True to be on the safe side
AUTOPILOT_BATCH_MIN, AUTOPILOT_BATCH_MAX = 100, 1000
AUTOPILOT_WAIT_MS = 100  # how long a consumer is told to pause when nothing more is ready (PA-41)

apply_ack = acks.apply_ack
apply_extend = leases.apply_extend
apply_hand_back = leases.apply_hand_back


class Popped(NamedTuple):
    """What a pop that delivers is answered with. autopilot: (partitions, batch, wait ms) that were chosen for it."""

    queue: bytes
    group: bytes
    lease_id: bytes  # empty with commitOnDelivery
    claims: list[Claim]
    autopilot: tuple[int, int, int] | None


def claimed(answer: object) -> bool:
    """Whether a pop's answer delivers anything."""
    return answer is not None


def apply_pop(step: Step, command: list[Any]) -> Popped | None:
    """Register the group if it is new, and claim what is ready (PA-10..15, PA-30..32). None: nothing to deliver.

    In the command, `batch` 0 and `partitions` 0 or less leave the choice to PA-41's law; -k says that k pops share.
    """
    (_, _, lease_id, queue_name, partition_name, group_name, mode, from_us, batch, partitions, lease_ms, commit,
     max_bytes) = command
    store = step.store
    queue = find_queue(store, queue_name)
    if queue is None:
        if group_name == QUEUE_MODE:
            return None
        queue = _make_queue(step, queue_name)
    group = groups.find(store, queue, group_name)
    if group is None:
        if group_name == QUEUE_MODE and not _has_partitions(store, queue):
            return None
        group = groups.register(step, queue, group_name, mode, from_us)
    autopilot = batch <= 0 or partitions <= 0
    if batch <= 0:
        acked = ready.acked_in_last_second(store, queue, group_name, step.now_us)
        batch = min(max(acked, AUTOPILOT_BATCH_MIN), AUTOPILOT_BATCH_MAX)
    popping = Popping(
        step, queue, group, lease_id=lease_id, batch=batch, partitions=partitions, lease_ms=lease_ms, commit=commit,
        max_bytes=max_bytes)
    if partition_name is None:
        claim_ready(popping)
    else:
        claim_named(popping, partition_name)
    claims = popping.claims
    if not claims:
        return None
    chosen = None
    if autopilot:
        more = ready.front(store, queue, group_name, step.now_us + 1, 1)
        chosen = popping.partitions, batch, 0 if more else AUTOPILOT_WAIT_MS
    if commit:
        return Popped(queue_name, group_name, b"", claims, chosen)
    store.put_row(LEASE + lease_id, LeaseRow(group_name, [claim.partition_id for claim in claims]))
    return Popped(queue_name, group_name, lease_id, claims, chosen)


def shared_among(command: bytes, pops: int) -> bytes:
    """A pop that leaves its partitions to PA-41, told by the leader how many pops share what is ready."""
    if pops <= 1:
        return command
    fields = packed.fields_of(command)
    if fields[_PARTITIONS_FIELD] > 0:
        return command
    fields[_PARTITIONS_FIELD] = -pops
    return packed.pack(fields) if packed.is_packed(command) else cbor2.dumps(fields)


_PARTITIONS_FIELD = 9  # of a pop's command: commands.pop


def settle(step: Step) -> None:
    """File the partitions that the last command appended to, for each group that had nothing to read there."""
    store = step.store
    for queue, partition in step.touched.values():
        for name in groups.names(store, queue):
            key = cursor_key(partition.partition_id, name)
            cursor = store.row(key, CursorRow)
            if cursor is None:
                group = groups.find(store, queue, name)
                if group is None:
                    broken("a group without a record", queue=queue.name, group=name)
                cursor = groups.new_cursor(store, group, partition, appended=True)
                if cursor is None:
                    continue
            elif cursor.ready_at_us >= 0:
                continue
            ready.file(step, queue, name, partition, cursor)
            store.put_row(key, cursor)
    step.touched.clear()


def can_serve(
    store: Store, *, queue: bytes, group: bytes, partition: bytes | None, now_us: int,
) -> bool | int | None:
    """Whether proposing a pop changes anything: the leader's look, which writes nothing (CL-26).

    True: it delivers, registers, or brings the list in order. A time (group clock): not before then, by the state as it
    is. None: not before something happens.
    """
    queue_row = find_queue(store, queue)
    if queue_row is None:
        return True if group != QUEUE_MODE else None
    group_row = groups.find(store, queue_row, group)
    if group_row is None:
        return True if group != QUEUE_MODE or _has_partitions(store, queue_row) else None
    if partition is not None:
        return _look_at_named(store, queue_row, group_row, partition, now_us)
    if group_row.filed_below < group_row.partitions_before or ready.has_outdated(store, queue_row, group):
        return True
    return _look_at_front(store, queue_row, group, now_us)


def _look_at_named(
    store: Store, queue: QueueRow, group: GroupRow, partition_name: bytes, now_us: int,
) -> bool | int | None:
    partition = find_partition(store, queue, partition_name)
    if partition is None:
        return None
    cursor = store.row(cursor_key(partition.partition_id, group.name), CursorRow)
    if cursor is None:
        cursor = groups.new_cursor(store, group, partition, appended=False)
        if cursor is None:
            return None
    at_us = ready.moment(store, queue.options, partition, cursor)
    return True if at_us is not None and at_us <= now_us else at_us


def _look_at_front(store: Store, queue: QueueRow, group: bytes, now_us: int) -> bool | int | None:
    places = ready.front(store, queue, group, ready.FAR_US + 1, 1)
    if not places or places[0].ready_at_us > now_us:
        return places[0].ready_at_us if places else None
    earliest_us: int | None = None
    places = ready.front(store, queue, group, ready.FAR_US + 1, EXACT_LOOKS_MAX)
    for place in places:
        at_us: int | None = place.ready_at_us
        if place.ready_at_us <= now_us:
            at_us = ready.moment(store, queue.options, *at_place(store, group, place))
        if at_us is None:
            continue
        if at_us <= now_us:
            return True
        earliest_us = at_us if earliest_us is None else min(at_us, earliest_us)
        if place.ready_at_us > now_us:
            return earliest_us
    # So many turned out too early that there may be better ones behind them: a pop files these again and comes closer.
    return True if len(places) == EXACT_LOOKS_MAX else earliest_us


def _has_partitions(store: Store, queue: QueueRow) -> bool:
    prefix = PARTITION_OF_QUEUE + u64(queue.queue_id)
    return store.first(prefix, after(prefix)) is not None


def _make_queue(step: Step, name: bytes) -> QueueRow:
    """A group's record needs a home: the queue is made as a push makes it (PA-32)."""
    namespace, task = labels_of(name)
    options = QueueOptions(lease_time=LEASE_TIME_OF_A_PUSH_S)
    return make_queue(step, name, namespace=namespace, task=task, options=options)
