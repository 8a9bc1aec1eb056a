"""Tenants on one node: apart in all they have, made by their first write (tenancy-auth.md 1, M-70)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from tests.conformance.calls import PATIENCE_S, POLL_S, b64
from tests.conformance.conftest import running, watched
from tests.support.http_client import Answer, HttpClient
from tests.support.node_process import NodeProcess

A, B, C, D = (f"00000000-0000-4000-8000-00000000000{letter}" for letter in "abcd")
SETTINGS = {"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "1", "QUEEN_MAX_TENANTS": "4"}
DEFAULT = "00000000-0000-0000-0000-000000000001"


@pytest.fixture(scope="module")
def shared_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that takes four tenants."""
    yield from running(NodeProcess(tmp_path_factory.mktemp("tenants"), SETTINGS))


@pytest.fixture
def cell(shared_cell: NodeProcess) -> Iterator[NodeProcess]:
    """The same, watched."""
    yield from watched(shared_cell)


@pytest.fixture
async def http(cell: NodeProcess) -> AsyncIterator[HttpClient]:
    """A connection to it."""
    async with HttpClient(cell.port) as client:
        yield client


def of(tenant: str) -> dict[str, str]:
    return {"x-queen-tenant": tenant}


def pushed(queue: str, transaction_id: str, payload: object) -> dict[str, object]:
    return {"items": [{"queue": queue, "transactionId": transaction_id, "payload": payload}]}


def scheduled(queue: str, payload: object) -> dict[str, object]:
    return {"operations": [{
        "op": "schedule", "queue": queue, "timerKey": "k", "txn": "t", "delayMs": 150, "payload": b64(payload)}]}


async def pop(http: HttpClient, tenant: str, queue: str, wait: str = "wait=true&timeout=10000") -> Answer:
    return await http.get(f"/api/v1/pop/queue/{queue}?{wait}", headers=of(tenant))


async def test_one_name_in_two_tenants_is_two_queues(http: HttpClient) -> None:
    """TA-1, G-I1; one tick fires both timers, and neither meets the other's message with its id."""
    for tenant in (A, B):
        assert (await http.post("/api/v1/push", pushed("same", "t0", tenant), headers=of(tenant))).status == 201
        assert (await http.post("/api/v1/timers", scheduled("same", tenant), headers=of(tenant))).status == 200
    for tenant in (A, B):
        found: list[object] = []
        while len(found) < 2:
            messages = (await pop(http, tenant, "same")).json()["messages"]
            found += [message["data"] for message in messages]
            for message in messages:
                acked = await http.post("/api/v1/ack", {
                    "transactionId": message["transactionId"], "partitionId": message["partitionId"],
                    "leaseId": message["leaseId"], "status": "completed"}, headers=of(tenant))
                assert acked.json()[0]["success"] is True
        assert found == [tenant, tenant]


async def test_a_foreign_lease_is_an_unknown_one(http: HttpClient) -> None:
    """TA-7, G-I1."""
    assert (await http.post("/api/v1/push", pushed("leased", "t", 1), headers=of(A))).status == 201
    (message,) = (await pop(http, A, "leased")).json()["messages"]
    item = {"transactionId": "t", "partitionId": message["partitionId"], "leaseId": message["leaseId"]}
    foreign = await http.post("/api/v1/ack", item, headers=of(B))
    assert (foreign.status, foreign.json()[0]["success"]) == (200, False)
    extended = await http.post(f"/api/v1/lease/{message['leaseId']}/extend", {"seconds": 5}, headers=of(B))
    assert (extended.status, extended.json()["renewed"]) == (200, 0)
    assert (await http.post("/api/v1/ack", item, headers=of(A))).json()[0]["success"] is True


async def test_a_tenant_that_never_wrote_has_nothing_and_is_not_made(cell: NodeProcess, http: HttpClient) -> None:
    """M-70, README 27: reads and pops in queue mode make nothing."""
    hosted = (await http.get("/health")).json()["groups"]["hosted"]
    peeked = await http.get("/api/v1/timers/q/k", headers=of(D))
    assert (peeked.status, peeked.json()) == (200, {"found": False})
    counted = await http.get("/api/v1/timers/q?mode=count&prefix=k", headers=of(D))
    assert (counted.status, counted.json()["count"]) == (200, 0)
    assert (await pop(http, D, "q", "wait=false")).status == 204
    assert (await pop(http, D, "q", "wait=true&timeout=300")).status == 204
    assert (await http.get("/api/v1/dlq", headers=of(D))).json()["messages"] == []
    assert (await http.get("/health")).json()["groups"]["hosted"] == hosted


async def test_a_poll_that_came_before_the_tenant_gets_its_first_message(cell: NodeProcess, http: HttpClient) -> None:
    """M-70: such a pop parks until the tenant appears."""
    async with HttpClient(cell.port) as consumer, trio.open_nursery() as nursery:
        got: list[object] = []

        async def consume() -> None:
            answer = await pop(consumer, C, "q")
            got.append(answer.json()["messages"][0]["data"])

        nursery.start_soon(consume)
        with trio.fail_after(PATIENCE_S):
            while True:
                if b"queen_parked_long_polls 1.0" in (await http.get("/metrics/prometheus")).body:
                    break
                await trio.sleep(POLL_S)
        assert (await http.post("/api/v1/push", pushed("q", "t", "first"), headers=of(C))).status == 201
    assert got == ["first"]


async def test_beyond_the_limit_a_new_tenants_write_is_refused(http: HttpClient) -> None:
    """QUEEN_MAX_TENANTS (README 24); A, B, C and the default one are four."""
    for tenant in (A, B, C, DEFAULT):
        assert (await http.post("/api/v1/push", pushed("limit", "t", 1), headers=of(tenant))).status == 201
    refused = await http.post("/api/v1/push", pushed("limit", "t", 1), headers=of(D))
    assert (refused.status, refused.json()["code"]) == (403, "tenant_limit")
    refused = await http.post("/api/v1/timers", scheduled("limit", 1), headers=of(D))
    assert (refused.status, refused.json()["error"]) == (403, "tenant_limit")
    acked = await http.post("/api/v1/ack", {"transactionId": "t", "partitionId": "1"}, headers=of(D))
    assert (acked.status, acked.json()["code"]) == (403, "tenant_limit")
    assert (await http.post("/api/v1/push", pushed("limit", "u", 1), headers=of(A))).status == 201


async def test_a_header_that_is_no_tenant_is_refused(http: HttpClient) -> None:
    """TA-3, TA-5."""
    bad = await http.post("/api/v1/push", pushed("q", "t", 1), headers=of("nobody"))
    assert (bad.status, bad.json()) == (400, {"error": "invalid x-queen-tenant header (must be a UUID)"})
    reserved = await http.post("/api/v1/push", pushed("q", "t", 1), headers=of("0" * 8 + "-0000-0000-0000-" + "0" * 12))
    assert (reserved.status, reserved.json()["code"]) == (403, "reserved_tenant")


async def test_tenants_are_there_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    """TA-1, G-D1: timers of many tenants that came due while the node was down fire, each in its own queue. G-I2: one
    of them is at the end of its rate all the while, and it is its own calls alone that are refused."""
    rates = {"QUEEN_KV_WRITE_RATE": "1", "QUEEN_KV_WRITE_BURST": "4", "QUEEN_DOORS": "0"}
    node = NodeProcess(tmp_path_factory.mktemp("killed"), SETTINGS | rates | {"QUEEN_MAX_TENANTS": "100"})
    node.start()
    tenants = [f"00000000-0000-4000-8000-0000000000{number:02x}" for number in range(1, 21)]
    try:
        async with HttpClient(node.port) as http:
            for tenant in tenants:
                assert (await http.post("/api/v1/timers", scheduled("q", tenant), headers=of(tenant))).status == 200
                while (await http.post("/api/v1/timers", {"operations": []}, headers=of(tenants[0]))).status != 429:
                    pass
        node.kill()
        node.start()
        async with HttpClient(node.port) as http:
            for tenant in tenants:
                (message,) = (await pop(http, tenant, "q")).json()["messages"]
                assert message["data"] == tenant
            assert (await http.get("/health")).json()["groups"]["hosted"] == len(tenants) + 1
    finally:
        node.close()
