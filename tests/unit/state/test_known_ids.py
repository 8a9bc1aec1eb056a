"""The filter that spares a push the store: it may say "perhaps" in vain, and never "surely not" of what is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queen_node import commands
from queen_node.ids import IdMint
from queen_node.state import dedup, push
from queen_node.state.known_ids import BITS_AN_ID, FIRST_LAYER_BYTES, KnownIds, places_of
from queen_node.state.machine import Machine
from queen_node.state.step import Step
from queen_node.state.store import Store
from tests.support.inward import START_US, Inward
from tests.support.memory_engine import MemoryEngine

SMALL = FIRST_LAYER_BYTES * 8 // BITS_AN_ID  # ids of the first layer


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=300), st.integers(0, 5000))
def test_what_is_remembered_may_always_be_held(steps: list[tuple[int, int]], bytes_max: int) -> None:
    """Against a set: ids come, some again; the oldest offsets are forgotten; the memory for filters is short."""
    known_ids = KnownIds(FIRST_LAYER_BYTES + bytes_max)
    known_ids.begin(1)
    remembered: list[tuple[int, bytes]] = []
    offset = start = 0
    for number, forgotten in steps:
        together = [
            dedup.hash_of(b"%d" % (number * 1000 + place % 97)) for place in range(offset, offset + number % 7 * 8)]
        known = known_ids.of(1)
        if known is not None:
            known.add(places_of(together), offset)
        remembered += enumerate(together, offset)
        offset += len(together)
        start = min(start + forgotten, offset)
        remembered = [each for each in remembered if each[0] >= start]
        known = known_ids.of(1)
        if known is not None:
            known.forget_below(start)
            perhaps = known.perhaps(places_of([digest for _, digest in remembered]))
            assert set(perhaps) == set(range(len(remembered)))


def test_what_is_not_there_is_mostly_known_not_to_be() -> None:
    known_ids = KnownIds()
    known_ids.begin(1)
    known = known_ids.of(1)
    assert known is not None
    known.add(places_of([dedup.hash_of(b"held-%d" % offset) for offset in range(20 * SMALL)]), 0)
    asked_in_vain = known.perhaps(places_of([dedup.hash_of(b"other-%d" % number) for number in range(10_000)]))
    assert len(asked_in_vain) < 800


def test_memory_is_bounded_and_comes_back() -> None:
    """A partition that needs more than there is is asked of the store; what it had is free for others."""
    known_ids = KnownIds(2 * FIRST_LAYER_BYTES)
    known_ids.begin(1)
    known_ids.begin(2)
    known_ids.begin(3)
    first = known_ids.of(1)
    assert first is not None and known_ids.of(2) is not None and known_ids.of(3) is None
    first.add(places_of([dedup.hash_of(b"%d" % offset) for offset in range(SMALL + 1)]), 0)
    assert known_ids.of(1) is None and first.perhaps(places_of([dedup.hash_of(b"never seen")])) == range(1)
    known_ids.begin(3)
    assert known_ids.of(3) is not None


def test_a_partition_of_an_earlier_life_is_asked_of_the_store() -> None:
    """PU-50: duplicates are known after a restart; the filter has seen none of them."""
    node = Inward()
    assert node.push_ids("a", "b") == [("queued", 0), ("queued", 1)]
    node.store = Store(node.store.engine, life=1)
    assert node.push_ids("b", "c", "a") == [("duplicate", 1), ("queued", 2), ("duplicate", 0)]


def test_an_entry_that_was_taken_back_leaves_no_wrong_knowledge() -> None:
    """CL-133: the partition that it made is made again, with the same number and other ids."""
    store = Store(MemoryEngine(), life=1)
    machine, ids = Machine(store), IdMint()

    def item(name: bytes) -> commands.PushItem:
        return b"q", b"p", name, ids.uuid7(), b"1", 0, None, None

    push.apply_push(Step(store, now_us=START_US, index=1), [1, b"", [item(b"lost")]])
    machine.discard()
    for index, expected in ((1, [False, False]), (2, [True, True])):
        entry = commands.entry(START_US, [commands.push(ids.request_id(), [item(b"lost"), item(b"kept")])])
        ((_, _, placed),) = machine.apply_entry(index=index, term=1, data=entry)
        assert [duplicate for _, _, _, duplicate, _ in placed] == expected


def test_an_id_that_comes_again_is_known_by_its_later_offsets_too() -> None:
    """PU-51, PU-55: with a window of 0 an id stands at several offsets; the lowest ones are forgotten first."""
    node = Inward()
    node.configure(dedup_window_seconds=0)
    for _ in range(3):
        node.push_ids("again", *(f"x{number}" for number in range(SMALL)))
        node.wait(1)
    node.wait(3600)
    node.forget(at_most=SMALL + 1)
    node.configure(dedup_window_seconds=1 << 20)
    assert node.push_ids("again") == [("duplicate", SMALL + 1)]
