"""Deadlines of one group, by time: a range of rows for each kind (M-7), and where a scan of it may begin.

A row stands at (kind, at, sequence) and names its owner; whoever files a deadline keeps `at` and `sequence` in the
owner's own row, which is how the calendar is also found by owner: an owner is read to be changed anyway.

A scan that began at the first key of a kind would walk over the tombstones of all that ever fired, and every tick
would be slower than the one before. So `Store.positions` holds, for each kind, a key below which nothing stands. It
is only a hint: a scan raises it, an earlier put lowers it. A key of full length is a row known to stand there, which
makes `earliest` free between fires. After a restart a scan begins at the floor, if the kind keeps one (`set_floor`):
walking over 300,000 tombstones took 160 ms.
"""

from __future__ import annotations

from queen_node.state.keys import CALENDAR, CALENDAR_FLOORS, after, read_two_u64, two_u64, u64
from queen_node.state.store import Store

# (at_us, sequence, owner)
Deadline = tuple[int, int, bytes]

_AT = len(CALENDAR) + 1  # where `at` begins in a key: behind the calendar's kind
_KEY_BYTES = _AT + 16
_JUST_ABOVE = b"\x00"  # key + this: the least key above key
_FLOOR = CALENDAR + CALENDAR_FLOORS  # kind -> the beginning of a key: nothing of that kind stands below


def put(store: Store, kind: bytes, at_us: int, sequence: int, owner: bytes) -> None:
    """File a deadline. (at_us, sequence) is unique within a kind. Times are of the group clock, µs since 1970."""
    key = CALENDAR + kind + two_u64(at_us, sequence)
    store.put_fresh(key, owner)
    position = store.positions.get(kind)
    if position is not None and key < position:
        store.positions[kind] = key


def remove(store: Store, kind: bytes, at_us: int, sequence: int) -> None:
    """Strike a deadline that was filed with the same numbers."""
    key = CALENDAR + kind + two_u64(at_us, sequence)
    store.delete(key)
    if store.positions.get(kind) == key:
        store.positions[kind] = key + _JUST_ABOVE


def set_floor(store: Store, kind: bytes, at_us: int, sequence: int) -> None:
    """Keep, as a row, where a scan begins after a restart: nothing stands below this place, nor will ever again.

    Only for kinds whose deadlines are never filed below the stamp of their entry.
    """
    # The last byte is left out: a position of full length would claim that a row stands there.
    store.put(_FLOOR + kind, two_u64(at_us, sequence)[:-1])


def due(store: Store, kind: bytes, now_us: int, at_most: int) -> list[Deadline]:
    """Deadlines with at_us <= now_us, earliest first, ties by sequence; at most `at_most`, which is at least 1."""
    end = CALENDAR + kind + u64(now_us + 1)  # shorter than a row's key, so no position that claims a row
    start = _position(store, kind)
    if start >= end:
        return []
    found = store.scan(start, end, at_most)
    store.positions[kind] = found[0][0] if found else end
    return [(*read_two_u64(key, _AT), owner) for key, owner in found]


def earliest(store: Store, kind: bytes) -> int | None:
    """The earliest deadline of a kind, µs of the group clock; None when there is none.

    Costs a look-up in memory unless the earliest row was struck since the last call.
    """
    position = _position(store, kind)
    if len(position) != _KEY_BYTES:
        end = after(CALENDAR + kind)
        found = store.first(position, end) if position < end else None
        position = store.positions[kind] = found[0] if found is not None else end
        if found is None:
            return None
    return read_two_u64(position, _AT)[0]


def _position(store: Store, kind: bytes) -> bytes:
    position = store.positions.get(kind)
    return position if position is not None else CALENDAR + kind + (store.get(_FLOOR + kind) or b"")
