"""The load process: reads one job from stdin, does it, writes its outcome to stdout. Started by bench/load.py."""

from __future__ import annotations

import resource
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from bench import calls, fires
from bench.jobs import (
    ConsumeJob,
    EndToEndJob,
    FillJob,
    FillRowsJob,
    FireJob,
    Job,
    Outcome,
    PacedJob,
    PushLatencyJob,
    SendJob,
    StepJob,
)
from bench.loop import Loop
from bench.roles import Consumer, Lanes, Pacer, Sender, Steps, type_of_moments
from bench.stats import spread

POP_WAIT_MS = 20_000
BATCHES_AHEAD = 3
STEP_BATCH = 100  # messages of a pop that transactions then take: what a pop costs is spread over so many


def cpu_s() -> float:
    """Processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def after_s(seconds: float) -> int:
    """The monotonic moment `seconds` from now, in ns."""
    return time.monotonic_ns() + int(seconds * 1e9)


class Stopwatch:
    """Time and processor time since it was made."""

    def __init__(self) -> None:
        self._start_ns, self._start_cpu_s = time.monotonic_ns(), cpu_s()

    @property
    def seconds(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9

    @property
    def load_cpu_s(self) -> float:
        return cpu_s() - self._start_cpu_s


def send(loop: Loop, job: SendJob) -> Outcome:
    requests = job.template.requests()
    sender = Sender(islice(requests, job.calls) if job.calls is not None else requests)
    watch = Stopwatch()
    loop.add(sender, job.connections)
    loop.run(after_s(job.seconds), lambda: sender.is_done)
    seconds, load_cpu_s = watch.seconds, watch.load_cpu_s
    return Outcome(
        loop.calls,
        sender.accepted * job.template.items,
        seconds,
        load_cpu_s,
        loop.refused,
        loop.example,
        spread(ns / 1e6 for ns in sender.took_ns),
    )


def _number_ranges(job: FillJob | FillRowsJob) -> Iterator[range]:
    """The items of each call."""
    return (range(first, min(first + job.items, job.count)) for first in range(0, job.count, job.items))


def _filled(
    loop: Loop, job: FillJob | FillRowsJob, sender: Sender, watch: Stopwatch, accepted: Callable[[], int],
) -> Outcome:
    """Sends it all. accepted: items, once that is done."""
    loop.add(sender, job.connections)
    loop.run(after_s(job.seconds_max), lambda: sender.is_done)
    seconds, load_cpu_s = watch.seconds, watch.load_cpu_s
    latency_ms, items = spread(ns / 1e6 for ns in sender.took_ns), accepted()
    return Outcome(
        loop.calls, items, seconds, load_cpu_s, loop.refused, loop.example, latency_ms, missing=job.count - items)


def fill(loop: Loop, job: FillJob) -> Outcome:
    stretch_ms = job.last_delay_ms - job.first_delay_ms

    def one_call(numbers: range) -> bytes:
        delays_ms = [job.first_delay_ms + stretch_ms * number // job.count for number in numbers]
        return calls.schedule_call(job.queue, numbers, delays_ms)

    accepted = 0

    def count(body: bytes) -> None:
        nonlocal accepted
        accepted += sum(result.ok for result in calls.decode_timer_results(body).results)

    return _filled(loop, job, Sender(map(one_call, _number_ranges(job)), count), Stopwatch(), lambda: accepted)


def fill_rows(loop: Loop, job: FillRowsJob) -> Outcome:
    stretch_s = job.last_end_s - job.first_end_s
    watch = Stopwatch()

    def one_call(numbers: range) -> bytes:
        left_s = job.first_end_s - watch.seconds
        return calls.put_call(
            job.namespace, numbers, [max(round(left_s + stretch_s * number / job.count), 1) for number in numbers])

    sender = Sender(map(one_call, _number_ranges(job)))
    return _filled(loop, job, sender, watch, lambda: min(sender.accepted * job.items, job.count))


def paced(loop: Loop, job: PacedJob) -> Outcome:
    count = int(job.per_second * job.seconds)
    pacer = Pacer(
        loop, job.template.requests(job.first), per_second=job.per_second, count=count, start_ns=after_s(0.2))
    loop.add(pacer, job.connections)
    watch = Stopwatch()
    loop.run(after_s(job.seconds + 5.2), lambda: pacer.accepted == count)
    latency_ms = spread(ns / 1e6 for ns in pacer.took_ns)
    return Outcome(
        loop.calls, pacer.accepted, watch.seconds, watch.load_cpu_s, loop.refused, loop.example, latency_ms,
        missing=count - pacer.accepted,
    )


def push_latency(loop: Loop, job: PushLatencyJob) -> Outcome:
    count = int(job.per_second * job.seconds)
    arrived_ns = array(type_of_moments, bytes(8 * count))
    received = doubled = 0

    def note(messages: list[calls.Message], now_ns: int) -> None:
        nonlocal received, doubled
        for message in messages:
            if arrived_ns[message.number]:
                doubled += 1
            else:
                arrived_ns[message.number] = now_ns
                received += 1

    pop = calls.pop_call(job.queue, batch=10, wait_ms=POP_WAIT_MS)
    loop.add(Consumer(loop, lambda _: pop, note), calls.LANES)
    requests = calls.push_template(job.queue, 1).requests()
    start_ns = after_s(0.5)
    pacer = Pacer(loop, requests, per_second=job.per_second, count=count, start_ns=start_ns)
    loop.add(pacer, calls.LANES)
    watch = Stopwatch()
    loop.run(after_s(job.seconds + 5.5), lambda: received == count)
    took_ms = [(at - due) / 1e6 for at, due in zip(arrived_ns, pacer.due_ns, strict=False) if at]
    return Outcome(
        loop.calls,
        received,
        watch.seconds,
        watch.load_cpu_s,
        loop.refused,
        loop.example,
        spread(took_ms),
        missing=count - received,
        doubled=doubled,
    )


def consume(loop: Loop, job: ConsumeJob) -> Outcome:
    consumer = Consumer(
        loop,
        lambda lane: calls.pop_call(job.queue, batch=job.batch, partition=calls.lane_name(lane)),
        lambda messages, now_ns: None,
        pops_empty=False,
    )
    watch = Stopwatch()
    loop.add(consumer, calls.LANES)
    loop.run(after_s(job.seconds), lambda: consumer.lanes_ended > 0)
    return Outcome(loop.calls, consumer.acked, watch.seconds, watch.load_cpu_s, loop.refused, loop.example)


def end_to_end(loop: Loop, job: EndToEndJob) -> Outcome:
    lanes = Lanes(loop, job.queue, batch=job.batch, batches_ahead=BATCHES_AHEAD)
    consumer = Consumer(
        loop,
        lambda lane: calls.pop_call(job.queue, batch=job.batch, partition=calls.lane_name(lane), wait_ms=POP_WAIT_MS),
        lambda messages, now_ns: None,
        on_acked=lanes.acked,
    )
    watch = Stopwatch()
    loop.add(lanes, calls.LANES)
    loop.add(consumer, calls.LANES)
    loop.run(after_s(job.seconds))
    return Outcome(loop.calls, consumer.acked, watch.seconds, watch.load_cpu_s, loop.refused, loop.example)


def step(loop: Loop, job: StepJob) -> Outcome:
    steps = Steps(loop, job.queue, items=job.items, batch=STEP_BATCH)
    watch = Stopwatch()
    loop.add(steps, job.connections)
    loop.run(after_s(job.seconds), lambda: steps.lanes_ended > 0)
    return Outcome(
        loop.calls,
        steps.done,
        watch.seconds,
        watch.load_cpu_s,
        loop.refused,
        loop.example,
        spread(ns / 1e6 for ns in steps.took_ns),
    )


def do(port: int, job: Job) -> Outcome:
    """Carries out a job against the node on `port`. Raises OSError and BadAnswer."""
    if isinstance(job, FireJob):
        return fires.fire(port, job)
    loop = Loop(port)
    try:
        match job:
            case SendJob():
                return send(loop, job)
            case FillJob():
                return fill(loop, job)
            case FillRowsJob():
                return fill_rows(loop, job)
            case PacedJob():
                return paced(loop, job)
            case PushLatencyJob():
                return push_latency(loop, job)
            case ConsumeJob():
                return consume(loop, job)
            case EndToEndJob():
                return end_to_end(loop, job)
            case StepJob():
                return step(loop, job)
    finally:
        loop.close()


def main() -> None:
    port = int(sys.argv[1])
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(do(port, job)))


if __name__ == "__main__":
    main()
