"""A push too large for one command: cut into several that stay in order, and answered as one call (PU-43, M-51).

Nothing here is kept for each item but a hash of its id: giving back the million small objects of a call at once would
hold the loop for as long as decoding them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import trio

from queen_node import commands
from queen_node.answers.push import DUPLICATE, PushResult, push_results
from queen_node.commands import PushItem
from queen_node.ids import IdMint
from queen_node.places import place
from queen_node.state.dedup import HASH_BYTES
from queen_node.state.keys import named

PART_ITEMS_MAX = 256  # of one command: applying it must not hold the loop (M-50)
PART_BYTES_MAX = 1 << 20  # M-51; one larger item is a command of its own
ITEM_OVERHEAD_BYTES = 64  # message id, heads and lengths of an item in a command, rounded up

Part = tuple[bytes, tuple[bytes, ...]]  # a command, and the queue of each of its items


class Parts:
    """The commands of one call. Of equal ids the first is sent, the others are answered from it (PU-52)."""

    def __init__(self, ids: IdMint) -> None:
        self._ids = ids
        self.count = 0  # items of the call so far
        self.twin_of: dict[int, int] = {}  # index in the call -> index of the first with the same id
        self._firsts: dict[bytes, int] = {}
        self._closed: list[Part] = []
        self._open: list[PushItem] = []
        self._open_bytes = 0

    def add(self, items: Sequence[PushItem]) -> None:
        """Take in the next items of the call."""
        for index, item in enumerate(items, self.count):
            queue, partition, transaction_id, _, payload, *_ = item
            identity = blake2b(named(queue) + named(partition) + transaction_id, digest_size=HASH_BYTES).digest()
            first = self._firsts.setdefault(identity, index)
            if first != index:
                self.twin_of[index] = first
                continue
            item_bytes = len(queue) + len(partition) + len(transaction_id) + len(payload) + ITEM_OVERHEAD_BYTES
            if len(self._open) == PART_ITEMS_MAX or self._open_bytes + item_bytes > PART_BYTES_MAX:
                self._close()
            self._open.append(item)
            self._open_bytes += item_bytes
        self.count += len(items)

    def finish(self) -> list[Part]:
        """All commands, in order; none for a call without items."""
        self._close()
        return self._closed

    def _close(self) -> None:
        if self._open:
            command = commands.push(self._ids.request_id(), self._open)
            self._closed.append((command, places_of(self._open)))
            self._open, self._open_bytes = [], 0


def places_of(items: Sequence[PushItem]) -> tuple[bytes, ...]:
    """The place of each item (`Broker.write`)."""
    queue = partition = packed = b""
    places = []
    for item in items:
        if item[0] != queue or item[1] != partition:
            queue, partition = item[0], item[1]
            packed = place(queue, partition)
        places.append(packed)
    return tuple(places)


async def joined(raws: Sequence[bytes], twin_of: dict[int, int]) -> bytes:
    """The body of the call from the answers of its parts. Raises Refused: the first that is one."""
    pieces = [b"["]
    wanted = set(twin_of.values())
    originals: dict[int, PushResult] = {}
    index = 0
    for raw in raws:
        results: list[PushResult] = []
        for one in push_results(raw):
            index = _add_twins(results, index, twin_of, originals)
            one.index = index
            if index in wanted:
                originals[index] = one
            results.append(one)
            index += 1
        index = _add_twins(results, index, twin_of, originals)
        pieces.append(msgspec.json.encode(results)[1:-1])
        pieces.append(b",")
        await trio.lowlevel.checkpoint()
    pieces[-1] = b"]"
    return b"".join(pieces)  # one copy: of a large answer each costs a millisecond a megabyte


def _add_twins(
    results: list[PushResult], index: int, twin_of: dict[int, int], originals: dict[int, PushResult],
) -> int:
    """Answer the items from `index` on as long as they repeat earlier ones. Returns the index of the next one."""
    while (first := twin_of.get(index)) is not None:
        original = originals[first]
        results.append(PushResult(
            index, original.message_id, original.transaction_id, original.queueName, DUPLICATE, original.offset))
        index += 1
    return index

