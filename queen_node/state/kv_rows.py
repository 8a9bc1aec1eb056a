"""KV rows: their packed form, and the one place where they are written and removed, with all that counts them.

A row stands under its namespace and key. If it ends, it stands in the calendar too, at the end of its lifetime, where
the sweep finds it. A lock is such a row as well (LK-1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

import msgspec

from queen_node.state import calendar
from queen_node.state.keys import CALENDAR_KV, COUNTERS, KV, KV_NAMESPACE, after, named
from queen_node.state.rows import NamespaceRow
from queen_node.state.store import Store
from raft.invariants import broken, must

VERSION_MAX = (1 << 53) - 1  # JavaScript knows no larger whole number (KV-30)

_HEAD = struct.Struct(">QQQ")  # version, expires at, updated at; then the value
_SIZE = struct.Struct(">I")  # of the value, in the calendar; then the row's key behind KV
_NAMESPACE_AT = _SIZE.size + 2  # behind its length


class KvRow(msgspec.Struct, frozen=True, gc=False):
    """A stored row. expires_us: µs of the group clock, 0 for one that lives for ever. value: compact JSON."""

    version: int
    expires_us: int
    updated_us: int
    value: bytes

    def is_alive(self, now_us: int) -> bool:
        """Whether its lifetime ends after now; at that very instant it is over (KV-22)."""
        return self.expires_us == 0 or self.expires_us > now_us


class Readable(Protocol):
    """The store as an entry sees it, or what is committed."""

    def get(self, key: bytes) -> bytes | None: ...
    def iterate(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]: ...


def kv_key(namespace: bytes, key: bytes) -> bytes:
    """Where a row stands: those of a namespace lie together, in byte order of their keys (KV-11)."""
    return KV + named(namespace) + key


def unpack(stored: bytes) -> KvRow:
    """The row as it is stored."""
    version, expires_us, updated_us = _HEAD.unpack_from(stored)
    return KvRow(version, expires_us, updated_us, stored[_HEAD.size :])


def find(view: Readable, namespace: bytes, key: bytes) -> KvRow | None:
    """The row of a key, dead or alive; None when none is stored."""
    stored = view.get(kv_key(namespace, key))
    return None if stored is None else unpack(stored)


def stored(view: Readable, namespace: bytes, prefix: bytes, after_key: bytes) -> Iterator[tuple[bytes, KvRow]]:
    """(key, row) of the keys that begin with `prefix` and are above `after_key`, dead rows too, in byte order."""
    stem = kv_key(namespace, b"")
    start = stem + (after_key + b"\x00" if after_key >= prefix and after_key else prefix)
    end = after(stem + prefix)
    if start < end:
        for key, packed in view.iterate(start, end):
            yield key[len(stem) :], unpack(packed)


class Writer:
    """Writes and removes rows, and what counts them: that once, by `finish`, however many rows there were."""

    __slots__ = ("_bytes", "_counters", "_keys", "_store", "_version")

    def __init__(self, store: Store) -> None:
        self._store, self._counters = store, store.counters()
        self._version = self._counters.kv_version  # the last one given
        self._bytes = 0  # more than before, of keys and values
        self._keys: dict[bytes, int] = {}  # namespace -> rows more than before

    def write(self, own_key: bytes, namespace: bytes, row: KvRow, before: KvRow | None) -> None:
        """Store a row at `own_key`, whose version is the next one of the group. before: what is stored there."""
        version, expires_us, value = row.version, row.expires_us, row.value
        if version != self._version + 1:  # not `must`: it is called for each row of a batch
            broken("a version out of turn", version=version)
        self._version = version
        self._bytes += len(value)
        if before is None:
            self._bytes += key_bytes(own_key, namespace)
            self._keys[namespace] = self._keys.get(namespace, 0) + 1
        else:
            self._bytes -= len(before.value)
            self._strike_end(before)
        self._store.put_fresh(own_key, _HEAD.pack(version, expires_us, row.updated_us) + value)
        if expires_us:
            calendar.put(self._store, CALENDAR_KV, expires_us, version, _SIZE.pack(len(value)) + own_key[len(KV) :])

    def remove(self, own_key: bytes, namespace: bytes, before: KvRow) -> None:
        """Remove the row that is stored at `own_key`."""
        self._strike_end(before)
        self._remove(own_key, namespace, len(before.value))

    def sweep(self, at_us: int, version: int, owner: bytes) -> None:
        """Remove a row by its deadline in the calendar, which says all that is needed: the row itself is not read."""
        calendar.remove(self._store, CALENDAR_KV, at_us, version)
        end = _NAMESPACE_AT + int.from_bytes(owner[_SIZE.size : _NAMESPACE_AT], "big")
        self._remove(KV + owner[_SIZE.size :], owner[_NAMESPACE_AT:end], _SIZE.unpack_from(owner)[0])

    def finish(self) -> None:
        """Write the counts."""
        store, counters = self._store, self._counters
        counters.kv_version = self._version
        counters.kv_bytes += self._bytes
        must(counters.kv_version <= VERSION_MAX, "the versions of KV rows are used up")
        for namespace, change in self._keys.items():
            counters.kv_rows += change
            own_key = KV_NAMESPACE + namespace
            row = store.row(own_key, NamespaceRow) or NamespaceRow()
            row.keys += change
            must(row.keys >= 0, "more KV rows of a namespace are gone than there were")
            if row.keys:
                store.put_row(own_key, row)
            else:
                store.delete(own_key)
        must(counters.kv_rows >= 0 and counters.kv_bytes >= 0, "more KV rows are gone than there were")
        store.put_row(COUNTERS, counters)

    def _remove(self, own_key: bytes, namespace: bytes, value_bytes: int) -> None:
        self._bytes -= key_bytes(own_key, namespace) + value_bytes
        self._keys[namespace] = self._keys.get(namespace, 0) - 1
        self._store.delete(own_key)

    def _strike_end(self, row: KvRow) -> None:
        if row.expires_us:
            calendar.remove(self._store, CALENDAR_KV, row.expires_us, row.version)


def key_bytes(own_key: bytes, namespace: bytes) -> int:
    """How long the key is whose row stands at `own_key`."""
    return len(own_key) - len(KV) - 2 - len(namespace)
