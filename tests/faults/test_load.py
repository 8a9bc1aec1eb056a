"""The labels of the test clients agree with the product's own table of refusals (guarantees.md 2, errors.py)."""

from __future__ import annotations

import pytest

from queen_node import errors
from queen_node.errors import Applied, Refusal, Refused
from tests.checkers.history import Outcome
from tests.faults.load import label
from tests.support.http_client import Answer
from tests.support.wire import parse_time_us

REFUSALS = {name: value for name, value in vars(errors).items() if isinstance(value, Refusal)}


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_a_refusal_is_labelled_no_bolder_than_it_is(name: str) -> None:
    """What may have been applied is never labelled `fail`; below 500 everything is."""
    refusal = REFUSALS[name]
    outcome, why = label(Answer(refusal.status, {}, Refused(refusal).body()))
    assert why.startswith(str(refusal.status))
    if refusal.applied is Applied.UNKNOWN:
        assert outcome is Outcome.INFO
    if refusal.status < 500 or refusal.code.endswith("_disabled") or "no_leader" in (refusal.code, refusal.reason):
        assert outcome is Outcome.FAIL
        assert refusal.applied is Applied.NO


@pytest.mark.parametrize("status", [200, 201, 204])
def test_answers_that_are_ok(status: int) -> None:
    """A verdict is no failure."""
    assert label(Answer(status, {}, b"")) == (Outcome.OK, "")


def test_times_are_read_to_the_microsecond() -> None:
    """Six digits and three; a float would lose the last one."""
    assert parse_time_us("2026-10-03T09:14:03.512887Z") - parse_time_us("2026-10-03T09:14:03.512Z") == 887
    assert parse_time_us("1970-01-01T00:00:00.000001Z") == 1
