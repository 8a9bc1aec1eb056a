"""Leases: length, extension, giving back, counts (pop-ack.md 4, 6)."""

from __future__ import annotations

import pytest

from queen_node.state.consume import Popped
from queen_node.state.keys import LEASE
from tests.support.outward import SECOND, START_US, Got, Outward, got


@pytest.fixture
def node() -> Outward:
    return Outward()


def lease_of(popped: Popped | None) -> bytes:
    assert popped is not None
    return popped.lease_id


def four_partitions(node: Outward) -> bytes:
    """One lease over a, b, c, d."""
    for partition in "abcd":
        node.push(f"{partition}0", f"{partition}1", partition=partition)
    return lease_of(node.pop(partitions=4))


class TestLength:
    def test_the_queues_lease_time_unless_the_call_says_otherwise(self, node: Outward) -> None:
        """PA-35: 60 s when a push made the queue."""
        node.push("a", partition="a")
        node.push("b", partition="b")
        node.pop(partition="a")
        node.pop(partition="b", lease_s=5)
        assert node.chance(partition="a") == START_US + 60 * SECOND
        assert node.chance(partition="b") == START_US + 5 * SECOND

    def test_live_means_now_below_expiry(self, node: Outward) -> None:
        """PA-35, G-Q4: to the microsecond."""
        node.push("a")
        node.pop(lease_s=5)
        node.now_us = START_US + 5 * SECOND - 1
        assert node.got() == []
        node.now_us += 1
        assert node.got() == [Got("Default", 0, ["a"], 2)]

    def test_a_changed_lease_time_leaves_granted_leases_alone(self, node: Outward) -> None:
        """PA-35."""
        node.push("a")
        node.pop()
        node.configure(lease_time=1)
        node.wait(2)
        assert node.got() == []

    def test_a_lease_taken_over_after_expiry_is_counted(self, node: Outward) -> None:
        """PA-36: and its row goes."""
        node.push("a")
        first = lease_of(node.pop(lease_s=1))
        node.wait(1)
        second = lease_of(node.pop())
        assert first != second
        assert [key[1:] for key, _ in node.rows(LEASE)] == [second]
        assert node.store.counters().leases_live == 1


class TestExtension:
    def test_one_extension_renews_every_live_partition(self, node: Outward) -> None:
        """PA-37, pop-ack.md 11.3."""
        lease = four_partitions(node)
        node.wait(50)
        assert node.extend(lease, 120) == (4, node.now_us + 120 * SECOND)
        node.wait(119)
        assert node.got(partitions=4) == []
        node.wait(1)
        assert len(node.got(partitions=4)) == 4

    def test_it_never_shortens(self, node: Outward) -> None:
        """PA-37: max(old, now + seconds)."""
        node.push("a")
        lease = lease_of(node.pop(lease_s=100))
        assert node.extend(lease, 1) == (1, START_US + 100 * SECOND)

    @pytest.mark.parametrize(("asked", "given"), [(0, 1), (-5, 1), (10**6, 86_400)])
    def test_seconds_are_clamped(self, node: Outward, asked: int, given: int) -> None:
        """PA-37: 1 to 86,400."""
        node.push("a")
        lease = lease_of(node.pop(lease_s=1))
        assert node.extend(lease, asked) == (1, START_US + given * SECOND)

    def test_released_partitions_are_not_renewed(self, node: Outward) -> None:
        """PA-38: the earliest expiry is of those that are left."""
        lease = four_partitions(node)
        node.ack("a1", lease=lease, partition="a")
        node.ack(("b0", "retry"), lease=lease, partition="b")
        assert node.extend(lease, 100)[0] == 2

    def test_unknown_expired_released_and_handed_back_leases(self, node: Outward) -> None:
        """PA-37: renewed 0 and no time."""
        node.push("a")
        assert node.extend(b"x" * 16) == (0, None)
        expired = lease_of(node.pop(lease_s=1))
        node.wait(1)
        assert node.extend(expired) == (0, None)
        taken_over = lease_of(node.pop())
        assert node.extend(expired) == (0, None)
        node.hand_back(taken_over)
        assert node.extend(taken_over) == (0, None)
        acked = lease_of(node.pop())
        node.ack("a", lease=acked)
        assert node.extend(acked) == (0, None)

    def test_an_ack_after_an_extension(self, node: Outward) -> None:
        """pop-ack.md 11.7: past the first expiry."""
        node.push("a")
        lease = lease_of(node.pop(lease_s=5))
        node.extend(lease, 30)
        node.wait(20)
        assert [answer.released for answer in node.ack("a", lease=lease)] == [True]


class TestHandBack:
    def test_a_pop_nobody_received_costs_neither_place_nor_attempt(self, node: Outward) -> None:
        """PA-23, G-Q8, pop-ack.md 11.9."""
        lease = four_partitions(node)
        node.hand_back(lease)
        assert node.rows(LEASE) == []
        assert node.store.counters().leases_live == 0
        assert node.wakes == {b"orders": 4}
        assert node.got(partitions=4) == [
            Got(partition, 0, [f"{partition}0", f"{partition}1"], 1) for partition in "abcd"]

    def test_earlier_attempts_still_count(self, node: Outward) -> None:
        """PA-24, PA-23: only the one that is handed back is not counted."""
        node.push("a")
        node.pop(lease_s=1)
        node.wait(1)
        node.hand_back(lease_of(node.pop()))
        assert node.got() == [Got("Default", 0, ["a"], 2)]

    def test_what_is_no_longer_held_is_left_alone(self, node: Outward) -> None:
        """PA-23: twice, after an ack, after somebody else's claim."""
        node.push("a")
        lost = lease_of(node.pop(lease_s=1))
        node.wait(1)
        popped = node.pop()
        node.hand_back(lost)
        node.hand_back(b"never given" + bytes(5))
        assert node.got() == []
        node.hand_back(lease_of(popped))
        node.hand_back(lease_of(popped))
        assert [claim.attempt for claim in got(node.pop())] == [2]
        assert node.store.counters().leases_live == 1
