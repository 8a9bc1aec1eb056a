"""Which transaction ids a partition remembers, and at which offsets.

An id is known by a fixed 128-bit hash of its exact bytes (PU-57). Its lowest offset stands in a row of its own, which
is all that a push needs to look at. Further offsets exist only where the window was 0 or had passed when the id came
again; they stand in rows behind it, ascending. Stamps never decrease with the offset, so the rows of one id are in
order of time too. Here: those rows. Not here: whether a push is a duplicate and when ids are forgotten (push.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from queen_node.state.keys import MESSAGE_ID, MESSAGE_ID_MORE, u64
from queen_node.state.store import Store
from raft.invariants import must

HASH_BYTES = 16
HALVINGS_MAX = 65  # of a span of 2^64 offsets

_ROW = Struct(">QQ16s")  # offset, created at, message id; behind it _MORE, if that is so
_MORE = b"\x01"


class MessageIdRow(NamedTuple):
    """A transaction id that a partition remembers (PU-55): enough to answer a duplicate after retention (PU-56).

    more: MESSAGE_ID_MORE holds later offsets with the same id."""

    offset: int
    created_at_us: int
    message_id: bytes
    more: bool = False


def id_stem(partition_id: int) -> bytes:
    """Behind it stands the hash of each transaction id that a partition remembers."""
    return MESSAGE_ID + u64(partition_id)


def hash_of(transaction_id: bytes) -> bytes:
    """What stands for a transaction id (PU-57)."""
    return blake2b(transaction_id, digest_size=HASH_BYTES).digest()


def id_key(partition_id: int, transaction_id: bytes) -> bytes:
    """Where a partition remembers a transaction id."""
    return id_stem(partition_id) + hash_of(transaction_id)


def encode_row(row: MessageIdRow) -> bytes:
    """The stored form."""
    return encode_new(*row[:3]) + (_MORE if row.more else b"")


def encode_new(offset: int, created_at_us: int, message_id: bytes) -> bytes:
    """The stored form of an id that stands nowhere else."""
    return _ROW.pack(offset, created_at_us, message_id)


def encode_rows(first: int, created_at_us: int, message_ids: Sequence[bytes]) -> list[bytes]:
    """The rows of ids, none of them known before, of messages from offset `first` on."""
    stamp = u64(created_at_us)
    return [u64(offset) + stamp + message_id for offset, message_id in enumerate(message_ids, first)]


def decode_row(stored: bytes) -> MessageIdRow:
    """The row of a stored form."""
    offset, created_at_us, message_id = _ROW.unpack_from(stored)
    return MessageIdRow(offset, created_at_us, message_id, len(stored) > _ROW.size)


def lowest(store: Store, key: bytes) -> MessageIdRow | None:
    """The lowest offset remembered for the id at `key`, whatever its age; None when the id is not known."""
    stored = store.get(key)
    return None if stored is None else decode_row(stored)


def oldest_inside(store: Store, key: bytes, first: MessageIdRow, oldest_us: int, end: int) -> MessageIdRow | None:
    """The lowest offset of an id that was appended at `oldest_us` (group clock) or later (PU-55), or None.

    key: of the id; first: `lowest` of it; end: an offset above all of the partition. Halves the span of offsets: an id
    that was pushed a million times while the window was 0 costs some twenty looks, not a walk.
    """
    if first.created_at_us >= oldest_us:
        return first
    if not first.more:
        return None
    found: MessageIdRow | None = None
    low, high = first.offset + 1, end  # below `low` all are too old; at `high` and above, none is older than `found`
    for _ in range(HALVINGS_MAX):
        if low >= high:
            break
        middle = (low + high) // 2
        pair = store.first(_more_key(key, middle), _more_key(key, high))
        if pair is None:
            high = middle
            continue
        row = decode_row(pair[1])
        if row.created_at_us >= oldest_us:
            found, high = row, middle
        else:
            low = row.offset + 1
    must(low >= high, "the halving of an id's offsets did not end", key=key)
    return found


def remember_again(store: Store, key: bytes, first: MessageIdRow, row: MessageIdRow) -> None:
    """Add a further offset, above all others, to an id that is known. first: `lowest` of it."""
    if not first.more:
        store.put(key, encode_row(first._replace(more=True)))
    store.put(_more_key(key, row.offset), encode_row(row))


def forget_lowest(store: Store, key: bytes, offset: int) -> None:
    """Forget an id's lowest offset, which must be `offset`; the next one takes its place."""
    row = lowest(store, key)
    must(row is not None and row.offset == offset, "an id is not where its message says", key=key, offset=offset)
    if row is None or not row.more:
        store.delete(key)
        return
    following = store.scan(_more_key(key, offset + 1), _more_end(key), 2)
    must(bool(following), "an id's further offsets are missing", key=key, offset=offset)
    next_key, stored = following[0]
    store.delete(next_key)
    store.put(key, encode_row(decode_row(stored)._replace(more=len(following) > 1)))


def offsets_of(store: Store, partition_id: int, transaction_id: bytes, first: int, last: int) -> list[int]:
    """Offsets from `first` to `last`, both included, that carry the id, ascending (PA-53).

    Knows only ids that are still kept (PU-55), at least as long as the dedup window. Returns at most the span's length.
    """
    key = id_key(partition_id, transaction_id)
    row = lowest(store, key)
    if row is None or last < first or row.offset > last:
        return []
    offsets = [row.offset] if row.offset >= first else []
    if row.more:
        start, end = _more_key(key, first), _more_key(key, last + 1)
        offsets += [decode_row(stored).offset for _, stored in store.scan(start, end, last - first + 1)]
    return offsets


def _more_key(key: bytes, offset: int) -> bytes:
    return MESSAGE_ID_MORE + key[1:] + u64(offset)


def _more_end(key: bytes) -> bytes:
    return MESSAGE_ID_MORE + key[1:] + b"\xff" * 9
