"""The slow, obvious twin of messages out: readiness is computed anew for every partition at every question.

Written from pop-ack.md alone: PA-10 to PA-24, PA-30, PA-31, PA-35 to PA-40, PA-47 to PA-59. Nothing is indexed, filed,
scanned or remembered ahead of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND = 1_000_000
LEASES_KEPT = 64
KEPT_US = 60 * SECOND

# What an item is answered with, as (success, error word, released, dlq, noop, redelivers).
Verdict = tuple[bool, str, bool, bool, bool, bool]


@dataclass
class Options:
    lease_time: int = 60
    retry_limit: int = 3
    dead_letter_queue: bool = True
    dlq_after_max_retries: bool = True
    delayed_processing: int = 0
    window_buffer: int = 0


@dataclass
class Lease:
    lease_id: bytes
    first: int
    last: int
    expires_us: int


@dataclass
class Released:
    at_us: int
    items: list[tuple[str, str]]
    verdicts: list[Verdict]
    reached: int


@dataclass
class Cursor:
    committed: int
    lease: Lease | None = None
    attempt: int = 0
    attempt_offset: int = -1
    retries: int = 0
    used: bool = False
    released: dict[bytes, Released] = field(default_factory=dict)


@dataclass
class Group:
    mode: str
    from_us: int
    lengths: dict[str, int]  # partition -> its length when the group registered


class Model:
    """One queue. `log`: partition -> [(id, stamp)]."""

    def __init__(self) -> None:
        self.options = Options()
        self.log: dict[str, list[tuple[str, int]]] = {}
        self.groups: dict[str, Group] = {}
        self.cursors: dict[tuple[str, str], Cursor] = {}
        self.dead_letters: list[tuple[str, str, int]] = []  # (group, partition, offset)

    def push(self, partition: str, ids: list[str], now_us: int) -> None:
        self.log.setdefault(partition, []).extend((txn, now_us) for txn in ids)

    def register(self, group: str, mode: str, from_us: int) -> None:
        if group not in self.groups:
            self.groups[group] = Group(mode, from_us, {name: len(log) for name, log in self.log.items()})

    def cursor(self, group: str, partition: str) -> Cursor:
        """The group's cursor, made where it starts if it was never used (PA-30)."""
        known = self.cursors.get((group, partition))
        if known is not None:
            return known
        record = self.groups[group]
        start = 0
        if record.mode == "new":
            start = record.lengths.get(partition, 0)
        elif record.mode == "time":
            log = self.log[partition]
            start = next((offset for offset, (_, at_us) in enumerate(log) if at_us >= record.from_us), len(log))
        return Cursor(start - 1)

    def ready_at(self, group: str, partition: str) -> int | None:
        """From when on the partition can be claimed; None: it holds nothing for the group."""
        log, cursor = self.log[partition], self.cursor(group, partition)
        if cursor.committed + 1 >= len(log):
            return None
        first_us, newest_us = log[cursor.committed + 1][1], log[-1][1]
        delay_us, window_us = self.options.delayed_processing * SECOND, self.options.window_buffer * SECOND
        at_us = [first_us + delay_us, min(newest_us + window_us, first_us + 10 * window_us)]
        if cursor.lease is not None:
            at_us.append(cursor.lease.expires_us)
        return max(at_us)

    def ready(self, group: str, now_us: int) -> list[str]:
        """Partitions that can be claimed now."""
        times = {name: self.ready_at(group, name) for name in self.log}
        return [name for name, at_us in times.items() if at_us is not None and at_us <= now_us]

    def next_ready_at(self, group: str) -> int | None:
        times = [self.ready_at(group, name) for name in self.log]
        return min((at_us for at_us in times if at_us is not None), default=None)

    def claim(
        self, group: str, partition: str, budget: int, now_us: int, lease_id: bytes, lease_s: int | None, commit: bool,
    ) -> tuple[int, list[str], int]:
        """Claim a ready partition: (first offset, ids, attempt)."""
        assert partition in self.ready(group, now_us)
        cursor = self.cursors[group, partition] = self.cursor(group, partition)
        cursor.used = True
        first = cursor.committed + 1
        visible = [
            txn for txn, at_us in self.log[partition][first:]
            if at_us + self.options.delayed_processing * SECOND <= now_us
        ][:budget]
        last = first + len(visible) - 1
        cursor.lease = None
        if commit:
            cursor.committed = last
            cursor.attempt, cursor.attempt_offset, cursor.retries = 0, -1, 0
            return first, visible, 1
        cursor.attempt = cursor.attempt + 1 if cursor.attempt_offset == first else 1
        cursor.attempt_offset = first
        length_s = self.options.lease_time if lease_s is None else lease_s
        cursor.lease = Lease(lease_id, first, last, now_us + length_s * SECOND)
        return first, visible, cursor.attempt

    def hand_back(self, lease_id: bytes) -> None:
        for cursor in self.cursors.values():
            if cursor.lease is not None and cursor.lease.lease_id == lease_id:
                if cursor.attempt_offset == cursor.lease.first:
                    cursor.attempt -= 1
                cursor.lease = None

    def extend(self, lease_id: bytes, seconds: int, now_us: int) -> tuple[int, int | None]:
        expiries = []
        for cursor in self.cursors.values():
            lease = cursor.lease
            if lease is not None and lease.lease_id == lease_id and now_us < lease.expires_us:
                lease.expires_us = max(lease.expires_us, now_us + seconds * SECOND)
                expiries.append(lease.expires_us)
        return len(expiries), min(expiries, default=None)

    # --- acks

    def ack(
        self, group: str, partition: str, lease_id: bytes, items: list[tuple[str, str]], now_us: int,
    ) -> list[Verdict]:
        """One part: (id, status) pairs."""
        if partition not in self.log:
            return [_refused("consumer not found")] * len(items)
        if group not in self.groups:
            return [_refused("lease" if lease_id else "consumer not found")] * len(items)
        cursor = self.cursor(group, partition)
        if not lease_id and group == "__QUEUE_MODE__" and not cursor.used:
            return [_refused("consumer not found")] * len(items)
        lease = cursor.lease
        live = lease is not None and now_us < lease.expires_us
        if lease_id and not (live and lease is not None and lease.lease_id == lease_id):
            return self._repeat(cursor, partition, lease_id, items, now_us)
        log = [txn for txn, _ in self.log[partition]]
        offsets = meant_offsets(log, cursor, [txn for txn, _ in items], fenced=bool(lease_id))
        before = cursor.committed
        if any(offset is not None and offset > before for offset in offsets):
            self.cursors[group, partition] = cursor
        stop, gone, final = self._judge(cursor, items, offsets)
        for offset, filed in gone.items():
            if filed:
                self.dead_letters.append((group, partition, offset))
        released = False
        if lease is not None and (final or cursor.committed >= lease.last) and any(
                offset is not None and offset > before for offset in offsets):
            cursor.lease = None
            released = live
        verdicts = [
            _verdict(status, offset, before, stop, gone, released)
            for (_, status), offset in zip(items, offsets, strict=True)
        ]
        if released and lease is not None:
            cursor.released[lease.lease_id] = Released(now_us, items, verdicts, cursor.committed)
            while len(cursor.released) > LEASES_KEPT:
                del cursor.released[next(iter(cursor.released))]
        return verdicts

    def _judge(
        self, cursor: Cursor, items: list[tuple[str, str]], offsets: list[int | None],
    ) -> tuple[int | None, dict[int, bool], bool]:
        """Walks up from the cursor: (where it stops, offsets that leave otherwise than completed -> filed?, final)."""
        marks: dict[int, str] = {}
        for (_, status), offset in zip(items, offsets, strict=True):
            if offset is not None and offset > cursor.committed:
                marks[offset] = max(marks.get(offset, status), status, key=_STRENGTH.index)
        before, gone = cursor.committed, {}
        stop, exhausted, charged = None, None, False
        for offset in sorted(marks):
            status = marks[offset]
            if status == "failed" and exhausted is None:
                if cursor.committed > before:
                    cursor.retries = 0
                exhausted = cursor.retries >= self.options.retry_limit
                if not exhausted:
                    cursor.retries += 1
                    charged = True
            if status == "retry" or (status == "failed" and not exhausted):
                stop = offset
                break
            if status == "dlq":
                gone[offset] = True
            elif status == "failed":
                gone[offset] = self.options.dead_letter_queue or self.options.dlq_after_max_retries
            cursor.committed = offset
        if cursor.committed > before:
            cursor.used = True
            if not charged:
                cursor.retries = 0
        return stop, gone, any(status != "completed" for status in marks.values())

    def _repeat(
        self, cursor: Cursor, partition: str, lease_id: bytes, items: list[tuple[str, str]], now_us: int,
    ) -> list[Verdict]:
        known = cursor.released.get(lease_id)
        if known is None or now_us > known.at_us + KEPT_US:
            return [_refused("lease")] * len(items)
        if known.items == items:
            return known.verdicts
        passed = {txn for txn, _ in self.log[partition][: known.reached + 1]}
        return [
            (True, "", False, False, True, False) if status == "completed" and txn in passed else _refused("lease")
            for txn, status in items
        ]


_STRENGTH = ["completed", "retry", "failed", "dlq"]


def _refused(word: str) -> Verdict:
    return False, word, False, False, False, False


def meant_offsets(log: list[str], cursor: Cursor, ids: list[str], *, fenced: bool) -> list[int | None]:
    """Which offset each item means: the k-th of an id its k-th occurrence (PA-53)."""
    seen: dict[str, int] = {}
    meant: list[int | None] = []
    for txn in ids:
        everywhere = [offset for offset, other in enumerate(log) if other == txn]
        if fenced:
            assert cursor.lease is not None
            span = [offset for offset in everywhere if cursor.lease.first <= offset <= cursor.lease.last]
        else:
            above = [offset for offset in everywhere if offset > cursor.committed]
            span = above or everywhere[-1:]
        nth = seen.get(txn, 0)
        seen[txn] = nth + 1
        meant.append(span[min(nth, len(span) - 1)] if span else None)
    return meant


def _verdict(
    status: str, offset: int | None, before: int, stop: int | None, gone: dict[int, bool], released: bool,
) -> Verdict:
    if offset is None:
        return False, "unresolv", released, False, False, False
    if offset <= before:
        if status == "completed":
            return True, "", released, False, True, False
        return False, "already committed", released, False, False, False
    if stop is not None and (offset > stop or (offset == stop and status == "completed")):
        return True, "", released, False, False, status != "retry"
    return True, "", released, gone.get(offset, False), False, False
