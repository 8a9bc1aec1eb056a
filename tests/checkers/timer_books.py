"""G-M4, G-M5 and G-M7 by counting: what was created is fired, cancelled or replaced, and nothing else (W10's books)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.checkers.history import Call, History, Outcome, Schedule, Violation

US_PER_S = 1_000_000
NS_PER_US = 1_000
LATE_US_MAX = 5 * US_PER_S  # G-M4: due and a healthy leader, yet not fired


@dataclass(slots=True)
class _Book:
    """What happened to one key."""

    created: int = 0
    created_perhaps: int = 0
    cancelled: int = 0
    ended_perhaps: int = 0
    fires: int = 0
    calls: list[Call] = field(default_factory=list)


def check_books(history: History) -> list[Violation]:
    """G-M1, G-M4, G-M5, per key: fires and cancels are at most what may have been created, and at least what surely
    was.

    `scheduled` creates a life of the key, `rescheduled` carries one on. A schedule of unknown fate may have created
    one. A version whose txn was pushed too may have fired without a message of its own (G-M7): it may have ended.
    """
    if not history.drained:
        return []
    books: dict[tuple[str, str], _Book] = {}
    pushed = {push.txn for push in history.pushes()}
    fired = {message.txn for message in history.log} - pushed
    for call in history.schedules():
        book = books.setdefault((call.queue, call.key), _Book())
        book.calls.append(call)
        book.created += call.outcome is Outcome.OK and call.status == "scheduled"
        book.created_perhaps += call.outcome is Outcome.INFO
        book.fires += call.txn in fired
        book.ended_perhaps += call.txn in pushed
    for cancel in history.cancels():
        book = books.setdefault((cancel.queue, cancel.key), _Book())
        book.calls.append(cancel)
        book.cancelled += cancel.outcome is Outcome.OK and cancel.status == "cancelled"
        book.ended_perhaps += cancel.outcome is Outcome.INFO
    violations = []
    for (queue, key), book in books.items():
        ended = book.fires + book.cancelled
        if ended > book.created + book.created_perhaps:
            text = f"{queue}/{key} ended {ended} times, created {book.created} + {book.created_perhaps} perhaps"
            violations.append(Violation("G-M5", text, tuple(book.calls)))
        if ended + book.ended_perhaps < book.created:
            text = f"{queue}/{key} created {book.created} times, ended {ended} + {book.ended_perhaps} perhaps"
            violations.append(Violation("G-M4", text, tuple(book.calls)))
    return violations


def check_none_left(history: History) -> list[Violation]:
    """G-M4, G-M7: after the longest delay no timer is pending, those that met a stored txn included."""
    return [
        Violation("G-M4", f"{queue}/{key} is pending long after its delay", _calls_on(history, queue, key))
        for queue, key in history.still_pending
    ]


def check_not_late(history: History) -> list[Violation]:
    """G-M4: outside of outages a timer fires within 5 s of its `deliverAt`, by the group's clock.

    The outages are known by the observer's clock; a schedule's answer ties the two together: its `deliverAt` lay at
    most at the answer's end plus the delay.
    """
    schedules = {call.txn: call for call in history.schedules() if call.outcome is Outcome.OK}
    violations = []
    for message in history.log:
        schedule = schedules.get(message.txn)
        if schedule is None or schedule.message_id != message.message_id:
            continue
        late_us = message.created_at_us - schedule.deliver_at_us
        allowed_us = LATE_US_MAX + _outage_us(history, schedule)
        if late_us > allowed_us:
            text = f"{schedule.txn} fired {late_us} µs late, {allowed_us} allowed"
            violations.append(Violation("G-M4", text, (schedule,)))
    return violations


def lateness_us(history: History) -> list[int]:
    """Stamp of the fire minus `deliverAt` of every timer that fired, sorted: for the report."""
    schedules = {call.txn: call for call in history.schedules() if call.outcome is Outcome.OK}
    return sorted(
        message.created_at_us - schedules[message.txn].deliver_at_us
        for message in history.log
        if message.txn in schedules and schedules[message.txn].message_id == message.message_id
    )


def _outage_us(history: History, schedule: Schedule) -> int:
    """Time without a node from the schedule on; a timer due in one of several outages waits for the end of that one."""
    return sum((end - start) // NS_PER_US for start, end in history.outages if end > schedule.start_ns)


def _calls_on(history: History, queue: str, key: str) -> tuple[Call, ...]:
    on_key: list[Call] = [call for call in history.schedules() if (call.queue, call.key) == (queue, key)]
    on_key += [call for call in history.cancels() if (call.queue, call.key) == (queue, key)]
    return tuple(on_key)
