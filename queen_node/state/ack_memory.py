"""What is kept of acks that released a lease, so that a repeat is answered as the first time (PA-59, G-Q7).

A ring of rows per (partition, group): the last 64, each good for 60 s. They are not part of the cursor's row, which is
written again with every pop and ack.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queen_node.state.keys import RELEASED, named, u64
from queen_node.state.rows import Row
from queen_node.state.store import Store
from raft.invariants import broken

LEASES_KEPT = 64
KEPT_US = 60 * 1_000_000


class RingRow(Row):
    """How many leases acks have released there; the next one's slot is that, modulo LEASES_KEPT."""

    released_count: int = 0


class ReleasedRow(msgspec.Struct, array_like=True):
    """One lease that an ack released: the cursor it reached, a digest of its items and their verdicts."""

    lease_id: bytes
    released_at_us: int
    reached: int
    digest: bytes
    verdicts: bytes  # a single one when all are alike

    def verdicts_of(self, count: int) -> bytes:
        """One verdict an item, of as many as the ack had."""
        return self.verdicts * count if len(self.verdicts) == 1 else self.verdicts


def packed(verdicts: Sequence[int]) -> bytes:
    """Verdicts as they are kept."""
    raw = bytes(verdicts)
    return raw[:1] if raw == raw[:1] * len(raw) else raw


def remember(store: Store, partition_id: int, group: bytes, row: ReleasedRow) -> None:
    """Keep `row`; the 65th takes the place of the first."""
    ring = _ring(partition_id, group)
    ring_row = store.row(ring, RingRow) or RingRow()
    store.put(ring + bytes((ring_row.released_count % LEASES_KEPT,)), _encode(row))
    ring_row.released_count += 1
    store.put_row(ring, ring_row)


def recall(store: Store, partition_id: int, group: bytes, lease_id: bytes, now_us: int) -> ReleasedRow | None:
    """The ack that released `lease_id`, if it is still kept; now_us: stamp of the entry that asks."""
    ring = _ring(partition_id, group)
    ring_row = store.row(ring, RingRow)
    released_count = 0 if ring_row is None else ring_row.released_count
    for number in range(released_count - 1, max(released_count - LEASES_KEPT, 0) - 1, -1):  # repeats come soon
        stored = store.get(ring + bytes((number % LEASES_KEPT,)))
        if stored is None:
            broken("a released lease is missing from its ring", partition=partition_id, group=group, number=number)
        row = _decode(stored)
        if now_us > row.released_at_us + KEPT_US:
            return None  # and those before it are older still
        if row.lease_id == lease_id:
            return row
    return None


def _ring(partition_id: int, group: bytes) -> bytes:
    return RELEASED + u64(partition_id) + named(group)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ReleasedRow).decode
