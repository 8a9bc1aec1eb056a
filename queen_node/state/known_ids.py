"""Which transaction ids a partition surely does not remember, so that a push of a new one need not ask the store.

Asking for what is not there was the largest single cost of a push, and grew with the store: 2 to 4 µs of 8. A filter
says "surely not" in 0.2 (Bloom, two bits of one byte, two bytes an id: one look in forty asks in vain, for each
layer that there is). It decides nothing that the store would decide otherwise: it exists only for partitions made in
this process's life, sees every id that they remember, and says "perhaps" of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from struct import Struct

BYTES_MAX = 64 << 20  # of all filters of a group; the partition that needs more then is asked of the store again
FIRST_LAYER_BYTES = 512  # so that a million small partitions get none of 64 MiB but the first hundred thousand
GROWTH = 8
LAYER_BYTES_MAX = 2 << 20
BITS_AN_ID = 16

_place = Struct(">IB").unpack_from  # of a hash: which byte, which bits of it
# Two bits of a byte for each value of a byte, so that one look at the filter decides.
_PAIRS = [1 << one | 1 << other for one, other in combinations(range(8), 2)]
_BITS = tuple(_PAIRS[value % len(_PAIRS)] for value in range(256))

Place = tuple[int, int]


def place_of(digest: bytes) -> Place:
    """What stands for an id in a filter, by its hash."""
    at, which = _place(digest)
    return at, which


def places_of(digests: Sequence[bytes]) -> list[Place]:
    """The same of several."""
    return list(map(_place, digests))


class _Layer:
    """Ids up to `last_offset`. Full when it has `room` for no more."""

    __slots__ = ("bits", "last_offset", "mask", "room")

    def __init__(self, size_bytes: int) -> None:
        self.bits = bytearray(size_bytes)
        self.mask = size_bytes - 1
        self.room = size_bytes * 8 // BITS_AN_ID
        self.last_offset = -1


class IdFilter:
    """The ids of one partition, by their hashes."""

    __slots__ = ("_all", "_layers", "_partition_id")

    def __init__(self, all_filters: KnownIds, partition_id: int, first: _Layer) -> None:
        self._all, self._partition_id = all_filters, partition_id
        self._layers = [first]  # newest first; empty: it was given up

    def may_hold(self, place: Place) -> bool:
        """False: the id is surely not remembered."""
        at, which = place
        wanted = _BITS[which]
        for layer in self._layers:
            if layer.bits[at & layer.mask] & wanted == wanted:
                return True
        return not self._layers

    def perhaps(self, places: Sequence[Place]) -> Sequence[int]:
        """Which of these ids may be remembered, by their numbers here; each other one is surely not."""
        if not self._layers:
            return range(len(places))
        found: list[int] = []
        for layer in self._layers:
            bits, mask = layer.bits, layer.mask
            found += [
                number for number, (at, which) in enumerate(places)
                if bits[at & mask] & _BITS[which] == _BITS[which]]
        return found

    def add_one(self, place: Place, offset: int) -> None:
        """This id is remembered now, at `offset`, which is above all before."""
        layers = self._layers
        if not layers or not layers[0].room:
            self.add((place,), offset)
            return
        layer = layers[0]
        layer.room -= 1
        layer.last_offset = offset
        at, which = place
        layer.bits[at & layer.mask] |= _BITS[which]

    def add(self, places: Sequence[Place], first_offset: int) -> None:
        """These ids are remembered now, at `first_offset` and those behind it, which are above all before."""
        end = first_offset + len(places)
        while places and self._layers:
            layer = self._layers[0]
            if not layer.room:
                following = self._all.new_layer(min(len(layer.bits) * GROWTH, LAYER_BYTES_MAX))
                if following is None:
                    self._all.give_up(self._partition_id)
                    return
                layer = following
                self._layers.insert(0, layer)
            taken, places = places[: layer.room], places[layer.room :]
            layer.room -= len(taken)
            layer.last_offset = end - len(places) - 1
            bits, mask = layer.bits, layer.mask
            for at, which in taken:
                bits[at & mask] |= _BITS[which]

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
