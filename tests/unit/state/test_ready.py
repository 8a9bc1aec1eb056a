"""Ready lists against a sorted list, with more rows than memory holds, lost memory and changed delays."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from queen_node.state import ready
from queen_node.state.keys import READY
from queen_node.state.queues import find_queue
from queen_node.state.ready import Head, ReadyListRow
from queen_node.state.rows import QueueRow
from queen_node.state.store import Store
from tests.support.outward import QM, SECOND, Outward

places = st.binary(min_size=1, max_size=1)


class TestHead:
    @settings(max_examples=200)
    @given(operations=st.lists(st.tuples(st.sampled_from(["add", "remove"]), places), max_size=60), start=places)
    def test_below_its_end_it_is_a_sorted_map(self, operations: list[tuple[str, bytes]], start: bytes) -> None:
        """The twin is a dictionary that is sorted at every look; two rows fit into memory."""
        head, twin = Head(None), dict[bytes, int]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ready, "HEAD_MAX", 2)
            for number, (operation, place) in enumerate(operations):
                if operation == "add" and place not in twin:
                    twin[place] = number
                    head.add(place, number)
                elif operation == "remove":
                    twin.pop(place, None)
                    head.remove(place)
                known = [place for place in sorted(twin) if head.end is None or place < head.end]
                assert head.places == known
                assert head.partition_ids == {place: twin[place] for place in known}


def list_row(node: Outward) -> ReadyListRow:
    queue = queue_of(node)
    row = node.store.row(ready.list_key(queue, QM.encode()), ReadyListRow)
    assert row is not None
    return row


def queue_of(node: Outward) -> QueueRow:
    queue = find_queue(node.store, b"orders")
    assert queue is not None
    return queue


def forget_memory(node: Outward) -> None:
    """As after a restart or an eviction: rows are read from the engine again."""
    node.machine.store = Store(node.store.engine, life=1)


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "HEAD_MAX", 8)
    monkeypatch.setattr(ready, "HEAD_PAGE", 3)


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("lose_memory", [False, True])
def test_more_partitions_than_memory_holds_are_served_in_order(lose_memory: bool) -> None:
    """PA-12: appended one after the other, with acks, expiries and lost memory in between."""
    node = Outward()
    node.ids()
    served = []
    for number in range(30):
        node.push(f"m{number}", partition=f"p{number}")
        node.wait(0.001)
    for number in range(30):
        if lose_memory and number % 4 == 0:
            forget_memory(node)
        popped = node.pop(lease_s=10)
        assert popped is not None
        served.append(popped.claims[0].partition.decode())
        if number % 2:
            node.ack(f"m{number}", lease=popped, partition=f"p{number}")
    assert served == [f"p{number}" for number in range(30)]
    assert node.pop() is None
    node.wait(10)
    again = [claim.partition for claim in node.got(partitions=64)]
    assert again == [f"p{number}" for number in range(0, 30, 2)]


def test_a_scan_begins_where_the_last_claim_was() -> None:
    """M-7: or every look would walk over the tombstones of all that was ever claimed."""
    node = Outward()
    for number in range(5):
        node.push(f"m{number}", partition=f"p{number}")
    node.ids(partitions=3, commit=True)
    claimed = list_row(node).floor
    forget_memory(node)
    row = list_row(node)
    assert row.floor == claimed
    assert claimed != b""
    queue = queue_of(node)
    assert [place.partition_id for place in ready.front(node.store, queue, QM.encode(), node.now_us + 1, 10)] == [4, 5]


def test_a_partition_stands_in_its_list_once() -> None:
    """One row per (partition, group) whatever happens, and none when there is nothing."""
    node = Outward()
    node.push("a", "b")

    def rows() -> int:
        key = ready.list_key(queue_of(node), QM.encode())
        return sum(1 for row_key, _ in node.rows(READY) if row_key != key)

    popped = node.pop(batch=1)
    assert rows() == 1
    assert popped is not None
    node.push("c")
    node.extend(popped.lease_id, 100)
    assert rows() == 1
    node.ack(("a", "retry"), lease=popped)
    assert rows() == 1
    node.configure(delayed_processing=1)
    node.wait(1)
    node.ids(commit=True)
    assert rows() == 0
    assert node.chance() is None


class TestChangedDelays:
    def test_rows_of_other_delays_are_filed_again_a_few_with_each_pop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """QU-5 and M-50: each command handles a bounded number, `can_serve` says True until all are done."""
        monkeypatch.setattr("queen_node.state.claims.LOOK_MAX", 4)
        node = Outward()
        node.configure(delayed_processing=1000)
        for number in range(10):
            node.push(f"m{number}", partition=f"p{number}")
        assert node.ids() == []
        node.configure(delayed_processing=2000)
        looks = []
        for _ in range(4):
            looks.append(node.chance())
            assert node.apply(node.pop_command()) == [None]
        assert looks == [True, True, True, node.now_us + 2000 * SECOND]
        node.configure(delayed_processing=0)
        assert sorted(node.ids(partitions=64) + node.ids(partitions=64) + node.ids(partitions=64)) == sorted(
            f"m{number}" for number in range(10))

    def test_back_and_forth_before_anything_was_looked_at(self) -> None:
        """Several generations at once, the cursor's row being in the oldest."""
        node = Outward()
        node.configure(delayed_processing=50)
        node.push("a", "b")
        node.ids()
        for delay in (10, 50, 7, 0, 50):
            node.configure(delayed_processing=delay)
            node.push(f"under {delay}", partition="other")
        node.wait(50)
        assert sorted(claim.partition for claim in node.got(partitions=2)) == ["Default", "other"]
        assert node.got(partitions=2) == []

    def test_a_cursor_that_moved_meanwhile_makes_its_old_row_void(self) -> None:
        """The row of an older generation is known for outdated by its sequence."""
        node = Outward()
        node.push("a")
        popped = node.pop()
        node.configure(window_buffer=1)
        node.ack("a", lease=popped)
        assert node.chance() is True
        assert node.ids() == []
        assert node.chance() is None
        node.push("b")
        assert node.chance() == node.now_us + SECOND


@pytest.mark.usefixtures("small_heads")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operations=st.lists(st.tuples(
    st.sampled_from(["push", "pop", "ack", "wait", "delay"]), st.integers(0, 11), st.booleans()), max_size=60))
@example([  # the same bytes, but the forgetful node read the list and so encoded its rows earlier: another digest
    ("push", 0, False), ("pop", 0, False), ("wait", 5, False), ("delay", 1, False), ("push", 1, False),
    ("push", 0, True), ("pop", 0, False)])
def test_what_is_kept_in_memory_decides_nothing(operations: list[tuple[str, int, bool]]) -> None:
    """DESIGN, rule 1: two nodes of which one forgets now and then write the same bytes."""
    nodes = Outward(), Outward()
    held: list[tuple[str, str]] = []
    for serial, (operation, number, forgets) in enumerate(operations):
        if forgets:
            forget_memory(nodes[1])
        for node in nodes:
            if operation == "push":
                node.push(f"m{serial}", partition=f"p{number}")
            elif operation == "delay":
                node.configure(delayed_processing=number % 3)
            elif operation == "wait":
                node.wait(number)
            elif operation == "ack" and held:
                partition, txn = held[number % len(held)]
                node.ack(txn, lease=None, partition=partition)
        if operation == "pop":
            popped = [node.got(partitions=3, lease_s=5) for node in nodes]
            assert popped[0] == popped[1]
            held = [(claim.partition, txn) for claim in popped[0] for txn in claim.ids] or held
        assert nodes[0].store.meta == nodes[1].store.meta
        assert nodes[0].chance() == nodes[1].chance()


def test_the_pace_of_a_group_is_counted_by_the_second() -> None:
    """PA-41: what was acked in the last second, estimated from two counts in whole numbers."""
    node = Outward()
    group = QM.encode()
    node.push(*[f"m{number}" for number in range(90)])
    paces = []
    for _ in range(6):
        popped = node.pop(batch=10)
        assert popped is not None
        last = popped.claims[0].first_offset + 9
        node.ack(f"m{last}", lease=popped)
        node.wait(0.25)
        paces.append(ready.acked_in_last_second(node.store, queue_of(node), group, node.now_us))
    assert paces == [10, 20, 30, 40, 40, 40]
    for pace in (10, 0):
        node.wait(1)
        assert ready.acked_in_last_second(node.store, queue_of(node), group, node.now_us) == pace
