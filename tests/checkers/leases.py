"""G-Q4 and G-Q6: a lease is exclusive in real time, and only the live one acks."""

from __future__ import annotations

from tests.checkers.delivery import delivering
from tests.checkers.history import Ack, History, Outcome, Pop, Violation


def check_exclusive(history: History) -> list[Violation]:
    """G-Q4: between the end of a pop and its start plus the lease nobody else of the group gets from that partition.

    No margin but the clocks' own. A lease began with an entry stamped after the pop's start, so it surely lives until
    start + length, or until an ack that may have released it starts; and it surely had begun at the pop's answer. Of
    two pops that overlap in time either may have been first: both orders must be impossible before it is a violation.
    """
    leases: dict[tuple[str, str, str], list[Pop]] = {}
    for pop in history.pops():
        if pop.lease_id:  # none: committed on delivery
            for queue, partition_id in delivering(pop):
                leases.setdefault((pop.group, queue, partition_id), []).append(pop)
    released = _released_from(history)
    violations = []
    for place, pops in leases.items():
        ordered = sorted(pops, key=lambda pop: pop.end_ns)
        sure_until_ns = [
            min(pop.start_ns + history.at_least_ns(pop.lease_ms), released.get((pop.lease_id, *place), _NEVER))
            for pop in ordered
        ]
        for index, first in enumerate(ordered):
            for other in range(index + 1, len(ordered)):
                second = ordered[other]
                if second.end_ns >= sure_until_ns[index]:
                    break  # ordered by end: the rest ends later still
                second_was_first = second.start_ns <= first.end_ns and first.end_ns >= sure_until_ns[other]
                if not second_was_first:
                    text = f"partition {place[2]} of {place[1]} went to {second.lease_id} under a live lease"
                    violations.append(Violation("G-Q4", text, (first, second)))
    return violations


def check_fenced(history: History) -> list[Violation]:
    """G-Q6: an ack succeeds only under its partition's live lease.

    A lease is surely dead once a later pop got the partition. A repeat of an ack that was sent before may be
    answered as the first time (PA-59), so only the first ack under a lease is judged.
    """
    later: dict[tuple[str, str, str], list[Pop]] = {}
    granted: dict[str, Pop] = {}
    for pop in history.pops():
        granted[pop.lease_id] = pop
        for queue, partition_id in delivering(pop):
            later.setdefault((pop.group, queue, partition_id), []).append(pop)
    violations: list[Violation] = []
    acked: set[str] = set()
    for ack in sorted(history.acks(), key=lambda ack: ack.start_ns):
        lease = granted.get(ack.lease_id)
        if lease is not None and ack.outcome is Outcome.OK and ack.lease_id not in acked:
            violations += _acked_when_dead(ack, lease, later)
        acked.add(ack.lease_id)
    return violations


def _acked_when_dead(ack: Ack, lease: Pop, later: dict[tuple[str, str, str], list[Pop]]) -> list[Violation]:
    for item in ack.items:
        if not item.success or item.noop:
            continue
        place = (ack.group, item.message.queue, item.message.partition_id)
        for pop in later.get(place, ()):
            if pop.lease_id != lease.lease_id and pop.start_ns > lease.end_ns and pop.end_ns < ack.start_ns:
                text = f"acked under {lease.lease_id} when {pop.lease_id} had the partition: {item.message}"
                return [Violation("G-Q6", text, (lease, pop, ack))]
    return []


_NEVER = 1 << 62


def _released_from(history: History) -> dict[tuple[str, str, str, str], int]:
    """The moment from which each (lease, group, queue, partition id) may have been given up by an ack."""
    released: dict[tuple[str, str, str, str], int] = {}
    for ack in history.acks():
        if ack.outcome is Outcome.FAIL:
            continue
        for item in ack.items:
            place = (ack.lease_id, ack.group, item.message.queue, item.message.partition_id)
            released[place] = min(ack.start_ns, released.get(place, _NEVER))
    return released
