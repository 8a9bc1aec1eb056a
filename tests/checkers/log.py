"""G-D1 and the log's promises (guarantees.md 1.1, 1.6): what was acknowledged is there, once, in order, unaltered."""

from __future__ import annotations

import itertools

from tests.checkers.history import History, Message, Outcome, Push, Schedule, Violation, by_partition


def check_acknowledged_pushes(history: History) -> list[Violation]:
    """G-D1, G-L1: an acknowledged push stands at the offset it was told, with the id it was told, whatever crashed."""
    places = {(message.queue, message.partition, message.offset): message for message in history.log}
    violations = []
    for push in history.pushes():
        if push.outcome is not Outcome.OK or push.status not in ("queued", "duplicate"):
            continue
        message = places.get((push.queue, push.partition, push.offset))
        if message is None:
            violations.append(Violation("G-D1", f"acknowledged at offset {push.offset}, where nothing is", (push,)))
        elif (message.message_id, message.txn) != (push.message_id, push.txn):
            text = f"offset {push.offset} holds {message.txn} ({message.message_id}) instead"
            violations.append(Violation("G-L1", text, (push,)))
    return violations


def check_one_value_an_offset(history: History) -> list[Violation]:
    """G-L3: whoever looks at an offset sees the same message there."""
    first: dict[tuple[str, str, int], Message] = {}
    violations = []
    for message in history.seen():
        known = first.setdefault((message.queue, message.partition_id, message.offset), message)
        if _value(known) != _value(message):
            violations.append(Violation("G-L3", f"one offset with two values: {known} and {message}"))
    return violations


def check_no_gap(history: History) -> list[Violation]:
    """G-L4: a partition's offsets start at 0 and have no gap, and a reader meets them in order."""
    violations = []
    for place, messages in by_partition(history.log).items():
        offsets = [message.offset for message in messages]
        if offsets != list(range(len(offsets))):
            wrong = next(index for index, offset in enumerate(offsets) if index != offset)
            violations.append(Violation("G-L4", f"{place}: offset {offsets[wrong]} came where {wrong} was due"))
    return violations


def check_stored_once(history: History) -> list[Violation]:
    """G-L2, G-M7: inside the dedup window one transaction id stands at one offset of its partition.

    The window of the run's queues is longer than the run (guarantees.md 2), so it is never over.
    """
    offsets: dict[tuple[str, str, str], set[int]] = {}
    for message in history.seen():
        offsets.setdefault((message.queue, message.partition_id, message.txn), set()).add(message.offset)
    return [
        Violation("G-L2", f"{txn} stands at offsets {sorted(found)} of partition {partition_id} of {queue}")
        for (queue, partition_id, txn), found in offsets.items()
        if len(found) > 1
    ]


def check_stamps(history: History) -> list[Violation]:
    """G-L5: `createdAt` never falls with the offset."""
    violations = []
    for place, messages in by_partition(history.log).items():
        ordered = sorted(messages, key=lambda message: message.offset)
        for earlier, later in itertools.pairwise(ordered):
            if later.created_at_us < earlier.created_at_us:
                violations.append(Violation("G-L5", f"{place}: {later} is stamped before {earlier}"))
    return violations


def check_nothing_invented(history: History) -> list[Violation]:
    """G-D4: every message was sent by somebody whose call did not surely fail, and is as it was sent."""
    sent: dict[str, list[tuple[str, str, object, bool]]] = {}
    senders: list[Push | Schedule] = [*history.pushes(), *history.schedules()]
    for call in senders:
        possible = call.outcome is not Outcome.FAIL
        sent.setdefault(call.txn, []).append((call.queue, call.partition, call.payload, possible))
    violations, judged = [], set()
    for message in history.seen():
        if (place := (message.queue, message.partition_id, message.offset)) in judged:
            continue
        judged.add(place)
        tries = sent.get(message.txn, [])
        if not any(possible for *_, possible in tries):
            violations.append(Violation("G-D4", f"nobody sent it, or every attempt surely failed: {message}"))
        elif not any(sender[:3] == (message.queue, message.partition, message.payload) for sender in tries):
            violations.append(Violation("G-D3", f"not as it was sent: {message}, sent {tries}"))
    return violations


def _value(message: Message) -> tuple[str, str, str, str]:
    return message.message_id, message.txn, repr(message.payload), message.partition
