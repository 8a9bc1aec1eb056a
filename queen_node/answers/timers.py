"""Answers of the timer routes: results of a call, and the reads (timers.md 2, 3, 4)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from queen_node import errors
from queen_node.answers import Rendered, result
from queen_node.ids import uuid_text
from queen_node.state.keys import TIMER, after, named
from queen_node.state.store import CommittedStore
from queen_node.state.timer_rows import Timer, read_place, timer_key, unpack
from queen_node.state.timers import OperationResult, TimersAnswer, Verdict, find, row_of
from queen_node.times import micros_text

Reader = Generator[None, None, bytes]

# A reader gives way after about a millisecond's work (M-50).
ROWS_COUNTED_A_SLICE = 1000
ROWS_WRITTEN_A_SLICE = 100

_encode = msgspec.json.encode


class Scheduled(msgspec.Struct):
    """Of a schedule (TM-16). The first three only in a transaction."""

    index: int | UnsetType
    type: str | UnsetType
    opIndex: int | UnsetType
    ok: bool
    status: str
    queue: str
    timerKey: str
    txn: str
    messageId: str
    deliverAt: str


class Cancelled(msgspec.Struct):
    """Of a cancel (TM-16). The first three only in a transaction."""

    index: int | UnsetType
    type: str | UnsetType
    opIndex: int | UnsetType
    ok: bool
    status: str
    queue: str
    timerKey: str
    txn: str | None


class _Pending(msgspec.Struct):
    """A row of the list (TM-41)."""

    queue: str
    timerKey: str
    partition: str
    deliverAt: str
    txn: str
    messageId: str
    payloadZstd: bool
    encrypted: bool
    producerSub: str | None
    attempts: int
    lastError: str | None
    claimed: bool
    createdAt: str
    updatedAt: str


class _Found(_Pending):
    """The answer of a peek (TM-40): a row, its payload, and that it was found."""

    payload: bytes  # base64 on the wire
    found: bool


class _Page(msgspec.Struct):
    rows: list[_Pending]
    truncated: bool
    nextAfter: str | None


_answer = msgspec.msgpack.Decoder(TimersAnswer).decode
_STATUS = {verdict: verdict.name.lower() for verdict in Verdict}
_SCHEDULES = frozenset((Verdict.SCHEDULED, Verdict.RESCHEDULED))
_NOT_FOUND = result(200, b'{"found":false}')


def render_timers(raw: bytes) -> Rendered:
    """Of a TIMERS command (TM-16); the bare object for the DELETE route (TM-30)."""
    one, results = _answer(raw)
    if isinstance(results, int):
        refused = errors.Refused(errors.TIMERS_KEY_MISSING, operation=results)
        return refused.refusal.status, refused.body()
    if one:
        return 200, _encode(timer_result(results[0]))
    return 200, b'{"results":' + _encode([timer_result(each) for each in results]) + b"}"


def timer_result(
    operation_result: OperationResult, index: int | UnsetType = UNSET, op_index: int | UnsetType = UNSET,
) -> Scheduled | Cancelled:
    """What is answered for one operation (TM-16). index, op_index: in a transaction (TX-40)."""
    verdict, queue, key, txn, message_id, deliver_at_us = operation_result
    kind = UNSET if index is UNSET else "timer"
    if verdict in _SCHEDULES:
        return Scheduled(
            index, kind, op_index, True, _STATUS[verdict], queue.decode(), key.decode(), (txn or b"").decode(),
            uuid_text(message_id), micros_text(deliver_at_us))
    return Cancelled(
        index, kind, op_index, verdict == Verdict.CANCELLED, _STATUS[verdict], queue.decode(), key.decode(),
        None if txn is None else txn.decode())


def read_peek(view: CommittedStore, fields: Sequence[Any]) -> Reader:
    """One timer: queue, key (TM-40). What is not pending is 200 `{"found":false}`."""
    queue, key = fields
    yield from ()
    found = find(view, queue, key)
    if found is None:
        return _NOT_FOUND
    timer, created_at_us = found
    row = msgspec.structs.asdict(_pending(timer, created_at_us))
    return result(200, _encode(_Found(**row, payload=timer.payload, found=True)))


def read_list(view: CommittedStore, fields: Sequence[Any]) -> Reader:
    """Pending timers of a queue in byte order of their keys: queue, after (exclusive, empty: none), limit (TM-41)."""
    queue, after_key, limit = fields
    start = timer_key(queue, after_key) + (b"\x00" if after_key else b"")
    end = after(TIMER + named(queue))
    # A page is one instant, and a look-up is not bound to the iteration's: so all are made in one turn (1,000 of them
    # take 5 ms), and only what follows, which reads nothing, is cut into slices.
    found = [(row_of(view.get, stored), read_place(stored).created_at_us)
             for _key, stored in islice(view.iterate(start, end), limit + 1)]
    truncated = len(found) > limit
    rows: list[_Pending] = []
    for (at_us, row), created_at_us in found[:limit]:
        rows.append(_pending(unpack(at_us, row), created_at_us))
        if len(rows) % ROWS_WRITTEN_A_SLICE == 0:
            yield
    return result(200, _encode(_Page(rows, truncated, rows[-1].timerKey if truncated else None)))


def read_count(view: CommittedStore, fields: Sequence[Any]) -> Reader:
    """How many timers of a queue have keys that begin with a prefix: queue, prefix (TM-42)."""
    queue, prefix = fields
    start = timer_key(queue, prefix)
    count = 0
    for _pair in view.iterate(start, after(start)):
        count += 1
        if count % ROWS_COUNTED_A_SLICE == 0:
            yield
    return result(200, b'{"count":%d}' % count)


def _pending(timer: Timer, created_at_us: int) -> _Pending:
    return _Pending(
        queue=timer.queue.decode(),
        timerKey=timer.key.decode(),
        partition=timer.partition.decode(),
        deliverAt=micros_text(timer.deliver_at_us),
        txn=timer.txn.decode(),
        messageId=uuid_text(timer.message_id),
        payloadZstd=False,
        encrypted=False,
        producerSub=None if timer.producer_sub is None else timer.producer_sub.decode(),
        attempts=timer.attempts,
        lastError=None if timer.last_error is None else timer.last_error.decode(),
        claimed=False,
        createdAt=micros_text(created_at_us),
        updatedAt=micros_text(timer.updated_at_us),
    )
