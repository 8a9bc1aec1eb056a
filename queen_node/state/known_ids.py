"""Which transaction ids a partition surely does not remember, so that a push of a new one need not ask the store.

Asking for what is not there was the largest single cost of a push, and grew with the store: 2 to 4 µs of 8. A filter
says "surely not" in 0.5 (Bloom, two bits of sixteen an id: one look in seventy asks in vain). It decides nothing that
the store would decide otherwise: it exists only for partitions made in this process's life, sees every id that they
remember, and says "perhaps" of all others.
"""

from __future__ import annotations

from struct import Struct

BYTES_MAX = 64 << 20  # of all filters of a group; the partition that needs more then is asked of the store again
FIRST_LAYER_BYTES = 512  # so that a million small partitions get none of 64 MiB but the first hundred thousand
GROWTH = 8
LAYER_BYTES_MAX = 2 << 20
BITS_AN_ID = 16

_two = Struct(">II").unpack_from


class _Layer:
    """Ids up to `last_offset`. Full when it has `room` for no more."""

    __slots__ = ("bits", "last_offset", "mask", "room")

    def __init__(self, size_bytes: int) -> None:
        self.bits = bytearray(size_bytes)
        self.mask = size_bytes * 8 - 1
        self.room = size_bytes * 8 // BITS_AN_ID
        self.last_offset = -1


class IdFilter:
    """The ids of one partition, by their hashes."""

    __slots__ = ("_all", "_layers", "_partition_id")

    def __init__(self, all_filters: KnownIds, partition_id: int, first: _Layer) -> None:
        self._all, self._partition_id = all_filters, partition_id
        self._layers = [first]  # newest first; empty: it was given up

    def may_hold(self, digest: bytes) -> bool:
        """False: the id is surely not remembered."""
        layers = self._layers
        if not layers:
            return True
        first, second = _two(digest)
        for layer in layers:
            bits, mask = layer.bits, layer.mask
            at = first & mask
            if bits[at >> 3] >> (at & 7) & 1:
                at = second & mask
                if bits[at >> 3] >> (at & 7) & 1:
                    return True
        return False

    def add(self, digest: bytes, offset: int) -> None:
        """The id is remembered now, at `offset`, which is above all before it."""
        if not self._layers:
            return
        layer = self._layers[0]
        if not layer.room:
            following = self._all.new_layer(min(len(layer.bits) * GROWTH, LAYER_BYTES_MAX))
            if following is None:
                self._all.give_up(self._partition_id)
                return
            layer = following
            self._layers.insert(0, layer)
        layer.room -= 1
        layer.last_offset = offset
        bits, mask = layer.bits, layer.mask
        first, second = _two(digest)
        at = first & mask
        bits[at >> 3] |= 1 << (at & 7)
        at = second & mask
        bits[at >> 3] |= 1 << (at & 7)

    def forget_below(self, offset: int) -> None:
        """Ids at lower offsets are remembered no longer. The newest layer stays: it takes the next ones."""
        layers = self._layers
        while len(layers) > 1 and layers[-1].last_offset < offset:
            self._all.free(layers.pop())

    def take_layers(self) -> list[_Layer]:
        """Give the filter up."""
        layers, self._layers = self._layers, []
        return layers


class KnownIds:
    """The filters of one group's partitions."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_left = bytes_max
        self._filters: dict[int, IdFilter] = {}

    def begin(self, partition_id: int) -> None:
        """The partition was made just now: it remembers nothing, and from here on nothing is missed."""
        self.give_up(partition_id)  # an entry that was taken back may have made one with this id
        first = self.new_layer(FIRST_LAYER_BYTES)
        if first is not None:
            self._filters[partition_id] = IdFilter(self, partition_id, first)

    def of(self, partition_id: int) -> IdFilter | None:
        """The partition's filter, if it has one."""
        return self._filters.get(partition_id)

    def give_up(self, partition_id: int) -> None:
        """From here on the store is asked."""
        known = self._filters.pop(partition_id, None)
        if known is not None:
            for layer in known.take_layers():
                self.free(layer)

    def new_layer(self, size_bytes: int) -> _Layer | None:
        """Room for more ids, if there is any."""
        if size_bytes > self._bytes_left:
            return None
        self._bytes_left -= size_bytes
        return _Layer(size_bytes)

    def free(self, layer: _Layer) -> None:
        """A layer that is needed no longer."""
        self._bytes_left += len(layer.bits)
