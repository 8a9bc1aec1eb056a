"""Key/value puts and gets a second: one a call and 100 puts a call, on 64 connections that never pause."""

from __future__ import annotations

from bench import calls, load
from bench.results import Results
from bench.surroundings import Bench
from bench.throughput import Rounds

ITEMS = 100
WHAT = {  # by the name of the goal
    "kv put one": "put, one a call",
    "kv get one": "get, one a call",
    "kv put many": f"put, {ITEMS} a call",
}


def measure(bench: Bench) -> Results:
    results = Results("kv_throughput")
    results.notes.append(f"load: {load.GENERATOR}; value {calls.PAYLOAD_BYTES} bytes; judged by the rounds' median")
    seconds = bench.choose(4, 1)
    with bench.node() as node:
        rounds = Rounds(bench, node, results, f"Key/value, {load.CONNECTIONS} connections")
        for _ in range(bench.choose(3, 1)):
            namespace = f"n{rounds.begin()}"
            one, many = calls.put_template(f"{namespace}-one", 1), calls.put_template(namespace, ITEMS)
            rounds.take(WHAT["kv put one"], load.send, node.port, one, seconds)
            written = rounds.take(WHAT["kv put many"], load.send, node.port, many, seconds)
            read = rounds.take(WHAT["kv get one"], load.send, node.port, calls.get_template(namespace), seconds)
            if read.calls > written.items:
                results.trouble.append(f"round {rounds.number}: {read.calls - written.items:,} gets found nothing")
        for goal, what in WHAT.items():
            results.judge(goal, rounds.ratio_of(what))
    return results
