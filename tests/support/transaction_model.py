"""The slow, obvious twin of transactions, written from transactions.md alone.

A transaction is rehearsed on a copy of everything, one part after the other. What refuses is noted; if anything did,
the copy is thrown away, else it is what there is from then on. Acks are those of `consume_model`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from tests.support import consume_model
from tests.support.consume_model import SECOND, meant_offsets

WINDOW_S = 10

Ack = tuple[str, str, str, bytes, str]  # group, partition, id, lease, status
Put = tuple[str, int | None, bool]  # key, expected version or None, required?
Timer = tuple[str, bool]  # key, schedule (else cancel)
# ("committed", what is answered) or (why not, the index of the element that caused it)
Outcome = tuple[str, object]


@dataclass
class State:
    """messages: of the queue that is acked. out: partition -> [(id, stamp)] of the queue that is pushed to."""

    messages: consume_model.Model = field(default_factory=consume_model.Model)
    out: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    last_version: int = 0
    timers: set[str] = field(default_factory=set)


class Model:
    """All that there is, and the one call that changes several parts of it."""

    def __init__(self) -> None:
        self.state = State()

    def transact(
        self, acks: list[Ack], pushes: list[tuple[str, str]], puts: list[Put], timers: list[Timer], now_us: int,
    ) -> Outcome:
        """Do all of it or nothing. pushes: (partition, id). Each (group, partition) is acked under one lease."""
        trial = copy.deepcopy(self.state)
        verdicts, refused = _acks(trial, acks, now_us)
        if refused is not None:
            return "ack", refused
        placed, stored = _pushes(trial, pushes, now_us)
        if stored is not None:
            return "duplicate", stored
        applied, lost = _puts(trial, puts)
        if lost is not None:
            return "precondition", lost
        statuses = [_timer(trial, *timer) for timer in timers]
        self.state = trial
        return "committed", (verdicts, placed, applied, statuses)


def _acks(state: State, acks: list[Ack], now_us: int) -> tuple[list[tuple[bool, bool, bool]], int | None]:
    """((dlq, noop, redelivers) of each, the lowest index that refuses) (TX-30, TX-32 to TX-36)."""
    parts: dict[tuple[str, str, bytes], list[int]] = {}
    for index, (group, partition, _txn, lease_id, _status) in enumerate(acks):
        parts.setdefault((group, partition, lease_id), []).append(index)
    verdicts = [(False, False, False)] * len(acks)
    refused: list[int] = []
    for (group, partition, lease_id), indexes in parts.items():
        items = [(acks[index][2], acks[index][4]) for index in indexes]
        cursor = state.messages.cursors.get((group, partition))
        lease = None if cursor is None else cursor.lease
        if lease_id and not (lease is not None and lease.lease_id == lease_id and now_us < lease.expires_us):
            refused.append(indexes[0])  # what was released is not remembered here (TX-33)
            continue
        too_often = _too_often(state, group, partition, lease_id, items)
        for nth, verdict in enumerate(state.messages.ack(group, partition, lease_id, items, now_us)):
            if not verdict[0] or nth == too_often:
                refused.append(indexes[nth])
            verdicts[indexes[nth]] = verdict[3:]
    return verdicts, min(refused, default=None)


def _too_often(
    state: State, group: str, partition: str, lease_id: bytes, items: list[tuple[str, str]],
) -> int | None:
    """The first item that says something else of a message than one before it in the call (TX-36)."""
    messages = state.messages
    if partition not in messages.log or group not in messages.groups:
        return None
    log = [txn for txn, _ in messages.log[partition]]
    offsets = meant_offsets(log, messages.cursor(group, partition), [txn for txn, _ in items], fenced=bool(lease_id))
    said: dict[int, str] = {}
    for nth, (offset, (_txn, status)) in enumerate(zip(offsets, items, strict=True)):
        if offset is not None and said.setdefault(offset, status) != status:
            return nth
    return None


def _pushes(
    state: State, pushes: list[tuple[str, str]], now_us: int,
) -> tuple[list[tuple[int, bool]], int | None]:
    """((offset, repeats one of the call?) of each, the first that is stored already) (TX-22)."""
    own: dict[tuple[str, str], int] = {}
    placed = []
    for index, (partition, txn) in enumerate(pushes):
        log = state.out.setdefault(partition, [])
        if (partition, txn) in own:
            placed.append((own[partition, txn], True))
            continue
        if any(other == txn and now_us - at_us <= WINDOW_S * SECOND for other, at_us in log):
            return [], index
        own[partition, txn] = len(log)
        placed.append((len(log), False))
        log.append((txn, now_us))
    return placed, None


def _puts(state: State, puts: list[Put]) -> tuple[list[bool], int | None]:
    """(applied, of each; the first required one that lost) (TX-23)."""
    applied = []
    for index, (key, expect, required) in enumerate(puts):
        wins = expect is None or state.versions.get(key, 0) == expect
        if not wins and required:
            return [], index
        if wins:
            state.last_version += 1
            state.versions[key] = state.last_version
        applied.append(wins)
    return applied, None


def _timer(state: State, key: str, schedules: bool) -> str:
    was = key in state.timers
    if schedules:
        state.timers.add(key)
        return "rescheduled" if was else "scheduled"
    state.timers.discard(key)
    return "cancelled" if was else "absent"
