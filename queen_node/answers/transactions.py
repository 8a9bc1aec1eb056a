"""What a transaction is answered (transactions.md 5, 6): one flat list of results, or why nothing was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from queen_node.answers.consume import ERROR_TEXTS
from queen_node.answers.kv import KvElement, kv_element, lost_body
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

Acks = Sequence[tuple[bytes, AckItem]]
Result = dict[str, object]

unpacked = msgspec.msgpack.Decoder(TransactionAnswer).decode
_encode = msgspec.json.Encoder().encode


def render_committed(
    transaction_id: str, committed: Committed, layout: Sequence[bool], acks: Acks, pushes: Sequence[PushItem],
    positions: int,
) -> Iterator[bytes]:
    """The body of a success (TX-40), in pieces: let others run in between. layout: which of the results of `operations`
    are acks; acks, pushes: as sent; positions: how many."""
    yield b'{"transactionId":"%b","success":true,"results":[' % transaction_id.encode()
    results = _results(committed, layout, acks, pushes, positions)
    index, comma = 0, b""
    while batch := list(islice(results, RESULTS_A_SLICE)):
        for result in batch:
            result["index"] = index
            index += 1
        yield comma + _encode(batch)[1:-1]
        comma = b","
    yield b"]}"


def _results(
    committed: Committed, layout: Sequence[bool], acks: Acks, pushes: Sequence[PushItem], positions: int,
) -> Iterator[Result]:
    ack_results, push_results = _acks(committed, acks), _pushes(committed, pushes)
    for is_ack in layout:
        yield next(ack_results if is_ack else push_results)
    for op_index, element in enumerate(committed.elements):
        yield {**_set_fields(kv_element(op_index, element)), "type": "kv", "opIndex": op_index}
    for op_index, timer in enumerate(committed.timer_results):
        yield {"index": 0, "type": "timer", "opIndex": op_index, **msgspec.structs.asdict(timer_result(timer))}
    for op_index in range(positions):
        yield {"index": 0, "type": "position", "opIndex": op_index, "success": True}


def _set_fields(element: KvElement) -> Result:
    """The fields that the element of a kind of operation has."""
    return {name: value for name, value in msgspec.structs.asdict(element).items() if value is not msgspec.UNSET}


def _acks(committed: Committed, acks: Acks) -> Iterator[Result]:
    for (_group, item), verdict in zip(acks, committed.verdicts, strict=True):
        result: Result = {
            "index": 0, "type": "ack", "success": True, "transactionId": item[0].decode(), "error": None,
            "dlq": bool(verdict & DLQ)}
        if verdict & NOOP:
            result["noop"] = True
        if verdict & REDELIVERS:
            result["redelivers"] = True
        yield result


def _pushes(committed: Committed, pushes: Sequence[PushItem]) -> Iterator[Result]:
    for item, (message_id, transaction_id, queue, duplicate, offset) in zip(pushes, committed.placed, strict=True):
        result: Result = {
            "index": 0, "type": "push", "success": True, "transactionId": transaction_id.decode(),
            "messageId": uuid_text(message_id), "queueName": queue.decode(), "partition": item[1].decode(),
            "offset": offset}
        if duplicate:
            result["duplicate"] = True
        yield result


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
