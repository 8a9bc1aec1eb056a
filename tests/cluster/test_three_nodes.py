"""Three real nodes: any of them takes any call, and losing one costs a pause and nothing else (cluster.md 14)."""

from __future__ import annotations

import base64
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.support.cluster_process import IDS, ClusterProcess, cluster, role_of
from tests.support.figures import at_least, wait_for_metric
from tests.support.http_client import HttpClient

QUEUE = "orders"
PATIENCE_S = 30.0


@asynccontextmanager
async def clients(three: ClusterProcess, *ids: int) -> AsyncIterator[list[HttpClient]]:
    """A client of each of these nodes."""
    made = [HttpClient(three.nodes[node_id].port) for node_id in ids]
    try:
        yield made
    finally:
        for client in made:
            await client.aclose()


def schedule(key: str, delay_ms: int) -> dict[str, Any]:
    payload = base64.b64encode(f'"{key}"'.encode()).decode()
    return {"operations": [{
        "op": "schedule", "queue": QUEUE, "timerKey": key, "txn": f"txn-{key}", "delayMs": delay_ms,
        "payload": payload}]}


def push(*texts: str) -> dict[str, Any]:
    return {"items": [{"queue": QUEUE, "transactionId": text, "payload": text} for text in texts]}


async def pop_texts(client: HttpClient, at_least: int) -> list[str]:
    """Payloads of the queue until there are so many."""
    found: list[str] = []
    with trio.fail_after(PATIENCE_S):
        while len(found) < at_least:
            answer = await client.get(f"/api/v1/pop/queue/{QUEUE}?batch=100&wait=true&timeout=1000&autoAck=true")
            assert answer.status in (200, 204), answer
            found += [message["data"] for message in answer.json()["messages"]] if answer.status == 200 else []
    return found


async def make_group(three: ClusterProcess) -> None:
    """The tenant's first write, into a queue that nobody reads."""
    async with clients(three, 1) as (one,):
        assert (await one.post("/api/v1/push", {"items": [{"queue": "unread", "payload": 1}]})).status == 201


async def test_any_node_takes_any_call(tmp_path: Path) -> None:
    """CL-2, CL-35: a follower does the work of its own clients and gives the leader what must be ordered."""
    with cluster(tmp_path) as three:
        async with clients(three, *IDS) as nodes:
            for number, node in enumerate(nodes):
                assert (await node.post("/api/v1/push", push(f"pushed-{number}"))).status == 201
                assert (await node.post("/api/v1/timers", schedule(f"timer-{number}", 300))).status == 200
            for number in range(3):  # linearizable, wherever it is asked
                peeked = await nodes[(number + 1) % 3].get(f"/api/v1/timers/{QUEUE}/timer-{number}")
                assert peeked.status == 200
            texts = await pop_texts(nodes[2], 6)
            assert sorted(texts) == sorted([f"pushed-{n}" for n in range(3)] + [f"timer-{n}" for n in range(3)])
            connected = 'queen_peer_connected{connection="bulk",peer="2"}'
            taken = 'queen_peer_frames_total{direction="taken",kind="node",peer="2"}'
            await wait_for_metric(nodes[0], connected, at_least(1))
            await wait_for_metric(nodes[0], taken, at_least(1))
        roles = [role_of(node).removesuffix("+leader") for node in three.nodes.values()]
        assert sorted(roles) == ["follower", "follower", "leader"]
        for process in three.nodes.values():
            assert process.stop() == 0


async def test_a_killed_leader_costs_a_pause(tmp_path: Path) -> None:
    """CL-77, CL-140: calls on the other nodes are held and answered, its timers fire, what it had is there again."""
    with cluster(tmp_path) as three:
        await make_group(three)
        leader = three.leader_id()
        others = [node_id for node_id in IDS if node_id != leader]
        async with clients(three, *others) as (one, other):
            assert (await one.post("/api/v1/timers", schedule("due", 1500))).status == 200
            assert (await one.post("/api/v1/push", push("before"))).status == 201
            three.nodes[leader].kill()
            assert (await other.post("/api/v1/push", push("after"))).status == 201
            assert sorted(await pop_texts(one, 3)) == ["after", "before", "due"]
        assert three.leader_id() != leader
        three.nodes[leader].start()
        async with clients(three, leader) as (back,):
            assert (await back.post("/api/v1/push", push("again"))).status == 201
            assert await pop_texts(back, 1) == ["again"]


async def test_a_leader_that_is_asked_to_stop_fails_no_call(tmp_path: Path) -> None:
    """CL-54, CL-131."""
    with cluster(tmp_path) as three:
        await make_group(three)
        leader = three.leader_id()
        others = [node_id for node_id in IDS if node_id != leader]
        async with clients(three, *others) as nodes:
            statuses: list[int] = []
            stopped, first_fifty, fifty_more = trio.Event(), trio.Event(), trio.Event()
            after = [50]

            async def go_on(client: HttpClient, name: str) -> None:
                number = 0
                while not stopped.is_set():
                    answer = await client.post("/api/v1/push", push(f"{name}-{number}"))
                    statuses.append(answer.status)
                    number += 1
                    if len(statuses) == 50:
                        first_fifty.set()
                    if first_fifty.is_set() and len(statuses) >= after[0] + 50:
                        fifty_more.set()

            async with trio.open_nursery() as nursery:
                for number, client in enumerate(nodes):
                    nursery.start_soon(go_on, client, f"client-{number}")
                await first_fifty.wait()
                after[0] = 1 << 30
                three.nodes[leader].signal(signal.SIGTERM)
                assert await trio.to_thread.run_sync(three.nodes[leader].wait, PATIENCE_S) == 0
                after[0] = len(statuses)
                await fifty_more.wait()
                stopped.set()
            assert set(statuses) == {201}
            assert len(set(await pop_texts(nodes[0], len(statuses)))) == len(statuses)


async def test_a_cluster_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """CL-4, CL-122; rabbitmq-delayed-message-exchange: due while everything was down, fired once at the start."""
    with cluster(tmp_path) as three:
        async with clients(three, 1) as (one,):
            assert (await one.post("/api/v1/timers", schedule("slept", 200))).status == 200
            assert (await one.post("/api/v1/push", push("kept"))).status == 201
        for node in three.nodes.values():
            node.kill()
        three.start()
        async with clients(three, 3) as (other,):
            assert sorted(await pop_texts(other, 2)) == ["kept", "slept"]
