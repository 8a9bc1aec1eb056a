"""The store as the state machine sees it: an ordered map, one open batch over it, rows kept decoded.

An entry becomes one write batch with the applied index inside it (M-1, CL-120). While an entry is being applied its
writes stand in an overlay that this entry reads through and nobody else does; `commit` hands them to the engine in one
step. What holds the bytes is an `Engine`: RocksDB in a node (rocks.py), an ordered twin in tests and simulation (M-82).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from queen_node.state.claim_ids import ClaimIds
from queen_node.state.keys import COUNTERS, META, group_prefix
from queen_node.state.known_ids import KnownIds
from queen_node.state.rows import CountersRow, Row
from raft.invariants import broken, must

YOUNG_BYTES = 8 << 20  # of messages kept in memory: reading them back was a third of push, pop and ack
YOUNG_OVERHEAD_BYTES = 150  # of a row in memory beside its value: key, two objects, a place in the map
DIGEST_BYTES = 16  # of SHA-256, which processors know: 1.3 GB/s where BLAKE2b did 0.5
CACHED_ROWS_MAX = 20_000  # decoded rows kept between entries, a few MB; 10^6 open partitions must not stay in memory

R = TypeVar("R", bound=Row)

Pair = tuple[bytes, bytes]


class StoreBusy(Exception):
    """The engine would have stalled on this write: nothing was written, the same batch may be tried again (M-4)."""


class Rows(Protocol):
    """An ordered map of bytes. An iteration sees one instant, that of its first step.

    (rocksdict's snapshots do not hold for iterators: measured with 0.3.29, they show later writes.)
    """

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`, or None."""
        ...

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """Pairs with start <= key < end, ascending."""
        ...

    def iterate_down(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """The same pairs, descending."""
        ...


class Engine(Rows, Protocol):
    """Rows that take batches."""

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        """Apply all of `batch` (None deletes), its keys behind `prefix`, or nothing. Raises StoreBusy, never blocks."""
        ...

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Delete all pairs with start <= key < end in one step. Raises StoreBusy. At most one a second a node (M-5)."""
        ...

    def flush(self) -> None:
        """Make durable all that was written before the call. Blocks: call it in a thread (M-2)."""
        ...

    def close(self) -> None:
        """Release the files. Nothing may be called after it."""
        ...


class Meta(msgspec.Struct, array_like=True):
    """How far the state is: written with every batch."""

    applied_index: int = 0
    applied_term: int = 0
    stamp_us: int = 0  # of the last entry: apply takes max(stamp, last) (M-20)
    digest: bytes = b""  # M-81
    offset_term: int = 0  # with `offset_us`: of the group clock, from the entry that opened the last term (M-20)
    offset_us: int = 0
    configuration: bytes = b""  # the last one named by an entry; empty: the founding one still rules


_decode_meta = msgspec.msgpack.Decoder(Meta).decode


def read_meta(engine: Rows, life: int, incarnation: int) -> Meta:
    """How far that state is."""
    stored = engine.get(group_prefix(life, incarnation) + META)
    return _decode_meta(stored) if stored is not None else Meta()


class Store:
    """One group's part of the engine, with the batch of the entry being applied.

    Single-threaded: the group's actor alone calls it. Between entries the overlay is empty and reads see what is
    committed.
    """

    def __init__(self, engine: Engine, *, life: int, incarnation: int = 1, refused_key: bytes = b"") -> None:
        """refused_key: the test hook QUEEN_TEST_APPLY_REFUSE_KEY, whose KV writes fail where they apply; empty: none.
        """
        self.engine, self.life, self.refused_key = engine, life, refused_key
        self.reopen(incarnation)

    def reopen(self, incarnation: int) -> None:
        """From now on these are the group's rows (M-61): nothing in memory is left of what stood in others."""
        engine = self.engine
        self.incarnation = incarnation
        self._prefix = group_prefix(self.life, incarnation)
        self._batch: dict[bytes, bytes | None] = {}
        self._changed_rows: dict[bytes, Row] = {}
        self._rows: dict[bytes, Row | None] = {}  # None: known to be absent
        self._young: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes] = {}
        self._young_bytes = 0  # put into `_young` since it is that
        self._batch_order: list[bytes] = []  # keys of the batch, sorted when a scan needs them
        self._batch_ordered = 0  # how many keys of the batch `_batch_order` knows
        self.known_ids = KnownIds()
        self.claim_ids = ClaimIds()
        self.positions: dict[bytes, bytes] = {}  # calendar kind -> nothing stands below this key: hints of calendar.py
        self.meta = read_meta(engine, self.life, incarnation)

    # --- reading

    def get(self, key: bytes) -> bytes | None:
        """The value at `key` as the entry being applied sees it."""
        if key in self._batch:
            return self._batch[key]
        return self.engine.get(self._prefix + key)

    def get_young(self, key: bytes) -> bytes | None:
        """As `get`, for rows that are mostly read soon after they were written (`put_young`): spares the engine."""
        found = self._young.get(key)
        if found is None:
            found = self._older.get(key)
        return found if found is not None else self.get(key)

    def row(self, key: bytes, kind: type[R]) -> R | None:
        """The decoded row at `key`. The object is shared: change it only to put it back with `put_row` at once."""
        try:
            row = self._rows[key]
        except KeyError:
            stored = self.get(key)
            row = self._rows[key] = None if stored is None else msgspec.msgpack.decode(stored, type=kind)
        if row is not None and type(row) is not kind:
            broken("a row is not of the kind that its key says", key=key, kind=kind.__name__)
        return row

    def counters(self) -> CountersRow:
        """The group's counters; put back with `put_row(COUNTERS, …)` by whoever changes them."""
        row = self.row(COUNTERS, CountersRow)
        if row is None:
            row = self._rows[COUNTERS] = CountersRow()
        return row

    def scan(self, start: bytes, end: bytes, at_most: int) -> list[Pair]:
        """Up to `at_most` pairs with start <= key < end, ascending, the open batch included."""
        prefix = self._prefix
        cut = len(prefix)
        committed = self.engine.iterate(prefix + start, prefix + end)
        if not self._batch and not self._changed_rows:
            return [(key[cut:], value) for key, value in islice(committed, at_most)]
        return list(islice(self._merged(start, end, ((key[cut:], value) for key, value in committed)), at_most))

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """The pairs of `scan`, one by one: for whoever knows only at a pair that it was the last. Write nothing in
        between."""
        prefix = self._prefix
        cut = len(prefix)
        committed = ((key[cut:], value) for key, value in self.engine.iterate(prefix + start, prefix + end))
        return self._merged(start, end, committed)

    def first(self, start: bytes, end: bytes) -> Pair | None:
        """The first pair of `scan`, or None."""
        found = self.scan(start, end, 1)
        return found[0] if found else None

    def committed(self, now_us: int = 0) -> CommittedStore:
        """What is committed, for reads beside the entry that is being applied. now_us: the instant of the read, where
        time decides what is there; never before the last entry's."""
        return CommittedStore(self.engine, self._prefix, max(now_us, self.meta.stamp_us), self.meta.stamp_us)

    # --- writing

    def put(self, key: bytes, value: bytes) -> None:
        """Write into the open batch."""
        self._batch[key] = value
        if key in self._rows:
            del self._rows[key]
        self._young.pop(key, None)
        self._older.pop(key, None)

    def put_young(self, key: bytes, value: bytes) -> None:
        """As `put`, for a row that will soon be read with `get_young`: messages on their way to a consumer.

        Not for rows of `put_row`. Copies of the last ones are kept in memory, YOUNG_BYTES at least and twice that, and
        one call, at most: two halves, of which the older goes as a whole, because a dict that loses its first key again
        and again is searched from its beginning each time.
        """
        self._batch[key] = value
        if self._young_bytes > YOUNG_BYTES:
            self._begin_young()
        self._young[key] = value
        self._young_bytes += len(value) + YOUNG_OVERHEAD_BYTES

    def put_all_young(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """As `put_young` of each pair."""
        pairs = dict(zip(keys, values, strict=True))
        self._batch.update(pairs)
        if self._young_bytes > YOUNG_BYTES:
            self._begin_young()
        self._young.update(pairs)
        self._young_bytes += sum(map(len, values)) + len(values) * YOUNG_OVERHEAD_BYTES

    def _begin_young(self) -> None:
        self._older, self._young, self._young_bytes = self._young, {}, 0

    def put_fresh(self, key: bytes, value: bytes) -> None:
        """As `put`, for kinds of rows that are neither kept decoded nor young: nothing in memory is to be forgotten."""
        self._batch[key] = value

    def put_all_fresh(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """As `put_fresh` of each pair."""
        self._batch.update(zip(keys, values, strict=True))

    def put_row(self, key: bytes, row: Row) -> None:
        """Write a row into the open batch. It is encoded once, at the end of the entry, however often it changed."""
        self._changed_rows[key] = row
        self._rows[key] = row
        if key in self._batch:
            del self._batch[key]
            self._batch_ordered = -1

    def delete(self, key: bytes) -> None:
        """Delete in the open batch; deleting nothing is fine."""
        self._batch[key] = None
        self._changed_rows.pop(key, None)
        if key in self._rows:
            self._rows[key] = None
        self._young.pop(key, None)
        self._older.pop(key, None)

    def discard(self) -> None:
        """Forget the open batch, and all rows and positions that it may have changed in memory."""
        self._batch, self._changed_rows, self._rows = {}, {}, {}
        self._young, self._older, self._young_bytes = {}, {}, 0
        self._batch_order, self._batch_ordered = [], 0
        self.positions.clear()
        self.claim_ids.forget()

    @property
    def batch_count(self) -> int:
        """Rows that the open batch writes so far."""
        return len(self._batch) + len(self._changed_rows)

    def commit(
        self, *, index: int, term: int, stamp_us: int, offset: tuple[int, int] | None = None,
        configuration: bytes | None = None,
    ) -> None:
        """Write the batch of the entry at `index`, the applied index in it. Raises StoreBusy; call again then (M-4).

        offset, configuration: what the entry says of these; None: nothing.
        """
        meta = self.meta
        must(index == meta.applied_index + 1, "applied out of order", index=index, applied=meta.applied_index)
        must(stamp_us >= meta.stamp_us, "the group clock ran backwards", stamp=stamp_us, last=meta.stamp_us)
        self._encode_changed_rows()
        # In the order of the keys: the batch's own depends on when scans encoded rows, and so on what memory held.
        # msgpack tells any two batches apart, and packs one in a tenth of the time that Python takes to join it.
        keys = sorted(self._batch)
        values = list(map(self._batch.__getitem__, keys))
        packed = msgspec.msgpack.encode((keys, values))
        digest = hashlib.sha256(meta.digest + packed).digest()[:DIGEST_BYTES]
        offset_term, offset_us = offset or (meta.offset_term, meta.offset_us)
        new_meta = Meta(
            index, term, stamp_us, digest, offset_term, offset_us,
            meta.configuration if configuration is None else configuration)
        # And so it is written: RocksDB takes rows in order in two thirds of the time, neighbours lie in its caches.
        ordered = dict(zip(keys, values, strict=True))
        ordered[META] = msgspec.msgpack.encode(new_meta)
        self.engine.write(self._prefix, ordered)
        self.meta = new_meta
        self._batch = {}
        self._batch_order, self._batch_ordered = [], 0
        if len(self._rows) > CACHED_ROWS_MAX:
            for key in list(islice(self._rows, CACHED_ROWS_MAX // 2)):  # the longest remembered first
                del self._rows[key]

    def _encode_changed_rows(self) -> None:
        if self._changed_rows:
            encode = msgspec.msgpack.encode
            for key, row in self._changed_rows.items():
                self._batch[key] = encode(row)
            self._changed_rows = {}

    def _merged(self, start: bytes, end: bytes, committed: Iterator[Pair]) -> Iterator[Pair]:
        """Committed pairs overlaid with the open batch."""
        self._encode_changed_rows()
        batch = self._batch
        mine = iter(self._batch_keys(start, end))
        my_key = next(mine, None)
        for key, value in committed:
            while my_key is not None and my_key < key:
                my_value = batch[my_key]
                if my_value is not None:
                    yield my_key, my_value
                my_key = next(mine, None)
            if my_key == key:
                continue  # the loop above yields what the batch says of it, when the next key comes
            yield key, value
        while my_key is not None:
            my_value = batch[my_key]
            if my_value is not None:
                yield my_key, my_value
            my_key = next(mine, None)

    def _batch_keys(self, start: bytes, end: bytes) -> list[bytes]:
        if self._batch_ordered != len(self._batch):
            # One run of sorted keys and a few new ones: sorting that again is nearly linear.
            self._batch_order = sorted(self._batch)
            self._batch_ordered = len(self._batch)
        order = self._batch_order
        return order[bisect_left(order, start) : bisect_left(order, end)]


class CommittedStore:
    """A group's committed rows, for reads. An iteration sees one instant however many turns of the loop it takes."""

    def __init__(self, engine: Rows, prefix: bytes, now_us: int = 0, stamp_us: int = 0) -> None:
        self._engine, self._prefix = engine, prefix
        self.now_us = now_us  # at which everything is judged, µs of the group clock
        self.stamp_us = stamp_us  # of the last entry: no later leader's clock starts below it (M-21)

    def get(self, key: bytes) -> bytes | None:
        """The value at `key` now."""
        return self._engine.get(self._prefix + key)

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """Pairs with start <= key < end, ascending."""
        cut = len(self._prefix)
        return ((key[cut:], value) for key, value in self._engine.iterate(self._prefix + start, self._prefix + end))

    def iterate_down(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """The same pairs, descending."""
        cut = len(self._prefix)
        pairs = self._engine.iterate_down(self._prefix + start, self._prefix + end)
        return ((key[cut:], value) for key, value in pairs)


class NothingStored:
    """No rows at all. Implements `Rows`."""

    def get(self, key: bytes) -> bytes | None:
        """Nothing."""
        return None

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """Nothing."""
        return iter(())

    def iterate_down(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """Nothing."""
        return iter(())


NOTHING_STORED = NothingStored()
