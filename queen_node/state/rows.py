"""What the structured rows hold. Messages, their ids and timers, written by the million, have packed forms.

A row is a msgspec array, in the order of the fields: a new field goes to the end, with a default, and is used only from
a machine version on. Rows are shared objects while an entry is applied (`Store.row`): whoever changes one puts it back.
"""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, array_like=True):
    """A row that the store can keep decoded."""


class CountersRow(Row):
    """Counts of one group, kept exact by whoever changes what they count."""

    next_queue_id: int = 1
    next_partition_id: int = 1  # never reused (README 27)
    timers_pending: int = 0
    leases_live: int = 0
    dead_letters: int = 0
    kv_version: int = 0  # the last one given to a KV row: only rises (KV-30), fencing tokens are of it (LK-30)
    kv_rows: int = 0  # stored, dead ones that are not swept yet among them (KV-62)
    kv_bytes: int = 0  # of their keys and values


class QueueOptions(msgspec.Struct, array_like=True):
    """Options of a queue with the defaults of `configure` (queues.md 1). Seconds unless the name says otherwise."""

    lease_time: int = 300
    retry_limit: int = 3
    dead_letter_queue: bool = True
    dlq_after_max_retries: bool = True
    dedup_window_seconds: int = 3600
    delayed_processing: int = 0
    window_buffer: int = 0
    retention_enabled: bool = False
    retention_seconds: int = 0
    completed_retention_seconds: int = 0
    max_wait_time_seconds: int = 0
    encryption_enabled: bool = False
    min_pop_wait_time: int = 0  # ms; stored without effect, as the four below
    priority: int = 0
    max_size: int = 0
    ttl: int = 3600
    retry_delay: int = 1000
    retention_sink_hold: str = ""
    retention_sink_hold_max_seconds: int = 604800


class QueueRow(Row):
    queue_id: int
    name: bytes
    uuid: bytes
    namespace: bytes
    task: bytes
    created_at_us: int
    options: QueueOptions
    groups: int = 0  # consumer groups that read it, queue mode counted once it reads: 0 spares a push the look


class PartitionRow(Row):
    partition_id: int
    queue_id: int
    queue: bytes
    name: bytes
    created_at_us: int
    next_offset: int = 0  # the high watermark
    log_start: int = 0  # offset of the first retained message
    last_write_us: int = 0
    ids_start: int = 0  # message ids of lower offsets are forgotten (PU-55)
    ids_deadline_us: int = 0  # where this partition stands in the calendar of message ids; 0: nowhere
    dead_letters: int = 0


class PartitionNameRow(Row):
    """Which partition has that name. A row of its own kind so that it is kept decoded: each push asks for it."""

    partition_id: int


class GroupRow(Row):
    """A consumer group on one queue: where it starts in partitions that it has no cursor in (PA-30)."""

    name: bytes
    mode: str  # "new", "all", "time"; queue mode is "all"
    from_us: int  # mode "time": the first message appended at or after this
    created_at_us: int
    partitions_before: int  # partitions with a lower id existed when the group registered
    filed_below: int  # partitions with a lower id were looked at and stand in READY if they had anything to deliver
    conflation: bool = False


class CursorRow(Row):
    """Where a consumer group stands in a partition, and who holds a lease there."""

    queue_id: int
    committed: int = -1  # highest offset the group is done with
    ready_at_us: int = -1  # with `ready_sequence`: this partition's row in READY; -1: it has none
    ready_sequence: int = 0
    lease_id: bytes = b""  # empty: no lease
    lease_first: int = 0  # the claim is (lease_first .. lease_last), both delivered
    lease_last: int = 0
    lease_expires_us: int = 0
    attempt: int = 0  # claims that started at `attempt_offset`
    attempt_offset: int = -1
    retries: int = 0  # spent by `failed` since the cursor last moved (PA-55)
    total_consumed: int = 0
    last_consumed_us: int = 0


class LeaseRow(Row):
    """Where a lease id holds: one call may claim several partitions."""

    group: bytes
    partitions: list[int]


class DeadLetterRow(Row):
    uuid: bytes
    partition_id: int
    partition: bytes
    group: bytes
    offset: int  # -1: a timer's
    transaction_id: bytes
    payload: bytes
    payload_flags: int
    error: bytes
    attempts: int  # retries spent, or permanent failures of a timer
    producer_sub: bytes | None
    created_at_us: int
    failed_at_us: int


class NamespaceRow(Row):
    """A namespace of KV rows: it is there while it holds one."""

    keys: int = 0


class CellRow(Row):
    """Counts of the cell, in group 0."""

    next_life: int = 1  # never given twice (M-70)
    tenants: int = 0


class TenantRow(Row):
    """A tenant that has a group."""

    life: int
    created_at_us: int  # stamp of the entry: the group's clock starts no earlier
    configuration: bytes  # of its founding members, as a CONFIGURATION entry holds it; empty: the founders of the cell


class MemberRow(Row):
    """A node of the cell. Addresses as `host:port`."""

    node_id: int
    raft: str
    http: str
    directory_id: bytes = b""  # of the data directory that it must have (CL-105); empty: not heard of yet
    since_life: int = 0  # groups from this life on were made when that directory was known


class MembersJobRow(Row):
    """A change of members on its way through all groups (M-71). Each group's leader brings its group there."""

    number: int
    voters: list[int]
    learners: list[int]
    force: bool  # learners that are far behind may be promoted
    before_voters: list[int]
    before_learners: list[int]
    done: bool = False


class MembersRow(Row):
    """The nodes of the cell, in group 0, and the last change of them."""

    members: list[MemberRow]
    job: MembersJobRow | None = None
    cluster_version: int = 1  # of what nodes write to each other and to disk (CL-132)
