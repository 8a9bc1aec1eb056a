"""Answers of key/value calls (kv.md): of writes and reads alike, and the pages of the console.

A call of reads alone crosses from the state packed as a write's answer does, so that one renderer knows the elements.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from queen_node import errors
from queen_node.answers import NOTHING, Rendered, pack, result
from queen_node.commands import KvOp
from queen_node.state import kv, kv_rows
from queen_node.state.keys import KV_NAMESPACE, after
from queen_node.state.kv import Element, KvAnswer, Lost, PageRow, Reading, Reason
from queen_node.state.rows import NamespaceRow
from queen_node.state.store import CommittedStore
from queen_node.times import micros_text

Reader = Generator[None, None, bytes]

ROWS_A_SLICE = 250  # a reader gives way after about a millisecond's work (M-50)
NULL = Raw(b"null")

WORDS: dict[int, str] = {
    KvOp.GET: "get", KvOp.GET_MANY: "getMany", KvOp.GET_PREFIX: "getPrefix", KvOp.PUT: "put",
    KvOp.PUT_IF_ABSENT: "putIfAbsent", KvOp.DELETE: "delete", KvOp.INCR: "incr", KvOp.CHECK: "check",
}
REASONS = {reason: reason.name.lower() for reason in Reason}

_encode = msgspec.json.encode
decode_answer = msgspec.msgpack.Decoder(KvAnswer).decode


class Row(msgspec.Struct, omit_defaults=True):
    """A row of a page."""

    key: str
    value: Raw | UnsetType = UNSET
    version: int = 0
    expiresAt: str | UnsetType | None = UNSET
    updatedAt: str = ""
    expired: bool | UnsetType = UNSET


class _Read(msgspec.Struct):
    """What is answered for a get (KV-10). Of a row that is not there, only that. type, opIndex: in a transaction."""

    index: int
    op: str
    found: bool
    key: str
    value: Raw | UnsetType = UNSET
    version: int | UnsetType = UNSET
    expiresAt: str | UnsetType | None = UNSET
    updatedAt: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    opIndex: int | UnsetType = UNSET


class _Rows(msgspec.Struct):
    """What is answered for a getMany or a getPrefix (KV-10): one has `missing`, the other `nextAfter`."""

    index: int
    op: str
    rows: list[Row]
    missing: list[str] | UnsetType
    truncated: bool
    nextAfter: str | UnsetType | None
    type: str | UnsetType = UNSET
    opIndex: int | UnsetType = UNSET


class _Written(msgspec.Struct):
    """What is answered for an operation that writes or checks (KV-10, KV-32). A reason only where it did not apply."""

    index: int
    op: str
    applied: bool
    reason: str | UnsetType
    key: str
    value: Raw | UnsetType  # not of a check that holds
    version: int
    type: str | UnsetType = UNSET
    opIndex: int | UnsetType = UNSET


KvElement = _Read | _Rows | _Written


class KvLost(msgspec.Struct):
    """The body of a call that a required operation took back (KV-33)."""

    ok: bool
    reason: str
    failedIndex: int
    kvReason: str
    version: int
    value: Raw


class _Namespace(msgspec.Struct):
    namespace: str
    keys: int


class _ListPage(msgspec.Struct):
    rows: list[Row]
    truncated: bool
    nextAfter: str | None
    bytes: int


def rendered(answer: KvAnswer) -> Rendered:
    """The answer of a call: its elements, the bare one of a path route, what was lost, or that it exceeds the quota."""
    one, lost, exceeds, elements = answer
    if lost is not None:
        return 200, _encode(lost_body(lost))
    if exceeds:
        refused = errors.Refused(errors.KV_QUOTA)
        return refused.refusal.status, refused.body()
    if one:
        return 200, _encode(kv_element(0, elements[0]))
    return 200, b'{"results":' + _encode([kv_element(index, element) for index, element in enumerate(elements)]) + b"}"


def lost_body(lost: Lost) -> KvLost:
    """KV-33."""
    return KvLost(
        False, "kv_precondition", lost.failed_index, REASONS[lost.reason], lost.version, _value(lost.value))


def kv_element(
    index: int, element: Element, kind: str | UnsetType = UNSET, op_index: int | UnsetType = UNSET,
) -> KvElement:
    """KV-10, KV-32. kind, op_index: in a transaction (TX-40)."""
    op, word = element.op, WORDS[element.op]
    if isinstance(element, kv.Page):
        rows = [_row(row) for row in element.rows]
        if op == KvOp.GET_MANY:
            return _Rows(index, word, rows, [key.decode() for key in element.missing], element.truncated, UNSET, kind,
                op_index)
        next_after = None if element.next_after is None else element.next_after.decode()
        return _Rows(index, word, rows, UNSET, element.truncated, next_after, kind, op_index)
    key, done = element.key.decode(), element.done
    if op == KvOp.GET:
        if not done:
            return _Read(index, word, False, key, type=kind, opIndex=op_index)
        return _Read(
            index, word, True, key, _value(element.value), element.version, end_text(element.expires_us),
            micros_text(element.updated_us), kind, op_index)
    return _Written(
        index, word, done, UNSET if done else REASONS[element.reason], key,
        UNSET if done and op == KvOp.CHECK else _value(element.value), element.version, kind, op_index)


def read_kv(view: CommittedStore, fields: Sequence[Any]) -> Reader:
    """The answer of a call of reads alone (KV-53): as of the last entry?, whether it is one of a path route,
    operations. NOTHING: see `untold`."""
    at_entry, one, operations = fields
    yield from ()
    # In one turn, however many rows: all look-ups of a call see one state. 1,024 take 5 ms.
    reading = Reading(view, view.stamp_us if at_entry else view.now_us)
    elements = [reading.answer(operation) for operation in operations]
    return NOTHING if untold(view, reading.ended_us) else pack((one, None, False, elements))


def untold(view: CommittedStore, ended_us: int) -> bool:
    """Whether a lifetime that ended then is over only by a clock that no entry carries yet.

    Then nobody may be told: the clock of a next leader may be behind by the age of its last sample (M-23), and the row
    would be alive again without having been written (KV-70). Whoever asks has an entry made, and asks again.
    """
    return ended_us > view.stamp_us


def read_namespaces(view: CommittedStore, _fields: Sequence[Any]) -> Reader:
    """Every namespace, in byte order, with its number of rows, dead unswept ones too (KV-80)."""
    found: list[_Namespace] = []
    for key, stored in view.iterate(KV_NAMESPACE, after(KV_NAMESPACE)):
        row = msgspec.msgpack.decode(stored, type=NamespaceRow)
        found.append(_Namespace(key[len(KV_NAMESPACE) :].decode(), row.keys))
        if len(found) % ROWS_A_SLICE == 0:
            yield
    return result(200, b'{"namespaces":' + _encode(found) + b"}")


def read_list(view: CommittedStore, fields: Sequence[Any]) -> Reader:
    """A page of a namespace (KV-81): as of the last entry?, namespace, prefix, after, limit, keys only?, dead ones too?
    NOTHING: see `untold`."""
    at_entry, namespace, prefix, after_key, limit, keys_only, include_expired = fields
    now_us = view.stamp_us if at_entry else view.now_us
    rows: list[Row] = []
    total, truncated, next_after = 0, False, None
    for looked_at, (key, row) in enumerate(kv_rows.stored(view, namespace, prefix, after_key), start=1):
        alive = row.is_alive(now_us)
        if not alive and untold(view, row.expires_us):
            return NOTHING
        if alive or include_expired:
            if len(rows) == limit or total >= kv.READ_BYTES_MAX:
                truncated = True
                next_after = rows[-1].key
                break
            total += 0 if keys_only else len(row.value)
            shown = _row(PageRow(
                key, None if keys_only else row.value, row.version, row.expires_us, row.updated_us))
            shown.expired = not alive
            rows.append(shown)
        if looked_at == kv.ROWS_LOOKED_AT_MAX:
            truncated, next_after = True, key.decode()
            break
        if looked_at % ROWS_A_SLICE == 0:
            yield
    return result(200, _encode(_ListPage(rows, truncated, next_after, total)))


def _row(row: PageRow) -> Row:
    return Row(
        row.key.decode(), UNSET if row.value is None else Raw(row.value), row.version, end_text(row.expires_us),
        micros_text(row.updated_us))


def _value(value: bytes | None) -> Raw:
    return NULL if value is None else Raw(value)


def end_text(expires_us: int) -> str | None:
    """The end of a lifetime; None: it has none."""
    return micros_text(expires_us) if expires_us else None
