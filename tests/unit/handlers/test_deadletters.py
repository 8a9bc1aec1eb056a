"""GET /api/v1/dlq: parameters and the way to the state (QU-40)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queen_node import commands
from queen_node.errors import Refused
from queen_node.http.handlers.deadletters import DeadLetterHandlers
from queen_node.http.messages import Request
from tests.support.fake_broker import FakeBroker

LEASE = b"l" * 16


@pytest.fixture
def broker() -> FakeBroker:
    """One dead letter of group g at 2023-11-14T22:13:20Z."""
    made = FakeBroker(1_700_000_000_000_000)
    made.apply(commands.push(b"r", [(b"orders", b"p", b"a", b"m" * 16, b'{"x":[1, 2]}', 0, None, b"me")]))
    made.apply(commands.pop(
        b"r", lease_id=LEASE, queue=b"orders", partition=None, group=b"g", mode="all", from_us=0, batch=1, partitions=1,
        lease_ms=None, commit_on_delivery=False, max_bytes=1000))
    made.apply(commands.ack(b"r", b"g", [(b"a", 1, commands.AckStatus.DLQ, LEASE, b"why")]))
    return made


async def listed(broker: FakeBroker, query: str = "") -> dict[str, Any]:
    response = await DeadLetterHandlers(broker).list(Request("GET", b"/", query.encode()))
    assert response.status == 200
    answer: dict[str, Any] = json.loads(response.body)
    return answer


async def test_a_page(broker: FakeBroker) -> None:
    page = await listed(broker)
    assert page["pagination"] == {"limit": 100, "offset": 0}
    assert page["total"] == 1
    (message,) = page["messages"]
    del message["id"]
    assert message == {
        "transactionId": "a", "partitionId": "1", "queue": "orders", "partition": "p", "consumerGroup": "g",
        "errorMessage": "why", "retryCount": 0, "data": {"x": [1, 2]}, "producerSub": "me",
        "createdAt": "2023-11-14T22:13:20.000000Z", "failedAt": "2023-11-14T22:13:20.000000Z", "offset": 0}


@pytest.mark.parametrize(("query", "found"), [
    ("queue=orders&consumerGroup=g&partition=p", 1), ("queue=other", 0), ("consumerGroup=h", 0), ("partition=q", 0),
    ("from=2023-11-14T22:13:20Z", 1), ("from=1700000000001", 0), ("to=1700000000000", 0),
    ("to=2023-11-14T22:13:20.000001Z", 1), ("offset=1", 0), ("queue=&limit=&from=", 1),
])
async def test_filters(broker: FakeBroker, query: str, found: int) -> None:
    assert len((await listed(broker, query))["messages"]) == found


@pytest.mark.parametrize(("query", "shown"), [
    ("limit=0&offset=-3", {"limit": 1, "offset": 0}), ("limit=5000", {"limit": 1000, "offset": 0}),
    ("limit=7&offset=3", {"limit": 7, "offset": 3}),
])
async def test_limits_are_clamped(broker: FakeBroker, query: str, shown: dict[str, int]) -> None:
    assert (await listed(broker, query))["pagination"] == shown


@pytest.mark.parametrize("query", ["limit=x", "offset=1.5", "from=soon", "to=never", "queue=%zz"])
async def test_what_does_not_parse(broker: FakeBroker, query: str) -> None:
    with pytest.raises(Refused) as refused:
        await listed(broker, query)
    assert (refused.value.refusal.status, refused.value.refusal.code) == (400, "bad_request")


async def test_nobody_leads(broker: FakeBroker) -> None:
    broker.unavailable = "no_leader"
    with pytest.raises(Refused) as refused:
        await listed(broker)
    assert refused.value.refusal.status == 503
