"""G-M1, G-M2, G-M3, G-M6 and G-M8: a timer fires at most once, not early, not when cancelled or replaced, where it
said.

Read from what fired alone; the books and the per-key search (timer_books.py, timer_lives.py) look from the other side.
"""

from __future__ import annotations

import itertools

from tests.checkers.history import Cancel, History, Message, Outcome, Schedule, Violation


def check_fires_once(history: History) -> list[Violation]:
    """G-M1: one version, which is one schedule, is seen at one offset."""
    schedules = {call.txn: call for call in history.schedules()}
    places: dict[str, set[tuple[str, str, int]]] = {}
    for message in history.seen():
        if message.txn in schedules:
            places.setdefault(message.txn, set()).add((message.queue, message.partition_id, message.offset))
    return [
        Violation("G-M1", f"{txn} fired at {sorted(found)}", (schedules[txn],))
        for txn, found in places.items()
        if len(found) > 1
    ]


def check_not_early(history: History) -> list[Violation]:
    """G-M2, no margin but the clocks' own, by two of them.

    The group's: a message's stamp is at or after the `deliverAt` that its schedule was told. The observer's: the
    schedule was stamped after its call left, so nobody can hold the message before that moment plus the delay.
    """
    pushed = {push.txn for push in history.pushes()}  # their message may be the push's own (G-M7)
    schedules = {call.txn: call for call in history.schedules() if call.txn not in pushed}
    violations, judged = [], set()
    for message in history.seen():
        schedule = schedules.get(message.txn)
        if schedule is None or schedule.outcome is not Outcome.OK:
            continue
        if message.created_at_us < schedule.deliver_at_us and message.txn not in judged:
            judged.add(message.txn)
            text = f"stamped {schedule.deliver_at_us - message.created_at_us} µs before deliverAt: {message}"
            violations.append(Violation("G-M2", text, (schedule,)))
    for pop in history.pops():
        for message in pop.messages:
            schedule = schedules.get(message.txn)
            if schedule is None:
                continue
            early_ns = schedule.start_ns + history.at_least_ns(schedule.delay_ms) - pop.end_ns
            if early_ns > 0:
                violations.append(Violation("G-M2", f"held {early_ns} ns early", (schedule, pop)))
    return violations


def check_cancelled_stays_away(history: History) -> list[Violation]:
    """G-M3: a version that a cancel reports to have removed is never delivered."""
    removed: dict[str, Cancel] = {
        cancel.removed_txn: cancel
        for cancel in history.cancels()
        if cancel.outcome is Outcome.OK and cancel.status == "cancelled"
    }
    pushed = {push.txn for push in history.pushes()}
    found: dict[str, Message] = {}
    for message in history.seen():
        if message.txn in removed and message.txn not in pushed:
            found.setdefault(message.txn, message)
    return [
        Violation("G-M3", f"cancelled, yet delivered: {message}", (removed[txn],)) for txn, message in found.items()
    ]


def check_replaced_stays_away(history: History) -> list[Violation]:
    """G-M6: what a reschedule surely replaced never fires.

    Sure is: both answered, one after the other, the second `rescheduled`, and no other call on the key that could
    have run between the start of the first and the end of the second. The rest is left to timer_lives.py.
    """
    by_key: dict[tuple[str, str], list[Schedule | Cancel]] = {}
    for call in history.calls:
        if isinstance(call, Schedule | Cancel) and call.outcome is not Outcome.FAIL:
            by_key.setdefault((call.queue, call.key), []).append(call)
    pushed = {push.txn for push in history.pushes()}
    delivered = {message.txn for message in history.seen()} - pushed
    violations = []
    for calls in by_key.values():
        ordered = sorted(calls, key=lambda call: call.start_ns)
        for old, new in itertools.pairwise(ordered):
            if not isinstance(old, Schedule) or not isinstance(new, Schedule) or old.txn not in delivered:
                continue
            sequential = old.outcome is new.outcome is Outcome.OK and old.end_ns < new.start_ns
            others = (call for call in ordered if call is not old and call is not new)
            alone = all(_before(call, old) or new.end_ns < call.start_ns for call in others)
            if sequential and alone and new.status == "rescheduled":
                violations.append(Violation("G-M6", f"{old.txn} was replaced, yet delivered", (old, new)))
    return violations


def check_lands_as_promised(history: History) -> list[Violation]:
    """G-M8: a fired message has the promised id, `txn`, queue, partition and payload."""
    schedules = {call.txn: call for call in history.schedules()}
    pushed = {push.txn for push in history.pushes()}
    violations = []
    for message in {(m.queue, m.partition_id, m.offset): m for m in history.seen()}.values():
        schedule = schedules.get(message.txn)
        if schedule is None or message.txn in pushed:
            continue
        wrong = []
        if (message.queue, message.partition) != (schedule.queue, schedule.partition):
            wrong.append("another queue or partition")
        if message.payload != schedule.payload:
            wrong.append("another payload")
        if schedule.outcome is Outcome.OK and message.message_id != schedule.message_id:
            wrong.append("another id")
        if wrong:
            violations.append(Violation("G-M8", f"{', '.join(wrong)}: {message}", (schedule,)))
    return violations


def check_fire_order(history: History) -> list[Violation]:
    """TM-50, README 10: in a partition timers fire by `deliverAt`.

    Judged for a pair only when the earlier one was accepted before the later one was even asked for, and the later one
    was not due at once (such a one fires in its own entry and waits for nobody, TM-21).
    """
    fired: dict[tuple[str, str], list[tuple[int, Schedule]]] = {}
    schedules = {call.txn: call for call in history.schedules() if call.outcome is Outcome.OK}
    for message in history.log:
        schedule = schedules.get(message.txn)
        if schedule is not None and schedule.message_id == message.message_id:
            fired.setdefault((message.queue, message.partition_id), []).append((message.offset, schedule))
    violations = []
    for place, rows in fired.items():
        rows.sort(key=lambda row: row[0])
        for index, (offset, later) in enumerate(rows):
            if later.delay_ms <= 0:
                continue
            for behind, earlier in rows[index + 1 :]:
                if earlier.deliver_at_us < later.deliver_at_us and earlier.end_ns < later.start_ns:
                    text = f"{place}: {earlier.txn} at offset {behind} was due before {later.txn} at {offset}"
                    violations.append(Violation("TM-50", text, (earlier, later)))
    return violations


def _before(call: Schedule | Cancel, other: Schedule) -> bool:
    """Whether `call` surely took effect before `other` was sent: an unknown one may still do so later."""
    return call.outcome is Outcome.OK and call.end_ns < other.start_ns
