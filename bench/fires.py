"""The load of fire latency: timers due at a steady rate, pops that wait for them and the node's clock.

The clock matters: lateness is arrival by our clock minus a promise by the node's.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator

from bench import calls
from bench.http import BadAnswer, Client
from bench.jobs import FireJob, Outcome
from bench.loop import Loop
from bench.machine import cpu_s
from bench.roles import Consumer, Sender, type_of_moments
from bench.stats import spread

ITEMS_A_CALL = 100
SCHEDULERS = 8
WAITING_POPS = 8
POP_WAIT_MS = 20_000
CLOCK_SAMPLES = 60
SCHEDULES_PER_S = 10_000  # a node slower than this would be asked for timers that are due already
LEAD_S = 1.0


def boottime_us() -> int:
    """The clock that the group clock runs on (M-20): in steps with it, a constant apart."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class ClockEstimate:
    """Group clock minus our BOOTTIME, enclosed ever closer by calls: a stamp was made between sending and hearing."""

    def __init__(self) -> None:
        self._low_us: int | None = None
        self._high_us: int | None = None

    def take(self, sent_us: int, stamp_us: int, heard_us: int) -> None:
        low_us, high_us = stamp_us - heard_us, stamp_us - sent_us
        self._low_us = low_us if self._low_us is None else max(low_us, self._low_us)
        self._high_us = high_us if self._high_us is None else min(high_us, self._high_us)

    @property
    def offset_us(self) -> float:
        if self._low_us is None or self._high_us is None:
            raise ValueError("no sample of the node's clock")
        return (self._low_us + self._high_us) / 2

    @property
    def error_us(self) -> float:
        """How far `offset_us` can be off. Below zero the samples contradict each other: the clocks run apart."""
        if self._low_us is None or self._high_us is None:
            raise ValueError("no sample of the node's clock")
        return (self._high_us - self._low_us) / 2


def read_clock(port: int, queue: str) -> ClockEstimate:
    """Schedules and cancels a timer several times, only to see the stamps. Raises OSError and BadAnswer."""
    estimate = ClockEstimate()
    with Client(port) as client:
        template = calls.schedule_template(queue, 1)
        body = next(template.requests()).split(b"\r\n\r\n", 1)[1]
        for _ in range(CLOCK_SAMPLES):
            sent_us = boottime_us()
            answer = client.call("POST", "/api/v1/timers", body)
            heard_us = boottime_us()
            if answer.status != 200:
                raise BadAnswer(f"the clock cannot be read: {answer.status} {calls.error_text(answer.body)}")
            result = calls.decode_timer_results(answer.body).results[0]
            stamp_us = calls.microseconds(result.deliver_at) - calls.DAY_MS * 1000
            estimate.take(sent_us, stamp_us, heard_us)
        client.call("DELETE", f"/api/v1/timers/{queue}/key-{0:0{calls.NUMBER_DIGITS}d}")
    return estimate


class Schedule:
    """The calls that schedule `count` timers, due at a steady rate from `start_us` (BOOTTIME) on; and their answers."""

    def __init__(self, queue: str, count: int, per_second: int, start_us: int) -> None:
        self._queue, self._count, self._per_second, self._start_us = queue, count, per_second, start_us
        self._bodies: list[bytes] = []
        self.late = 0  # asked for after they were due: those measure the schedule, not the fire

    def requests(self) -> Iterator[bytes]:
        for first in range(0, self._count, ITEMS_A_CALL):
            numbers = range(first, min(first + ITEMS_A_CALL, self._count))
            now_us = boottime_us()
            delays_ms = [(self._start_us + n * 1_000_000 // self._per_second - now_us) // 1000 for n in numbers]
            self.late += sum(delay_ms <= 0 for delay_ms in delays_ms)
            yield calls.schedule_call(self._queue, numbers, delays_ms)

    def keep(self, body: bytes) -> None:
        self._bodies.append(body)

    def deliver_at_us(self) -> dict[int, int]:
        """By number: when the node promised to fire it, by its own clock."""
        promised: dict[int, int] = {}
        for body in self._bodies:
            for result in calls.decode_timer_results(body).results:
                promised[int(result.timer_key[-calls.NUMBER_DIGITS :])] = calls.microseconds(result.deliver_at)
        return promised


class Arrivals:
    """When each message was readable, by our BOOTTIME."""

    def __init__(self, count: int) -> None:
        self.at_us = array(type_of_moments, bytes(8 * count))
        self.received = 0
        self.doubled = 0

    def note(self, messages: list[calls.Message], now_ns: int) -> None:
        now_us = boottime_us()
        for message in messages:
            number = message.number
            if self.at_us[number]:
                self.doubled += 1
            else:
                self.at_us[number] = now_us
                self.received += 1


def fire(port: int, job: FireJob) -> Outcome:
    """Carries out the job. The load's own time counts from the first timer due to the last message.

    Pops commit on delivery: with leases the consumer's acks, not the fire, would decide when the next is readable.
    Raises OSError and BadAnswer.
    """
    clock = read_clock(port, f"{job.queue}-clock")
    count = int(job.per_second * job.seconds)
    lead_s = LEAD_S + count / SCHEDULES_PER_S
    schedule = Schedule(job.queue, count, job.per_second, boottime_us() + int(lead_s * 1e6))
    arrivals = Arrivals(count)
    start_ns = time.monotonic_ns() + int(lead_s * 1e9)
    loop = Loop(port)
    try:
        sender = Sender(schedule.requests(), schedule.keep)
        loop.add(sender, SCHEDULERS)
        loop.run(start_ns, lambda: sender.is_done)
        if not sender.is_done:
            loop.count_refused("not scheduled in time", f"in {lead_s:.1f} s")
        pop = calls.pop_call(job.queue, batch=1000, partitions=calls.LANES, wait_ms=POP_WAIT_MS, keep=False)
        loop.add(Consumer(loop, lambda _: pop, arrivals.note, keep=False), WAITING_POPS)
        loop.run(start_ns)
        before_cpu_ns, before_node_s = time.process_time_ns(), cpu_s(job.node_pid) if job.node_pid else 0.0
        loop.run(start_ns + int((job.seconds + job.grace_s) * 1e9), lambda: arrivals.received == count)
        seconds, load_cpu_s = (time.monotonic_ns() - start_ns) / 1e9, (time.process_time_ns() - before_cpu_ns) / 1e9
        node_cpu_s = cpu_s(job.node_pid) - before_node_s if job.node_pid else 0.0
    finally:
        loop.close()
    if schedule.late:
        loop.refused["scheduled after due"] += schedule.late
    promised_us = schedule.deliver_at_us()
    late_us = [
        at_us + clock.offset_us - promised_us[number]
        for number, at_us in enumerate(arrivals.at_us)
        if at_us and number in promised_us
    ]
    return Outcome(
        loop.calls,
        arrivals.received,
        seconds,
        load_cpu_s,
        loop.refused,
        loop.example,
        spread(us / 1000 for us in late_us),
        missing=count - arrivals.received,
        doubled=arrivals.doubled,
        early=sum(us < -clock.error_us for us in late_us),
        node_cpu_s=node_cpu_s,
        clock_error_ms=clock.error_us / 1000,
    )
