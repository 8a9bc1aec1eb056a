"""What a load process can be told to do, and what it answers. Both cross a pipe as JSON."""

from __future__ import annotations

import msgspec

from bench.calls import Template
from bench.stats import Spread


class SendJob(msgspec.Struct, tag="send", frozen=True):
    """The template's calls, closed loop: `seconds` long, or `calls` of them, whichever ends first."""

    template: Template
    connections: int
    seconds: float
    calls: int | None = None


class FillJob(msgspec.Struct, tag="fill", frozen=True):
    """Leaves `count` timers pending, due evenly over a stretch far in the future."""

    queue: str
    count: int
    first_delay_ms: int
    last_delay_ms: int
    items: int = 200
    connections: int = 8
    seconds_max: float = 300.0


class FillRowsJob(msgspec.Struct, tag="fill_rows", frozen=True):
    """Leaves `count` key/value rows, whose lifetimes end evenly over a stretch; both in seconds from the start."""

    namespace: str
    count: int
    first_end_s: float
    last_end_s: float
    items: int = 200
    connections: int = 8
    seconds_max: float = 300.0


class PacedJob(msgspec.Struct, tag="paced", frozen=True):
    """The template's calls at a steady rate, items numbered from `first`."""

    template: Template
    per_second: int
    connections: int
    seconds: float
    first: int = 0


class FireJob(msgspec.Struct, tag="fire", frozen=True):
    """Schedules timers that become due at a steady rate, and waits for their messages with parked pops."""

    queue: str
    per_second: int
    seconds: float
    node_pid: int | None = None  # a process whose processor time is to be told too
    grace_s: float = 5.0


class PushLatencyJob(msgspec.Struct, tag="push_latency", frozen=True):
    """Pushes one a call at a steady rate, while consumers pop and ack."""

    queue: str
    per_second: int
    seconds: float


class ConsumeJob(msgspec.Struct, tag="consume", frozen=True):
    """Pops and acks what is there, on a connection a partition, until the time is over or a partition is empty."""

    queue: str
    batch: int
    seconds: float


class EndToEndJob(msgspec.Struct, tag="end_to_end", frozen=True):
    """Pushes, pops and acks in batches at once, producers never far ahead."""

    queue: str
    batch: int
    seconds: float


class StepJob(msgspec.Struct, tag="step", frozen=True):
    """Takes the messages of a queue in transactions, `items` of them each, until the time is over or none are left."""

    queue: str
    items: int
    connections: int
    seconds: float


Job = (
    SendJob | FillJob | FillRowsJob | PacedJob | FireJob | PushLatencyJob | ConsumeJob | EndToEndJob | StepJob
)


class Outcome(msgspec.Struct, frozen=True):
    """What a load saw. Latencies are in milliseconds."""

    calls: int
    items: int  # timers, messages: what the calls carried and the node accepted
    seconds: float
    load_cpu_s: float  # processor time of the load process in that time
    refused: dict[str, int]  # status or mishap, and how often: all that should not have come
    example: str = ""  # one of the refused, in words
    latency_ms: Spread | None = None
    missing: int = 0  # promised and not delivered in time
    doubled: int = 0  # delivered more than once
    early: int = 0  # delivered before the promised time, by more than the clocks can differ
    node_cpu_s: float = 0.0  # processor time of the node in that time, where the job named it
    clock_error_ms: float = 0.0  # how far the estimate of the node's clock can be off

    @property
    def items_per_s(self) -> float:
        return self.items / self.seconds if self.seconds > 0 else 0.0

    @property
    def load_cores(self) -> float:
        """The share of one core that the load took."""
        return self.load_cpu_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def node_cores(self) -> float:
        """The same of the node, where the job named it."""
        return self.node_cpu_s / self.seconds if self.seconds > 0 else 0.0

    def trouble(self, what: str) -> list[str]:
        """One line for each thing that went wrong, to stand under the results."""
        lines = [f"{what}: {count:,} × {kind}" for kind, count in sorted(self.refused.items())]
        if lines and self.example:
            lines[-1] += f" (for example {self.example})"
        for count, kind in ((self.missing, "missing"), (self.doubled, "delivered twice"), (self.early, "early")):
            if count:
                lines.append(f"{what}: {count:,} {kind}")
        return lines
