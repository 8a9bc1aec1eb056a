"""The key/value checkers prove themselves."""

from __future__ import annotations

import pytest

from tests.checkers import kv
from tests.checkers.history import Call, History, Kv, Outcome
from tests.checkers.scenes import NS, history

CHECKERS = kv.check_registers, kv.check_no_value_from_nowhere, kv.check_counters, kv.check_pairs


def call(
    kind: str, at: float, *seen: tuple[object, int], wrote: str | None = None, expect: int | None = None,
    applied: bool | None = None, took: float = 2, outcome: Outcome = Outcome.OK, keys: tuple[str, ...] = ("k",),
) -> Kv:
    """A call that showed `seen`; a write of what is seen applied."""
    if applied is None:
        applied = outcome is Outcome.OK and kind != "get" and kind != "read pair" and (
            kind == "incr" or bool(seen and seen[0][0] == wrote))
    return Kv(
        client=1, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=outcome, kind=kind, keys=keys,
        wrote=wrote, expect=expect, applied=applied, seen=seen)


def put(value: str, at: float, version: int, *, took: float = 2) -> Kv:
    return call("put", at, (value, version), wrote=value, took=took)


def get(at: float, value: object, version: int, *, took: float = 2) -> Kv:
    return call("get", at, (value, version), took=took)


def lost_put(value: str, at: float, outcome: Outcome = Outcome.INFO) -> Kv:
    return call("put", at, wrote=value, outcome=outcome)


def pair(at: float, first: tuple[object, int], second: tuple[object, int], *, wrote: str | None = None) -> Kv:
    kind = "read pair" if wrote is None else "write pair"
    return call(kind, at, first, second, wrote=wrote, keys=("x", "y"))


def found(run: History) -> set[str]:
    return {violation.promise for checker in CHECKERS for violation in checker(run)}


@pytest.mark.parametrize("calls", [
    (get(0, None, 0), put("a", 5, 3), get(10, "a", 3), put("b", 15, 7), get(20, "b", 7)),
    (put("a", 0, 3, took=20), get(5, None, 0), get(10, "a", 3)),
    (put("a", 0, 3), lost_put("b", 5), get(10, "b", 4), get(15, "b", 4)),
    (put("a", 0, 3), call("cas", 5, ("b", 4), wrote="b", expect=3), call("cas", 9, ("b", 4), wrote="c", expect=3)),
    (call("incr", 0, (1, 2)), call("incr", 0, outcome=Outcome.INFO), get(9, 2, 3)),
    (call("incr", 0, (1, 2)), call("incr", 0, outcome=Outcome.INFO), get(9, 1, 2)),
    (call("incr", 0, outcome=Outcome.INFO), get(9, None, 0)),
    (pair(0, ("a", 1), ("a", 2), wrote="a"), pair(3, ("b", 3), ("b", 4), wrote="b"), pair(9, ("b", 3), ("b", 4))),
])
def test_clean_histories_pass(calls: tuple[Call, ...]) -> None:
    assert found(history(*calls)) == set()


@pytest.mark.parametrize(("promise", "calls"), [
    ("G-K1", (put("a", 0, 3), put("b", 5, 4), get(10, "a", 3))),  # an old value after a newer one was answered
    ("G-K1", (put("a", 0, 3), get(10, None, 0))),  # lost
    ("G-K1", (put("a", 0, 3), put("b", 5, 3))),  # one version twice
    ("G-K1", (put("a", 0, 4), put("b", 5, 3))),  # versions run backwards
    ("G-K1", (get(0, "b", 4), get(5, "a", 3), lost_put("a", 0), lost_put("b", 0))),
    ("G-K1", (lost_put("a", 0, Outcome.FAIL), get(5, "a", 3))),  # surely not applied, and seen
    ("G-K1", (put("a", 0, 3), put("b", 5, 4), call("cas", 9, ("c", 5), wrote="c", expect=3))),
    ("G-K3", (call("claim", 0, ("a", 3), wrote="a", expect=0), call("claim", 1, ("b", 4), wrote="b", expect=0))),
    ("G-K4", (call("incr", 0, (1, 2)), call("incr", 3, (2, 3)), get(9, 3, 4))),  # doubled
    ("G-K4", (call("incr", 0, (1, 2)), call("incr", 0, (1, 3)))),  # lost
    ("G-K2", (pair(0, ("a", 1), ("a", 2), wrote="a"), pair(5, ("b", 3), ("a", 2)))),  # half of a call
    ("G-K2", (pair(0, ("a", 1), ("a", 4), wrote="a"), pair(1, ("b", 3), ("b", 2), wrote="b"))),  # not in one order
])
def test_broken_histories_are_found(promise: str, calls: tuple[Call, ...]) -> None:
    assert promise in found(history(*calls))
