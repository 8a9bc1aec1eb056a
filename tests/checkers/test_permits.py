"""The checkers of locks prove themselves."""

from __future__ import annotations

import pytest

from tests.checkers import permits
from tests.checkers.history import Call, Guarded, History, Holders, Outcome, Permit
from tests.checkers.scenes import NS, message

CHECKERS = (
    permits.check_tokens, permits.check_exclusive, permits.check_guards, permits.check_work, permits.check_holders)
TTL_MS = 1000


def moments(at: float, took: float = 2, outcome: Outcome = Outcome.OK) -> dict[str, object]:
    return {"client": 1, "start_ns": int(at * NS), "end_ns": int((at + took) * NS), "outcome": outcome}


def acquire(at: float, owner: str, granted: int, *, lock: str = "l#0", took: float = 2) -> Permit:
    return Permit(kind="acquire", lock=lock, owner=owner, ttl_ms=TTL_MS, granted=granted, **moments(at, took))  # type: ignore[arg-type]


def renew(
    at: float, owner: str, token: int, granted: int = 0, *, ttl_ms: int = TTL_MS, outcome: Outcome = Outcome.OK,
) -> Permit:
    return Permit(
        kind="renew", lock="l#0", owner=owner, ttl_ms=ttl_ms, token=token, granted=granted,
        **moments(at, outcome=outcome))  # type: ignore[arg-type]


def release(at: float, owner: str, token: int, *, outcome: Outcome = Outcome.OK) -> Permit:
    granted = token if outcome is Outcome.OK else 0
    return Permit(
        kind="release", lock="l#0", owner=owner, ttl_ms=TTL_MS, token=token, granted=granted,
        **moments(at, outcome=outcome))  # type: ignore[arg-type]


def work(at: float, token: int, txn: str = "w", *, outcome: Outcome = Outcome.OK) -> Guarded:
    return Guarded(lock="l#0", token=token, txn=txn, **moments(at, outcome=outcome))  # type: ignore[arg-type]


def look(at: float, *held: tuple[str, int, str]) -> Holders:
    return Holders(name_asked="l", held=held, **moments(at))  # type: ignore[arg-type]


def found(*calls: Call, stands: tuple[str, ...] | None = None) -> set[str]:
    """stands: the work that is there in the end; as was answered unless told otherwise."""
    if stands is None:
        stands = tuple(call.txn for call in calls if isinstance(call, Guarded) and call.outcome is Outcome.OK)
    run = History(
        list(calls), guarded=[message(txn, at, 5, partition="l#0") for at, txn in enumerate(stands)], drained=True)
    return {violation.promise for checker in CHECKERS for violation in checker(run)}


@pytest.mark.parametrize("calls", [
    (acquire(0, "a", 3), work(5, 3), renew(10, "a", 3, 4), work(15, 4, "w2"), release(20, "a", 4), acquire(25, "b", 9)),
    (acquire(0, "a", 3), acquire(999, "b", 4)),  # its lifetime may have begun at once
    (acquire(0, "a", 3), release(5, "a", 3, outcome=Outcome.INFO), acquire(9, "b", 4)),
    (acquire(0, "a", 3), work(5, 3, outcome=Outcome.FAIL)),  # its lifetime may be over
    (acquire(0, "a", 3), acquire(5, "a", 3)),  # `already`
    (acquire(0, "a", 3), acquire(1, "b", 4, lock="l#1"), acquire(1, "c", 5, lock="m#0")),
    (acquire(0, "a", 3), acquire(1500, "b", 4, took=10), work(1505, 3)),  # who was first, nobody knows
    (acquire(0, "a", 3, took=20), look(5, ("l#0", 1, "z")), look(30, ("l#0", 3, "a"))),
])
def test_clean_histories_pass(calls: tuple[Call, ...]) -> None:
    assert found(*calls) == set()


@pytest.mark.parametrize(("outcome", "over"), [(Outcome.INFO, 600), (Outcome.FAIL, 1000)])
def test_a_renewal_of_which_nobody_knows_may_have_made_it_shorter(outcome: Outcome, over: int) -> None:
    renewal = renew(200, "a", 3, ttl_ms=400, outcome=outcome)
    assert found(acquire(0, "a", 3), renewal, acquire(over + 1, "b", 5)) == set()
    assert found(acquire(0, "a", 3), renewal, acquire(over - 9, "b", 5)) == {"G-K6"}


def test_work_of_which_nobody_knows_may_stand_or_not() -> None:
    unknown = acquire(0, "a", 3), work(5, 3, outcome=Outcome.INFO)
    assert found(*unknown, stands=()) == found(*unknown, stands=("w",)) == set()


@pytest.mark.parametrize(("promise", "calls", "stands"), [
    ("G-K5", (acquire(0, "a", 3), acquire(1500, "b", 3)), None),  # one token for two
    ("G-K5", (acquire(0, "a", 3), acquire(5, "b", 3, lock="m#0")), None),
    ("G-K5", (acquire(0, "a", 3), release(5, "a", 3), acquire(9, "b", 2)), None),  # below the one before
    ("G-K6", (acquire(0, "a", 3), acquire(990, "b", 4)), None),  # too early
    ("G-K6", (acquire(0, "a", 3), renew(500, "a", 3, 4), acquire(1400, "b", 5)), None),  # before the renewal's end
    ("G-K6", (acquire(0, "a", 3), acquire(1500, "b", 4), work(1505, 3)), None),  # the permit had moved
    ("G-K6", (acquire(0, "a", 3), renew(5, "a", 3, 4), work(10, 3)), None),  # a token that was renewed is dead
    ("G-K6", (acquire(0, "a", 3), release(5, "a", 3), work(10, 3)), None),
    ("G-K6", (work(0, 4, "late"), work(0, 3, "early")), ("late", "early")),  # in the log, whatever the moments say
    ("G-T1", (acquire(0, "a", 3), work(5, 3)), ()),  # lost
    ("G-T1", (acquire(0, "a", 3), work(5, 3, outcome=Outcome.FAIL)), ("w",)),  # rolled back, and there
    ("G-T1", (acquire(0, "a", 3), work(5, 3)), ("w", "w")),
    ("G-T1", (), ("w",)),
    ("LK-28", (acquire(0, "a", 3), acquire(1500, "b", 4), look(1510, ("l#0", 3, "a"))), None),
])
def test_broken_histories_are_found(promise: str, calls: tuple[Call, ...], stands: tuple[str, ...] | None) -> None:
    assert promise in found(*calls, stands=stands)
