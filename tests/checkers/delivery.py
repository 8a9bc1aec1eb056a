"""G-Q1, G-Q2, G-Q3 and G-Q5: at least once, never after its ack, acked once, without skips."""

from __future__ import annotations

from dataclasses import dataclass

from tests.checkers.history import Ack, History, Message, Outcome, Pop, Violation, by_partition

Place = tuple[str, str, str, int]  # group, queue, partition id, offset


def check_delivered(history: History) -> list[Violation]:
    """G-Q1: by the end of the drain each message of the log has come to each worker group of its queue."""
    if not history.drained:
        return []
    groups: dict[str, set[str]] = {}
    delivered: set[Place] = set()
    for pop in history.pops():
        groups.setdefault(pop.queue, set()).add(pop.group)
        delivered.update((pop.group, *_place(message)) for message in pop.messages)
    return [
        Violation("G-Q1", f"never delivered to {group}: {message}")
        for message in history.log
        for group in sorted(groups.get(message.queue, ()))
        if (group, *_place(message)) not in delivered
    ]


@dataclass(frozen=True, slots=True)
class _Done:
    """An ack that moved a group's cursor to `offset`."""

    offset: int
    ack: Ack


def check_not_again_after_ack(history: History) -> list[Violation]:
    """G-Q2: a pop that starts after a successful ack's answer returns nothing at or below what that ack completed.

    Below it too: silent gaps are completed implicitly (PA-50). Items that answered `redelivers` come again (PA-51),
    and an ack that also returned something to its partition proves nothing here.
    """
    done: dict[tuple[str, str, str], list[_Done]] = {}
    for ack in history.acks():
        for offset, place in _completed(ack):
            done.setdefault((ack.group, *place), []).append(_Done(offset, ack))
    violations = []
    for pop in history.pops():
        for (queue, partition_id), messages in by_partition(pop.messages).items():
            for earlier in done.get((pop.group, queue, partition_id), ()):
                if earlier.ack.end_ns < pop.start_ns and messages[0].offset <= earlier.offset:
                    text = f"offset {messages[0].offset} came again after offset {earlier.offset} was done"
                    violations.append(Violation("G-Q2", text, (earlier.ack, pop)))
                    break
    return violations


def check_acked_once(history: History) -> list[Violation]:
    """G-Q3: one message has at most one successful ack in a group that was not a repeat."""
    first: dict[Place, Ack] = {}
    violations = []
    for ack in history.acks():
        if ack.outcome is not Outcome.OK:
            continue
        for item in ack.items:
            if item.status != "completed" or not item.success or item.noop or item.redelivers:
                continue
            known = first.setdefault((ack.group, *_place(item.message)), ack)
            if known.lease_id != ack.lease_id:
                violations.append(Violation("G-Q3", f"acked twice: {item.message}", (known, ack)))
    return violations


def check_no_skip(history: History) -> list[Violation]:
    """G-Q5: in a partition a pop's messages are consecutive, and start at most one above what may have been acked."""
    may_be_done: dict[tuple[str, str, str], list[_Done]] = {}
    for ack in history.acks():
        if ack.outcome is Outcome.FAIL:
            continue
        for item in ack.items:
            if ack.outcome is Outcome.OK and not item.success:
                continue
            queue, partition_id, offset = _place(item.message)
            may_be_done.setdefault((ack.group, queue, partition_id), []).append(_Done(offset, ack))
    violations = []
    for pop in history.pops():
        for (queue, partition_id), messages in by_partition(pop.messages).items():
            offsets = [message.offset for message in messages]
            if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                violations.append(Violation("G-Q5", f"a gap inside a pop: {offsets}", (pop,)))
            known = may_be_done.get((pop.group, queue, partition_id), ())
            highest = max((done.offset for done in known if done.ack.start_ns < pop.end_ns), default=-1)
            if offsets[0] > highest + 1:
                text = f"starts at {offsets[0]} though at most {highest} may be done in partition {partition_id}"
                violations.append(Violation("G-Q5", text, (pop,)))
    return violations


def _completed(ack: Ack) -> list[tuple[int, tuple[str, str]]]:
    """(highest offset, place) that a wholly successful ack of completions reached, by partition."""
    if ack.outcome is not Outcome.OK:
        return []
    reached: dict[tuple[str, str], int] = {}
    spoiled = set()
    for item in ack.items:
        queue, partition_id, offset = _place(item.message)
        if item.status != "completed" or not item.success or item.redelivers:
            spoiled.add((queue, partition_id))
        reached[queue, partition_id] = max(offset, reached.get((queue, partition_id), -1))
    return [(offset, place) for place, offset in reached.items() if place not in spoiled]


def _place(message: Message) -> tuple[str, str, int]:
    return message.queue, message.partition_id, message.offset


def delivering(pop: Pop) -> set[tuple[str, str]]:
    """(queue, partition id) that a pop claimed."""
    return {(message.queue, message.partition_id) for message in pop.messages}
