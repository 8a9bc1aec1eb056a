"""The log's checkers prove themselves: a fault put into a history is found, a clean one passes."""

from __future__ import annotations

from tests.checkers import log
from tests.checkers.history import History, Outcome
from tests.checkers.scenes import history, message, pop, push, schedule


def clean() -> History:
    """Two pushes and a fire, one of the pushes unknown and stored."""
    a, b, c = message("a", 0, 1), message("b", 1, 5), message("t", 2, 111)
    return history(
        push("a", 0, 0), push("b", 4, -1, outcome=Outcome.INFO), push("f", 6, -1, outcome=Outcome.FAIL),
        schedule("t", 10), pop(200, a, b, c), log=(a, b, c),
    )


def test_a_clean_history_passes() -> None:
    """Every check of the file, on a run in which nothing went wrong."""
    for check in (
        log.check_acknowledged_pushes, log.check_one_value_an_offset, log.check_no_gap, log.check_stored_once,
        log.check_stamps, log.check_nothing_invented,
    ):
        assert check(clean()) == []


def test_a_lost_push_is_found() -> None:
    """G-D1."""
    lost = history(push("a", 0, 0), push("b", 4, 1), log=(message("a", 0, 1),))
    assert [found.promise for found in log.check_acknowledged_pushes(lost)] == ["G-D1"]


def test_another_record_at_the_offset_is_found() -> None:
    """G-L1."""
    wrong = history(push("a", 0, 0), log=(message("x", 0, 1),))
    assert [found.promise for found in log.check_acknowledged_pushes(wrong)] == ["G-L1"]


def test_a_duplicate_that_names_a_wrong_offset_is_found() -> None:
    """G-L1, PU-52: a duplicate names the original's place."""
    wrong = history(
        push("a", 0, 0), push("a", 9, 1, status="duplicate"), log=(message("a", 0, 1), message("b", 1, 2)),
    )
    assert [found.promise for found in log.check_acknowledged_pushes(wrong)] == ["G-L1"]


def test_two_values_at_one_offset_are_found() -> None:
    """G-L3."""
    torn = history(pop(5, message("a", 0, 1)), pop(9, message("b", 0, 1)), log=(message("a", 0, 1),))
    assert [found.promise for found in log.check_one_value_an_offset(torn)] == ["G-L3"]


def test_a_gap_is_found() -> None:
    """G-L4: also when the log does not begin at 0."""
    assert log.check_no_gap(history(log=(message("a", 0, 1), message("b", 2, 2))))
    assert log.check_no_gap(history(log=(message("b", 1, 2),)))


def test_one_id_at_two_offsets_is_found() -> None:
    """G-L2."""
    twice = history(push("a", 0, 0), log=(message("a", 0, 1), message("a", 1, 2)))
    assert [found.promise for found in log.check_stored_once(twice)] == ["G-L2"]


def test_a_timer_beside_a_push_of_its_txn_is_found() -> None:
    """G-M7: the fire had to append nothing."""
    twice = history(
        push("t", 0, 0), schedule("t", 5), log=(message("t", 0, 1), message("t", 1, 106, message_id="id-other")),
    )
    assert [found.promise for found in log.check_stored_once(twice)] == ["G-L2"]


def test_a_falling_stamp_is_found() -> None:
    """G-L5."""
    assert log.check_stamps(history(log=(message("a", 0, 5), message("b", 1, 4))))


def test_a_message_that_surely_failed_is_found() -> None:
    """G-D4: effect after a `fail`."""
    ghost = history(push("a", 0, -1, outcome=Outcome.FAIL), log=(message("a", 0, 1),))
    assert [found.promise for found in log.check_nothing_invented(ghost)] == ["G-D4"]


def test_a_message_nobody_sent_is_found() -> None:
    """G-D4."""
    assert log.check_nothing_invented(history(log=(message("a", 0, 1),)))


def test_a_changed_payload_is_found() -> None:
    """G-D3: wrong bytes with status 200."""
    altered = history(push("a", 0, 0), log=(message("a", 0, 1, payload={"txn": "b"}),))
    assert [found.promise for found in log.check_nothing_invented(altered)] == ["G-D3"]
