"""Messages: pushes, pops and acks, single and in batches of 100; how long a message takes from push to consumer."""

from __future__ import annotations

from bench import calls, load
from bench.jobs import ConsumeJob, EndToEndJob, PushLatencyJob, SendJob
from bench.node import Node
from bench.results import Results, Table
from bench.surroundings import Bench
from bench.throughput import Rounds

BATCH = 100
PUSH_PER_S = 500
FILL_CONNECTIONS = 8
FILL_S_MAX = 60.0
CONSUMED_PER_S = 8_000  # single pops and acks: messages to lay ready for each second of them
CONSUMED_IN_BATCHES_PER_S = 80_000
END_TO_END = f"push, pop and ack {BATCH}"


def measure(bench: Bench) -> Results:
    results = Results("queue_throughput")
    results.notes += [
        f"single and batched pushes: {load.GENERATOR}, {load.CONNECTIONS} connections; the rest: our own generator",
        f"payload {calls.PAYLOAD_BYTES} bytes; {calls.LANES} partitions, each with a consumer that acks every message",
    ]
    with bench.node() as node:
        _throughput(bench, node, results)
        _latency(bench, node, results)
    return results


def _throughput(bench: Bench, node: Node, results: Results) -> None:
    seconds = bench.choose(4, 1)
    rounds = Rounds(bench, node, results, "Messages a second")
    for _ in range(bench.choose(3, 1)):
        number = rounds.begin()
        one, many = calls.push_template(f"one-{number}", 1), calls.push_template(f"many-{number}", BATCH)
        rounds.take("push one", load.send, node.port, one, seconds)
        rounds.take(f"push {BATCH}", load.send, node.port, many, seconds)
        for batch, per_s in ((1, CONSUMED_PER_S), (BATCH, CONSUMED_IN_BATCHES_PER_S)):
            queue = f"consume-{batch}-{number}"
            _fill(node, queue, per_s * seconds, results)
            rounds.take(f"pop and ack {batch}", load.run, node.port, ConsumeJob(queue, batch, seconds), seconds)
        job = EndToEndJob(f"through-{number}", BATCH, seconds)
        rounds.take(END_TO_END, load.run, node.port, job, seconds)
    results.judge("end to end", rounds.ratio_of(END_TO_END))


def _fill(node: Node, queue: str, count: int, results: Results) -> None:
    job = SendJob(calls.push_template(queue, BATCH), FILL_CONNECTIONS, FILL_S_MAX, calls=count // BATCH)
    outcome = load.run(node.port, job, FILL_S_MAX)
    results.trouble += outcome.trouble(f"filling {queue}")


def _latency(bench: Bench, node: Node, results: Results) -> None:
    seconds = bench.choose(10, 3)
    columns = ["run", "messages", "p50 ms", "p99 ms", "max ms", "load cores"]
    table = Table(f"From push to delivery at {PUSH_PER_S}/s, one a call", columns)
    results.tables.append(table)
    for number in range(1, bench.choose(3, 1) + 1):
        outcome = load.run(node.port, PushLatencyJob(f"latency-{number}", PUSH_PER_S, seconds), seconds)
        results.trouble += outcome.trouble(f"push to delivery, run {number}")
        latency = outcome.latency_ms
        if latency is not None:
            table.rows.append([number, latency.count, latency.p50, latency.p99, latency.max, outcome.load_cores])
    results.judge("push p50", table.median_of("p50 ms"))
    results.judge("push p99", table.median_of("p99 ms"))
