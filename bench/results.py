"""What a subject hands back, and the figures to reach. Everything here can be written as JSON."""

from __future__ import annotations

import math

import msgspec

from bench.machine import Machine
from bench.stats import median

Cell = str | int | float | None


class Goal(msgspec.Struct, frozen=True):
    """A figure to reach. `most` says on which side of `bound` it lies; `aim` is what we would like."""

    what: str
    unit: str
    bound: float
    most: bool = True
    aim: float | None = None


# On a machine of two cores that node and load share; an answer means fsynced.
GOALS = {
    "schedule one": Goal("schedule, one a call", "of the echo", 0.20, most=False, aim=0.35),
    "schedule many": Goal("schedule, 100 a call", "timers an echo request", 1.0, most=False, aim=2.0),
    "cancel one": Goal("cancel, one a call", "of the echo", 0.20, most=False, aim=0.35),
    "kv put one": Goal("key/value put, one a call", "of the echo", 0.20, most=False),
    "kv get one": Goal("key/value get, one a call", "of the echo", 0.28, most=False),
    "kv put many": Goal("key/value put, 100 a call", "rows an echo request", 1.0, most=False),
    "kv sweep": Goal("a put's p99 while 1,000,000 rows end within a minute, to that before", "times", 1.2),
    "end to end": Goal("push, pop and ack in batches of 100", "messages an echo request", 0.7, most=False, aim=1.4),
    "transaction one": Goal(
        "ack + push + put + schedule in a transaction", "of the echo", 0.08, most=False),
    "transaction many": Goal(
        "10 of each in a transaction", "messages an echo request", 0.3, most=False),
    "push p50": Goal("push to delivered at 500/s, p50", "ms", 2.0, aim=0.8),
    "push p99": Goal("push to delivered at 500/s, p99", "ms", 10.0),
    "fire p99": Goal("fire at 1,000/s, 1,000,000 pending, tick 50 ms, p99", "ms", 65.0),
    "fire max": Goal("fire at 1,000/s, 1,000,000 pending, tick 50 ms, max", "ms", 150.0),
    "fire p99 tick 5": Goal("fire at 1,000/s, 1,000,000 pending, tick 5 ms, p99", "ms", 16.0, aim=10.0),
    "fire p99 at 5,000": Goal("fire at 5,000/s, 1,000,000 pending, tick 50 ms, p99", "ms", 80.0),
    "memory": Goal("resident memory a pending timer, 1,000,000 pending", "bytes", 100.0),
    "memory growth": Goal("the same, to that with 300,000 pending", "times", 1.0),
    "disk": Goal("disk a pending timer, after compaction", "bytes", 350.0, aim=230.0),
    "restart": Goal("first overdue message after kill -9, 300,000 pending", "s from exec", 1.0, aim=0.3),
    "restart growth": Goal("the same with 1,000,000 pending, to that with 300,000", "times", 1.25),
    "idle growth": Goal("an idle tick with 1,000,000 pending, to one with 1,000", "times", 1.25),
    "cluster one": Goal("three nodes: schedule, one a call, at the leader", "of the echo", 0.08, most=False, aim=0.16),
    "cluster many": Goal(
        "three nodes: schedule, 100 a call, at the leader", "timers an echo request", 0.45, most=False, aim=0.9),
    "failover": Goal("kill -9 of the leader to the next write, median", "s", 2.5),
    "failover max": Goal("the same, the longest", "s", 4.0),
    "hand-over max": Goal("SIGTERM of the leader, the slowest write meanwhile", "s", 1.0),
    "catch-up": Goal("a node 1 GiB behind, from its start until it serves", "s", 300.0),
    "catch-up p99": Goal("a write beside it, p99, to that of quiet", "times", 3.0),
    "idle tenants": Goal("three nodes, 10,000 idle tenants, the busiest node", "% of a core", 3.0),
    "idle tenants memory": Goal("the same, the largest node", "MB", 500.0),
    "first write": Goal("the first write of a new tenant over one of an old one, medians", "ms", 50.0),
    "restart of tenants": Goal("a node with 10,000 tenants, from exec to healthy", "s", 5.0),
    "orphaned fires": Goal(
        "kill -9 of the leader of 10,000 quiet groups, timers due in 100: the latest", "s late", 5.0),
    "idle": Goal("an idle node, 1,000,000 pending", "% of a core", 1.0),
}


class Verdict(msgspec.Struct, frozen=True):
    """A measured value beside the goal that it is judged by."""

    goal: Goal
    value: float

    @property
    def met(self) -> bool:
        if math.isnan(self.value):
            return False
        return self.value <= self.goal.bound if self.goal.most else self.value >= self.goal.bound

    @property
    def margin(self) -> float:
        """How many times better than the bound: 1 just reaches it, 0.5 is half of what it should be."""
        if math.isnan(self.value):
            return 0.0
        better, worse = (self.goal.bound, self.value) if self.goal.most else (self.value, self.goal.bound)
        return better / worse if worse > 0 else math.inf


class Table(msgspec.Struct):
    """Rows with the same columns; a column's name carries its unit."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = msgspec.field(default_factory=list)

    def median_of(self, column: str) -> float:
        """The median of a column's numbers; NaN when it has none."""
        at = self.columns.index(column)
        numbers = [cell for row in self.rows if isinstance(cell := row[at], int | float)]
        return median(numbers) if numbers else math.nan


class Yardstick(msgspec.Struct, frozen=True):
    """What the machine did in the same minute."""

    fdatasync_per_s: float
    echo_per_s: float
    echo_load_cores: float


class Results(msgspec.Struct):
    """All that one subject found."""

    subject: str
    tables: list[Table] = msgspec.field(default_factory=list)
    verdicts: list[Verdict] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)  # how it was measured, where that is not plain
    trouble: list[str] = msgspec.field(default_factory=list)  # answers and events that should not have come
    yardsticks: list[Yardstick] = msgspec.field(default_factory=list)
    seconds: float = 0.0

    def judge(self, goal: str, value: float) -> None:
        """Sets a value beside the goal of that name in GOALS."""
        self.verdicts.append(Verdict(GOALS[goal], value))


class Run(msgspec.Struct):
    """One start of the bench program."""

    started: str
    quick: bool
    machine: Machine
    generator: str
    settings: dict[str, str]
    results: list[Results] = msgspec.field(default_factory=list)
