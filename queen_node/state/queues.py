"""Queues and partitions: finding them, making them, configuring a queue (queues.md 1)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from queen_node.state.keys import COUNTERS, PARTITION, PARTITION_NAME, PARTITION_OF_QUEUE, QUEUE, two_u64, u64
from queen_node.state.rows import PartitionNameRow, PartitionRow, QueueOptions, QueueRow
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken

LEASE_TIME_OF_A_PUSH_S = 60  # PU-30; a configured queue has the 300 of QueueOptions
WAKE_ALL = 1 << 30  # more than pops can wait: a change of options concerns each of them (QU-5)

Options = Sequence[tuple[str, object]]
# (uuid, queue, namespace, task, ((name of a QueueOptions field, value), …))
ConfigureAnswer = tuple[bytes, bytes, bytes, bytes, tuple[tuple[str, object], ...]]


def find_queue(store: Store, name: bytes) -> QueueRow | None:
    """The queue of that name, or None."""
    return store.row(QUEUE + name, QueueRow)


def find_partition(store: Store, queue: QueueRow, name: bytes) -> PartitionRow | None:
    """The partition of that name, or None."""
    named = store.row(PARTITION_NAME + u64(queue.queue_id) + name, PartitionNameRow)
    return None if named is None else partition_of_id(store, named.partition_id)


def partition_of_id(store: Store, partition_id: int) -> PartitionRow | None:
    """The partition of that id, or None: ids are never reused (README 27)."""
    return store.row(PARTITION + u64(partition_id), PartitionRow)


def takes_no_clear_text(store: Store, name: bytes) -> bool:
    """Whether a payload in clear is refused there (PU-71). A queue that does not exist takes anything."""
    queue = find_queue(store, name)
    return queue is not None and queue.options.encryption_enabled


def destination(step: Step, queue_name: bytes, partition_name: bytes) -> tuple[QueueRow, PartitionRow]:
    """Where a message goes; what is missing is made with a push's defaults (PU-30, TM-51)."""
    store = step.store
    queue = store.row(QUEUE + queue_name, QueueRow)
    if queue is None:
        namespace, task = labels_of(queue_name)
        options = QueueOptions(lease_time=LEASE_TIME_OF_A_PUSH_S)
        queue = make_queue(step, queue_name, namespace=namespace, task=task, options=options)
    named = store.row(PARTITION_NAME + u64(queue.queue_id) + partition_name, PartitionNameRow)
    if named is None:
        return queue, make_partition(step, queue, partition_name)
    partition = partition_of_id(store, named.partition_id)
    if partition is None:
        broken("a partition's name leads nowhere", queue=queue_name, partition=partition_name)
    return queue, partition


def labels_of(queue_name: bytes) -> tuple[bytes, bytes]:
    """(namespace, task) of a queue that nobody configured: the first two dot-separated parts of its name (PU-30)."""
    parts = queue_name.split(b".", 2)
    return parts[0], parts[1] if len(parts) > 1 else b""


def make_queue(
    step: Step, name: bytes, *, namespace: bytes, task: bytes, options: QueueOptions, uuid: bytes = b"",
) -> QueueRow:
    """Make a queue that does not exist yet. uuid: minted at a door; without one it is derived from what is unique."""
    store = step.store
    counters = store.counters()
    queue_id = counters.next_queue_id
    counters.next_queue_id = queue_id + 1
    store.put_row(COUNTERS, counters)
    queue = QueueRow(
        queue_id=queue_id, name=name, uuid=uuid or _derived_uuid(name, queue_id, step.now_us), namespace=namespace,
        task=task, created_at_us=step.now_us, options=options,
    )
    store.put_row(QUEUE + name, queue)
    return queue


def make_partition(step: Step, queue: QueueRow, name: bytes) -> PartitionRow:
    """Make a partition that does not exist yet."""
    store = step.store
    counters = store.counters()
    partition_id = counters.next_partition_id
    counters.next_partition_id = partition_id + 1
    store.put_row(COUNTERS, counters)
    partition = PartitionRow(
        partition_id=partition_id, queue_id=queue.queue_id, queue=queue.name, name=name, created_at_us=step.now_us)
    store.known_ids.begin(partition_id)
    store.put_row(PARTITION_NAME + u64(queue.queue_id) + name, PartitionNameRow(partition_id))
    store.put(PARTITION_OF_QUEUE + two_u64(queue.queue_id, partition_id), b"")
    store.put_row(PARTITION + u64(partition_id), partition)
    return partition


def apply_configure(step: Step, command: list[object]) -> ConfigureAnswer:
    """Create or edit a queue (QU-1). The door has checked and clamped every value."""
    _, _, name, uuid, labels, mode, options = command
    return _configure(step, name, uuid, labels, mode, options)  # type: ignore[arg-type]


def _configure(
    step: Step, name: bytes, uuid: bytes, labels: tuple[bytes | None, bytes | None], mode: str, options: Options,
) -> ConfigureAnswer:
    queue = find_queue(step.store, name)
    replaces = mode == "replace"
    # Options are replaced, never changed in place: an answer given earlier in this entry still shows the old ones.
    before = QueueOptions() if queue is None or replaces else queue.options
    after = msgspec.structs.replace(before, **_values(options))
    namespace, task = labels
    if queue is None:
        queue = make_queue(step, name, namespace=namespace or b"", task=task or b"", options=after, uuid=uuid)
    else:
        queue.options = after
        if namespace is not None or replaces:
            queue.namespace = namespace or b""
        if task is not None or replaces:
            queue.task = task or b""
        step.store.put_row(QUEUE + name, queue)
    step.wake(name, WAKE_ALL)
    shown = zip(QueueOptions.__struct_fields__, msgspec.structs.astuple(after), strict=True)
    return queue.uuid, name, queue.namespace, queue.task, tuple(shown)


def _values(options: Options) -> dict[str, object]:
    """Values to set; None stands for the option's default."""
    return {name: getattr(_DEFAULTS, name) if value is None else value for name, value in options}


def _derived_uuid(name: bytes, queue_id: int, now_us: int) -> bytes:
    """A UUIDv8 (RFC 9562) that every node derives alike: nothing random may happen while applying (M-80)."""
    raw = blake2b(name, digest_size=16, key=two_u64(queue_id, now_us)).digest()
    return raw[:6] + bytes((0x80 | raw[6] & 0x0F, raw[7], 0x80 | raw[8] & 0x3F)) + raw[9:]


_DEFAULTS = QueueOptions()
