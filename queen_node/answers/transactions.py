"""What a transaction is answered (transactions.md 5, 6): one flat list of results, or why nothing was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import msgspec

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
    index, comma = 0, b""
    while batch := list(islice(results, RESULTS_A_SLICE)):
        yield comma + b",".join([b'{"index":%d,%b' % each for each in enumerate(batch, index)])
        index, comma = index + len(batch), b","
    yield b"]}"


def _results(
    committed: Committed, layout: Sequence[bool], acks: Acks, pushes: Sequence[PushItem],
) -> Iterator[bytes]:
    """Each result behind its index, which is the first field of all."""
    ack_results, push_results = _acks(committed, acks), _pushes(committed, pushes)
    for is_ack in layout:
        yield next(ack_results if is_ack else push_results)
    for op_index, element in enumerate(committed.elements):
        made = _json(kv_element(op_index, element))
        yield b'%b,"type":"kv","opIndex":%d}' % (made[made.index(b",") + 1 : -1], op_index)  # its own index goes
    for op_index, timer in enumerate(committed.timer_results):
        yield b'"type":"timer","opIndex":%d,%b' % (op_index, _json(timer_result(timer))[1:])


def _acks(committed: Committed, acks: Acks) -> Iterator[bytes]:
    for (_group, item), verdict in zip(acks, committed.verdicts, strict=True):
        yield b'"type":"ack","success":true,"transactionId":%b,"error":null,%b' % (
            _json(item[0].decode()), _end_of_ack(verdict))


@lru_cache(maxsize=64)  # there are no more verdicts than that
def _end_of_ack(verdict: int) -> bytes:
    flags = {"dlq": bool(verdict & DLQ)} | {
        name: True for name, flag in (("noop", NOOP), ("redelivers", REDELIVERS)) if verdict & flag}
    return _json(flags)[1:]


def _pushes(committed: Committed, pushes: Sequence[PushItem]) -> Iterator[bytes]:
    for item, (message_id, transaction_id, queue, duplicate, offset) in zip(pushes, committed.placed, strict=True):
        yield b'"type":"push","success":true,"transactionId":%b,"messageId":"%b","queueName":%b,' % (
            _json(transaction_id.decode()), uuid_text(message_id).encode(), _json(queue.decode())
        ) + b'"partition":%b,"offset":%d%b' % (
            _json(item[1].decode()), offset, b',"duplicate":true}' if duplicate else b"}")


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
