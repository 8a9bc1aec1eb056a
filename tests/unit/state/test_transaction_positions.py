"""Positions in a transaction: where a group reads on (transactions.md 7)."""

from __future__ import annotations

import pytest

from queen_node.state.transactions import Cause, Part, RolledBack
from queen_node.state.verdicts import (
    INVALID_LEASE,
)
from tests.support.kv_state import check
from tests.support.transaction_state import Node, position, rejected


@pytest.fixture
def node() -> Node:
    return Node()


class TestPositions:
    @pytest.mark.parametrize(("offset", "next_ids"), [
        (0, ["a", "b", "c"]), (1, ["b", "c"]), (3, []), (99, []),
    ])
    def test_the_group_reads_on_there(self, node: Node, offset: int, next_ids: list[str]) -> None:
        """transactions.md 7: a new group is registered; behind the end nothing is passed over that comes later."""
        node.push("a", "b", "c")
        node.transact(positions=[position(offset)])
        assert node.ids(group="g") == next_ids
        assert node.committed(group="g") == (-1 if offset == 0 else min(offset, 3) - 1)
        if not next_ids:
            node.push("d")
            assert node.ids(group="g") == ["d"]

    def test_a_lease_there_ends_and_attempts_begin_anew(self, node: Node) -> None:
        """transactions.md 7, PA-33, TX-33: its acks are refused from then on."""
        node.configure(retry_limit=5)
        lease = node.leased("a", "b", group="g", mode="all")
        node.transact([node.ack_of("a", lease, "failed", group="g")])
        again = node.pop(group="g")
        assert again is not None
        node.transact(positions=[position(0)])
        assert node.wakes == {b"orders": 1}
        assert node.transact([node.ack_of("a", again, group="g")]) == rejected(0, INVALID_LEASE)
        cursor = node.cursor(group="g")
        assert cursor is not None
        assert (cursor.retries, cursor.lease_id) == (0, b"")
        assert [got.attempt for got in node.got(group="g")] == [1]
        assert node.store.counters().leases_live == 1

    def test_a_forgotten_one_begins_as_its_group_says(self, node: Node) -> None:
        """transactions.md 7: `null`."""
        node.push("a", "b")
        assert node.ids(group="g", mode="all", commit=True) == ["a", "b"]
        node.transact(positions=[position(None)])
        assert node.ids(group="g") == ["a", "b"]
        node.transact(positions=[position(None, group="n")])
        assert node.ids(group="n") == [], "a new group of mode `new`"
        node.transact(positions=[position(0, group="n")])
        node.transact(positions=[position(None, group="n")])
        node.push("c")
        assert node.ids(group="n") == ["c"]

    def test_a_partition_is_made_and_a_queue_is_not(self, node: Node) -> None:
        """transactions.md 7, TX-53; a queue that the transaction itself would make does not exist yet."""
        node.push("a")
        refused = RolledBack(Cause.QUEUE_NOT_FOUND, Part.POSITION, 1)
        before = node.everything()
        assert node.transact(
            pushes=[node.item_of("x", queue="fresh")],
            positions=[position(0), position(0, queue="fresh")], kv=[check(b"never", 5, required=True)]) == refused
        assert node.everything() == before
        node.transact(positions=[position(0, partition="made", mode="all"), position(7, partition="made")])
        node.push("b", partition="made")
        assert node.ids(group="g", partition="made") == ["b"]

    def test_it_is_set_behind_the_acks_and_the_pushes(self, node: Node) -> None:
        """TX-21: the cursor stands where the position says, and what the transaction pushed is deliverable."""
        lease = node.leased("a", "b", group="g", mode="all")
        pushed = [node.item_of("c", queue="orders")]
        node.transact([node.ack_of("b", lease, group="g")], pushed, positions=[position(1)])
        assert node.ids(group="g") == ["b", "c"]
        node.transact(pushes=[node.item_of("d", queue="orders")], positions=[position(None, group="late")])
        assert node.ids(group="late") == ["d"]
