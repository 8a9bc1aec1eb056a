"""Transactions a second: ack, push, put and schedule, one of each a call and ten of each, on 64 connections."""

from __future__ import annotations

from bench import calls, load
from bench.jobs import SendJob, StepJob
from bench.node import Node
from bench.results import Results
from bench.surroundings import Bench
from bench.throughput import Rounds

MANY = 10
FILL_BATCH = 100
FILL_CONNECTIONS = 8
FILL_S_MAX = 60.0
TAKEN_PER_S = 12_000  # messages to lay ready for each second, all consumer groups together
GROUPS = load.CONNECTIONS // calls.LANES  # each takes every message
WHAT = {  # by the name of the goal
    "transaction one": "ack + push + put + schedule",
    "transaction many": f"the same, {MANY} of each a call",
}


def measure(bench: Bench) -> Results:
    results = Results("transactions")
    results.notes += [
        "load: our own generator, which pops what it acks, a hundred at once; the pops are in the time",
        f"payload {calls.PAYLOAD_BYTES} bytes, of message, value and timer; items are messages taken",
    ]
    seconds = bench.choose(4, 1)
    with bench.node() as node:
        rounds = Rounds(bench, node, results, f"Messages a second, {load.CONNECTIONS} connections")
        for _ in range(bench.choose(3, 1)):
            number = rounds.begin()
            for (goal, what), items in zip(WHAT.items(), (1, MANY), strict=True):
                queue = f"{goal.replace(' ', '-')}-{number}"
                _fill(node, queue, TAKEN_PER_S * seconds // GROUPS, results)
                job = StepJob(queue, items, load.CONNECTIONS, seconds)
                rounds.take(what, load.run, node.port, job, seconds)
    for goal, what in WHAT.items():
        results.judge(goal, rounds.ratio_of(what))
    return results


def _fill(node: Node, queue: str, count: int, results: Results) -> None:
    job = SendJob(calls.push_template(queue, FILL_BATCH), FILL_CONNECTIONS, FILL_S_MAX, calls=count // FILL_BATCH)
    outcome = load.run(node.port, job, FILL_S_MAX)
    results.trouble += outcome.trouble(f"filling {queue}")
