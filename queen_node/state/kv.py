"""Key/value operations: what each comes to, then what is written, then what is read (kv.md).

Judging writes nothing: the operations of a call are judged in array order on one view, each seeing what those before
it would write, so that a call, or the transaction around it, can still be refused as a whole (KV-14, KV-33). Its reads
are answered after all its writes (KV-71). Everything is judged at one instant, the entry's stamp (KV-22).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from queen_node.commands import KvOp
from queen_node.state import calendar, kv_numbers, kv_rows
from queen_node.state.keys import CALENDAR_KV
from queen_node.state.kv_rows import KvRow, kv_key
from queen_node.state.step import Step
from queen_node.state.store import CommittedStore, Store
from raft.invariants import must

SECOND_US = 1_000_000
READ_BYTES_MAX = 4 << 20  # of values, in one call; the row that crosses the line is kept (KV-52)
ROWS_LOOKED_AT_MAX = 4096  # by the getPrefix of one call: dead rows, not swept yet, are walked over, and may be many

Operation = Sequence[Any]  # commands.KvOperation as it comes out of an entry


class RefusedByHook(Exception):
    """A write of the key that QUEEN_TEST_APPLY_REFUSE_KEY names, in any namespace: its entry cannot be applied here."""


class Reason(IntEnum):
    """Why an operation did not apply (KV-32)."""

    NONE = 0
    EXISTS = 1
    ABSENT = 2
    VERSION = 3
    LIMIT = 4
    TYPE = 5


class PageRow(NamedTuple):
    """A row of a page. value: None where only keys were asked for."""

    key: bytes
    value: bytes | None
    version: int
    expires_us: int
    updated_us: int


class Single(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """What became of an operation on one key. done: applied, or found. value, version: of the row as the contract says
    for the operation; None and 0: there is none to show."""

    op: int
    done: bool
    key: bytes
    value: bytes | None = None
    version: int = 0
    reason: Reason = Reason.NONE
    expires_us: int = 0
    updated_us: int = 0


class Page(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Rows that a read gave. missing: of a getMany, keys that are not alive. next_after: where the next page of a
    getPrefix begins."""

    op: int
    rows: list[PageRow]
    missing: list[bytes]
    truncated: bool
    next_after: bytes | None = None


Element = Single | Page


class Lost(NamedTuple):
    """The first required operation that did not apply (KV-33), and the key's current version and value."""

    failed_index: int
    reason: Reason
    version: int
    value: bytes | None


class Change(msgspec.Struct, frozen=True, gc=False):
    """A row to be written at `own_key`, or removed if `row` is None. before: what is stored."""

    own_key: bytes
    namespace: bytes
    row: KvRow | None
    before: KvRow | None


class Judged(msgspec.Struct, frozen=True, gc=False):
    """What the operations of a call come to. elements: None for `reads`, by their places, which `carry_out` answers."""

    elements: list[Element | None]
    reads: list[int]
    changes: list[Change]
    lost: Lost | None = None


# (answered as the bare element of a path route?, the lost one, does it exceed the tenant's caps?, else the elements)
KvAnswer = tuple[bool, Lost | None, bool, list[Element]]


class _View:
    """Rows as the operation sees them that is being judged."""

    __slots__ = ("_changed", "changes", "now_us", "store", "version")

    def __init__(self, store: Store, now_us: int) -> None:
        self.store, self.now_us = store, now_us
        self.version = store.counters().kv_version  # the last one given
        self.changes: list[Change] = []
        self._changed: dict[bytes, KvRow | None] = {}

    def alive(self, own_key: bytes) -> tuple[KvRow | None, KvRow | None]:
        """(the row if it is alive, what is stored)."""
        packed = self.store.get(own_key)
        stored = None if packed is None else kv_rows.unpack(packed)
        row = self._changed.get(own_key, stored)
        return (row if row is not None and row.is_alive(self.now_us) else None), stored

    def write(self, own_key: bytes, namespace: bytes, value: bytes, expires_us: int, before: KvRow | None) -> int:
        """The version of the row that will be written."""
        self.version += 1
        row = self._changed[own_key] = KvRow(self.version, expires_us, self.now_us, value)
        self.changes.append(Change(own_key, namespace, row, before))
        return self.version

    def remove(self, own_key: bytes, namespace: bytes, before: KvRow) -> None:
        self._changed[own_key] = None
        self.changes.append(Change(own_key, namespace, None, before))

    def ends_us(self, seconds: int) -> int:
        """The end of a lifetime that begins now; 0: for ever."""
        return self.now_us + seconds * SECOND_US if seconds else 0


def judge(store: Store, now_us: int, operations: Sequence[Operation]) -> Judged:
    """Judge the operations of one call. Each key is written at most once: the door has seen to that (KV-15)."""
    view = _View(store, now_us)
    elements: list[Element | None] = []
    reads: list[int] = []
    for index, operation in enumerate(operations):
        op = operation[0]
        if op in _READS:
            elements.append(None)
            reads.append(index)
            continue
        element = _JUDGES[op](view, operation)
        elements.append(element)
        if not element.done and operation[_REQUIRED]:
            current = kv_rows.find(store, operation[1], operation[2])
            if current is None or not current.is_alive(now_us):
                return Judged(elements, reads, [], Lost(index, element.reason, 0, None))
            return Judged(elements, reads, [], Lost(index, element.reason, current.version, current.value))
    return Judged(elements, reads, view.changes)


def carry_out(step: Step, operations: Sequence[Operation], judged: Judged) -> list[Element]:
    """Write what `judge` found, on the same view, and answer the reads."""
    must(judged.lost is None, "a call that lost is carried out")
    write_changes(step.store, judged.changes)
    elements = judged.elements
    if judged.reads:
        reading = Reading(step.store, step.now_us)
        for index in judged.reads:
            elements[index] = reading.answer(operations[index])
    return elements  # type: ignore[return-value]  # none is None any more


def write_changes(store: Store, changes: Sequence[Change]) -> None:
    """Write what was judged on the same view. Raises RefusedByHook."""
    if not changes:
        return
    if store.refused_key:
        _refuse(store.refused_key, changes)
    writer = kv_rows.Writer(store)
    for change in changes:
        if change.row is not None:
            writer.write(change.own_key, change.namespace, change.row, change.before)
        elif change.before is not None:
            writer.remove(change.own_key, change.namespace, change.before)
    writer.finish()


def _refuse(key: bytes, changes: Sequence[Change]) -> None:
    if any(change.own_key == kv_key(change.namespace, key) for change in changes):
        raise RefusedByHook("refused by the test hook QUEEN_TEST_APPLY_REFUSE_KEY")


def apply_kv(step: Step, command: Sequence[Any]) -> KvAnswer:
    """Apply the operations of one call, all or none."""
    _kind, _request_id, operations, one, caps = command
    judged = judge(step.store, step.now_us, operations)
    if judged.lost is not None:
        return one, judged.lost, False, []
    if exceeds(step.store, judged.changes, caps):
        return one, None, True, []
    return one, None, False, carry_out(step, operations, judged)


def exceeds(store: Store, changes: Sequence[Change], caps: Sequence[int]) -> bool:
    """Whether a call adds, as a whole, rows or bytes beyond what its tenant may hold (KV-62). caps: as of
    `commands.KvCaps`."""
    rows_max, bytes_max = caps
    if not (rows_max or bytes_max):
        return False
    rows = size = 0
    for change in changes:
        row, before = change.row, change.before
        key_bytes = kv_rows.key_bytes(change.own_key, change.namespace)
        rows += (row is not None) - (before is not None)
        size += (0 if row is None else key_bytes + len(row.value)) - (
            0 if before is None else key_bytes + len(before.value))
    held = store.counters()
    return (0 < rows_max < held.kv_rows + rows and rows > 0) or (0 < bytes_max < held.kv_bytes + size and size > 0)


def apply_sweep(step: Step, command: Sequence[Any]) -> tuple[bool]:
    """Remove rows whose lifetime is over (KV-23): (whether more are,)."""
    _kind, _request_id, at_most = command
    store = step.store
    due = calendar.due(store, CALENDAR_KV, step.now_us, at_most + 1)
    more = len(due) > at_most
    if due:
        writer = kv_rows.Writer(store)
        for at_us, version, owner in due[:at_most]:
            writer.sweep(at_us, version, owner)
        writer.finish()
        # A lifetime ends after the stamp of the entry that begins it: nothing is ever filed below.
        calendar.set_floor(store, CALENDAR_KV, *(due[at_most][:2] if more else (step.now_us, 0)))
    return (more,)


def next_end_us(store: Store) -> int | None:
    """The earliest end of a stored row's lifetime, µs of the group clock; None when none ends."""
    return calendar.earliest(store, CALENDAR_KV)


def ended_figures(store: Store, now_us: int, at_most: int) -> tuple[int, int]:
    """(dead rows that are not swept, counted up to `at_most`; µs since the oldest of them ended). For the figures."""
    due = calendar.due(store, CALENDAR_KV, now_us, at_most)
    return len(due), now_us - due[0][0] if due else 0


class Reading:
    """The reads of one call at one instant. They share one allowance of bytes (KV-52), and one of rows to walk over.

    ended_us: the latest end of a lifetime that counted as over; 0: none did.
    """

    def __init__(self, view: Store | CommittedStore, now_us: int) -> None:
        self._view, self._now_us = view, now_us
        self.ended_us = 0
        self._bytes_left, self._rows_left = READ_BYTES_MAX, ROWS_LOOKED_AT_MAX

    def answer(self, operation: Operation) -> Element:
        """The answer of one read."""
        op = operation[0]
        if op == KvOp.GET:
            return self._get(operation[1], operation[2])
        if op == KvOp.GET_MANY:
            return self._get_many(operation[1], operation[2])
        return self._get_prefix(*operation[1:])

    def _alive(self, namespace: bytes, key: bytes) -> KvRow | None:
        row = kv_rows.find(self._view, namespace, key)
        return row if row is not None and self._is_alive(row) else None

    def _is_alive(self, row: KvRow) -> bool:
        if row.is_alive(self._now_us):
            return True
        self.ended_us = max(self.ended_us, row.expires_us)
        return False

    def _get(self, namespace: bytes, key: bytes) -> Single:
        row = self._alive(namespace, key)
        if row is None:
            return Single(KvOp.GET, False, key)
        return Single(KvOp.GET, True, key, row.value, row.version, Reason.NONE, row.expires_us, row.updated_us)

    def _get_many(self, namespace: bytes, keys: Sequence[bytes]) -> Page:
        rows: list[PageRow] = []
        missing: list[bytes] = []
        for key in sorted(set(keys)):
            if self._bytes_left <= 0:  # the rest is in neither list: to call it missing would be a lie
                return Page(KvOp.GET_MANY, rows, missing, True)
            row = self._alive(namespace, key)
            if row is None:
                missing.append(key)
            else:
                rows.append(self._row(key, row))
        return Page(KvOp.GET_MANY, rows, missing, False)

    def _get_prefix(self, namespace: bytes, prefix: bytes, after_key: bytes, limit: int, keys_only: bool) -> Page:
        rows: list[PageRow] = []
        for key, row in kv_rows.stored(self._view, namespace, prefix, after_key):
            if self._is_alive(row):
                if len(rows) == limit or self._bytes_left <= 0:
                    return Page(KvOp.GET_PREFIX, rows, [], True, rows[-1].key if rows else after_key or None)
                rows.append(self._row(key, row, keys_only))
            self._rows_left -= 1
            if self._rows_left <= 0:
                return Page(KvOp.GET_PREFIX, rows, [], True, key)
        return Page(KvOp.GET_PREFIX, rows, [], False)

    def _row(self, key: bytes, row: KvRow, key_only: bool = False) -> PageRow:
        value = None if key_only else row.value
        self._bytes_left -= len(value or b"")
        return PageRow(key, value, row.version, row.expires_us, row.updated_us)


def _put(view: _View, operation: Operation) -> Single:
    op, namespace, key, value, lifetime_s, expect, _required = operation
    own_key = kv_key(namespace, key)
    alive, stored = view.alive(own_key)
    refused = _unexpected(op, key, alive, expect)
    if refused is not None:
        return refused
    return Single(op, True, key, value, view.write(own_key, namespace, value, view.ends_us(lifetime_s), stored))


def _delete(view: _View, operation: Operation) -> Single:
    op, namespace, key, expect, _required = operation
    own_key = kv_key(namespace, key)
    alive, _stored = view.alive(own_key)
    if alive is None:
        return Single(op, False, key, reason=Reason.ABSENT)
    refused = _unexpected(op, key, alive, expect)
    if refused is not None:
        return refused
    view.remove(own_key, namespace, alive)  # as it is stored: nothing before it in the call writes this key
    return Single(op, True, key, alive.value, alive.version)


def _incr(view: _View, operation: Operation) -> Single:
    op, namespace, key, delta, least, most, lifetime_s, _required = operation
    own_key = kv_key(namespace, key)
    alive, stored = view.alive(own_key)
    current = kv_numbers.read(alive.value) if alive is not None else 0
    version = alive.version if alive is not None else 0
    if alive is not None and current is None:
        return Single(op, False, key, alive.value, version, Reason.TYPE)
    total = kv_numbers.add(current or 0, delta, least, most)
    if total is None:
        return Single(op, False, key, b"0" if alive is None else alive.value, version, Reason.LIMIT)
    value = kv_numbers.written(total)
    expires_us = view.ends_us(lifetime_s) if alive is None else alive.expires_us
    return Single(op, True, key, value, view.write(own_key, namespace, value, expires_us, stored))


def _check(view: _View, operation: Operation) -> Single:
    op, namespace, key, expect, _required = operation
    alive, _stored = view.alive(kv_key(namespace, key))
    refused = _unexpected(op, key, alive, expect)
    return refused if refused is not None else Single(op, True, key, version=0 if alive is None else alive.version)


def _unexpected(op: int, key: bytes, alive: KvRow | None, expect: int | None) -> Single | None:
    """Why the row is not what is expected of it; None if it is (the table of KV-31)."""
    if expect is None:
        return None
    if alive is None:
        return None if expect == 0 else Single(op, False, key, reason=Reason.ABSENT)
    if alive.version == expect:
        return None
    reason = Reason.EXISTS if expect == 0 else Reason.VERSION
    return Single(op, False, key, alive.value, alive.version, reason)


_REQUIRED = -1  # the last field of every operation that writes or checks
_READS = frozenset((KvOp.GET, KvOp.GET_MANY, KvOp.GET_PREFIX))
_JUDGES = {
    KvOp.PUT: _put, KvOp.PUT_IF_ABSENT: _put, KvOp.DELETE: _delete, KvOp.INCR: _incr, KvOp.CHECK: _check,
}
