"""Which offset an ack's item means (PA-47, PA-48, PA-53, PA-54).

An id is found through the partition's memory of ids, which lasts as long as the dedup window, and in the messages
themselves where that memory has ended: inside a claim always, below the cursor for the last 65,536 messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queen_node.state import dedup
from queen_node.state.keys import u64
from queen_node.state.messages import message_key, message_stem, transaction_id_of
from queen_node.state.rows import CursorRow, PartitionRow
from queen_node.state.store import Store

LOOKBACK_MAX = 65_536  # messages read on either side of the cursor for ids that are no longer kept (PA-54)
LOOKBACK_MAX_BYTES = 64 << 20  # the same for large messages: a look must not hold the loop for longer than an election
PAGE = 64  # messages of one scan
READ_ALL_MAX = 4  # a claim with at most so many messages an item is read rather than looked up id by id

Found = dict[bytes, list[int]]  # transaction id -> its offsets, ascending


def offsets_of_items(
    store: Store, partition: PartitionRow, cursor: CursorRow, ids: Sequence[bytes], *, fenced: bool,
) -> list[int | None]:
    """The offset that each item means: the k-th item of an id its k-th occurrence, surplus ones the last (PA-53).

    fenced: look inside the claim only; otherwise above the cursor, and for what is not there, below it.
    """
    if fenced and partition.log_start <= cursor.lease_first:  # all messages of the claim are there
        offset_of = store.claim_ids.of(partition.partition_id, cursor.lease_first, cursor.lease_last)
        if offset_of is not None:
            return list(map(offset_of.get, ids))
    look = _in_claim if fenced else _unfenced
    found = look(store, partition, cursor, set(ids))
    seen: dict[bytes, int] = {}
    meant: list[int | None] = []
    for transaction_id in ids:
        offsets = found.get(transaction_id)
        if not offsets:
            meant.append(None)
            continue
        nth = seen.get(transaction_id, 0)
        seen[transaction_id] = nth + 1
        meant.append(offsets[min(nth, len(offsets) - 1)])
    return meant


def known_at_or_below(store: Store, partition: PartitionRow, wanted: set[bytes], offset: int) -> Found:
    """Which of these ids stand at `offset` or lower."""
    found = _known(store, partition, wanted, 0, offset)
    first, last = max(offset - LOOKBACK_MAX + 1, 0), min(offset, partition.ids_start - 1)
    return found | _read(store, partition, wanted - found.keys(), first, last)


def _in_claim(store: Store, partition: PartitionRow, cursor: CursorRow, wanted: set[bytes]) -> Found:
    first, last = cursor.lease_first, cursor.lease_last
    if first >= partition.ids_start and last - first + 1 > READ_ALL_MAX * len(wanted):
        return _known(store, partition, wanted, first, last)
    found = _point_read(store, partition.partition_id, wanted, first, last)
    if len(found) < len(wanted):  # retention may have taken the message under the lease; its id is kept longer
        found |= _known(store, partition, wanted - found.keys(), first, last)
    return found


def _unfenced(store: Store, partition: PartitionRow, cursor: CursorRow, wanted: set[bytes]) -> Found:
    committed, last = cursor.committed, partition.next_offset - 1
    found = _known(store, partition, wanted, committed + 1, last)
    if committed + 1 < partition.ids_start:
        end = min(partition.ids_start - 1, committed + LOOKBACK_MAX)
        for transaction_id, offsets in _read(store, partition, wanted, committed + 1, end).items():
            found[transaction_id] = offsets + [
                offset for offset in found.get(transaction_id, ()) if offset > offsets[-1]]
    missing = wanted - found.keys()
    if missing and committed >= 0:
        for transaction_id, offsets in known_at_or_below(store, partition, missing, committed).items():
            found[transaction_id] = offsets[-1:]
    return found


def _known(store: Store, partition: PartitionRow, wanted: Iterable[bytes], first: int, last: int) -> Found:
    """Offsets of ids that are still kept."""
    found = {}
    for transaction_id in wanted:
        offsets = dedup.offsets_of(store, partition.partition_id, transaction_id, first, last)
        if offsets:
            found[transaction_id] = offsets
    return found


def _point_read(store: Store, partition_id: int, wanted: set[bytes], first: int, last: int) -> Found:
    """Offsets of ids, read from the messages of a claim: they were read a moment ago, when it was made."""
    found: Found = {}
    get, stem = store.get_young, message_stem(partition_id)
    for offset in range(first, last + 1):
        stored = get(stem + u64(offset))
        if stored is not None:
            transaction_id = transaction_id_of(stored)
            if transaction_id in wanted:
                found.setdefault(transaction_id, []).append(offset)
    return found


def _read(store: Store, partition: PartitionRow, wanted: set[bytes], first: int, last: int) -> Found:
    """Offsets of ids, read from the messages themselves, from `last` down to `first` or as far as the bytes reach."""
    found: Found = {}
    first = max(first, partition.log_start)
    end = last + 1
    bytes_left = LOOKBACK_MAX_BYTES
    while wanted and first < end and bytes_left > 0:
        start = max(first, end - PAGE)
        start_key, end_key = message_key(partition.partition_id, start), message_key(partition.partition_id, end)
        for key, stored in reversed(store.scan(start_key, end_key, PAGE)):
            bytes_left -= len(stored)
            transaction_id = transaction_id_of(stored)
            if transaction_id in wanted:
                found.setdefault(transaction_id, []).append(int.from_bytes(key[-8:], "big"))
        end = start
    for offsets in found.values():
        offsets.reverse()
    return found
