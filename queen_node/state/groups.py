"""Consumer groups: which read a queue, and where each starts in a partition that it has no cursor in (PA-30..32).

Not here: what a group is given (`consume.py`) and what it has done (`acks.py`).
"""

from __future__ import annotations

import msgspec

from queen_node.state.keys import CURSOR, GROUP, PARTITION, QUEUE, u64
from queen_node.state.messages import created_at_us_of, message_key
from queen_node.state.rows import CursorRow, GroupRow, PartitionRow, QueueRow, Row
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken, must

QUEUE_MODE = b"__QUEUE_MODE__"  # the group of a pop that names none

MODE_ALL = "all"  # from the oldest retained message
MODE_NEW = "new"  # after what existed when the group registered
MODE_TIME = "time"  # from the first message appended at or after a time

HALVINGS_MAX = 65  # of a span of 2^64 offsets


class GroupNamesRow(Row):
    """The groups of one queue in order of registration; a push looks here for whom it has something.

    Stands at GROUP + queue id, without a name: no group has an empty one.
    """

    names: list[bytes]


def names(store: Store, queue: QueueRow) -> list[bytes]:
    """Names of the groups that read `queue`, queue mode included once it reads. Not to be changed by the caller."""
    if not queue.groups:
        return []
    row = store.row(GROUP + u64(queue.queue_id), GroupNamesRow)
    return row.names if row is not None else broken("a queue's groups have no names", queue=queue.name)


def find(store: Store, queue: QueueRow, name: bytes) -> GroupRow | None:
    """The record of a group on a queue, or None."""
    return store.row(GROUP + u64(queue.queue_id) + name, GroupRow)


def put(store: Store, queue: QueueRow, group: GroupRow) -> None:
    """Write a group's record, new or changed."""
    store.put_row(GROUP + u64(queue.queue_id) + group.name, group)


def register(step: Step, queue: QueueRow, name: bytes, mode: str, from_us: int) -> GroupRow:
    """Register a group that `queue` does not know (PA-30). Queue mode always starts at the oldest retained message."""
    must(bool(name), "a group without a name", queue=queue.name)
    store = step.store
    before = store.counters().next_partition_id
    if name == QUEUE_MODE:
        mode = MODE_ALL
    group = GroupRow(
        name=name, mode=mode, from_us=from_us, created_at_us=step.now_us, partitions_before=before,
        # What exists owes a `new` group nothing until it is appended to, and then `settle` finds it.
        filed_below=before if mode == MODE_NEW else 0,
    )
    put(store, queue, group)
    names_row = store.row(GROUP + u64(queue.queue_id), GroupNamesRow) or GroupNamesRow([])
    names_row.names.append(name)
    store.put_row(GROUP + u64(queue.queue_id), names_row)
    queue.groups += 1
    store.put_row(QUEUE + queue.name, queue)
    return group


def cursor_key(partition_id: int, group: bytes) -> bytes:
    """Where a group's cursor in a partition stands."""
    return CURSOR + u64(partition_id) + group


def new_cursor(store: Store, group: GroupRow, partition: PartitionRow, *, appended: bool) -> CursorRow | None:
    """A cursor where the group starts in a partition that it has none in (PA-30). None: it owes the group nothing yet.

    appended: whether the command being applied appended there, the first to do so since the group registered (any
    earlier one would have made the cursor); otherwise nothing was appended since. "Existed" is a matter of the log's
    order (PA-31), not of stamps.
    """
    committed = -1
    if group.mode == MODE_NEW:
        if partition.partition_id < group.partitions_before:
            if not appended:
                return None
            committed = _length_before_entry(store, partition) - 1
    elif group.mode == MODE_TIME:
        if partition.last_write_us < group.from_us:
            return None
        committed = first_appended_since(store, partition, group.from_us) - 1
    if committed + 1 >= partition.next_offset:
        return None
    return CursorRow(partition.queue_id, committed)


def _length_before_entry(store: Store, partition: PartitionRow) -> int:
    """How long the partition was before the entry that is being applied, which is the first to append since.

    Where the group registered in this very entry, what the entry had appended before counts as new: no push of it was
    acknowledged when the pop was sent. Rare enough for a look past the open batch: once per partition and group.
    """
    stored = store.committed().get(PARTITION + u64(partition.partition_id))
    return 0 if stored is None else _partition_row(stored).next_offset


_partition_row = msgspec.msgpack.Decoder(PartitionRow).decode


def first_appended_since(store: Store, partition: PartitionRow, at_us: int) -> int:
    """Offset of the first retained message appended at or after `at_us` (group clock); `next_offset` if none was."""
    low, high = partition.log_start, partition.next_offset
    for _ in range(HALVINGS_MAX):
        if low >= high:
            break
        middle = (low + high) // 2
        stored = store.get(message_key(partition.partition_id, middle))
        if stored is None:
            broken("a retained message is missing", partition=partition.partition_id, offset=middle)
        if created_at_us_of(stored) < at_us:
            low = middle + 1
        else:
            high = middle
    must(low >= high, "the halving of a partition did not end", partition=partition.partition_id)
    return low
