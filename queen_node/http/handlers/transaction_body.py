"""From the body of `POST /api/v1/transaction` to the parts of one command (transactions.md 2).

Here: what is JSON of this route and what is not, and where each part stands in the flat `results` (TX-40). What a push
item or a timer operation must look like is decided where their own routes decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from queen_node.commands import AckItem, AckStatus, PushItem
from queen_node.errors import (
    BAD_REQUEST,
    KV_NO_PREFIX_HERE,
    NAME_TOO_LONG,
    TX_BAD_BODY,
    TX_BAD_REQUEST,
    TX_TOO_LARGE,
    Refusal,
    Refused,
)
from queen_node.http.handlers import kv_calls, timer_calls
from queen_node.http.handlers.ack import (
    ERROR_BYTES_MAX,
    GROUP_BYTES_MAX,
    UNKNOWN_PARTITION,
    lease_id_of,
    partition_id_of,
)
from queen_node.http.handlers.kv_calls import KvCall, KvLimits
from queen_node.http.handlers.op_lists import NOT_AS_IT_SHOULD_BE, SLICE_BYTES, paced
from queen_node.http.handlers.push_body import NO_TRACE, Item, masked
from queen_node.http.handlers.push_items import (
    TRANSACTION_ID_BYTES_MAX,
    command_items,
)
from queen_node.http.handlers.timer_calls import Call, TimerLimits
from queen_node.ids import IdMint
from queen_node.places import place
from queen_node.state.groups import QUEUE_MODE
from queen_node.state.transactions import Part

PARTS_MAX = 10_000  # M-51
BODY_MAX_BYTES = 16 << 20  # 8 MiB of content are at most so much with base64 and escapes in it; more is never decoded

ITEMS_A_SLICE = 256  # built between two turns of the loop

_ABSENT = msgspec.Raw(b"")
# Statuses as a transaction reads them (transactions.md 2.2): a misspelt refusal must not commit a step.
_STATUSES: dict[str | bool | None, int] = {word: int(status) for word, status in {
    None: AckStatus.COMPLETED, True: AckStatus.COMPLETED, False: AckStatus.FAILED, "completed": AckStatus.COMPLETED,
    "success": AckStatus.COMPLETED, "acked": AckStatus.COMPLETED, "ok": AckStatus.COMPLETED,
    "failed": AckStatus.FAILED, "retry": AckStatus.RETRY, "dlq": AckStatus.DLQ,
}.items()}

_LEASE_BYTES = 16  # of an id that a pop may have given

_S = TypeVar("_S", bound=msgspec.Struct)


class _Body(msgspec.Struct):
    operations: list[msgspec.Raw] | None = None
    requiredLeases: list[str] | None = None
    kv: list[msgspec.Raw] | None = None
    timers: list[msgspec.Raw] | None = None
    positions: list[msgspec.Raw] | None = None


class _Pushed(msgspec.Struct, gc=False):
    """An item as it was sent."""

    queue: str | None = None
    payload: msgspec.Raw = _ABSENT
    partition: str | None = None
    transactionId: str | None = None
    traceId: msgspec.Raw = NO_TRACE


class _AckOrPush(_Pushed, gc=False):
    """An ack or a push, the latter with its items or as one itself (transactions.md 2.1, 2.2)."""

    type: str = ""
    partitionId: str | int | None = None
    status: str | bool | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None
    error: str | None = None


class _Operation(_AckOrPush, gc=False):
    """The same, its items not read yet."""

    items: list[msgspec.Raw] | None = None


class _QuickOperation(_AckOrPush, gc=False):
    """The same, its items with it."""

    items: list[_Pushed] | None = None


class _QuickBody(msgspec.Struct):
    """A body as nearly all are: in one typed pass, and without positions."""

    operations: list[_QuickOperation] | None = None
    requiredLeases: list[str] | None = None
    kv: list[kv_calls.Op] | None = None
    timers: list[timer_calls.Op] | None = None
    positions: None = None


_decode_quickly = msgspec.json.Decoder(_QuickBody).decode
_decode_body = msgspec.json.Decoder(_Body)
_decode_operation = msgspec.json.Decoder(_Operation)
_decode_pushed = msgspec.json.Decoder(_Pushed)


class RefusedAt(Exception):
    """A call is refused. failed_index: of the element that is meant, in the flat results; None: the call as a whole."""

    def __init__(self, refused: Refused, failed_index: int | None) -> None:
        super().__init__(str(refused))
        self.refused, self.failed_index = refused, failed_index


class Transaction:
    """What one call wants. acks: each with its consumer group; layout: which of the results of `operations` are acks.
    """

    def __init__(
        self, limits: TimerLimits, kv_limits: KvLimits, ids: IdMint, producer_sub: bytes | None,
    ) -> None:
        self._ids = ids
        self.acks: list[tuple[bytes, AckItem]] = []
        self.pushes: list[PushItem] = []
        self.kv = KvCall(kv_limits)
        self.timers = Call(limits, ids, producer_sub)
        self.layout: list[bool] = []
        self._items: list[Item] = []
        self._lease_texts: list[str] = []  # of each ack, as it was sent; empty: none
        self._partition: str | int | None = None  # of the last ack: neighbours mostly share theirs
        self._partition_id = UNKNOWN_PARTITION

    @property
    def grows(self) -> bool:
        """Whether it adds to what is stored, if only for a while (TX-56)."""
        return bool(self.pushes) or self.kv.grows or self.timers.schedules

    @property
    def places(self) -> tuple[bytes, ...]:
        """Where it appends (`Broker.write`)."""
        return (*[place(item[0], item[1]) for item in self.pushes], *self.timers.due_places)

    def flat_index(self, part: Part, index: int) -> int:
        """Where the element `index` of a list stands in the results (TX-40)."""
        if part is Part.ACK or part is Part.PUSH:
            is_ack = part is Part.ACK
            return [flat for flat, each in enumerate(self.layout) if each is is_ack][index]
        return len(self.layout) + index + (0 if part is Part.KV else len(self.kv.operations))

    def read_quickly(self, body: bytes) -> bool:
        """Take a body of one slice in, if all of it is as the rules want it. False: let `read` say why not, into a new
        transaction."""
        if len(body) > SLICE_BYTES:
            return False
        try:
            if not body.isascii():
                body.decode()
            top = _decode_quickly(body)
            kv, timers = top.kv or (), top.timers or ()
            if len(kv) > self.kv.limits.operations_max or len(timers) > self.timers.limits.operations_max:
                return False
            for operation in top.operations or ():
                if operation.type == "ack":
                    self._take_ack(operation)
                elif operation.type != "push":
                    return False
                else:
                    for item in (operation,) if operation.items is None else operation.items:
                        self._take_item(item)
            _check_count(len(self.layout) + len(kv) + len(timers))
            self._settle_leases(top.requiredLeases or ())
            self.pushes += command_items(self._items, 0, self._ids)
            for each in kv:
                if each.op == "getPrefix":
                    return False
                self.kv.take(each)
            for timer in timers:
                self.timers.take(timer)
        except (*NOT_AS_IT_SHOULD_BE, UnicodeDecodeError, RefusedAt):
            return False
        return bool(self.layout or kv or timers)

    def read(self, body: bytes) -> Iterator[None]:
        """Take a body in; yields where the loop may take a turn (M-51). Raises RefusedAt."""
        top = _top(body)
        for pauses, raw in paced(top.operations or ()):
            if pauses:
                yield
            yield from self._take_operation(raw)
        kv, timers = top.kv or (), top.timers or ()
        _check_count(len(self.layout) + len(kv) + len(timers))
        if not (self.layout or kv or timers):
            raise RefusedAt(Refused(TX_BAD_REQUEST, "a transaction of no parts"), None)
        self._settle_leases(top.requiredLeases or ())
        for start in range(0, len(self._items), ITEMS_A_SLICE):
            self.pushes += command_items(self._items[start : start + ITEMS_A_SLICE], start, self._ids)
            if len(self._items) > ITEMS_A_SLICE:
                yield
        yield from self._of_family(Part.KV, self._take_kv(kv))
        yield from self._of_family(Part.TIMER, timer_calls.take_raws(timers, self.timers))

    def _of_family(self, part: Part, taking: Iterator[None]) -> Iterator[None]:
        """Read what has a route of its own: what that refuses is refused, at its place in the results."""
        try:
            yield from taking
        except Refused as refused:
            index = refused.operation
            raise RefusedAt(refused, None if index is None else self.flat_index(part, index)) from None

    def _take_kv(self, raws: Sequence[msgspec.Raw]) -> Iterator[None]:
        for index, raw in enumerate(raws[: self.kv.limits.operations_max]):
            if kv_calls.word_of(raw) == "getPrefix":
                raise Refused(KV_NO_PREFIX_HERE, operation=index)
        yield from kv_calls.take_raws(raws, self.kv)

    def _take_operation(self, raw: msgspec.Raw) -> Iterator[None]:
        operation = self._decoded(raw, _decode_operation, _Operation)
        if operation.type == "ack":
            self._take_ack(operation)
        elif operation.type != "push":
            raise self._refused(TX_BAD_BODY, "must be ack or push", "type")
        elif operation.items is None:
            self._take_item(operation)
        else:
            for pauses, item in paced(operation.items):
                if pauses:
                    yield
                self._take_item(self._decoded(item, _decode_pushed, _Pushed))
        _check_count(len(self.layout))

    def _take_ack(self, operation: _AckOrPush) -> None:
        transaction_id, partition, group = operation.transactionId, operation.partitionId, operation.consumerGroup
        if not transaction_id:
            raise self._refused(TX_BAD_REQUEST, "must not be empty", "transactionId")
        if partition != self._partition or partition is None:
            if partition is None or (isinstance(partition, str) and not (partition.isascii() and partition.isdigit())):
                raise self._refused(TX_BAD_REQUEST, "must be a text of digits, as the pop gave it", "partitionId")
            self._partition, self._partition_id = partition, partition_id_of(partition)
        status = _STATUSES.get(operation.status)
        if status is None:
            raise self._refused(
                TX_BAD_REQUEST, "must be completed, failed, retry or dlq", "status", got=str(operation.status)[:40])
        name = group.encode() if group else QUEUE_MODE
        if len(name) > GROUP_BYTES_MAX:
            raise RefusedAt(Refused(NAME_TOO_LONG, limit=GROUP_BYTES_MAX, got=len(name)), None)
        identifier = transaction_id.encode()
        if len(identifier) > TRANSACTION_ID_BYTES_MAX:
            raise RefusedAt(Refused(BAD_REQUEST, "too long", field="transactionId"), None)
        reason = operation.error.encode()[:ERROR_BYTES_MAX] if operation.error else None
        self._lease_texts.append(operation.leaseId or "")
        self.acks.append((name, (identifier, self._partition_id, status, b"", reason)))
        self.layout.append(True)

    def _take_item(self, item: _Pushed) -> None:
        queue, payload = item.queue, item.payload
        for field, name in (("queue", queue), ("partition", item.partition)):
            if name == "" or (name is None and field == "queue"):
                raise self._refused(TX_BAD_REQUEST, "must be a non-empty text", field)
            if name is not None and "\0" in name:
                raise self._refused(TX_BAD_REQUEST, "must not hold U+0000", field)
        if payload is _ABSENT:
            raise self._refused(TX_BAD_REQUEST, "is missing", "payload")
        self._items.append(Item(queue or "", payload, item.partition, item.transactionId, item.traceId))
        self.layout.append(False)

    def _settle_leases(self, required: Sequence[str]) -> None:
        """Write into each ack the lease it is fenced with; a single one is lent to those without their own (TX-31)."""
        known = {text: lease_id_of(text) for text in {*required, *self._lease_texts} if text}
        # Two spellings of one id are one lease; two texts that are no ids are two.
        distinct = {lease_id if len(lease_id) == _LEASE_BYTES else text for text, lease_id in known.items()}
        lent = next(iter(known.values())) if len(distinct) == 1 else b""
        for index, text in enumerate(self._lease_texts):
            group, (transaction_id, partition_id, status, _, error) = self.acks[index]
            lease_id = known[text] if text else lent
            self.acks[index] = group, (transaction_id, partition_id, status, lease_id, error)

    def _decoded(self, raw: msgspec.Raw, decoder: msgspec.json.Decoder[_S], kind: type[_S]) -> _S:
        """An operation or an item, the next of the results."""
        try:
            return _decoded(bytes(raw), decoder, kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._refused(TX_BAD_BODY, str(error)) from None

    def _refused(self, refusal: Refusal, text: str, field: str = "", *, got: str | None = None) -> RefusedAt:
        """Of what would be the next of the results."""
        return RefusedAt(Refused(refusal, text, field=field, got=got), len(self.layout))


def _top(body: bytes) -> _Body:
    if len(body) > BODY_MAX_BYTES:
        raise RefusedAt(Refused(TX_TOO_LARGE, "the body", limit=BODY_MAX_BYTES, got=len(body)), None)
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into raw values
        top = _decoded(body, _decode_body, _Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedAt(Refused(TX_BAD_BODY, f"{TX_BAD_BODY.text}: {error}"), None) from None
    if top.positions:  # what state knows of them waits for the route that reads them (transactions.md 7)
        raise RefusedAt(Refused(TX_BAD_BODY, "no route reads them yet: must be empty", field="positions"), None)
    _check_count(sum(len(each or ()) for each in (top.operations, top.kv, top.timers)))
    return top


def _check_count(count: int) -> None:
    if count > PARTS_MAX:
        raise RefusedAt(Refused(TX_TOO_LARGE, "parts", limit=PARTS_MAX, got=count), None)


def _decoded(data: bytes, decoder: msgspec.json.Decoder[_S], kind: type[_S]) -> _S:
    """Raises msgspec.DecodeError, RecursionError."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if b"\\ud" not in data and b"\\uD" not in data:
            raise
        return _decoded_with_lone_surrogates(data, kind)


def _decoded_with_lone_surrogates(data: bytes, kind: type[_S]) -> _S:
    """A lone surrogate escape is fine in a payload and kept (PU-12), but no string that msgspec accepts: what stays raw
    is taken masked and unmasked, and everything else is read strictly."""
    all_masked, unmasked = masked(data)
    given = msgspec.json.decode(all_masked, type=dict[str, msgspec.Raw])
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        raw = given.get(field.name)
        if raw is None:
            continue
        if field.type is msgspec.Raw:
            values[field.name] = msgspec.Raw(unmasked(raw))
        elif field.type == list[msgspec.Raw] | None and bytes(raw) != b"null":
            values[field.name] = [
                msgspec.Raw(unmasked(each)) for each in msgspec.json.decode(raw, type=list[msgspec.Raw])]
        else:
            values[field.name] = msgspec.json.decode(unmasked(raw), type=field.type)
    return kind(**values)
