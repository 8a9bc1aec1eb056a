"""The delivery checkers prove themselves."""

from __future__ import annotations

from tests.checkers import delivery
from tests.checkers.history import History, Outcome
from tests.checkers.scenes import ack, history, message, pop

A, B, C = message("a", 0, 1), message("b", 1, 2), message("c", 2, 3)


def clean() -> History:
    """Two acked, one delivered twice because its ack never left."""
    return history(
        pop(10, A, B, lease="l1"), ack(20, "l1", A, B), pop(30, C, lease="l2"), pop(1100, C, lease="l3"),
        ack(1110, "l3", C), log=(A, B, C),
    )


def test_a_clean_history_passes() -> None:
    """Every check of the file."""
    for check in (
        delivery.check_delivered, delivery.check_not_again_after_ack, delivery.check_acked_once, delivery.check_no_skip,
    ):
        assert check(clean()) == []


def test_an_undelivered_message_is_found() -> None:
    """G-Q1."""
    lost = history(pop(10, A), log=(A, B))
    assert [found.promise for found in delivery.check_delivered(lost)] == ["G-Q1"]


def test_a_run_that_was_not_drained_is_not_judged() -> None:
    """G-Q1 speaks of the end of the drain."""
    lost = history(pop(10, A), log=(A, B))
    lost.drained = False
    assert delivery.check_delivered(lost) == []


def test_delivery_after_the_ack_is_found() -> None:
    """G-Q2: the message itself, and one below it that was completed silently (PA-50)."""
    again = history(pop(10, A, B, lease="l1"), ack(20, "l1", A, B), pop(30, B))
    below = history(pop(10, A, B, lease="l1"), ack(20, "l1", B), pop(30, A))
    for wrong in (again, below):
        assert [found.promise for found in delivery.check_not_again_after_ack(wrong)] == ["G-Q2"]


def test_delivery_that_may_precede_the_ack_passes() -> None:
    """G-Q2: the pop began before the ack's answer came, or the ack's fate is unknown, or the item redelivers."""
    concurrent = history(pop(10, A, lease="l1"), ack(20, "l1", A, took=5), pop(24, A))
    unknown = history(pop(10, A, lease="l1"), ack(20, "l1", A, outcome=Outcome.INFO), pop(30, A))
    returned = history(pop(10, A, B, lease="l1"), ack(20, "l1", A, B, redelivers=True), pop(30, A))
    for fine in (concurrent, unknown, returned):
        assert delivery.check_not_again_after_ack(fine) == []


def test_two_successful_acks_are_found() -> None:
    """G-Q3."""
    twice = history(pop(10, A, lease="l1"), ack(20, "l1", A), ack(40, "l2", A))
    assert [found.promise for found in delivery.check_acked_once(twice)] == ["G-Q3"]


def test_a_repeat_of_the_same_ack_passes() -> None:
    """G-Q3, PA-59: the same lease, or a noop."""
    assert delivery.check_acked_once(history(ack(20, "l1", A), ack(40, "l1", A))) == []
    assert delivery.check_acked_once(history(ack(20, "l1", A), ack(40, "l2", A, noop=True))) == []


def test_a_gap_inside_a_pop_is_found() -> None:
    """G-Q5."""
    assert [found.promise for found in delivery.check_no_skip(history(pop(10, A, C)))] == ["G-Q5"]


def test_a_start_past_what_may_be_done_is_found() -> None:
    """G-Q5: nobody acked offset 0, yet 1 comes."""
    assert [found.promise for found in delivery.check_no_skip(history(pop(10, B)))] == ["G-Q5"]


def test_a_start_after_an_unknown_ack_passes() -> None:
    """G-Q5: `maybe acked` counts, a refused ack does not."""
    perhaps = history(pop(10, A, lease="l1"), ack(20, "l1", A, outcome=Outcome.INFO), pop(30, B))
    refused = history(pop(10, A, lease="l1"), ack(20, "l1", A, success=False), pop(30, B))
    assert delivery.check_no_skip(perhaps) == []
    assert len(delivery.check_no_skip(refused)) == 1
