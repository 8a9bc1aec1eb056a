"""The ordered twin of the store's engine (M-82): plain Python, a crash draws any prefix of whole batches."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from queen_node.state.store import Pair

INSORT_MAX = 32  # new keys of one batch put in one by one; more are cheaper to sort in


class MemoryEngine:
    """Takes batches; remembers those since the last flush, so that a test can crash it."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self._rows = dict(rows or {})
        self._order = sorted(self._rows)
        self._durable = dict(self._rows)
        self.unflushed: list[dict[bytes, bytes | None]] = []

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        yield from self._pairs(start, end)

    def iterate_down(self, start: bytes, end: bytes) -> Iterator[Pair]:
        yield from reversed(self._pairs(start, end))

    def _pairs(self, start: bytes, end: bytes) -> list[Pair]:
        order, rows = self._order, self._rows
        keys = order[bisect_left(order, start) : bisect_left(order, end)]
        return list(zip(keys, map(rows.__getitem__, keys), strict=True))

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        rows, order, added = self._rows, self._order, []
        whole: dict[bytes, bytes | None] = {}
        for short, value in batch.items():
            key = prefix + short
            whole[key] = value
            if value is not None:
                if key not in rows:
                    added.append(key)
                rows[key] = value
            elif rows.pop(key, None) is not None:
                del order[bisect_left(order, key)]
        self.unflushed.append(whole)
        if len(added) > INSORT_MAX:
            self._order = sorted(rows)
        else:
            for key in added:
                insort(order, key)

    def remove_range(self, start: bytes, end: bytes) -> None:
        self.write(b"", dict.fromkeys(key for key, _ in self._pairs(start, end)))

    def flush(self) -> None:
        for batch in self.unflushed:
            _apply(self._durable, batch)
        self.unflushed = []

    def close(self) -> None:
        return None

    def crashed(self, batches_kept: int) -> MemoryEngine:
        """What a power loss leaves: the flushed state and the first `batches_kept` batches since."""
        rows = dict(self._durable)
        for batch in self.unflushed[:batches_kept]:
            _apply(rows, batch)
        return MemoryEngine(rows)


def _apply(rows: dict[bytes, bytes], batch: dict[bytes, bytes | None]) -> None:
    for key, value in batch.items():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
