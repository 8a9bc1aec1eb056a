"""The lease checkers prove themselves."""

from __future__ import annotations

from tests.checkers import leases
from tests.checkers.history import Outcome
from tests.checkers.scenes import ack, history, message, pop

A, B = message("a", 0, 1), message("b", 1, 2)
ELSEWHERE = message("x", 0, 1, partition="other")


def test_clean_histories_pass() -> None:
    """Another after the lease's end, after its release, of another group, of another partition."""
    expired = history(pop(0, A), pop(1000, A))
    released = history(pop(0, A, lease="l1"), ack(5, "l1", A), pop(10, B))
    perhaps = history(pop(0, A, lease="l1"), ack(5, "l1", A, outcome=Outcome.INFO), pop(10, B))
    grouped = history(pop(0, A), pop(10, A, group="h"))
    apart = history(pop(0, A), pop(10, ELSEWHERE))
    for fine in (expired, released, perhaps, grouped, apart):
        assert leases.check_exclusive(fine) == []
        assert leases.check_fenced(fine) == []


def test_overlapping_leases_are_found() -> None:
    """G-Q4: the same message, or the next of the partition; no margin."""
    assert [found.promise for found in leases.check_exclusive(history(pop(0, A), pop(500, A)))] == ["G-Q4"]
    assert leases.check_exclusive(history(pop(0, A), pop(500, B)))
    assert leases.check_exclusive(history(pop(0, A), pop(997.9, A)))


def test_an_ack_after_the_second_pop_does_not_excuse_it() -> None:
    """G-Q4: what was released later was live before."""
    assert leases.check_exclusive(history(pop(0, A, lease="l1"), pop(10, A, lease="l2"), ack(20, "l1", A)))


def test_concurrent_pops_of_one_partition_are_found() -> None:
    """G-Q4: whichever was first, the other came within its lease."""
    assert len(leases.check_exclusive(history(pop(0, A, took=8), pop(2, A, took=8)))) == 1


def test_concurrent_pops_with_an_order_that_explains_them_pass() -> None:
    """G-Q4: the second was first, and its short lease ran out before the other's answer."""
    assert leases.check_exclusive(history(pop(0, A, took=500), pop(2, A, lease_ms=100, took=3))) == []


def test_an_ack_under_a_dead_lease_is_found() -> None:
    """G-Q6."""
    stale = history(pop(0, A, lease="l1"), pop(1100, A, lease="l2"), ack(1200, "l1", A))
    assert [found.promise for found in leases.check_fenced(stale)] == ["G-Q6"]


def test_a_refused_ack_and_a_repeat_pass() -> None:
    """G-Q6, PA-59: a refusal is right, and a repeat may be answered as the first time."""
    refused = history(pop(0, A, lease="l1"), pop(1100, A, lease="l2"), ack(1200, "l1", A, success=False))
    repeated = history(
        pop(0, A, lease="l1"), ack(10, "l1", A, outcome=Outcome.INFO), pop(1100, A, lease="l2"), ack(1200, "l1", A),
    )
    assert leases.check_fenced(refused) == []
    assert leases.check_fenced(repeated) == []
