"""Dead letters: filing one. Reading them is `answers/consume.py`; when a message becomes one is decided in `acks.py`.

A row holds the whole message, so that neither retention nor the queue's end of a partition takes it away (G-Q9, QU-23).
"""

from __future__ import annotations

from hashlib import blake2b

from queen_node.state.keys import COUNTERS, DEAD_LETTER, PARTITION, two_u64, u64
from queen_node.state.rows import DeadLetterRow, PartitionRow, QueueRow
from queen_node.state.step import Step

TIMER_GROUP = b"__timer__"  # whose dead letters are timers that never became a message (TM-55)
TIMER_OFFSET = -1


def file(
    step: Step,
    queue: QueueRow,
    partition: PartitionRow,
    *,
    group: bytes,
    offset: int,
    transaction_id: bytes,
    payload: bytes,
    payload_flags: int,
    error: bytes,
    attempts: int,
    producer_sub: bytes | None,
    created_at_us: int,
) -> None:
    """File a dead letter in this entry (PA-56, TM-55).

    queue, partition: the shared rows. offset: -1 for a timer's. attempts: retries spent, or a timer's permanent
    failures. created_at_us: of the message, or of the timer. Moves no cursor.
    """
    store = step.store
    sequence = step.sequence()
    store.put_row(
        DEAD_LETTER + u64(queue.queue_id) + two_u64(step.now_us, sequence),
        DeadLetterRow(
            uuid=derived_uuid(step.now_us, partition.partition_id, offset, group, sequence),
            partition_id=partition.partition_id,
            partition=partition.name,
            group=group,
            offset=offset,
            transaction_id=transaction_id,
            payload=payload,
            payload_flags=payload_flags,
            error=error,
            attempts=attempts,
            producer_sub=producer_sub,
            created_at_us=created_at_us,
            failed_at_us=step.now_us,
        ),
    )
    partition.dead_letters += 1
    store.put_row(PARTITION + u64(partition.partition_id), partition)
    counters = store.counters()
    counters.dead_letters += 1
    store.put_row(COUNTERS, counters)


def derived_uuid(stamp_us: int, partition_id: int, offset: int, group: bytes, sequence: int) -> bytes:
    """A dead letter's id: a UUIDv8 (RFC 9562) of what stands in the entry, never random (PA-56).

    sequence: of the filing; timers have no offset, and one entry may file several of theirs.
    """
    facts = b"%d,%d,%d,%d:%b" % (stamp_us, partition_id, offset, sequence, group)
    raw = blake2b(facts, digest_size=16, person=b"dead letter").digest()
    return raw[:6] + bytes((0x80 | raw[6] & 0x0F, raw[7], 0x80 | raw[8] & 0x3F)) + raw[9:]
