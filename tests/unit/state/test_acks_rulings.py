"""The cursor arithmetic of one ack (PA-50 to PA-55), by example and against a slow twin that walks up the offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.commands import AckStatus
from queen_node.state.rulings import Ruling, rule

C, R, F, D = AckStatus.COMPLETED, AckStatus.RETRY, AckStatus.FAILED, AckStatus.DLQ
CURSOR = 9  # of a claim 10-19


@pytest.mark.parametrize(("marks", "reached", "stop", "filed"), [
    # PA-50: silent gaps below are completed implicitly.
    ({14: C}, 14, None, {}),
    ({10: C, 19: C}, 19, None, {}),
    # PA-51: the cursor stops below the lowest message that comes back, at the last one said to be done.
    ({10: C, 11: C, 12: R}, 11, 12, {}),
    ({12: F}, 9, 12, {}),  # PA-53's Open: nothing said of 10 and 11
    ({10: C, 12: F, 14: C, 16: D}, 10, 12, {}),
    ({12: R, 11: D, 13: F}, 11, 12, {11: 0}),
    # PA-52: what is filed does not stop the cursor.
    ({12: D}, 12, None, {12: 0}),
    ({11: D, 13: D, 15: C}, 15, None, {11: 0, 13: 0}),
    ({}, 9, None, {}),
])
def test_examples(marks: dict[int, int], reached: int, stop: int | None, filed: dict[int, int]) -> None:
    ruling = rule(CURSOR, marks, retries=0, retry_limit=3)
    assert (ruling.reached, ruling.stop, ruling.filed) == (reached, stop, filed)


def test_the_counter_is_spent_once_a_call_and_the_next_failure_files() -> None:
    """PA-55: N failures redeliver, failure N+1 files; all that failed in that call leave together."""
    marks = {10: F, 12: F}
    assert rule(CURSOR, marks, retries=0, retry_limit=2) == Ruling(9, 10, {}, 1, True)
    assert rule(CURSOR, marks, retries=1, retry_limit=2) == Ruling(9, 10, {}, 2, True)
    assert rule(CURSOR, marks, retries=2, retry_limit=2) == Ruling(12, None, {10: 2, 12: 2}, 0, True)


def test_a_cursor_that_moves_resets_the_counter_before_the_charge() -> None:
    """PA-55's Open: N is per message."""
    assert rule(CURSOR, {10: C, 11: F}, retries=3, retry_limit=3) == Ruling(10, 11, {}, 1, True)
    assert rule(CURSOR, {10: C, 11: R}, retries=3, retry_limit=3) == Ruling(10, 11, {}, 0, True)
    assert rule(CURSOR, {10: C}, retries=3, retry_limit=3) == Ruling(10, None, {}, 0, False)


def test_a_failure_above_a_retry_spends_nothing() -> None:
    """PA-51: it has no effect."""
    assert rule(CURSOR, {10: R, 11: F}, retries=1, retry_limit=1) == Ruling(9, 10, {}, 1, True)


def slow_rule(
    committed: int, marks: dict[int, int], retries: int, retry_limit: int,
) -> tuple[int, int | None, set[int], int]:
    """Walks up from the cursor, one offset after the other: (reached, stop, filed, retries)."""
    reached, filed, exhausted, charged = committed, set[int](), None, False
    for offset in range(committed + 1, committed + 12):
        status = marks.get(offset)
        if status is None:
            continue
        if status == F and exhausted is None:
            retries = 0 if reached > committed else retries
            exhausted = retries >= retry_limit
        if status == R or (status == F and not exhausted):
            charged = status == F
            return reached, offset, filed, (0 if reached > committed else retries) + charged
        if status in (F, D):
            filed.add(offset)
        reached = offset
    return reached, None, filed, 0 if reached > committed else retries


@given(
    marks=st.dictionaries(st.integers(10, 20), st.sampled_from([C, C, R, F, D])), retries=st.integers(0, 4),
    retry_limit=st.integers(0, 3))
def test_agrees_with_the_walk(marks: dict[int, int], retries: int, retry_limit: int) -> None:
    ruling = rule(CURSOR, marks, retries=retries, retry_limit=retry_limit)
    assert (ruling.reached, ruling.stop, set(ruling.filed), ruling.retries) == slow_rule(
        CURSOR, marks, retries, retry_limit)
    assert ruling.final == any(status != C for status in marks.values())
