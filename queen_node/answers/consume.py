"""Answers to pops, acks and extensions, and the list of dead letters, as JSON (pop-ack.md 2, 8; queues.md 5).

Stored payloads are spliced in as they are: the JSON around them is written by hand, only names and ids are encoded.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from functools import lru_cache
from heapq import heappush, heappushpop
from typing import Any

import msgspec

from queen_node.answers import Rendered, result
from queen_node.commands import PayloadFlag
from queen_node.ids import uuid_text
from queen_node.state.claims import Claim
from queen_node.state.consume import Popped
from queen_node.state.keys import DEAD_LETTER, QUEUE, after, u64
from queen_node.state.leases import Extended
from queen_node.state.messages import unpack, unpack_plain
from queen_node.state.rows import DeadLetterRow, QueueRow
from queen_node.state.store import CommittedStore
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
from queen_node.times import micros_text, millis_text_rounded_up

DEAD_LETTERS_COUNTED_MAX = 10_000  # QU-40: beyond, the total says that it is capped
DEAD_LETTERS_PAGE_MAX_BYTES = 32 << 20  # of payload; a page ends early rather than hold the node
ROWS_A_SLICE = 64  # looked at before the loop may breathe

# Clients search these texts for "committed", "unresolv", "lease".
ERROR_TEXTS = {
    INVALID_LEASE: "invalid or expired lease",
    UNRESOLVABLE: "unresolvable: transaction not in the ack window (hash purged or never pushed); "
                  "if leased, the message redelivers",
    ALREADY_COMMITTED: "already committed: the cursor moved past this message before this ack",
    CONSUMER_NOT_FOUND: "consumer not found",
}

_json = msgspec.json.Encoder().encode
_popped = msgspec.msgpack.Decoder(Popped).decode
_acked = msgspec.msgpack.Decoder(list[tuple[bytes, int, bool]]).decode  # acks.Acked; a plain tuple costs less
_extended = msgspec.msgpack.Decoder(Extended).decode
_queue_row = msgspec.msgpack.Decoder(QueueRow).decode
_dead_letter_row = msgspec.msgpack.Decoder(DeadLetterRow).decode


def render_pop(raw: bytes) -> Rendered:
    """Of a pop: 204, or 200 with its messages (PA-5)."""
    if not raw:
        return 204, b""
    popped = _popped(raw)
    queue, group = _json(popped.queue.decode()), _json(popped.group.decode())
    lease = b'"%b"' % (uuid_text(popped.lease_id).encode() if popped.lease_id else b"")
    messages: list[bytes] = []
    for claim in popped.claims:
        _render_claim(messages, claim, queue, lease, group)
    first = popped.claims[0]
    autopilot = b""
    if popped.autopilot is not None:
        autopilot = b',"autopilot":{"partitions":%d,"batch":%d,"waitMs":%d}' % popped.autopilot
    return 200, (
        b'{"success":true,"queue":%b,"partition":%b,"partitionId":"%d","leaseId":%b,"consumerGroup":%b,"messages":[%b],'
        b'"partitionsClaimed":%d%b}'
    ) % (
        queue, _json(first.partition.decode()), first.partition_id, lease, group, b",".join(messages),
        len(popped.claims), autopilot,
    )


def _render_claim(messages: list[bytes], claim: Claim, queue: bytes, lease: bytes, group: bytes) -> None:
    shared = (
        b'"queue":%b,"partitionId":"%d","partition":%b,"leaseId":%b,"consumerGroup":%b,"deliveryAttempt":%d,"offset":'
    ) % (queue, claim.partition_id, _json(claim.partition.decode()), lease, group, claim.attempt)
    last_us, created_at = -1, b""  # those of one push have one stamp
    for offset, stored in enumerate(claim.messages, claim.first_offset):
        plain = unpack_plain(stored)
        if plain is not None:
            created_at_us, message_id, transaction_id, data = plain
            trace, by = b"null", b"null"
        else:
            created_at_us, message_id, transaction_id, payload, flags, trace_id, producer = unpack(stored)
            data = payload if flags == PayloadFlag.JSON else _raw(payload)
            trace = b"null" if trace_id is None else b'"%b"' % uuid_text(trace_id).encode()
            by = b"null" if producer is None else _json(producer.decode())
        if created_at_us != last_us:
            last_us, created_at = created_at_us, millis_text_rounded_up(created_at_us).encode()
        messages.append(
            b'{"id":"%b","transactionId":%b,"traceId":%b,"data":%b,"producerSub":%b,"createdAt":"%b",%b%d}' % (
                uuid_text(message_id).encode(), _json(transaction_id.decode()), trace, data, by, created_at, shared,
                offset))


def render_ack(raw: bytes) -> Rendered:
    """Of an ack: 200 and one object per item, in order (PA-45)."""
    return 200, b"[%b]" % b",".join([
        b'{"index":%d,"transactionId":%b,%b' % (index, _json(transaction_id.decode()), _verdict(verdict, released))
        for index, (transaction_id, verdict, released) in enumerate(_acked(raw))
    ])


@lru_cache(maxsize=64)  # there are no more verdicts than that
def _verdict(verdict: int, released: bool) -> bytes:
    """The end of an ack item's object."""
    document: dict[str, object] = {
        "success": bool(verdict & DONE),
        "error": ERROR_TEXTS.get(verdict),
        "leaseReleased": released,
        "dlq": bool(verdict & DLQ) and bool(verdict & DONE),
        "noop": bool(verdict & NOOP) and bool(verdict & DONE),
    }
    if verdict & DONE and verdict & REDELIVERS:
        document["redelivers"] = True
    return _json(document)[1:]


def render_extend(raw: bytes) -> Rendered:
    """Of an extension: always 200 (PA-37)."""
    lease_id, renewed, new_expires_us = _extended(raw)
    return 200, extended(uuid_text(lease_id), renewed, new_expires_us)


def extended(lease_id: str, renewed: int, new_expires_us: int | None) -> bytes:
    """The body of an extension's answer. lease_id: as text."""
    until = None if new_expires_us is None else micros_text(new_expires_us)
    return _json({
        "leaseId": lease_id, "success": renewed > 0, "renewed": renewed, "newExpiresAt": until, "expiresAt": until,
        "lease_expires_at": until,
    })


def read_dead_letters(view: CommittedStore, fields: list[Any]) -> Generator[None, None, bytes]:
    """Dead letters, newest first (QU-40). Fields: see `queries.Query.DEAD_LETTERS`; times are of `failedAt`, from
    inclusive, to exclusive."""
    queue, group, partition, from_us, to_us, limit, skip = fields
    newest: list[tuple[bytes, bytes, bytes]] = []  # a heap of the page and what stands before it, oldest first
    total, looked = 0, 0
    for queue_id, queue_name in _queues(view, queue):
        stem = DEAD_LETTER + u64(queue_id)
        for key, stored in view.iterate_down(stem + u64(from_us), stem + u64(to_us)):
            looked += 1
            if looked % ROWS_A_SLICE == 0:
                yield
            if group is not None or partition is not None:
                row = _dead_letter_row(stored)
                if (group is not None and row.group != group) or (partition is not None and row.partition != partition):
                    continue
            total += 1
            place = key[len(stem):], queue_name, key
            if len(newest) < skip + limit:
                heappush(newest, place)
            elif newest and place[0] > newest[0][0]:
                heappushpop(newest, place)
            elif total > DEAD_LETTERS_COUNTED_MAX:
                break  # the rest of this queue is older still, and counted enough
    newest.sort(reverse=True)
    rows: list[bytes] = []
    size = 0
    for _, queue_name, key in newest[skip:]:
        kept = view.get(key)
        if kept is None:
            continue  # deleted since it was listed
        row = _dead_letter_row(kept)
        size += len(row.payload)
        if rows and size > DEAD_LETTERS_PAGE_MAX_BYTES:
            break
        rows.append(_dead_letter(queue_name, row))
        yield
    capped = b',"totalCapped":true' if total > DEAD_LETTERS_COUNTED_MAX else b""
    return result(200, b'{"messages":[%b],"pagination":{"limit":%d,"offset":%d},"total":%d%b}' % (
        b",".join(rows), limit, skip, min(total, DEAD_LETTERS_COUNTED_MAX), capped))


def _dead_letter(queue_name: bytes, row: DeadLetterRow) -> bytes:
    before = _json({
        "id": uuid_text(row.uuid), "transactionId": row.transaction_id.decode(), "partitionId": str(row.partition_id),
        "queue": queue_name.decode(), "partition": row.partition.decode(), "consumerGroup": row.group.decode(),
        "errorMessage": row.error.decode(errors="replace"), "retryCount": row.attempts,
    })
    behind = _json({
        "producerSub": None if row.producer_sub is None else row.producer_sub.decode(),
        "createdAt": micros_text(row.created_at_us), "failedAt": micros_text(row.failed_at_us), "offset": row.offset,
    })
    data = row.payload if row.payload_flags == PayloadFlag.JSON else _raw(row.payload)
    return b'%b,"data":%b,%b' % (before[:-1], data, behind[1:])


def _queues(view: CommittedStore, name: bytes | None) -> list[tuple[int, bytes]]:
    """(id, name) of the queues to look at."""
    if name is not None:
        stored = view.get(QUEUE + name)
        return [] if stored is None else [(_queue_row(stored).queue_id, name)]
    rows = [_queue_row(stored) for _, stored in view.iterate(QUEUE, after(QUEUE))]
    return [(row.queue_id, row.name) for row in rows]


def _raw(payload: bytes) -> bytes:
    """A payload that is no JSON text (timers.md 10)."""
    return b'{"_raw_b64":"%b"}' % b64encode(payload)
