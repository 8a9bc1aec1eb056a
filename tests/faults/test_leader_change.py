"""A leader that goes: what clients of the other nodes notice, which is time and nothing else (cluster.md 4.3, 14)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from queen import Queen

from tests.checkers.history import Outcome
from tests.faults import final_phase
from tests.faults.load import Client, Shape, World, now_ns
from tests.support.cluster_process import IDS, ClusterProcess
from tests.support.figures import at_least, wait_for_metric
from tests.support.http_client import Answer, HttpClient
from tests.support.node_process import NodeProcess
from tests.support.wire import parse_time_us

CLIENTS = 6
CALLS = 100  # before a leader goes, and after the next has come
HELD_MS = 4000  # cluster.md 14: so long a killed leader may hold up a call
PATIENCE_S = 30.0
POLLS = "queen_parked_long_polls"
NS_PER_MS = 1_000_000
JUMP_MS = 300_000
LEASE_S, DELAY_MS = 3, 3000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three nodes for all tests here; each test leaves behind what it killed."""
    folder = tmp_path_factory.mktemp("three")
    cluster = ClusterProcess(folder, {"QUEEN_TEST_HOOKS": "1"})
    for node_id, node in cluster.nodes.items():
        node.settings["QUEEN_TEST_CLOCK_FILE"] = str(folder / f"clock-{node_id}")
        node.settings["QUEEN_TEST_NET_FILE"] = str(folder / f"net-{node_id}")
    set_clocks(cluster, dict.fromkeys(IDS, 0))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def three(shared: ClusterProcess) -> Iterator[ClusterProcess]:
    """The same, all of them ready; what they logged is looked at when the test has passed."""
    for node in shared.nodes.values():
        if not node.is_running():
            node.launch()
    for node in shared.nodes.values():
        node.wait_until_ready()
    yield shared
    for node in shared.nodes.values():
        node.check_log()


def set_clocks(three: ClusterProcess, offsets_ms: Mapping[int, int]) -> None:
    """Of the wall; by the node's id."""
    for node_id, offset_ms in offsets_ms.items():
        Path(three.nodes[node_id].settings["QUEEN_TEST_CLOCK_FILE"]).write_text(str(offset_ms))


def others(three: ClusterProcess, node_id: int) -> list[NodeProcess]:
    return [node for each, node in three.nodes.items() if each != node_id]


async def leader_of(three: ClusterProcess) -> int:
    """Of the tenant's group, which its first write makes."""
    async with HttpClient(three.nodes[IDS[0]].port) as http:
        assert (await http.post("/api/v1/push", {"items": [{"queue": "any", "payload": 1}]})).status == 201
    return await trio.to_thread.run_sync(three.leader_id)


async def test_no_call_of_a_client_that_waits_fails(three: ClusterProcess, seed: int, again: str) -> None:
    """CL-140, CL-54: calls of every kind, under way and new, on the nodes that stay; the leader goes and comes back."""
    dice = Random(seed)
    shape = Shape(clients=CLIENTS, poll_ms=HELD_MS)  # of a shorter one the own deadline may pass while nobody leads
    world = World([node.port for node in three.nodes.values()], shape)
    everyone = world.ports
    await final_phase.configure(world)
    for how in (signal.SIGKILL, signal.SIGTERM):
        leader = await trio.to_thread.run_sync(three.leader_id)
        world.ports, world.stopping = [node.port for node in others(three, leader)], False
        begun_ns = now_ns()
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(Client(world, number, Random(dice.random())).run)
            await world.wait_for_calls(CALLS)
            three.nodes[leader].signal(how)
            code = await trio.to_thread.run_sync(three.nodes[leader].wait, PATIENCE_S)
            assert code == (0 if how is signal.SIGTERM else -how)
            await world.wait_for_calls(CALLS)
            await trio.to_thread.run_sync(three.nodes[leader].start)
            world.stopping = True
        world.history.outages.append((begun_ns, now_ns()))
    failed = [call for call in world.history.calls if call.outcome is not Outcome.OK]
    assert not failed, failed[:3]
    world.ports = everyone
    await final_phase.finish(world, again)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_polls_that_wait_outlive_their_leader(three: ClusterProcess, how: signal.Signals) -> None:
    """M-41, M-42: they go to the next leader, which serves them what is pushed there and what fires there."""
    leader = await leader_of(three)
    one, other = others(three, leader)
    answers: dict[str, Answer] = {}
    async with (
        HttpClient(one.port) as http, HttpClient(other.port, timeout_s=60) as patient,
        HttpClient(one.port, timeout_s=60) as sleeper, HttpClient(three.nodes[leader].port) as old,
    ):
        async def poll(client: HttpClient, queue: str) -> None:
            options = "wait=true&timeout=60000&commitOnDelivery=true"
            answers[queue] = await client.get(f"/api/v1/pop/queue/{queue}?{options}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, patient, "pushed-later")
            nursery.start_soon(poll, sleeper, "fired-later")
            await wait_for_metric(old, POLLS, at_least(2))
            timer = {"op": "schedule", "queue": "fired-later", "timerKey": "k", "txn": f"fired {how}", "delayMs": 1500,
                     "payload": "MQ=="}
            assert (await http.post("/api/v1/timers", {"operations": [timer]})).status == 200
            three.nodes[leader].signal(how)
            item = {"queue": "pushed-later", "transactionId": f"pushed {how}", "payload": 1}
            assert (await http.post("/api/v1/push", {"items": [item]})).status == 201
    found = {
        queue: [message["transactionId"] for message in answer.json()["messages"]] for queue, answer in answers.items()}
    assert found == {"pushed-later": [f"pushed {how}"], "fired-later": [f"fired {how}"]}


async def test_a_poll_that_nobody_can_judge_is_refused_and_not_empty(three: ClusterProcess) -> None:
    """PA-7, PA-8: at the leader that lost its majority, and on a node that knows no leader; 204 once there is one."""
    leader = await leader_of(three)
    one, other = others(three, leader)
    async with HttpClient(three.nodes[leader].port) as at_leader, HttpClient(one.port) as elsewhere:
        for stopped in (one, other):
            stopped.signal(signal.SIGSTOP)
        must_be_refused(await at_leader.get("/api/v1/pop/queue/any-other?wait=true&timeout=500"))
        for stopped in (one, other):
            stopped.signal(signal.SIGCONT)
        assert (await at_leader.get("/api/v1/pop/queue/any-other?wait=true&timeout=2000")).status == 204
        leader = await trio.to_thread.run_sync(three.leader_id)
        for node in three.nodes.values():
            if node is not one:
                node.kill()
        must_be_refused(await elsewhere.get("/api/v1/pop/queue/any-other?wait=true&timeout=500"))


def must_be_refused(answer: Answer) -> None:
    """As the published client's consumer can live with."""
    assert answer.status == 503, answer
    error = answer.json()["error"]
    assert "connection" in error and "timeout" not in error


def make_deaf(node: NodeProcess, to: Iterable[int]) -> None:
    """It hears nothing of these nodes from now on."""
    Path(node.settings["QUEEN_TEST_NET_FILE"]).write_text(" ".join(f"from:{node_id}" for node_id in to))


async def test_a_deaf_leader_makes_room(three: ClusterProcess) -> None:
    """CL-53: it hears of no majority and still keeps the others quiet; after 3 s it hands over, and no call fails."""
    leader = await leader_of(three)
    one = others(three, leader)[0]
    async with HttpClient(one.port) as http, HttpClient(three.nodes[leader].port) as deaf:
        make_deaf(three.nodes[leader], IDS)
        assert (await http.post("/api/v1/push", {"items": [{"queue": "any", "payload": 1}]})).status == 201
        make_deaf(three.nodes[leader], ())
        assert (await deaf.post("/api/v1/push", {"items": [{"queue": "any", "payload": 1}]})).status == 201


async def test_leases_and_timers_hold_though_every_wall_clock_jumps(three: ClusterProcess) -> None:
    """M-21, README 4: ±300 s on the leader, on the next and on the third; the leader goes while they run."""
    leader = await leader_of(three)
    one, other = others(three, leader)
    async with HttpClient(one.port) as http:
        item = {"queue": "leased", "transactionId": "m", "payload": 1}
        assert (await http.post("/api/v1/push", {"items": [item]})).status == 201
        leased_ns = now_ns()
        first = (await http.get(f"/api/v1/pop/queue/leased?leaseSeconds={LEASE_S}")).json()["messages"]
        scheduled_ns = now_ns()
        timer = {"op": "schedule", "queue": "fired", "timerKey": "k", "txn": "t", "delayMs": DELAY_MS,
                 "payload": "MQ=="}
        scheduled = (await http.post("/api/v1/timers", {"operations": [timer]})).json()["results"][0]
        set_clocks(three, {node_id: JUMP_MS if node_id == leader else -JUMP_MS for node_id in IDS})
        answered_ns = now_ns()
        later = (await http.post("/api/v1/timers", {"operations": [{**timer, "timerKey": "by the old"}]})).json()
        three.nodes[leader].kill()
        set_clocks(three, {node_id: -JUMP_MS if node_id == leader else JUMP_MS for node_id in IDS})
        last = (await http.post("/api/v1/timers", {"operations": [{**timer, "timerKey": "by the new"}]})).json()
        async with HttpClient(other.port) as elsewhere:
            async def redelivered() -> None:
                again = await http.get("/api/v1/pop/queue/leased?wait=true&timeout=15000")
                assert now_ns() - leased_ns >= LEASE_S * 1000 * NS_PER_MS, "redelivered under a live lease"
                (message,) = again.json()["messages"]
                assert (message["id"], message["deliveryAttempt"]) == (first[0]["id"], 2)

            async def fired() -> None:
                popped = await elsewhere.get("/api/v1/pop/queue/fired?wait=true&timeout=15000")
                assert now_ns() - scheduled_ns >= DELAY_MS * NS_PER_MS, "fired early"
                assert popped.json()["messages"][0]["transactionId"] == "t"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(redelivered)
                nursery.start_soon(fired)
    moments_us = [
        parse_time_us(result["deliverAt"]) for result in (scheduled, later["results"][0], last["results"][0])]
    passed_us = (now_ns() - answered_ns) // 1000
    assert moments_us[0] < moments_us[1] < moments_us[2] <= moments_us[1] + passed_us, "the group clock jumped"


def test_the_published_client_with_three_addresses(three: ClusterProcess) -> None:
    """cluster.md 14: it tries each address once and reads no Retry-After; a killed leader costs its users nothing."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    urls = [f"http://127.0.0.1:{node.port}" for node in three.nodes.values()]

    async def scene(client: Any) -> None:
        seen: list[str] = []

        async def handle(messages: Any) -> None:
            seen.extend(message["transactionId"] for message in messages)

        consumer = client.queue("work").group("workers").subscription_mode("all").batch(10).timeout_millis(2000)

        async def consume() -> None:
            await consumer.limit(60).consume(handle)

        consuming = asyncio.create_task(consume())
        for number in range(60):
            if number == 20:
                leader = await asyncio.to_thread(three.leader_id)
                await asyncio.to_thread(three.nodes[leader].kill)
            if number == 40:
                await asyncio.to_thread(three.nodes[leader].start)
            await client.queue("work").push({"transactionId": f"m{number}", "data": number})
            timer = client.timer("later").key(f"k{number}").payload(number).after_ms(3_600_000)
            assert (await timer.schedule())["status"] in ("scheduled", "rescheduled")
        await asyncio.wait_for(consuming, PATIENCE_S)
        assert set(seen) == {f"m{number}" for number in range(60)}
        assert len(await client.timers.list_all("later")) == 60

    async def bounded() -> None:
        async with Queen(urls) as client:
            await asyncio.wait_for(scene(client), 2 * PATIENCE_S)

    asyncio.run(bounded())
    for number, handler in kept.items():  # the client takes them for itself and does not give them back
        signal.signal(number, handler)
