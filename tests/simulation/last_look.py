"""Scripts of the final phase: timers are waited out, queues are drained, and every log is read to its end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

from queen_node import queries
from queen_node.queries import Query
from tests.checkers.history import Message, Outcome
from tests.simulation.calls import Ground, Script
from tests.simulation.clients import Client
from tests.simulation.slots import NODE_TIMEOUT_US
from tests.simulation.world import MS, SECOND

LOOK_EVERY_US: Final = 300 * MS
DRAIN_LEASE_S: Final = 2  # shorter than the silence that ends a drain: what it did not get to ack comes again before
LIST_LIMIT: Final = 1000
WITNESS: Final = "witness"
BATCH, PARTITIONS = 1000, 64  # all that a run can have


def wait_for_timers(client: Client, queue: str, look: Callable[[], None] = lambda: None) -> Script:
    """Until none is pending. look: called again and again meanwhile."""
    query = queries.query(Query.TIMER_LIST, queue.encode(), b"", LIST_LIMIT)
    while True:
        answer = yield from client.call(
            lambda process, slot: process.read(client.ground.tenant, query, slot, timeout_us=NODE_TIMEOUT_US))
        if answer.outcome is Outcome.OK and not answer.body["rows"]:
            return
        look()
        yield LOOK_EVERY_US


def drain(client: Client, queue: str) -> Script:
    """Until nothing came for longer than any lease that may be out."""
    world = client.ground.world
    empty_since_us: int | None = None
    quiet_us = (client.ground.shape.lease_s_max + 2) * SECOND
    while empty_since_us is None or world.now_us - empty_since_us < quiet_us:
        pop = yield from client.pop(queue, lease_s=DRAIN_LEASE_S, batch=BATCH, partitions=PARTITIONS, wait_us=None)
        if pop.messages:
            yield from client.ack(pop)
            empty_since_us = None
        else:
            if empty_since_us is None and pop.outcome is Outcome.OK:
                empty_since_us = world.now_us
            yield LOOK_EVERY_US


def witness(ground: Ground, queue: str, log: list[Message]) -> Script:
    """Read every message of every partition from offset 0 on into `log`, as a group that nobody else uses.

    A pop of which nobody knows may have taken the messages along, so another group reads all of them again.
    """
    apart = Ground(ground.world, ground.shape, ground.tenant)
    client = Client(apart, 2000, ground.world.dice(f"witness {queue} {ground.tenant.hex()}"))
    found: list[Message] = []
    group, others = WITNESS, map(f"{WITNESS}-{{}}".format, count(2))
    while True:
        pop = yield from client.pop(
            queue, lease_s=30, batch=BATCH, partitions=PARTITIONS, wait_us=None, group=group,
            commit_on_delivery=True)
        if pop.outcome is Outcome.OK and not pop.messages:
            log += found
            return
        if pop.outcome is Outcome.INFO:
            found.clear()
            group = next(others)
        found += pop.messages
        yield 0
