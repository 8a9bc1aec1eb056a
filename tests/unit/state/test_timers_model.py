"""Random histories of timers against a dictionary: the books of W10, and G-M1 to G-M8."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from queen_node.commands import RulesOfFire
from queen_node.state.timers import Verdict, next_deadline_us
from tests.support.timer_state import TimerState, cancel, schedule

KEYS = ("a", "b", "ab", "c")
QUEUES = ("q", "qq")
PARTITIONS = ("Default", "p")
RULES = RulesOfFire(100, 400, 100, 3)


@dataclass
class Promise:
    """A pending timer of the model. at_us: when it is tried next."""

    txn: str
    partition: str
    deliver_at_us: int
    at_us: int
    order: int
    created_at_us: int
    attempts: int = 0


@dataclass
class Books:
    """What should be true."""

    pending: dict[tuple[str, str], Promise] = field(default_factory=dict)
    delivered: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (queue, partition) -> txns
    dead: list[str] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)  # cancelled or replaced: must never be delivered
    created: dict[tuple[str, str], int] = field(default_factory=dict)
    ended: dict[tuple[str, str], int] = field(default_factory=dict)
    order: int = 0

    def deliver(self, name: tuple[str, str], promise: Promise) -> None:
        txns = self.delivered.setdefault((name[0], promise.partition), [])
        if promise.txn not in txns:
            txns.append(promise.txn)
        self.end(name)

    def end(self, name: tuple[str, str]) -> None:
        self.pending.pop(name, None)
        self.ended[name] = self.ended.get(name, 0) + 1

    def schedule(self, name: tuple[str, str], txn: str, delay_ms: int, partition: str, now_us: int,
                 firing: bool) -> Verdict:
        before = self.pending.pop(name, None)
        if before is not None:
            self.removed.add(before.txn)
        else:
            self.created[name] = self.created.get(name, 0) + 1
        self.order += 1
        at_us = now_us + max(0, delay_ms) * 1000
        promise = Promise(txn, partition, at_us, at_us, self.order, before.created_at_us if before else now_us)
        if at_us <= now_us and firing:
            self.deliver(name, promise)
        else:
            self.pending[name] = promise
        return Verdict.SCHEDULED if before is None else Verdict.RESCHEDULED

    def cancel(self, name: tuple[str, str]) -> tuple[Verdict, str | None]:
        before = self.pending.get(name)
        if before is None:
            return Verdict.ABSENT, None
        self.removed.add(before.txn)
        self.end(name)
        return Verdict.CANCELLED, before.txn

    def fire(self, now_us: int, at_most: int, fail_queue: str, transient: bool) -> bool:
        due = sorted((promise.at_us, promise.order, name) for name, promise in self.pending.items()
                     if promise.at_us <= now_us)
        for _at_us, _order, name in due[:at_most]:
            promise = self.pending[name]
            if name[0] != fail_queue:
                self.deliver(name, promise)
            elif transient:
                promise.at_us = now_us + RULES.transient_backoff_ms * 1000
            else:
                promise.at_us = now_us + min(RULES.backoff_max_ms, RULES.backoff_min_ms << promise.attempts) * 1000
                promise.attempts += 1
                if promise.attempts == RULES.max_attempts:
                    self.dead.append(promise.txn)
                    self.end(name)
        return len(due) > at_most


names = st.tuples(st.sampled_from(QUEUES), st.sampled_from(KEYS))
schedules = st.tuples(st.just("schedule"), names, st.integers(0, 300), st.sampled_from(PARTITIONS), st.booleans())
cancels = st.tuples(st.just("cancel"), names)
fires = st.tuples(st.just("fire"), st.integers(1, 4), st.sampled_from(("", "", "", "q")), st.booleans())
advances = st.tuples(st.just("advance"), st.integers(0, 200))
repeats = st.tuples(st.just("repeat"), names, st.integers(0, 300))  # of a txn that was used before
histories = st.lists(st.one_of(schedules, cancels, fires, advances, repeats, st.tuples(st.just("restart"))),
                     max_size=50)


class Run:
    """A history applied to both."""

    def __init__(self) -> None:
        self.state, self.books = TimerState(), Books()
        self.versions = 0
        self.last_txn = "t0"

    def do(self, step: tuple[object, ...]) -> None:
        """One step of the history."""
        match step:
            case ("schedule", (queue, key), delay_ms, partition, firing):
                self.versions += 1
                self.last_txn = f"t{self.versions}"
                self._schedule(str(queue), str(key), int(str(delay_ms)), str(partition), bool(firing))
            case ("repeat", (queue, key), delay_ms):
                self._schedule(str(queue), str(key), int(str(delay_ms)), "Default", True)
            case ("cancel", (queue, key)):
                (result,) = self.state.apply(cancel(str(key), queue=str(queue)))
                verdict, txn = self.books.cancel((str(queue), str(key)))
                assert (result[0], result[3]) == (verdict, None if txn is None else txn.encode())
            case ("fire", at_most, fail_queue, transient):
                rules = RULES._replace(fail_queue=str(fail_queue).encode(), fail_transient=bool(transient))
                limit = int(str(at_most))
                more = self.state.fire(at_most=limit, rules=rules)
                assert more == self.books.fire(self.state.now_us, limit, str(fail_queue), bool(transient))
            case ("advance", ms):
                self.state.advance(int(str(ms)))
            case _:
                self.state.restart()
        self.check()

    def _schedule(self, queue: str, key: str, delay_ms: int, partition: str, firing: bool) -> None:
        (result,) = self.state.apply(
            schedule(key, delay_ms, queue=queue, txn=self.last_txn, partition=partition), firing=firing)
        verdict = self.books.schedule((queue, key), self.last_txn, delay_ms, partition, self.state.now_us, firing)
        assert result[0] is verdict

    def check(self) -> None:
        """Everything that a client could see is as the books have it."""
        state, books = self.state, self.books
        assert state.pending == len(books.pending)
        earliest_us = min((promise.at_us for promise in books.pending.values()), default=None)
        assert next_deadline_us(state.store) == earliest_us
        for queue in QUEUES:
            for key in KEYS:
                timer, promise = state.peek(key, queue), books.pending.get((queue, key))
                assert (timer is None) == (promise is None)
                if timer is not None and promise is not None:
                    assert (timer.txn.decode(), timer.partition.decode(), timer.deliver_at_us, timer.attempts) == (
                        promise.txn, promise.partition, promise.deliver_at_us, promise.attempts)
                    assert state.created_at_us(key, queue) == promise.created_at_us
            for partition in PARTITIONS:
                assert state.txns(queue, partition) == books.delivered.get((queue, partition), [])
        assert sorted(letter.transaction_id.decode() for letter in state.dead_letters()) == sorted(books.dead)
        for name, created in books.created.items():
            assert books.ended.get(name, 0) + (name in books.pending) == created, "the books of W10"


@settings(max_examples=250)
@given(histories)
def test_any_history_keeps_the_books(history: list[tuple[object, ...]]) -> None:
    """G-M1 to G-M8 and TM-54 on histories of schedules, reschedules, cancels, fires, refusals, pauses and restarts."""
    run = Run()
    for step in history:
        run.do(step)
    for _ in range(RULES.max_attempts + 1):  # nothing is lost: in the end all that is pending has fired
        run.do(("advance", 1000))
        run.do(("fire", 100, "", False))
    assert run.state.pending == 0
    delivered = {txn for txns in run.books.delivered.values() for txn in txns}
    reused = {txn for txn in run.books.removed if txn in delivered}
    assert all(txn == "t0" or _was_scheduled_again(history, txn) for txn in reused), "a removed version was delivered"


def _was_scheduled_again(history: list[tuple[object, ...]], txn: str) -> bool:
    """Whether a later `repeat` used the txn: only then may a version removed once be delivered."""
    version = 0
    for step in history:
        version += step[0] == "schedule"
        if step[0] == "repeat" and txn == f"t{version}":
            return True
    return False
