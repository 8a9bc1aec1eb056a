"""Schedules and cancels a second: one a call and 100 a call, on 64 connections that never pause."""

from __future__ import annotations

from bench import calls, load
from bench.jobs import SendJob
from bench.node import Node
from bench.results import Results
from bench.surroundings import Bench
from bench.throughput import Rounds

ITEMS = 100
FILL_CONNECTIONS = 8
FILL_S_MAX = 60.0
WHAT = {  # by the name of the goal
    "schedule one": "schedule, one a call",
    "schedule many": f"schedule, {ITEMS} a call",
    "cancel one": "cancel, one a call",
}


def measure(bench: Bench) -> Results:
    results = Results("schedule_throughput")
    results.notes.append(f"load: {load.GENERATOR}; payload {calls.PAYLOAD_BYTES} bytes; judged by the rounds' median")
    seconds = bench.choose(4, 1)
    with bench.node() as node:
        rounds = Rounds(bench, node, results, f"Schedules and cancels, {load.CONNECTIONS} connections")
        for _ in range(bench.choose(3, 1)):
            queue = f"timers-{rounds.begin()}"
            one, many = calls.schedule_template(queue, 1), calls.schedule_template(f"{queue}-many", ITEMS)
            scheduled = rounds.take(WHAT["schedule one"], load.send, node.port, one, seconds)
            rounds.take(WHAT["schedule many"], load.send, node.port, many, seconds)
            # Cancels run about as fast as schedules: twice as many timers, so that none of them finds nothing.
            pending = _fill(node, queue, scheduled.items * 2, results)
            cancelled = rounds.take(WHAT["cancel one"], load.send, node.port, calls.cancel_template(queue), seconds)
            if cancelled.calls > pending:
                results.trouble.append(f"round {rounds.number}: {cancelled.calls - pending:,} cancels found nothing")
        for goal, what in WHAT.items():
            results.judge(goal, rounds.ratio_of(what))
    return results


def _fill(node: Node, queue: str, count: int, results: Results) -> int:
    """Makes timers with the keys that the cancels will name; gives how many there are. Raises LoadFailed."""
    job = SendJob(calls.schedule_template(queue, ITEMS), FILL_CONNECTIONS, FILL_S_MAX, calls=count // ITEMS + 1)
    outcome = load.run(node.port, job, FILL_S_MAX)
    results.trouble += outcome.trouble("filling for the cancels")
    return outcome.items
