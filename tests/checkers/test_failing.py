"""The checkers of failing fires prove themselves."""

from __future__ import annotations

import pytest

from tests.checkers import failing
from tests.checkers.failing import LEAST_US
from tests.checkers.history import Call, Doomed, History, Letter, Message, Outcome
from tests.checkers.scenes import NS, clock_us, message

CHECKERS = (
    failing.check_fates, failing.check_what_is_removed, failing.check_letters, failing.check_mended,
    failing.check_peeks)
DUE_MS = 100


def schedule(txn: str, at: float = 0, *, status: str = "scheduled", outcome: Outcome = Outcome.OK) -> Doomed:
    return Doomed(
        client=1, start_ns=int(at * NS), end_ns=int((at + 2) * NS), outcome=outcome, kind="schedule", key="k", txn=txn,
        status=status if outcome is Outcome.OK else "", deliver_at_us=clock_us(at + DUE_MS))


def cancel(txn: str, at: float = 50, *, outcome: Outcome = Outcome.OK) -> Doomed:
    return Doomed(
        client=1, start_ns=int(at * NS), end_ns=int((at + 2) * NS), outcome=outcome, kind="cancel", key="k", txn=txn)


def peek(txn: str, attempts: int) -> Doomed:
    return Doomed(
        client=1, start_ns=9 * NS, end_ns=10 * NS, outcome=Outcome.OK, kind="peek", key="k", txn=txn,
        attempts=attempts)


def letter(
    txn: str, after_us: int = LEAST_US, *, at: float = 0, attempts: int = 5, group: str = "__timer__",
    payload: object = None,
) -> Letter:
    return Letter(
        txn, group, -1, attempts, {"version": txn} if payload is None else payload, clock_us(at + DUE_MS) + after_us)


def fired(txn: str, at: float = DUE_MS) -> Message:
    return message(txn, 0, at, payload={"version": txn})


def found(calls: tuple[Call, ...], letters: tuple[Letter, ...] = (), mended: tuple[Message, ...] = ()) -> set[str]:
    run = History(list(calls), letters=list(letters), mended=list(mended), drained=True)
    return {violation.promise for checker in CHECKERS for violation in checker(run)}


@pytest.mark.parametrize(("calls", "letters", "mended"), [
    ((schedule("a"),), (letter("a"),), ()),
    ((schedule("a"),), (), (fired("a"),)),
    ((schedule("a"), cancel("a")), (), ()),
    ((schedule("a"), cancel("")), (letter("a"),), ()),
    ((schedule("a"), schedule("b", 50, status="rescheduled")), (letter("b", at=50),), ()),
    ((schedule("a"), schedule("b", 5000)), (letter("a"), letter("b", at=5000)), ()),
    ((schedule("a"), schedule("x", 20, outcome=Outcome.FAIL), cancel("a")), (), ()),
    ((schedule("a"), cancel("", outcome=Outcome.INFO)), (), ()),
    ((schedule("a"), cancel("", outcome=Outcome.INFO)), (letter("a"),), ()),
    ((schedule("a"), schedule("b", 50, outcome=Outcome.INFO)), (letter("b", at=50),), ()),
    ((schedule("a"), peek("a", 4)), (letter("a"),), ()),
])
def test_clean_histories_pass(
    calls: tuple[Call, ...], letters: tuple[Letter, ...], mended: tuple[Message, ...],
) -> None:
    assert found(calls, letters, mended) == set()


@pytest.mark.parametrize(("promise", "calls", "letters", "mended"), [
    ("G-M9", (schedule("a"),), (), ()),  # neither fired nor filed
    ("G-M9", (schedule("a"),), (letter("a"),), (fired("a"),)),  # both
    ("G-M9", (schedule("a"),), (letter("a"), letter("a")), ()),
    ("G-M9", (schedule("a"), cancel("a")), (letter("a"),), ()),  # cancelled in its backoff, and filed
    ("G-M9", (schedule("a"), cancel("")), (), ()),  # nothing was pending, so it had come to its end
    ("G-M9", (schedule("a"), schedule("b", 50, status="rescheduled")), (letter("a"), letter("b", at=50)), ()),
    ("G-M9", (schedule("a", outcome=Outcome.FAIL),), (letter("a"),), ()),
    ("G-M9", (), (), (fired("z"),)),  # nobody's
    ("G-M9", (schedule("a"),), (letter("a", LEAST_US - 1),), ()),  # a wait was cut short
    ("G-M9", (schedule("a"), schedule("b", 900, status="rescheduled")), (letter("b", at=0),), ()),  # kept its failures
    ("G-M9", (schedule("a"),), (letter("a", attempts=4),), ()),
    ("G-M9", (schedule("a"),), (letter("a", group="g"),), ()),
    ("G-M9", (schedule("a"),), (letter("a", payload="?"),), ()),
    ("G-M9", (schedule("a"), peek("a", 5)), (letter("a"),), ()),
    ("G-M3", (schedule("a"), schedule("b", 50, status="rescheduled"), cancel("a", 90)), (), ()),
    ("G-M8", (schedule("a"),), (), (fired("a", DUE_MS - 1),)),
])
def test_broken_histories_are_found(
    promise: str, calls: tuple[Call, ...], letters: tuple[Letter, ...], mended: tuple[Message, ...],
) -> None:
    assert promise in found(calls, letters, mended)
