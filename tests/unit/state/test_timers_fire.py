"""The fire step: order, bounds, duplicates, refused fires (timers.md 5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queen_node.commands import RulesOfFire
from queen_node.state import queues
from queen_node.state.rows import QueueOptions
from queen_node.state.store import Pair
from queen_node.state.timers import Verdict, next_deadline_us
from tests.support.memory_engine import MemoryEngine
from tests.support.timer_state import START_US, TimerState, cancel, schedule

RULES = RulesOfFire(1000, 60_000, 1000, 5)
PERMANENT = RULES._replace(fail_queue=b"q")
TRANSIENT = RULES._replace(fail_queue=b"q", fail_transient=True)


def test_order_is_by_deadline_then_by_order_of_scheduling() -> None:
    """TM-50, README 10."""
    state = TimerState()
    state.apply(schedule("c", 30), schedule("z", 20), schedule("a", 20))
    state.advance(5)
    state.apply(schedule("m", 15), schedule("first", 1))
    state.advance(100)
    state.fire()
    assert state.txns() == ["txn-first", "txn-z", "txn-a", "txn-m", "txn-c"]


@pytest.mark.parametrize("at_most", [1, 2, 255, 256, 1000])
def test_a_thousand_equal_due_times_all_fire_in_order_whatever_the_bound(at_most: int) -> None:
    """TM-50; FAULTS A: 999 of 1000 fired with a bound of 1."""
    state = TimerState()
    count = 1000 if at_most > 2 else 200  # the twin sorts at each write
    state.apply(*(schedule(f"{index:04}", 10) for index in range(count)))
    state.advance(10)
    steps = 1
    while state.fire(at_most=at_most):
        steps += 1
        assert len(state.messages()) <= steps * at_most
    assert state.txns() == [f"txn-{index:04}" for index in range(count)]
    assert steps == -(-count // at_most), "a step that could be full was not"


def test_the_bound_in_bytes_and_the_first_that_is_larger() -> None:
    """TM-50: the first always fires, or it would block all behind it."""
    state = TimerState()
    state.apply(*(schedule(f"{index}", 10, payload=b"x" * 1000) for index in range(5)))
    state.advance(10)
    assert state.fire(max_bytes=2000) and state.txns() == ["txn-0", "txn-1"]
    assert state.fire(max_bytes=1) and state.txns() == ["txn-0", "txn-1", "txn-2"]
    assert not state.fire(max_bytes=2000) and len(state.txns()) == 5


def test_the_answer_says_whether_more_is_due_now() -> None:
    state = TimerState()
    state.apply(schedule("a", 10), schedule("b", 10), schedule("later", 1000))
    state.advance(10)
    assert state.fire(at_most=1) is True
    assert state.fire(at_most=1) is False, "what is due later is not due now"


def test_a_txn_in_the_window_appends_nothing_and_the_timer_is_done() -> None:
    """TM-51, CL-72, G-M7."""
    state = TimerState()
    state.apply(schedule("a", 0, txn="same"), schedule("b", 10, txn="same"))
    state.advance(10)
    state.fire()
    assert state.txns() == ["same"] and state.pending == 0
    assert (state.tally.fired, state.tally.timer_duplicates) == (0, 1)


@pytest.mark.parametrize("window_s", [3600, 0])
def test_two_due_timers_of_one_partition_with_one_txn_are_one_message(window_s: int) -> None:
    """TM-51, CL-74; and with the check switched off the first of one step wins too, as in a push (PU-52)."""
    state = TimerState()
    step = state.begin()
    queues.make_queue(step, b"q", namespace=b"", task=b"", options=QueueOptions(dedup_window_seconds=window_s))
    state.commit(step)
    state.apply(schedule("a", 10, txn="same", payload=b"1"), schedule("b", 10, txn="same", payload=b"2"),
                schedule("c", 10, txn="same", partition="other"))
    state.advance(10)
    state.fire()
    assert [message.payload for message in state.messages()] == [b"1"]
    assert state.txns("q", "other") == ["same"] and state.pending == 0


def test_lag_is_measured_from_the_deadline() -> None:
    state = TimerState()
    state.apply(schedule("a", 10), schedule("b", 30))
    state.advance(50)
    state.fire()
    assert state.tally.fire_lag_us == [40_000, 20_000] and state.tally.fired == 2


def test_a_queue_that_was_deleted_is_made_again_by_its_timers() -> None:
    """TM-56: timers name a queue, they do not belong to it. Overdue ones are never dropped (TM-57)."""
    state = TimerState()
    state.apply(schedule("a", 10))
    state.advance(3 * 86_400_000)
    state.fire()
    assert state.txns() == ["txn-a"]


def test_permanent_failures_are_spaced_1_2_4_8_s_and_the_fifth_files_a_dead_letter() -> None:
    """TM-54, TM-55, CL-75, W14, G-M9."""
    state = TimerState()
    state.apply(schedule("k", 10, txn="t", payload=b'{"n":1}', partition="p", producer=b"bob"))
    state.advance(10)
    for attempts, backoff_ms in ((1, 1000), (2, 2000), (3, 4000), (4, 8000)):
        state.fire(rules=PERMANENT)
        assert (state.tally.timer_failures, state.tally.timer_dead_letters) == (1, 0)
        timer = state.peek("k")
        assert timer is not None and timer.attempts == attempts and timer.last_error
        assert timer.updated_at_us == state.now_us
        assert timer.deliver_at_us == START_US + 10_000, "TM-40: during a backoff deliverAt stays what it was"
        assert next_deadline_us(state.store) == state.now_us + backoff_ms * 1000
        state.advance(backoff_ms - 1)
        state.fire(rules=PERMANENT)
        assert state.tally.timer_failures == 0, "tried inside the backoff"
        state.advance(1)
    state.fire(rules=PERMANENT)
    assert state.peek("k") is None and state.pending == 0 and next_deadline_us(state.store) is None
    (letter,) = state.dead_letters()
    assert (letter.offset, letter.transaction_id, letter.payload, letter.attempts) == (-1, b"t", b'{"n":1}', 5)
    assert (letter.partition, letter.producer_sub, letter.created_at_us) == (b"p", b"bob", START_US)
    assert letter.failed_at_us == state.now_us and letter.error
    assert state.messages("q", "p") == [] and state.verdict(cancel("k")) == [Verdict.ABSENT]


def test_the_backoff_grows_to_a_minute_and_no_further() -> None:
    """TM-54."""
    state = TimerState()
    rules = PERMANENT._replace(max_attempts=100)
    state.apply(schedule("k", 0, queue="other"), schedule("k", 1))
    state.advance(1)
    waits_ms = []
    for _ in range(50):
        state.fire(rules=rules)
        deadline_us = next_deadline_us(state.store)
        assert deadline_us is not None
        waits_ms.append((deadline_us - state.now_us) // 1000)
        state.now_us = deadline_us
    assert waits_ms[:8] == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] and set(waits_ms[7:]) == {60_000}


def test_transient_failures_wait_a_flat_second_and_count_nothing() -> None:
    """TM-54."""
    state = TimerState()
    state.apply(schedule("k", 10))
    state.advance(10)
    for _ in range(20):
        state.fire(rules=TRANSIENT)
        assert (state.tally.timer_failures, state.tally.timer_failures_transient) == (0, 1)
        timer = state.peek("k")
        assert timer is not None and timer.attempts == 0
        assert next_deadline_us(state.store) == state.now_us + 1_000_000
        state.advance(1000)
    state.fire()
    assert state.txns() == ["txn-k"]
    assert state.tally.fire_lag_us == [20_000_000], "late by the failures: measured from deliverAt"


def test_a_timer_whose_backoff_ended_counts_from_its_end() -> None:
    """TM-50."""
    state = TimerState()
    state.apply(schedule("failed", 10))
    state.advance(10)
    state.fire(rules=PERMANENT)
    state.apply(schedule("before", 999), schedule("after", 1001))
    state.advance(5000)
    state.fire()
    assert state.txns() == ["txn-before", "txn-failed", "txn-after"]


def test_a_failing_timer_never_holds_up_its_neighbours() -> None:
    """CL-76: in the same step, elsewhere."""
    state = TimerState()
    state.apply(*(schedule(f"{index}", 10, queue="q" if index % 2 else "good") for index in range(6)))
    state.advance(10)
    assert not state.fire(rules=PERMANENT)
    assert state.txns("good") == ["txn-0", "txn-2", "txn-4"]
    assert state.pending == 3 and state.txns() == []


def test_a_cancel_in_backoff_works_and_a_reschedule_forgets_the_failures() -> None:
    """TM-31, TM-53, W14."""
    state = TimerState()
    state.apply(schedule("a", 10, txn="t-a"), schedule("b", 10))
    state.advance(10)
    state.fire(rules=PERMANENT)
    assert state.apply(cancel("a"))[0][:4] == (Verdict.CANCELLED, b"q", b"a", b"t-a")
    assert state.verdict(schedule("b", 2000)) == [Verdict.RESCHEDULED]
    timer = state.peek("b")
    assert timer is not None and (timer.attempts, timer.last_error) == (0, None)
    assert state.created_at_us("b") == START_US
    state.advance(1999)
    state.fire()
    assert state.txns() == [], "the end of the old backoff means nothing any more"
    state.advance(1)
    state.fire()
    assert state.txns() == ["txn-b"]


def test_a_due_schedule_whose_fire_is_refused_is_stored_with_that_attempt_counted() -> None:
    """TM-21, TM-54."""
    state = TimerState()
    state.apply(schedule("k", 1000))
    (result,) = state.apply(schedule("k", 0, payload=b"2" * 2000), rules=PERMANENT)
    assert result[0] is Verdict.RESCHEDULED
    timer = state.peek("k")
    assert timer is not None and (timer.attempts, timer.payload) == (1, b"2" * 2000) and state.pending == 1
    assert next_deadline_us(state.store) == state.now_us + 1_000_000
    assert state.verdict(schedule("other", 0, queue="fine")) == [Verdict.SCHEDULED]
    (result,) = state.apply(schedule("last", 0), rules=PERMANENT._replace(max_attempts=1))
    assert result[0] is Verdict.SCHEDULED and state.peek("last") is None and len(state.dead_letters()) == 1
    assert state.pending == 1


def test_a_large_payload_survives_failures() -> None:
    state = TimerState()
    payload = b"y" * 5000
    state.apply(schedule("k", 10, payload=payload))
    state.advance(10)
    state.fire(rules=PERMANENT)
    state.restart()
    timer = state.peek("k")
    assert timer is not None and timer.payload == payload
    state.advance(1000)
    state.fire()
    assert [message.payload for message in state.messages()] == [payload]


class CountingEngine(MemoryEngine):
    """Counts the rows that scans hand out, and remembers where the last one began."""

    rows_read = 0
    began = b""

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        self.began = start
        for pair in super().iterate(start, end):
            self.rows_read += 1
            yield pair


def test_a_step_reads_what_it_fires_and_not_the_backlog() -> None:
    """FAULTS, timers: a backlog of due timers could make each step read everything due."""
    engine = CountingEngine()
    state = TimerState(engine)
    for batch in range(20):
        state.apply(*(schedule(f"{batch}-{index}", 10) for index in range(100)))
    state.advance(1000)
    for _ in range(10):
        engine.rows_read = 0
        assert state.fire(at_most=8)
        assert engine.rows_read <= 10


def test_a_restart_in_mid_backlog_goes_on_where_the_last_step_ended() -> None:
    """M-7, FAULTS B: nothing is fired again, nothing is skipped, and the fired ones are not walked over."""
    engine = CountingEngine()
    state = TimerState(engine)
    state.apply(*(schedule(f"{index:02}", 10) for index in range(50)))
    state.advance(10)
    state.fire(at_most=20)
    state.apply(schedule("now", 0), firing=False)  # due at this very stamp
    state.restart()
    assert next_deadline_us(state.store) == state.now_us
    assert engine.began[7:17] == b"\x21\x01" + state.now_us.to_bytes(8, "big")
    assert engine.began[17:] > b"\0" * 8, "begins at the time but before all that fired at it"
    state.fire()
    assert state.txns() == [*(f"txn-{index:02}" for index in range(50)), "txn-now"]
    state.restart()
    assert next_deadline_us(state.store) is None
    state.apply(schedule("again", 0), firing=False)
    state.restart()
    state.fire()
    assert state.txns()[-1] == "txn-again", "filed at the very stamp of the step before"
