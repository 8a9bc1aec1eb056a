"""Groups that sleep on three real nodes (M-30 to M-32): any call wakes one, and a dead leader's timers fire."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.test_three_nodes import PATIENCE_S, QUEUE, clients, push, schedule
from tests.support.cluster_process import cluster
from tests.support.figures import at_least, wait_for_metric
from tests.support.http_client import HttpClient

TENANTS = [{"x-queen-tenant": f"00000000-0000-4000-8000-{number:012d}"} for number in range(6)]
SETTINGS = {"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "1"}
DUE_MS = 5000


async def wait_until_quiet(nodes: list[HttpClient]) -> None:
    for node in nodes:
        await wait_for_metric(node, 'queen_raft_groups{state="quiet"}', at_least(len(TENANTS)))


async def popped(client: HttpClient, tenant: dict[str, str]) -> list[str]:
    """What the next pop that finds anything finds."""
    target = f"/api/v1/pop/queue/{QUEUE}?wait=true&timeout={round(PATIENCE_S * 1000)}&autoAck=true"
    answer = await client.get(target, headers=tenant)
    assert answer.status == 200, answer
    return [message["data"] for message in answer.json()["messages"]]


async def pass_on(text: str, one: HttpClient, other: HttpClient, tenant: dict[str, str]) -> None:
    """A message goes in at one node and comes out at another."""
    assert (await one.post("/api/v1/push", push(text), headers=tenant)).status == 201
    assert await popped(other, tenant) == [text]


async def test_what_sleeps_wakes_for_a_call_and_for_a_timer_of_a_killed_leader(tmp_path: Path) -> None:
    with cluster(tmp_path, SETTINGS) as three:
        async with clients(three, 1, 2, 3) as nodes:
            for tenant in TENANTS:
                assert (await nodes[0].post("/api/v1/push", push("first"), headers=tenant)).status == 201
                assert await popped(nodes[0], tenant) == ["first"]
            await wait_until_quiet(nodes)

            for number, tenant in enumerate(TENANTS):  # from one node to another, whichever leads
                await pass_on("woken", nodes[number % 3], nodes[(number + 1) % 3], tenant)
            for tenant in TENANTS:
                assert (await nodes[1].post("/api/v1/timers", schedule("due", DUE_MS), headers=tenant)).status == 200
            await wait_until_quiet(nodes)

            three.nodes[3].kill()  # it leads a third of them; nobody calls its groups until their timers have fired
            await wait_for_metric(nodes[0], 'queen_timers_fired_total{result="appended"}', at_least(len(TENANTS)))
            for tenant in TENANTS:
                assert await popped(nodes[0], tenant) == ["due"]
            three.nodes[3].start()
            async with clients(three, 3) as (back,):
                await wait_until_quiet([*nodes[:2], back])
                await pass_on("back", back, nodes[0], TENANTS[0])
