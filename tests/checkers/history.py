"""What clients saw, as the checkers read it. Rules of the labels: guarantees.md, part 2.

All moments are nanoseconds of one observer's clock that a jump of the wall clock does not move; `start_ns` is just
before the call left, `end_ns` just after its answer came (or the client gave up). Moments of the group clock are µs
since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What a client knows of its call."""

    OK = "ok"  # answered; a verdict such as `absent` is OK with that value
    FAIL = "fail"  # surely not applied
    INFO = "info"  # unknown: perhaps applied, perhaps later


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP call of one client."""

    client: int
    start_ns: int
    end_ns: int
    outcome: Outcome
    why: str = ""  # of a FAIL or INFO: status and code, or what the connection did

    @property
    def name(self) -> str:
        """Name of the operation in reports."""
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Call):
    """One schedule or reschedule. `txn` is unique in the run: it is the version of the timer."""

    queue: str
    key: str
    txn: str
    partition: str
    delay_ms: int
    payload: object
    status: str = ""  # scheduled, rescheduled
    message_id: str = ""
    deliver_at_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Call):
    """One cancel. `removed_txn`: the version it reports to have removed, with status `cancelled`."""

    queue: str
    key: str
    status: str = ""  # cancelled, absent
    removed_txn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Call):
    """One peek; `txn` is the pending version when `found`."""

    queue: str
    key: str
    found: bool = False
    txn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Call):
    """One pushed item."""

    queue: str
    partition: str
    txn: str
    payload: object
    status: str = ""  # queued, duplicate
    message_id: str = ""
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a pop showed it."""

    queue: str
    partition: str
    partition_id: str
    offset: int
    message_id: str
    txn: str
    payload: object
    created_at_us: int  # at least the append's stamp, less than 1 ms above it (pop-ack.md 2: rounded up)
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop(Call):
    """One pop. `lease_ms` is what it asked for; an OK pop without messages was a 204."""

    queue: str
    group: str
    lease_ms: int
    lease_id: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class AckItem:
    """One item of an ack with its verdict; the verdict's fields mean nothing unless the call was OK."""

    message: Message
    status: str  # completed, failed, retry, dlq
    success: bool = False
    noop: bool = False
    redelivers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(Call):
    """One ack, single or batch, under one lease (a test client acks a pop as a whole)."""

    group: str
    lease_id: str
    items: tuple[AckItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kv(Call):
    """One key/value call, on one key or on two.

    kind: put, cas, claim, delete, get, incr, write pair, read pair. wrote: the value that it would store, unique in
    the run; expect: the version that it named; ttl_s: the lifetime that it would begin, 0: for ever. seen: value and
    version of each key as answered, (None, 0) for an absent one; of a delete that applied, what it removed.
    """

    kind: str
    keys: tuple[str, ...]
    wrote: str | None = None
    expect: int | None = None
    ttl_s: int = 0
    applied: bool = False
    seen: tuple[tuple[object, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed(Push):
    """One input of a pipeline, pushed; its partition is its key. txn: unique in the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep(Call):
    """One transaction of the pipeline: acks an input under its lease, pushes an output and schedules a timer, both
    named by the attempt, and counts under the key. attempt: unique in the run, but for repeats of a call of which
    nobody knows."""

    key: str
    input_txn: str
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Call):
    """One move of an entity, with its repeats: a transaction that acks its input, writes the entity's row where it is
    still as the move `before` left it, and schedules or cancels the entity's timer. attempt: unique in the run, and the
    version of the timer. source, input_txn: queue and id of the input. timer: schedule, cancel or nothing; status: what
    was answered of it."""

    entity: str
    attempt: str
    before: str
    source: str
    input_txn: str
    state: str
    timer: str = ""
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit(Call):
    """One operation on a lock. kind: acquire, renew, release. token: the one that it named, 0 for an acquire.

    lock: name and slot, of what was granted, or was named. owner: of one acquire and its renewals, unique in the run.
    granted: the token that it was given, 0 if none; a release that was taken has its own token there.
    """

    kind: str
    lock: str
    owner: str
    ttl_ms: int
    token: int = 0
    granted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded(Call):
    """One transaction that pushes a message into the protected partition of a lock, under a permit's guard. txn: unique
    in the run."""

    lock: str
    token: int
    txn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders(Call):
    """One look at who holds a lock: (name and slot, token, owner) each."""

    name_asked: str
    held: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed(Call):
    """One call about a timer whose fires fail while its group is led by some nodes. kind: schedule, cancel, peek.

    All calls about one key are of one client, one after the other; none follows one of which nobody knows. txn: the
    version of a schedule, unique in the run; the one that a cancel removed, or a peek showed, empty if none. attempts:
    as a peek showed them.
    """

    kind: str
    key: str
    txn: str = ""
    status: str = ""  # scheduled, rescheduled
    deliver_at_us: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as the list shows it."""

    txn: str
    group: str
    offset: int
    attempts: int
    payload: object
    failed_at_us: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise broken, and the calls that show it."""

    promise: str
    what: str
    calls: tuple[Call, ...] = ()

    def __str__(self) -> str:
        lines = [f"BROKEN   {self.promise}: {self.what}"]
        lines += [f"SEEN     {call}" for call in self.calls]
        return "\n".join(lines)


@dataclass(slots=True)
class History:
    """A whole run: the calls in the order in which they ended, and what was found at the end.

    log: every message of every partition, read at the end by a reader of its own, in the order in which it came.
    still_pending: (queue, key) of timers that a list showed at the end, after the longest delay had passed.
    outputs, late_outputs, step_counts: of the pipeline: what its steps pushed, what the timers of its steps became, and
    how many steps each key counted.
    entities: of each the state at the end, and the attempt of the move that wrote it.
    guarded: what work under guards pushed, by the locks' partitions.
    letters, mended: of the timers whose fires fail: the dead letters, and what fired after all.
    drained: the worker groups were read to the end. outages: when no node could answer, by the same clock as the calls.
    drift_ppm: by how much the group's clock may run faster than the observer's; 0 on one machine (M-23).
    """

    calls: list[Call] = field(default_factory=list)
    log: list[Message] = field(default_factory=list)
    still_pending: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[Message] = field(default_factory=list)
    late_outputs: list[Message] = field(default_factory=list)
    step_counts: dict[str, int] = field(default_factory=dict)
    entities: dict[str, tuple[str, str]] = field(default_factory=dict)
    guarded: list[Message] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    mended: list[Message] = field(default_factory=list)
    drained: bool = False
    outages: list[tuple[int, int]] = field(default_factory=list)
    drift_ppm: int = 0

    def at_least_ns(self, group_clock_ms: int) -> int:
        """How long a stretch of the group's clock surely lasts by the observer's."""
        return max(0, group_clock_ms) * (1_000_000 - self.drift_ppm)

    def schedules(self) -> Iterator[Schedule]:
        """Every schedule."""
        return (call for call in self.calls if isinstance(call, Schedule))

    def cancels(self) -> Iterator[Cancel]:
        """Every cancel."""
        return (call for call in self.calls if isinstance(call, Cancel))

    def peeks(self) -> Iterator[Peek]:
        """Every peek."""
        return (call for call in self.calls if isinstance(call, Peek))

    def pushes(self) -> Iterator[Push]:
        """Every push."""
        return (call for call in self.calls if isinstance(call, Push))

    def pops(self) -> Iterator[Pop]:
        """Every pop."""
        return (call for call in self.calls if isinstance(call, Pop))

    def acks(self) -> Iterator[Ack]:
        """Every ack."""
        return (call for call in self.calls if isinstance(call, Ack))

    def seen(self) -> Iterator[Message]:
        """Every message that anybody was shown."""
        yield from self.log
        for pop in self.pops():
            yield from pop.messages


def by_partition(messages: Iterable[Message]) -> dict[tuple[str, str], list[Message]]:
    """Messages by (queue, partition id), in the order given. An id lives as long as its partition does."""
    found: dict[tuple[str, str], list[Message]] = {}
    for message in messages:
        found.setdefault((message.queue, message.partition_id), []).append(message)
    return found


def counts(calls: Sequence[Call]) -> dict[str, dict[str, int]]:
    """How often each operation ended how, for the report."""
    table: dict[str, dict[str, int]] = {}
    for call in calls:
        row = table.setdefault(call.name, {outcome.value: 0 for outcome in Outcome})
        row[call.outcome.value] += 1
    return table
