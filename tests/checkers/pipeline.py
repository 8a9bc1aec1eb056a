"""Transactions of a pipeline: each input once, each step whole or not at all (W5, W13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from tests.checkers.history import Call, Feed, History, Message, Outcome, PipelineStep, Violation

T = TypeVar("T", bound=Call)


def check_inputs(history: History) -> list[Violation]:
    """G-T1, G-T2: an input that was acknowledged has one output; no input has two."""
    outputs = Counter(_field(message, "input") for message in history.outputs)
    found = []
    for feed in _of(history, Feed):
        count = outputs.pop(feed.txn, 0)
        least, most = int(feed.outcome is Outcome.OK), int(feed.outcome is not Outcome.FAIL)
        if not least <= count <= most:
            found.append(Violation("G-T1", f"input {feed.txn} has {count} outputs", (feed, *_steps(history, feed.txn))))
    return found + [Violation("G-T1", f"output of {txn}, which nobody pushed") for txn in outputs]


def check_steps(history: History) -> list[Violation]:
    """G-T1, G-T3, G-T5: a step that committed is seen, one that was rolled back is not, and none is seen twice, whether
    its client or the broker sent it again."""
    seen = Counter(_field(message, "attempt") for message in history.outputs)
    calls_of: dict[str, list[PipelineStep]] = {}
    for step in _of(history, PipelineStep):
        calls_of.setdefault(step.attempt, []).append(step)
    found = []
    for attempt, calls in calls_of.items():
        count = seen.pop(attempt, 0)
        committed = [call for call in calls if call.outcome is Outcome.OK]
        if len(committed) > 1:
            found.append(Violation("G-T3", f"step {attempt} committed twice", tuple(committed)))
        if not int(bool(committed)) <= count <= int(any(call.outcome is not Outcome.FAIL for call in calls)):
            found.append(Violation("G-T1", f"step {attempt} pushed {count} outputs", tuple(calls)))
    return found + [Violation("G-T1", f"output of step {attempt}, which nobody took") for attempt in seen]


def check_parts(history: History) -> list[Violation]:
    """G-T1, G-T4: every part of a step that committed is there once: its output, its timer, its count."""
    attempts = Counter(_field(message, "attempt") for message in history.outputs)
    fired = Counter(_field(message, "attempt") for message in history.late_outputs)
    found = [
        Violation("G-T4", f"step {attempt}: {attempts[attempt]} outputs, its timer fired {fired[attempt]} times")
        for attempt in sorted(attempts.keys() | fired.keys()) if attempts[attempt] != fired[attempt]]
    counted = Counter(_field(message, "key") for message in history.outputs)
    return found + [
        Violation("G-T1", f"{key}: {counted[key]} outputs, {history.step_counts.get(key, 0)} counted")
        for key in sorted(counted.keys() | history.step_counts.keys())
        if counted[key] != history.step_counts.get(key, 0)]


def _of(history: History, kind: type[T]) -> Iterable[T]:
    return (call for call in history.calls if isinstance(call, kind))


def _steps(history: History, input_txn: str) -> list[PipelineStep]:
    return [step for step in _of(history, PipelineStep) if step.input_txn == input_txn]


def _field(message: Message, name: str) -> str:
    assert isinstance(message.payload, dict), message
    return str(message.payload[name])
