"""The checkers of state machines prove themselves."""

from __future__ import annotations

import pytest

from tests.checkers import entities
from tests.checkers.history import History, Message, Move, Outcome
from tests.checkers.scenes import message

CHECKERS = entities.check_moves, entities.check_inputs, entities.check_timers


def move(
    attempt: str, before: str, txn: str, state: str, timer: str = "", status: str = "", *,
    outcome: Outcome = Outcome.OK, source: str = "events",
) -> Move:
    return Move(
        client=1, start_ns=0, end_ns=1, outcome=outcome, entity="e", attempt=attempt, before=before, source=source,
        input_txn=txn, state=state, timer=timer, status=status)


def event(txn: str, offset: int) -> Message:
    return message(txn, offset, 5, queue="events", partition="e")


def fired(attempt: str, offset: int = 0) -> Message:
    return message(attempt, offset, 9, queue="due", partition="e")


HOLD = move("m1", "", "a", "held", "schedule", "scheduled")
A, B = event("a", 0), event("b", 1)
ENDS = move("m2", "m1", "m1", "free", source="due")


def run(*moves: Move, log: tuple[Message, ...], end: tuple[str, str]) -> set[str]:
    history = History(list(moves), list(log), entities={"e": end}, drained=True)
    return {violation.promise for checker in CHECKERS for violation in checker(history)}


def confirm(status: str, outcome: Outcome = Outcome.OK) -> Move:
    return move("m2", "m1", "b", "done", "cancel", status, outcome=outcome)


def extend(status: str, outcome: Outcome = Outcome.OK) -> Move:
    return move("m2", "m1", "b", "held", "schedule", status, outcome=outcome)


IGNORED = move("m3", "m2", "m1", "done", source="due")
REFUSED = move("m9", "m1", "b", "held", "schedule", outcome=Outcome.FAIL)


def test_clean_histories_pass() -> None:
    """A deadline that came, one that was cancelled, one that came before its cancel and was ignored, one put off."""
    assert run(log=(), end=("free", "")) == set()
    assert run(HOLD, ENDS, log=(A, fired("m1")), end=("free", "m2")) == set()
    assert run(HOLD, confirm("cancelled"), log=(A, B), end=("done", "m2")) == set()
    assert run(HOLD, confirm("absent"), IGNORED, log=(A, B, fired("m1")), end=("done", "m3")) == set()
    late = move("m3", "m2", "m2", "free", source="due")
    assert run(HOLD, extend("rescheduled"), late, log=(A, B, fired("m2")), end=("free", "m3")) == set()
    assert run(HOLD, REFUSED, confirm("cancelled"), log=(A, B), end=("done", "m2")) == set()


def test_a_move_of_which_nobody_knows_is_judged_by_what_it_left() -> None:
    lost = move("m0", "", "a", "held", "schedule", outcome=Outcome.INFO)
    assert run(lost, HOLD, confirm("cancelled"), log=(A, B), end=("done", "m2")) == set()
    unknown = confirm("", Outcome.INFO)
    assert run(HOLD, unknown, log=(A, B), end=("done", "m2")) == set()
    assert "G-T4" in run(lost, HOLD, confirm("cancelled"), log=(A, B, fired("m0")), end=("done", "m2"))


@pytest.mark.parametrize(("promise", "found"), [
    ("G-T1", run(HOLD, confirm("cancelled"), log=(A,), end=("held", "m1"))),  # committed, and overwritten
    ("G-T1", run(HOLD, REFUSED, log=(A, B), end=("held", "m9"))),  # refused, and there
    ("G-T1", run(HOLD, confirm("cancelled"), log=(A, B), end=("free", "m2"))),  # another state than was written
    ("G-T1", run(HOLD, log=(A,), end=("held", "m7"))),
    ("G-T1", run(HOLD, confirm("cancelled"), log=(A, B, event("c", 2)), end=("done", "m2"))),  # happened, moved nothing
    ("G-T1", run(HOLD, move("m2", "m1", "a", "done", "cancel", "cancelled"), log=(A,), end=("done", "m2"))),  # twice
    ("G-T4", run(HOLD, log=(A,), end=("held", "m1"))),  # a step without its timer
    ("G-T4", run(HOLD, REFUSED, confirm("cancelled"), log=(A, B, fired("m9")), end=("done", "m2"))),  # without its step
    ("G-T4", run(HOLD, confirm("cancelled"), log=(A, B, fired("m1")), end=("done", "m2"))),
    ("G-T4", run(HOLD, confirm("absent"), log=(A, B), end=("done", "m2"))),  # neither fired nor there
    ("G-T4", run(HOLD, extend("scheduled"), log=(A, B, fired("m2")), end=("held", "m2"))),
    ("G-T4", run(HOLD, extend("rescheduled"), log=(A, B, fired("m1"), fired("m2", 1)), end=("held", "m2"))),
])
def test_broken_histories_are_found(promise: str, found: set[str]) -> None:
    assert promise in found
