"""What a transaction is answered (transactions.md 5, 6): one flat list of results, or why nothing was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import UNSET, UnsetType

from queen_node.answers.consume import ERROR_TEXTS
from queen_node.answers.kv import kv_element, lost_body
from queen_node.answers.timers import timer_result
from queen_node.commands import AckItem, PushItem
from queen_node.errors import (
    KV_QUOTA,
    TX_BAD_REQUEST,
    TX_DUPLICATE,
    TX_KEY_MISSING,
    TX_KV_PRECONDITION,
    TX_QUEUE_NOT_FOUND,
    TX_REJECTED_ACK,
    Refused,
)
from queen_node.ids import uuid_text
from queen_node.state.transactions import Cause, Committed, RolledBack, TransactionAnswer
from queen_node.state.verdicts import DLQ, NOOP, REDELIVERS

RESULTS_A_SLICE = 256  # of an answer between two turns of the loop: 2 ms (M-50)


class _Acked(msgspec.Struct):
    """What is answered for an ack (TX-40)."""

    index: int
    type: str
    success: bool
    transactionId: str
    error: None
    dlq: bool
    noop: bool | UnsetType
    redelivers: bool | UnsetType


class _Pushed(msgspec.Struct):
    """What is answered for an item that was pushed (TX-40)."""

    index: int
    type: str
    success: bool
    transactionId: str
    messageId: str
    queueName: str
    partition: str
    offset: int
    duplicate: bool | UnsetType


Acks = Sequence[tuple[bytes, AckItem]]

unpacked = msgspec.msgpack.Decoder(TransactionAnswer).decode
_json = msgspec.json.Encoder().encode


def render_committed(
    transaction_id: str, committed: Committed, layout: Sequence[bool], acks: Acks, pushes: Sequence[PushItem],
) -> Iterator[bytes]:
    """The body of a success (TX-40), in pieces: let others run in between. layout: which of the results of `operations`
    are acks; acks, pushes: as sent."""
    yield b'{"transactionId":"%b","success":true,"results":[' % transaction_id.encode()
    results = _results(committed, layout, acks, pushes)
    comma = b""
    while batch := list(islice(results, RESULTS_A_SLICE)):
        yield comma + _json(batch)[1:-1]
        comma = b","
    yield b"]}"


def _results(
    committed: Committed, layout: Sequence[bool], acks: Acks, pushes: Sequence[PushItem],
) -> Iterator[object]:
    """Each result, in the order of the call."""
    ack_results = zip(acks, committed.verdicts, strict=True)
    push_results = zip(pushes, committed.placed, strict=True)
    for index, is_ack in enumerate(layout):
        if is_ack:
            (_group, item), verdict = next(ack_results)
            yield _Acked(
                index, "ack", True, item[0].decode(), None, verdict & DLQ != 0, True if verdict & NOOP else UNSET,
                True if verdict & REDELIVERS else UNSET)
        else:
            item_pushed, (message_id, transaction_id, queue, duplicate, offset) = next(push_results)
            yield _Pushed(
                index, "push", True, transaction_id.decode(), uuid_text(message_id), queue.decode(),
                item_pushed[1].decode(), offset, True if duplicate else UNSET)
    index = len(layout)
    for op_index, element in enumerate(committed.elements):
        yield kv_element(index + op_index, element, "kv", op_index)
    index += len(committed.elements)
    for op_index, timer in enumerate(committed.timer_results):
        yield timer_result(timer, index + op_index, op_index)


def refusal_of(answer: RolledBack, acks: Acks, pushes: Sequence[PushItem]) -> tuple[Refused, dict[str, object]]:
    """Why a transaction was rolled back where it applied, and what its body says besides (TX-51, TX-53)."""
    if answer.cause is Cause.DUPLICATE:
        queue, partition, transaction_id, *_ = pushes[answer.index]
        text = (f"{TX_DUPLICATE.text}: transactionId {transaction_id.decode()} in queue {queue.decode()}, partition "
                f"{partition.decode()}, at offset {answer.offset}")
        return Refused(TX_DUPLICATE, text), {
            "offset": answer.offset, "messageId": uuid_text(answer.message_id)}
    if answer.cause is Cause.KEY_MISSING:
        return Refused(TX_KEY_MISSING), {}
    if answer.lost is not None:
        lost = lost_body(answer.lost)
        text = f"{TX_KV_PRECONDITION.text}: the key is not as it must be ({lost.kvReason}, version {lost.version})"
        return Refused(TX_KV_PRECONDITION, text), {
            "ok": False, "kvReason": lost.kvReason, "version": lost.version, "value": lost.value}
    if answer.cause is Cause.KV_QUOTA:
        return Refused(KV_QUOTA), {}
    if answer.cause is Cause.QUEUE_NOT_FOUND:
        return Refused(TX_QUEUE_NOT_FOUND), {}
    _group, (transaction_id, partition_id, *_) = acks[answer.index]
    ack = f"transactionId {transaction_id.decode()} in partition {partition_id}"
    if answer.cause is Cause.NAMED_TOO_OFTEN:
        return Refused(TX_BAD_REQUEST, f"QTXN {ack} is named more often than it occurs, with another status"), {}
    return Refused(TX_REJECTED_ACK, f"{TX_REJECTED_ACK.text}: {ERROR_TEXTS[answer.verdict]} ({ack})"), {}
