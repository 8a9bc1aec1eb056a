"""What ends every run (guarantees.md 3): all is healed, every timer is waited out, the worker group drains both queues,
and a reader of its own reads the whole log, through each node; then the history is judged.

Nothing here is judged by how long something took, except that it ends.
"""

from __future__ import annotations

from random import Random
from urllib.parse import quote

import pytest
import trio

from tests.checkers import verdict
from tests.checkers.history import Message, Outcome
from tests.faults.kv_load import KvClient
from tests.faults.load import TIMER_QUEUE, WORK_QUEUE, Client, World
from tests.faults.road import HttpRoad
from tests.support.http_client import HttpClient
from tests.workloads.failing import FAILING, FailingClient
from tests.workloads.locks import GUARDED
from tests.workloads.pipeline import INPUTS, LATE, OUTPUTS, PIPELINE_QUEUES, PipelineClient

QUEUES = (TIMER_QUEUE, WORK_QUEUE)
EMPTY_POLLS = 8  # guarantees.md 3: drained when so many long polls in a row came back empty
FINAL_PHASE_S = 60.0  # its own limit; a run that does not finish is no pass
LIST_EVERY_S = 0.1
LIST_LIMIT = 1000
WITNESS = "witness"
WITNESS_BATCH = 1000
PARTITIONS_MAX = 64
QUEUE_OPTIONS = {"leaseTime": 30, "retryLimit": 100_000, "deadLetterQueue": True, "dedupWindowSeconds": 86_400}


async def configure(world: World) -> None:
    """Make the queues, with options under which nothing ends by itself."""
    async with HttpClient(world.ports[0]) as http:
        for queue in (*QUEUES, *PIPELINE_QUEUES, GUARDED, FAILING):
            answer = await http.post(
                "/api/v1/configure", {"queue": queue, "options": QUEUE_OPTIONS}, headers=world.headers)
            assert answer.status == 200, answer


async def finish(world: World, again: str) -> None:
    """All of it. Fails the test with a report; prints it when all is well."""
    await settle(world, again)
    await judge(world, again)


async def settle(world: World, again: str) -> None:
    """What comes before the judgement. Fails the test when it does not end."""
    history = world.history
    with trio.move_on_after(FINAL_PHASE_S) as limit:
        await _wait_for_timers(world)
        async with trio.open_nursery() as nursery:
            for queue in QUEUES:
                nursery.start_soon(_drain, world, queue)
            nursery.start_soon(_end_pipeline, world)
        for queue in (*QUEUES, INPUTS):
            first, *others = [await _witness(world, queue, number) for number in range(len(world.ports))]
            for number, other in enumerate(others, 1):
                assert _by_place(other) == _by_place(first), f"nodes disagree about {queue}: 0 and {number}"
            history.log += first
        for number in range(len(world.ports)):
            await KvClient(world, number, Random(0)).read_everything()
        history.mended = await _witness(world, FAILING, 0)
        letters = await FailingClient(HttpRoad(world, 0), 0, Random(0)).letters()
        assert letters is not None, "the dead letters were not shown"
        history.letters = letters
        history.guarded = await _witness(world, GUARDED, len(world.ports) - 1)
        history.drained = True
    if limit.cancelled_caught:
        pytest.fail(f"unknown: the final phase did not end\n{verdict.report(history, [], again=again)}")


async def judge(world: World, again: str) -> None:
    """By every checker. Fails the test with a report; prints it when all is well."""
    history = world.history
    violations = await trio.to_thread.run_sync(verdict.judge, history)
    text = verdict.report(history, violations, again=again)
    if violations:
        pytest.fail(text)
    print(text)


async def _wait_for_timers(world: World) -> None:
    """Until none is pending, or long enough that one which still is has broken its promise (G-M4)."""
    history = world.history
    with trio.move_on_after(world.shape.delay_ms_max / 1000 + 7.0):
        while history.still_pending != (found := await pending(world, TIMER_QUEUE)) or found:
            history.still_pending = found
            await trio.sleep(LIST_EVERY_S)


async def _end_pipeline(world: World) -> None:
    """Take every step that is left; then read what all steps left behind."""
    history = world.history
    worker = PipelineClient(HttpRoad(world, 0), 0, Random(0))
    empty = 0
    while empty < EMPTY_POLLS:
        found = await worker.work(lease_s=30, wait_ms=_empty_poll_ms(world), dawdles=0)
        assert found is not None, "a step of the last phase was not answered"
        empty = 0 if found else empty + 1
    while True:
        await trio.sleep(LIST_EVERY_S)
        if not await pending(world, LATE):
            break
    history.outputs = await _witness(world, OUTPUTS, 0)
    history.late_outputs = await _witness(world, LATE, 0)
    counts = await worker.read_counts()
    assert counts is not None, "the counts were not shown"
    history.step_counts = counts


def _empty_poll_ms(world: World) -> int:
    """So many empty polls in a row outlast every lease that a dead client left behind."""
    return 1000 * world.shape.lease_s_max // EMPTY_POLLS + 100


async def pending(world: World, queue: str) -> list[tuple[str, str]]:
    """(queue, key) of every timer that a list shows."""
    found: list[tuple[str, str]] = []
    after = ""
    async with HttpClient(world.ports[0]) as http:
        while True:
            target = f"/api/v1/timers/{queue}?limit={LIST_LIMIT}&after={quote(after)}"
            answer = await http.get(target, headers=world.headers)
            assert answer.status == 200, answer
            page = answer.json()
            found += [(row["queue"], row["timerKey"]) for row in page["rows"]]
            if not page["truncated"]:
                return found
            after = page["nextAfter"]


async def _drain(world: World, queue: str) -> None:
    client = Client(world, 1000, Random(0))
    options = {"wait": "true", "timeout": str(_empty_poll_ms(world))}
    empty = 0
    while empty < EMPTY_POLLS:
        pop = await client.pop(queue, lease_s=30, batch=500, partitions=PARTITIONS_MAX, options=options)
        if pop.messages:
            empty = 0
            await client.ack(pop)
        else:
            assert pop.outcome is Outcome.OK, pop
            empty += 1


async def _witness(world: World, queue: str, number: int) -> list[Message]:
    """Every message of every partition from offset 0 on, read through one node, as a group that nobody else uses."""
    reader = Client(World(world.ports, tenant=world.tenant), number, Random(0))
    found: list[Message] = []
    while True:
        pop = await reader.pop(
            queue, lease_s=30, batch=WITNESS_BATCH, partitions=PARTITIONS_MAX, group=f"{WITNESS}-{number}",
            options={"commitOnDelivery": "true"},
        )
        assert pop.why == "", pop
        if not pop.messages:
            return found
        found += pop.messages


def _by_place(messages: list[Message]) -> dict[tuple[str, int], Message]:
    return {(message.partition_id, message.offset): message for message in messages}
