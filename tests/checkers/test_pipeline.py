"""The pipeline's checkers prove themselves."""

from __future__ import annotations

import pytest

from tests.checkers import pipeline
from tests.checkers.history import Call, Feed, History, Message, Outcome, PipelineStep
from tests.checkers.scenes import message

CHECKERS = pipeline.check_inputs, pipeline.check_steps, pipeline.check_parts


def feed(txn: str, outcome: Outcome = Outcome.OK) -> Feed:
    return Feed(
        client=1, start_ns=0, end_ns=1, outcome=outcome, queue="inputs", partition="k", txn=txn, payload={})


def step(attempt: str, txn: str, outcome: Outcome = Outcome.OK) -> PipelineStep:
    return PipelineStep(
        client=1, start_ns=2, end_ns=3, outcome=outcome, key="k", input_txn=txn, attempt=attempt)


def output(attempt: str, txn: str, offset: int = 0) -> Message:
    return message(attempt, offset, 5, payload={"input": txn, "attempt": attempt, "key": "k"})


def run(
    *calls: Call, outputs: tuple[Message, ...], late: tuple[Message, ...] | None = None, counted: int | None = None,
) -> set[str]:
    history = History(
        list(calls), outputs=list(outputs), late_outputs=list(outputs if late is None else late),
        step_counts={"k": len(outputs) if counted is None else counted})
    return {violation.promise for checker in CHECKERS for violation in checker(history)}


def test_clean_runs_pass() -> None:
    a, b = output("1", "a"), output("2", "b", 1)
    assert run(feed("a"), feed("b"), step("1", "a"), step("2", "b"), outputs=(a, b)) == set()
    assert run(feed("a"), step("0", "a", Outcome.FAIL), step("1", "a"), outputs=(a,)) == set()
    assert run(feed("a"), step("1", "a", Outcome.INFO), outputs=(a,)) == set()
    assert run(feed("a", Outcome.INFO), outputs=()) == set()
    repeated = step("1", "a", Outcome.INFO), step("1", "a", Outcome.FAIL)
    assert run(feed("a"), *repeated, outputs=(a,)) == set()
    assert run(feed("a"), *repeated, step("3", "a"), outputs=(output("3", "a"),)) == set()
    assert run(feed("a"), step("1", "a", Outcome.INFO), step("1", "a"), outputs=(a,)) == set()


@pytest.mark.parametrize(("promise", "found"), [
    ("G-T1", run(feed("a"), outputs=())),  # lost
    ("G-T1", run(feed("a"), step("1", "a"), step("2", "a"), outputs=(output("1", "a"), output("2", "a", 1)))),
    ("G-T1", run(feed("a"), step("1", "a", Outcome.FAIL), outputs=(output("1", "a"),))),  # rolled back, and seen
    ("G-T1", run(feed("a"), step("1", "a"), outputs=(output("1", "a"), output("1", "a", 1)))),
    ("G-T1", run(feed("a"), step("1", "a"), outputs=(output("1", "a"),), counted=2)),
    ("G-T1", run(feed("a"), step("1", "a", Outcome.INFO), step("1", "a"), outputs=())),
    ("G-T1", run(feed("a"), step("1", "a", Outcome.FAIL), step("1", "a", Outcome.FAIL), outputs=(output("1", "a"),))),
    ("G-T3", run(feed("a"), step("1", "a"), step("1", "a"), outputs=(output("1", "a"),))),
    ("G-T4", run(feed("a"), step("1", "a"), outputs=(output("1", "a"),), late=())),
    ("G-T4", run(feed("a"), step("1", "a"), outputs=(output("1", "a"),), late=(output("1", "a"), output("1", "a", 1)))),
    ("G-T4", run(feed("a"), step("0", "a", Outcome.FAIL), step("1", "a"), outputs=(output("1", "a"),),
                 late=(output("1", "a"), output("0", "a", 1)))),  # the timer of a step that was rolled back
])
def test_broken_runs_are_found(promise: str, found: set[str]) -> None:
    assert promise in found
