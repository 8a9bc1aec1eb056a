"""Schedule, reschedule, cancel: what a call does to the state (timers.md 2, 3)."""

from __future__ import annotations

import pytest

from queen_node.places import place
from queen_node.state import queues
from queen_node.state.keys import CALENDAR, CALENDAR_TIMERS, TIMER, TIMER_PAYLOAD, after
from queen_node.state.queues import find_queue
from queen_node.state.rows import QueueOptions
from queen_node.state.timer_rows import INLINE_PAYLOAD_MAX_BYTES
from queen_node.state.timers import Verdict, apply_timers, due_figures, due_places, next_deadline_us
from tests.support.timer_state import RULES, START_US, TimerState, cancel, schedule

DAY_MS = 86_400_000


def test_a_timer_is_pending_until_its_time_and_then_a_message() -> None:
    """TM-1, TM-2, TM-52, G-M1, G-M2, G-M5."""
    state = TimerState()
    state.apply(schedule("k", 1000, txn="t-1", payload=b'{"n":1}', producer=b"alice", message_id=b"m" * 16))
    state.advance(999)
    assert not state.fire()
    assert state.messages() == [] and state.peek("k") is not None and state.pending == 1
    state.advance(1)  # deliver_at == now is due
    assert not state.fire()
    (message,) = state.messages()
    assert (message.transaction_id, message.message_id, message.payload) == (b"t-1", b"m" * 16, b'{"n":1}')
    assert (message.producer_sub, message.trace_id, message.created_at_us) == (b"alice", None, START_US + 1_000_000)
    assert state.peek("k") is None and state.pending == 0
    state.advance(DAY_MS)
    state.fire()
    assert len(state.messages()) == 1, "fired twice"


def test_nothing_exists_before_the_fire() -> None:
    """TM-1: neither queue nor partition need exist; TM-51: the fire makes them with a push's defaults."""
    state = TimerState()
    state.apply(schedule("k", 1000, queue="billing.invoices", partition="p7"))
    assert find_queue(state.store, b"billing.invoices") is None
    state.advance(1000)
    state.fire()
    queue = find_queue(state.store, b"billing.invoices")
    assert queue is not None and queue.options.lease_time == 60 and queue.namespace == b"billing"
    assert state.txns("billing.invoices", "p7") == ["txn-k"]
    assert state.wakes == {b"billing.invoices": 1}, "CL-81: whoever waits there is woken"


def test_schedule_and_reschedule_are_one_upsert_named_by_what_was_there() -> None:
    """TM-12."""
    state = TimerState()
    assert state.verdict(schedule("k", 1000)) == [Verdict.SCHEDULED]
    assert state.verdict(schedule("k", 2000)) == [Verdict.RESCHEDULED]
    assert state.pending == 1
    assert state.verdict(cancel("k"), schedule("k2", 5)) == [Verdict.CANCELLED, Verdict.SCHEDULED]
    assert state.verdict(schedule("k", 1000)) == [Verdict.SCHEDULED]


@pytest.mark.parametrize("new_delay_ms", [10, 5000])
def test_a_reschedule_replaces_everything(new_delay_ms: int) -> None:
    """TM-53, G-M6: to an earlier and to a later time, to another partition; the old version never fires."""
    state = TimerState()
    state.apply(schedule("k", 1000, txn="old", payload=b"1", partition="a", producer=b"alice"))
    state.advance(1)
    state.apply(schedule("k", new_delay_ms, txn="new", payload=b"2", partition="b"))
    timer = state.peek("k")
    assert timer is not None and timer.deliver_at_us == START_US + 1000 + new_delay_ms * 1000
    assert (timer.txn, timer.payload, timer.partition, timer.producer_sub) == (b"new", b"2", b"b", None)
    assert state.created_at_us("k") == START_US and timer.updated_at_us == START_US + 1000
    state.advance(10_000)
    state.fire()
    assert state.messages("q", "a") == []
    assert [message.payload for message in state.messages("q", "b")] == [b"2"]


def test_created_at_is_the_first_schedule_since_the_key_was_absent() -> None:
    """TM-40."""
    state = TimerState()
    state.apply(schedule("k", 1000))
    for _ in range(3):
        state.advance(10)
        state.apply(schedule("k", 1000))
    assert state.created_at_us("k") == START_US
    state.apply(cancel("k"))
    state.apply(schedule("k", 1000))
    assert state.created_at_us("k") == state.now_us


def test_one_key_in_two_queues_is_two_timers() -> None:
    """TM-1."""
    state = TimerState()
    assert state.verdict(schedule("k", 10, queue="a"), schedule("k", 10, queue="b")) == [Verdict.SCHEDULED] * 2
    assert state.verdict(cancel("k", queue="a")) == [Verdict.CANCELLED]
    assert state.peek("k", "b") is not None


def test_names_that_begin_alike_are_kept_apart() -> None:
    """A queue is no prefix of another one's timers, whatever stands in the names."""
    state = TimerState()
    names = [("a", "bc"), ("ab", "c"), ("abc", "/"), ("a", "b/c"), ("ü", "ü"), ("a\x01", "b")]
    state.apply(*(schedule(key, 10, queue=queue) for queue, key in names))
    assert state.pending == len(names)
    for queue, key in names:
        assert state.verdict(cancel(key, queue=queue)) == [Verdict.CANCELLED]
    assert state.pending == 0 and next_deadline_us(state.store) is None


def test_cancelled_never_fires_and_answers_the_removed_timers_own_txn() -> None:
    """G-M3, TM-16, TM-30: the txn of the call is an echo for `absent`, no condition."""
    state = TimerState()
    state.apply(schedule("k", 10, txn="own"))
    (result,) = state.apply(cancel("k", txn="another"))
    assert result[:4] == (Verdict.CANCELLED, b"q", b"k", b"own")
    (again,) = state.apply(cancel("k", txn="another"))
    assert again[:4] == (Verdict.ABSENT, b"q", b"k", b"another")
    assert state.apply(cancel("k"))[0][3] is None
    state.advance(1000)
    state.fire()
    assert state.messages() == []


def test_absent_is_all_that_is_left_of_a_fired_timer() -> None:
    """TM-32, TM-18: and a schedule after the fire is a new timer."""
    state = TimerState()
    state.apply(schedule("k", 10))
    state.advance(10)
    state.fire()
    assert state.verdict(cancel("k")) == [Verdict.ABSENT]
    assert state.verdict(schedule("k", 10)) == [Verdict.SCHEDULED]
    state.advance(10)
    state.fire()
    assert state.txns() == ["txn-k"], "TM-18: the partition still remembers the txn"
    assert state.tally.timer_duplicates == 1 and state.peek("k") is None


def test_the_same_body_twice_leaves_one_timer() -> None:
    """TM-18."""
    state = TimerState()
    for _ in range(2):
        state.apply(schedule("a", 10), schedule("b", 20))
    assert state.pending == 2
    state.advance(20)
    state.fire()
    assert state.txns() == ["txn-a", "txn-b"]


def test_a_due_schedule_fires_in_its_own_entry_in_array_order() -> None:
    """TM-21, CL-73."""
    state = TimerState()
    results = state.apply(schedule("b", 0), schedule("later", 1), schedule("a", 0))
    assert [result[0] for result in results] == [Verdict.SCHEDULED] * 3
    assert [result[5] for result in results] == [START_US, START_US + 1000, START_US]
    assert state.txns() == ["txn-b", "txn-a"]
    assert state.peek("a") is None and state.pending == 1
    assert state.wakes == {b"q": 2}


def test_a_due_schedule_waits_for_no_older_timer_that_is_due() -> None:
    """TM-21."""
    state = TimerState()
    state.apply(schedule("old", 10))
    state.advance(50)
    state.apply(schedule("new", 0))
    assert state.txns() == ["txn-new"]
    state.fire()
    assert state.txns() == ["txn-new", "txn-old"]


def test_a_due_schedule_replaces_what_is_pending() -> None:
    state = TimerState()
    state.apply(schedule("k", 1000, txn="old"))
    assert state.verdict(schedule("k", 0, txn="new")) == [Verdict.RESCHEDULED]
    assert state.txns() == ["new"] and state.pending == 0 and next_deadline_us(state.store) is None


def test_with_firing_switched_off_a_due_schedule_is_stored() -> None:
    """TA-74, TM-21."""
    state = TimerState()
    state.apply(schedule("k", 0), firing=False)
    assert state.messages() == [] and state.pending == 1 and next_deadline_us(state.store) == START_US
    state.fire()
    assert state.txns() == ["txn-k"]


@pytest.mark.parametrize("delay_ms", [2**31 - 1, 2**31, 2**31 + 1, 2**32 * 1000, 7_776_000_000])
def test_no_delay_wraps_around(delay_ms: int) -> None:
    """TM-20: nothing breaks at 2^31 ms or 2^32 s."""
    state = TimerState()
    state.apply(schedule("k", delay_ms))
    state.advance(delay_ms - 1)
    state.fire()
    assert state.messages() == []
    state.advance(1)
    state.fire()
    assert state.txns() == ["txn-k"]


@pytest.mark.parametrize("size", [1, INLINE_PAYLOAD_MAX_BYTES, INLINE_PAYLOAD_MAX_BYTES + 1, 1 << 20])
def test_payloads_of_any_size_come_through_byte_for_byte(size: int) -> None:
    """Large ones stand apart from the calendar; nobody sees it."""
    state = TimerState()
    payload = bytes(index % 251 for index in range(size))
    state.apply(schedule("k", 10, payload=payload, flags=1, partition="p", producer=b"s"))
    state.restart()
    timer = state.peek("k")
    assert timer is not None and timer.payload == payload
    state.advance(10)
    state.fire()
    (message,) = state.messages("q", "p")
    assert (message.payload, message.payload_flags) == (payload, 1)


def test_a_queue_that_wants_encrypted_payloads_refuses_the_call_whole() -> None:
    """TM-24, TM-15: the option is state, so applying decides; nothing of the call is stored."""
    state = TimerState()
    step = state.begin()
    queues.make_queue(step, b"secret", namespace=b"", task=b"", options=QueueOptions(encryption_enabled=True))
    state.commit(step)
    step = state.begin()
    operations = [schedule("a", 10), cancel("x", queue="secret"), schedule("b", 10, queue="secret")]
    assert apply_timers(step, [2, b"", operations, True, False]) == (False, 2)
    state.commit(step)
    assert state.pending == 0 and state.peek("a") is None


def test_a_deadline_is_known_to_the_wheel_from_the_first_timer_on() -> None:
    """CL-81: a schedule into an empty table; and the earliest counts, not the last."""
    state = TimerState()
    assert next_deadline_us(state.store) is None
    state.apply(schedule("b", 2000))
    assert next_deadline_us(state.store) == START_US + 2_000_000
    state.apply(schedule("a", 1000), schedule("c", 3000))
    assert next_deadline_us(state.store) == START_US + 1_000_000
    state.apply(cancel("a"))
    assert next_deadline_us(state.store) == START_US + 2_000_000


def test_figures_of_what_is_due() -> None:
    state = TimerState()
    state.apply(schedule("a", 10, queue="x"), schedule("b", 20, queue="y"), schedule("c", 30, queue="x"))
    assert due_figures(state.store, state.now_us, 100) == (0, 0)
    assert due_figures(state.store, START_US + 25_000, 100) == (2, 15_000)
    assert due_figures(state.store, START_US + 99_000, 2) == (2, 89_000)
    x, y = place(b"x", b"Default"), place(b"y", b"Default")
    assert due_places(state.store, START_US + 99_000, 100) == {x: 2, y: 1}
    assert due_places(state.store, START_US + 99_000, 1) == {x: 1}
    assert state.pending == 3, "looking fires nothing"


def test_a_large_payload_leaves_no_row_behind() -> None:
    """Fired, cancelled, replaced by a small one, dead-lettered: what is gone is gone whole."""
    state = TimerState()
    large = b"x" * (INLINE_PAYLOAD_MAX_BYTES + 1)
    state.apply(*(schedule(key, 10, payload=large) for key in ("fires", "cancelled", "replaced", "due", "dead")))
    assert len(state.store.scan(TIMER_PAYLOAD, after(TIMER_PAYLOAD), 10)) == 5
    state.apply(cancel("cancelled"), schedule("replaced", 10), schedule("due", 0, payload=large),
                schedule("dead", 20, queue="q", payload=large))
    state.advance(10)
    state.fire()
    state.advance(10)
    state.fire(rules=RULES._replace(max_attempts=1, fail_queue=b"q"))
    assert state.pending == 0 and len(state.dead_letters()) == 1
    for kind in (TIMER_PAYLOAD, TIMER, CALENDAR + CALENDAR_TIMERS):
        assert state.store.scan(kind, after(kind), 10) == []
