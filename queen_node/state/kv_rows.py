"""KV rows: their packed form, and the one place where they are written and removed, with all that counts them.

A row stands under its namespace and key. If it ends, it stands in the calendar too, at the end of its lifetime, where
the sweep finds it. A lock is such a row as well (LK-1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from queen_node.state import calendar
from queen_node.state.keys import CALENDAR_KV, COUNTERS, KV, KV_NAMESPACE, after, named
from queen_node.state.rows import NamespaceRow
from queen_node.state.store import Store
from raft.invariants import must

VERSION_MAX = (1 << 53) - 1  # JavaScript knows no larger whole number (KV-30)

_HEAD = struct.Struct(">QQQ")  # version, expires at, updated at; then the value


class KvRow(NamedTuple):
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


def write(store: Store, namespace: bytes, key: bytes, row: KvRow, before: KvRow | None) -> None:
    """Store a row, whose version is the next one of the group. before: what is stored under its key."""
    counters = store.counters()
    must(row.version == counters.kv_version + 1, "a version out of turn", version=row.version)
    must(row.version <= VERSION_MAX, "the versions of KV rows are used up")
    counters.kv_version = row.version
    own_key = kv_key(namespace, key)
    if before is None:
        counters.kv_rows += 1
        counters.kv_bytes += len(key)
        _count_in_namespace(store, namespace, 1)
    else:
        counters.kv_bytes -= len(before.value)
        _strike_end(store, before)
    counters.kv_bytes += len(row.value)
    store.put_row(COUNTERS, counters)
    store.put(own_key, _HEAD.pack(row.version, row.expires_us, row.updated_us) + row.value)
    if row.expires_us:
        calendar.put(store, CALENDAR_KV, row.expires_us, row.version, own_key[len(KV) :])


def remove(store: Store, namespace: bytes, key: bytes, row: KvRow) -> None:
    """Remove the row that is stored under a key."""
    counters = store.counters()
    counters.kv_rows -= 1
    counters.kv_bytes -= len(key) + len(row.value)
    must(counters.kv_rows >= 0 and counters.kv_bytes >= 0, "more KV rows are gone than there were")
    store.put_row(COUNTERS, counters)
    _count_in_namespace(store, namespace, -1)
    _strike_end(store, row)
    store.delete(kv_key(namespace, key))


def parts_of(owner: bytes) -> tuple[bytes, bytes]:
    """(namespace, key) of a row, from what stands for it in the calendar."""
    end = 2 + int.from_bytes(owner[:2], "big")
    return owner[2:end], owner[end:]


def _strike_end(store: Store, row: KvRow) -> None:
    if row.expires_us:
        calendar.remove(store, CALENDAR_KV, row.expires_us, row.version)


def _count_in_namespace(store: Store, namespace: bytes, change: int) -> None:
    own_key = KV_NAMESPACE + namespace
    row = store.row(own_key, NamespaceRow) or NamespaceRow()
    row.keys += change
    if row.keys:
        store.put_row(own_key, row)
    else:
        store.delete(own_key)
