"""Locks and semaphores: permits that are rows of the key/value store (locks.md).

A permit stands in its own namespace under `<name>#<slot>`; its lifetime is the row's, its fencing token the row's
version (LK-1). The operations of a call name different locks, so none sees what another would write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from queen_node.commands import LockOp
from queen_node.state import kv, kv_rows
from queen_node.state.kv import SECOND_US, Change
from queen_node.state.kv_rows import KvRow, Readable, kv_key
from queen_node.state.nesting import nests_deeper
from queen_node.state.step import Step
from queen_node.times import micros_text

NAMESPACE = b"queen-locks"
SLOTS = 1024  # of a semaphore at most
HOLDERS_SHOWN_MAX = 100  # to who was refused; `get` shows all
LOOKED_UP_MAX = 8  # so many slots are looked up one by one; more are read in a row
ROWS_LOOKED_AT_MAX = 4096  # in a row: beyond it, rows that somebody wrote by hand, the slots are looked up after all
SETTLED_US = 1_000_000  # an acquire that every slot refuses for so long yet need not be logged (locks.md 5, CL-26)

Operation = Sequence[Any]  # commands.LockOperation as it comes out of an entry


class Holder(NamedTuple):
    """A permit that is held. Times: µs of the group clock; expires_us 0: for ever, written by hand."""

    slot: int
    owner: str | None
    since: str
    token: int
    renewed_us: int
    expires_us: int


class LockResult(msgspec.Struct, array_like=True, frozen=True):
    """What became of an operation. done: acquired, renewed, released; of a get, held. holders: those in the way."""

    op: int
    name: bytes
    done: bool
    slot: int = 0
    token: int = 0
    owner: str | None = None
    already: bool = False
    expires_us: int = 0
    holders: list[Holder] = []


class Judged(NamedTuple):
    """What the operations of a call come to. adds: whether an acquire adds a row. settled: nothing is written, and that
    will be so for another second. ended_us: the latest end of a lifetime that counted as over; 0: none did."""

    results: list[LockResult]
    changes: list[Change]
    adds: bool
    settled: bool
    ended_us: int


# (does it exceed the tenant's caps?, else the results)
LocksAnswer = tuple[bool, list[LockResult]]


class _Value(msgspec.Struct):
    owner: Any = None
    since: Any = None


_decode_value = msgspec.json.Decoder(_Value).decode


class _Judge:
    """Judges the operations of one call. view: the rows as they are."""

    def __init__(self, view: Readable, now_us: int, version: int) -> None:
        self._view, self._now_us, self._version = view, now_us, version
        self.changes: list[Change] = []
        self.adds, self.settled, self.ended_us = False, True, 0

    def judge(self, operation: Operation) -> LockResult:
        op = operation[0]
        if op == LockOp.ACQUIRE:
            return self._acquire(*operation[1:])
        if op == LockOp.RENEW:
            return self._renew(*operation[1:])
        if op == LockOp.RELEASE:
            return self._release(*operation[1:])
        name = operation[1]
        holders = self._holders(name)
        return LockResult(op, name, bool(holders), holders=holders)

    def _acquire(self, name: bytes, ttl_s: int, owner: str | None, limit: int) -> LockResult:
        rows = dict(_stored(self._view, name, limit))
        held = {slot: row for slot, row in rows.items() if self._is_alive(row)}
        holders = [_holder(slot, row) for slot, row in sorted(held.items())]
        for holder in holders:
            if owner is not None and holder.owner == owner:  # the same permit, not a second one (LK-21)
                self.settled = False
                return LockResult(
                    LockOp.ACQUIRE, name, True, holder.slot, holder.token, owner, True, holder.expires_us)
        slot = next((slot for slot in range(limit) if slot not in held), None)
        if slot is None:
            ends = [holder.expires_us for holder in holders if holder.expires_us]
            self.settled = self.settled and min(ends, default=1 << 63) >= self._now_us + SETTLED_US
            return LockResult(LockOp.ACQUIRE, name, False, holders=holders[:HOLDERS_SHOWN_MAX])
        before = rows.get(slot)
        self.adds = self.adds or before is None
        row = self._write(name, slot, ttl_s, _value(owner, micros_text(self._now_us)), before)
        return LockResult(LockOp.ACQUIRE, name, True, slot, row.version, owner, False, row.expires_us)

    def _renew(self, name: bytes, token: int, ttl_s: int, slot: int, owner: str | None) -> LockResult:
        before = self._alive(name, slot)
        if before is not None:
            holder = _holder(slot, before)
            if before.version == token or (owner is not None and holder.owner == owner):  # LK-22, LK-23
                row = self._write(name, slot, ttl_s, _value(holder.owner, holder.since), before)
                return LockResult(LockOp.RENEW, name, True, slot, row.version, expires_us=row.expires_us)
        return self._lost(LockOp.RENEW, name, slot)

    def _release(self, name: bytes, token: int, slot: int) -> LockResult:
        before = self._alive(name, slot)
        if before is None or before.version != token:
            return self._lost(LockOp.RELEASE, name, slot)
        self.settled = False
        self.changes.append(Change(kv_key(NAMESPACE, lock_key(name, slot)), NAMESPACE, None, before))
        return LockResult(LockOp.RELEASE, name, True, slot)

    def _lost(self, op: LockOp, name: bytes, slot: int) -> LockResult:
        return LockResult(op, name, False, slot, holders=self._holders(name)[:HOLDERS_SHOWN_MAX])

    def _alive(self, name: bytes, slot: int) -> KvRow | None:
        row = kv_rows.find(self._view, NAMESPACE, lock_key(name, slot))
        return row if row is not None and self._is_alive(row) else None

    def _holders(self, name: bytes) -> list[Holder]:
        rows = sorted(_stored(self._view, name, SLOTS))
        return [_holder(slot, row) for slot, row in rows if self._is_alive(row)]

    def _is_alive(self, row: KvRow) -> bool:
        if row.is_alive(self._now_us):
            return True
        self.ended_us = max(self.ended_us, row.expires_us)
        return False

    def _write(self, name: bytes, slot: int, ttl_s: int, value: bytes, before: KvRow | None) -> KvRow:
        self.settled = False
        self._version += 1
        row = KvRow(self._version, self._now_us + ttl_s * SECOND_US, self._now_us, value)
        self.changes.append(Change(kv_key(NAMESPACE, lock_key(name, slot)), NAMESPACE, row, before))
        return row


def judge(view: Readable, now_us: int, version: int, operations: Sequence[Operation]) -> Judged:
    """Judge the operations of one call and write nothing. version: the last one that the group has given."""
    one = _Judge(view, now_us, version)
    results = [one.judge(operation) for operation in operations]
    return Judged(results, one.changes, one.adds, one.settled, one.ended_us)


def apply_locks(step: Step, command: Sequence[Any]) -> LocksAnswer:
    """Apply the operations of one call; one that loses stops none (LK-11). All are refused if an acquire would add a
    row that the tenant may not hold."""
    _kind, _request_id, operations, caps = command
    judged = judge(step.store, step.now_us, step.store.counters().kv_version, operations)
    if judged.adds and kv.exceeds(step.store, judged.changes, caps):
        return True, []
    kv.write_changes(step.store, judged.changes)
    return False, judged.results


def lock_key(name: bytes, slot: int) -> bytes:
    """The key of a permit (LK-1). No name holds a `#`."""
    return b"%b#%d" % (name, slot)


def _stored(view: Readable, name: bytes, limit: int) -> Iterator[tuple[int, KvRow]]:
    """(slot, row) of the slots below `limit` that have one, dead or alive, in no order that means anything."""
    if limit > LOOKED_UP_MAX:
        rows = []
        stem = name + b"#"
        for count, (key, row) in enumerate(kv_rows.stored(view, NAMESPACE, stem, b"")):
            if count == ROWS_LOOKED_AT_MAX:
                break
            slot = _slot(key[len(stem) :])
            if slot is not None and slot < limit:
                rows.append((slot, row))
        else:
            yield from rows
            return
    for slot in range(limit):
        row_there = kv_rows.find(view, NAMESPACE, lock_key(name, slot))
        if row_there is not None:
            yield slot, row_there


def _slot(text: bytes) -> int | None:
    """The slot that the end of a key names; None for what no permit's key ends with (LK-28)."""
    if not text.isdigit() or len(text) > 4 or (text[:1] == b"0" and text != b"0"):
        return None
    return int(text)


def _holder(slot: int, row: KvRow) -> Holder:
    """A row that somebody wrote by hand has no owner, and was taken when it was written (LK-28)."""
    try:
        # No lock's own value nests; what does, and how deep a decoder follows it, must not depend on the stack here.
        value = _Value() if nests_deeper(row.value) else _decode_value(row.value)
    except msgspec.DecodeError:
        value = _Value()
    owner = value.owner if isinstance(value.owner, str) else None
    since = value.since if isinstance(value.since, str) else micros_text(row.updated_us)
    return Holder(slot, owner, since, row.version, row.updated_us, row.expires_us)


def _value(owner: str | None, since: str) -> bytes:
    """LK-2."""
    return msgspec.json.encode({"owner": owner, "since": since})
