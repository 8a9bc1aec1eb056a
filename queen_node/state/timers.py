"""Timers: messages promised now and pushed later. Schedule, cancel, fire (timers.md 2, 3, 5).

There is no claim and no state between pending and gone: a fire appends the message and strikes the timer in one entry
(CL-71), so a cancel or a reschedule lands before it or after it. What a timer's rows hold stands in `timer_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from queen_node.commands import RulesOfFire, TimerOp
from queen_node.places import place
from queen_node.state import calendar, deadletters, push, queues
from queen_node.state.keys import CALENDAR, CALENDAR_TIMERS, COUNTERS, two_u64
from queen_node.state.step import Step
from queen_node.state.store import CommittedStore, Store
from queen_node.state.timer_rows import (
    Place,
    Timer,
    pack,
    pack_in_backoff,
    pack_place,
    payload_key,
    read_place,
    timer_key,
    unpack,
)
from raft.invariants import broken, must

_CANCEL = int(TimerOp.CANCEL)
BACKOFF_DOUBLINGS_MAX = 32  # attempts are bounded by a setting; a shift must be bounded by itself
REFUSED_BY_HOOK = b"refused by the test hook QUEEN_TEST_FIRE_FAIL_QUEUE"

Operation = Sequence[Any]  # commands.ScheduleOp or commands.CancelOp


class Verdict(IntEnum):
    """What became of an operation (TM-16)."""

    SCHEDULED = 0
    RESCHEDULED = 1
    CANCELLED = 2
    ABSENT = 3


# (verdict, queue, key, txn or None, message id, deliver_at_us); a cancel has b"" and 0 for the last two
OperationResult = tuple[Verdict, bytes, bytes, bytes | None, bytes, int]
# (answered as the bare result of the DELETE?, results or the index of the operation that takes no clear text)
TimersAnswer = tuple[bool, list[OperationResult] | int]


CONTRACT_RULES = RulesOfFire()  # for due schedules whose command brings no rules of its own


def _append(step: Step, appender: push.Appender, timer: Timer) -> None:
    """Append the message of a timer, unless its txn is inside the partition's dedup window (TM-51)."""
    tally = step.tally
    tally.fire_lag_us.append(step.now_us - timer.deliver_at_us)
    _offset, original = appender.append(
        timer.queue, timer.partition, timer.txn, timer.message_id, timer.payload, timer.payload_flags, None,
        timer.producer_sub)
    if original is None:
        tally.fired += 1
    else:
        tally.timer_duplicates += 1


def apply_timers(step: Step, command: Sequence[Any]) -> TimersAnswer:
    """Apply the operations of one call in array order, all or none (TM-15). The door has checked what it can."""
    _kind, _request_id, operations, firing, one, *more = command  # more: rules, where they are not the contract's
    in_clear = first_in_clear(step.store, operations)
    if in_clear is not None:
        return one, in_clear
    rules = (RulesOfFire(*more[0]) if more else CONTRACT_RULES) if firing else None
    appender = push.Appender(step)
    results = carry_out(step, appender, operations, rules)
    appender.finish()
    return one, results


def carry_out(
    step: Step, appender: push.Appender, operations: Sequence[Operation], rules: RulesOfFire | None,
) -> list[OperationResult]:
    """Carry operations out in array order; the caller finishes the appender.

    rules: for timers that are due at once (TM-21); None while firing is switched off, then they are stored pending.
    """
    results: list[OperationResult] = []
    change = 0
    for operation in operations:
        if operation[0] == _CANCEL:
            result = _cancel(step, operation)
            change -= result[0] is Verdict.CANCELLED
        else:
            result, added = _schedule(step, appender, operation, rules)
            change += added
        results.append(result)
    _count(step.store, change)
    return results


def _schedule(
    step: Step, appender: push.Appender, operation: Operation, rules: RulesOfFire | None,
) -> tuple[OperationResult, int]:
    """Schedule, replacing what is pending under the key (TM-12, TM-53): (result, by how much more is pending)."""
    _op, queue, key, delay_ms, txn, message_id, payload, payload_flags, partition, producer_sub = operation
    store, now_us = step.store, step.now_us
    deliver_at_us = now_us + max(0, delay_ms) * 1000
    own_key = timer_key(queue, key)
    stored = store.get(own_key)
    verdict, created_at_us, was_pending = Verdict.SCHEDULED, now_us, 0
    if stored is not None:
        created_at_us = _strike(store, own_key, stored).created_at_us
        verdict, was_pending = Verdict.RESCHEDULED, 1
    sequence = step.sequence()
    step.tally.scheduled += 1
    result = (verdict, queue, key, txn, message_id, deliver_at_us)
    if rules is not None and deliver_at_us <= now_us:
        timer = Timer(queue, key, txn, message_id, payload, payload_flags, False, partition, producer_sub, now_us,
                      deliver_at_us)
        refusal = _refusal(queue, rules)
        if refusal is None:
            _append(step, appender, timer)
        elif _keep_refused(step, timer, sequence, created_at_us, refusal, rules):
            return result, 1 - was_pending
        return result, -was_pending
    row, apart = pack(queue, key, txn, message_id, payload, payload_flags, partition, producer_sub, now_us)
    _file(store, own_key, deliver_at_us, sequence, created_at_us, txn, row, apart)
    return result, 1 - was_pending


def _cancel(step: Step, operation: Operation) -> OperationResult:
    """Strike what is pending under the key; it will not fire (G-M3). No tombstone is kept (TM-32)."""
    _op, queue, key, echo = operation
    store, own_key = step.store, timer_key(queue, key)
    stored = store.get(own_key)
    if stored is None:
        return Verdict.ABSENT, queue, key, echo, b"", 0
    place = _strike(store, own_key, stored)
    step.tally.cancelled += 1
    return Verdict.CANCELLED, queue, key, place.txn, b"", 0


def apply_fire(step: Step, command: Sequence[Any]) -> tuple[bool]:
    """Fire what is due up to the entry's stamp, within the command's bounds: (whether more is due,).

    Earliest first, ties in order of scheduling; a timer whose backoff ended counts from its end (TM-50). The first
    comes even if it alone is over the bytes, or it would block all behind it. One that is refused is put off, and its
    neighbours fire (CL-76).
    """
    _kind, _request_id, at_most, max_bytes, *settings = command
    rules = RulesOfFire(*settings)
    store, appender = step.store, push.Appender(step)
    due = calendar.due(store, CALENDAR_TIMERS, step.now_us, at_most + 1)
    taken, taken_bytes, gone = 0, 0, 0
    for at_us, sequence, row in due[:at_most]:
        timer = unpack(at_us, row)
        own_key = timer_key(timer.queue, timer.key)
        if timer.apart:
            timer = timer._replace(payload=_stored(store.get, payload_key(own_key)))
        taken_bytes += len(timer.payload)
        if taken and taken_bytes > max_bytes:
            break
        taken += 1
        calendar.remove(store, CALENDAR_TIMERS, at_us, sequence)
        if timer.apart:
            store.delete(payload_key(own_key))
        refusal = _refusal(timer.queue, rules)
        if refusal is None:
            _append(step, appender, timer)
        else:
            created_at_us = read_place(_stored(store.get, own_key)).created_at_us
            if _keep_refused(step, timer, sequence, created_at_us, refusal, rules):
                continue
        store.delete(own_key)
        gone += 1
    appender.finish()
    _count(store, -gone)
    more = taken < len(due)
    if taken:
        # Whatever is filed later is due at its entry's stamp or after it, and behind what stands there already.
        calendar.set_floor(store, CALENDAR_TIMERS, *(due[taken][:2] if more else (step.now_us, 0)))
    return (more,)


def next_deadline_us(store: Store) -> int | None:
    """The earliest moment at which a timer is to be tried, µs of the group clock; None when nothing is pending."""
    return calendar.earliest(store, CALENDAR_TIMERS)


def due_places(store: Store, now_us: int, at_most: int) -> dict[bytes, int]:
    """Where a fire step of `at_most` timers would append, with how many: pops may ride behind it (M-41)."""
    counts: dict[bytes, int] = {}
    for at_us, _sequence, row in calendar.due(store, CALENDAR_TIMERS, now_us, at_most):
        timer = unpack(at_us, row)
        to = place(timer.queue, timer.partition)
        counts[to] = counts.get(to, 0) + 1
    return counts


def due_figures(store: Store, now_us: int, at_most: int) -> tuple[int, int]:
    """(timers due and not fired, counted up to `at_most`; µs since the oldest of them became due). For the figures."""
    due = calendar.due(store, CALENDAR_TIMERS, now_us, at_most)
    return len(due), now_us - due[0][0] if due else 0


def find(view: Store | CommittedStore, queue: bytes, key: bytes) -> tuple[Timer, int] | None:
    """A pending timer, its payload with it, and since when its key has been pending (µs); None when absent."""
    own_key = timer_key(queue, key)
    stored = view.get(own_key)
    if stored is None:
        return None
    timer = unpack(*row_of(view.get, stored))
    if timer.apart:
        timer = timer._replace(payload=_stored(view.get, payload_key(own_key)))
    return timer, read_place(stored).created_at_us


def row_of(get: Callable[[bytes], bytes | None], stored: bytes) -> tuple[int, bytes]:
    """What `unpack` takes, of the timer whose row by identity is `stored`. Both must be of one instant."""
    place = read_place(stored)
    return place.at_us, _stored(get, CALENDAR + CALENDAR_TIMERS + two_u64(place.at_us, place.sequence))


def _refusal(queue: bytes, rules: RulesOfFire) -> bytes | None:
    """Why a fire into `queue` is refused; None when it is not.

    Whatever the append could refuse is refused at the schedule already (TM-25), and encryption switched on later does
    not reach a pending timer (TM-24): so today only the test hook refuses a fire.
    """
    return REFUSED_BY_HOOK if rules.fail_queue and rules.fail_queue == queue else None


def _keep_refused(
    step: Step, timer: Timer, sequence: int, created_at_us: int, refusal: bytes, rules: RulesOfFire,
) -> bool:
    """Put off a timer whose fire was refused, or file its dead letter (TM-54, TM-55): whether it is still pending."""
    store, tally = step.store, step.tally
    attempts = timer.attempts
    if rules.fail_transient:
        tally.timer_failures_transient += 1
        backoff_ms = rules.transient_backoff_ms
    else:
        tally.timer_failures += 1
        backoff_ms = min(rules.backoff_max_ms, rules.backoff_min_ms << min(attempts, BACKOFF_DOUBLINGS_MAX))
        attempts += 1
        if attempts >= rules.max_attempts:
            queue, partition = queues.destination(step, timer.queue, timer.partition)
            deadletters.file(
                step, queue, partition, group=deadletters.TIMER_GROUP, offset=deadletters.TIMER_OFFSET,
                transaction_id=timer.txn, payload=timer.payload, payload_flags=timer.payload_flags, error=refusal,
                attempts=attempts, producer_sub=timer.producer_sub, created_at_us=created_at_us)
            tally.timer_dead_letters += 1
            return False
    retry_at_us = step.now_us + max(1, backoff_ms) * 1000  # at once would be below the floor, and in this very step
    row, apart = pack_in_backoff(
        timer._replace(updated_at_us=step.now_us, attempts=attempts, last_error=refusal))
    _file(store, timer_key(timer.queue, timer.key), retry_at_us, sequence, created_at_us, timer.txn, row, apart)
    return True


def _file(
    store: Store, own_key: bytes, at_us: int, sequence: int, created_at_us: int, txn: bytes, row: bytes, apart: bytes,
) -> None:
    """Write the rows of a pending timer. apart: its payload if that stands apart."""
    store.put_fresh(own_key, pack_place(at_us, sequence, created_at_us, apart != b"", txn))
    calendar.put(store, CALENDAR_TIMERS, at_us, sequence, row)
    if apart:
        store.put_fresh(payload_key(own_key), apart)


def _strike(store: Store, own_key: bytes, stored: bytes) -> Place:
    """Delete the rows of the timer at `own_key`, whose row by identity is `stored`."""
    place = read_place(stored)
    calendar.remove(store, CALENDAR_TIMERS, place.at_us, place.sequence)
    store.delete(own_key)
    if place.apart:
        store.delete(payload_key(own_key))
    return place


def first_in_clear(store: Store, operations: Sequence[Operation]) -> int | None:
    """Index of the first schedule whose queue wants encrypted payloads (TM-24): the option is state, apply decides."""
    looked_at = None
    for index, operation in enumerate(operations):
        queue = operation[1]
        if queue != looked_at and operation[0] != _CANCEL:
            if queues.takes_no_clear_text(store, queue):
                return index
            looked_at = queue
    return None


def _count(store: Store, change: int) -> None:
    """Keep the exact number of pending timers."""
    if change:
        counters = store.counters()
        counters.timers_pending += change
        must(counters.timers_pending >= 0, "more timers are gone than were pending", pending=counters.timers_pending)
        store.put_row(COUNTERS, counters)


def _stored(get: Callable[[bytes], bytes | None], key: bytes) -> bytes:
    """The row at `key`, which the timer's other row vouches for."""
    stored = get(key)
    if stored is None:
        broken("half of a timer is missing", key=key)
    return stored
