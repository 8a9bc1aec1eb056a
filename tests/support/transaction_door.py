"""The transaction handler before a machine, and the parts of bodies."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from queen_node import commands
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.transaction import TransactionHandlers
from queen_node.http.messages import Request
from queen_node.ids import IdMint, uuid_text
from tests.support.fake_broker import FakeBroker

NOW_US = 1_700_000_000_000_000
LEASE = bytes.fromhex("0198000000007000800000000000aaaa")
OTHER = bytes.fromhex("0198000000007000800000000000bbbb")
ROLLED_BACK = "; the transaction rolled back"


class Door:
    """The handler before a machine that holds messages `a`, `b`, `c` leased under LEASE, and `z` under OTHER."""

    def __init__(self, **settings: Any) -> None:
        self.broker = FakeBroker(NOW_US)
        self.handlers = TransactionHandlers(
            self.broker, IdMint(), settings.pop("limits", TimerLimits(horizon_ms=60_000, payload_max_bytes=64)),
            settings.pop("kv_limits", KvLimits(value_max_bytes=64)),
            firing=lambda: True, timeout_ms=1234, **settings)
        for queue, txns, lease in ((b"orders", (b"a", b"b", b"c"), LEASE), (b"others", (b"z",), OTHER)):
            self.broker.apply(commands.push(b"r", [
                (queue, b"p", txn, number.to_bytes(16, "big"), b"1", 0, None, None)
                for number, txn in enumerate(txns)]))
            self.broker.apply(commands.pop(
                b"r", lease_id=lease, queue=queue, partition=None, group=b"__QUEUE_MODE__", mode="all", from_us=0,
                batch=10, partitions=1, lease_ms=None, commit_on_delivery=False, max_bytes=1000))

    async def post(self, body: Any) -> tuple[int, dict[str, Any]]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await self.handlers.commit(Request("POST", b"/", body=raw))
        answer: dict[str, Any] = json.loads(response.body)
        answer.pop("transactionId")
        return response.status, answer

    async def results(self, **body: Any) -> list[dict[str, Any]]:
        status, answer = await self.post(body)
        assert (status, answer["success"]) == (200, True), answer
        found: list[dict[str, Any]] = answer["results"]
        return found

    @property
    def said(self) -> list[Any]:
        """The last command."""
        return self.broker.writes[-1]


def ack(txn: str = "a", **fields: Any) -> dict[str, Any]:
    whole = {"type": "ack", "transactionId": txn, "partitionId": "1", "leaseId": uuid_text(LEASE), **fields}
    return {name: value for name, value in whole.items() if value is not ...}


def item(txn: str | None = None, **fields: Any) -> dict[str, Any]:
    whole = {"queue": "out", "payload": {"n": 1}, **({} if txn is None else {"transactionId": txn}), **fields}
    return {name: value for name, value in whole.items() if value is not ...}


def push(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "push", "items": list(items)}


def timer(key: str = "k", **fields: Any) -> dict[str, Any]:
    whole = {"op": "schedule", "queue": "later", "timerKey": key, "delayMs": 1000, "txn": f"t-{key}",
             "payload": b64encode(b"{}").decode(), **fields}
    return {name: value for name, value in whole.items() if value is not ...}


def put(key: str, **fields: Any) -> dict[str, Any]:
    return {"op": "put", "ns": "n", "key": key, "value": 1, "forever": True, **fields}
