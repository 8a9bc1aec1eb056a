"""A group's rows as the parts of a snapshot, and back (M-61). How parts travel is in `raft.snapshot`.

A part is whole pairs in the order of their keys, without the group's prefix, as msgpack. The first pair of all is the
row META, so that rows and applied index are of one instant: an iteration sees one. Whatever else a state consists of
(request outcomes, counters, calendar) is rows too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from queen_node.state.keys import META, after, group_prefix
from queen_node.state.store import Engine, Meta, Pair
from raft.invariants import must

PAIR_OVERHEAD_BYTES = 10

_decoder = msgspec.msgpack.Decoder(tuple[bytes, ...])


class MalformedRows(Exception):
    """Bytes from a peer that are no part of a state."""


class View(NamedTuple):
    """One instant of a group's state. parts: read as they are asked for, which costs the loop one part at a time."""

    meta: Meta
    parts: Iterator[bytes]


def view(engine: Engine, life: int, incarnation: int, part_bytes: int) -> View | None:
    """The state as it is now, whatever is applied while it is read; None: nothing was ever applied.

    part_bytes: of a part; a row that is larger is a part alone.
    """
    prefix = group_prefix(life, incarnation)
    rows = engine.iterate(prefix, after(prefix))
    first = next(rows, None)  # only this fixes the instant
    if first is None:
        return None
    must(first[0] == prefix + META, "the first row of a state is not META", key=first[0])
    return View(msgspec.msgpack.decode(first[1], type=Meta), _parts(first, rows, len(prefix), part_bytes))


def _parts(first: Pair, rows: Iterator[Pair], cut: int, part_bytes: int) -> Iterator[bytes]:
    fields: list[bytes] = [first[0][cut:], first[1]]
    size_bytes = len(first[1])
    for key, value in rows:
        row_bytes = len(key) + len(value) + PAIR_OVERHEAD_BYTES
        if size_bytes + row_bytes > part_bytes:
            yield msgspec.msgpack.encode(fields)
            fields, size_bytes = [], 0
        fields += key[cut:], value
        size_bytes += row_bytes
    yield msgspec.msgpack.encode(fields)


class RowsReader:
    """Takes the parts of one state, in order. meta: its row META as it came, once the first part did."""

    def __init__(self) -> None:
        self.meta: bytes | None = None
        self._last_key = b""

    def read(self, part: bytes) -> dict[bytes, bytes | None]:
        """The rows of a part, without META. Raises MalformedRows, and then nothing of it counts."""
        try:
            fields = _decoder.decode(part)
        except msgspec.MsgspecError as error:
            raise MalformedRows(f"not rows: {error}") from error
        keys, values = fields[::2], fields[1::2]
        if not keys or len(keys) != len(values):
            raise MalformedRows(f"{len(fields)} fields are no rows")
        last_key = self._last_key
        for key in keys:
            if key <= last_key:
                raise MalformedRows("rows out of order")
            last_key = key
        rows: dict[bytes, bytes | None] = dict(zip(keys, values, strict=True))
        if self.meta is None:
            first = rows.pop(META, None)
            if first is None or keys[0] != META:
                raise MalformedRows("the first row is not META")
            self.meta = first
        self._last_key = last_key
        return rows
