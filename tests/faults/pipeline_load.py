"""A pipeline of transactions (W5, W13 of guarantees.md): each step acks one input under its lease, pushes an output,
schedules a timer and counts, in one call."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from random import Random
from typing import Any
from urllib.parse import urlencode

from tests.checkers.history import Feed, Message, Outcome, PipelineStep
from tests.faults.load import World, now_ns, told
from tests.support.http_client import HttpClient
from tests.support.wire import read_message

INPUTS, OUTPUTS, LATE = "faults-inputs", "faults-outputs", "faults-outputs-late"
PIPELINE_QUEUES = INPUTS, OUTPUTS, LATE
GROUP = "pipeline"
COUNTS = "steps"
KEYS = 3
TIMER_MS_MAX = 500
LEASES_S = (1, 1, 2)


class PipelineClient:
    """One worker, which also feeds: a connection, dice of its own, one call at a time."""

    def __init__(self, world: World, number: int, dice: Random) -> None:
        self.world, self.number, self._dice = world, number, dice
        self._http = HttpClient(world.ports[number % len(world.ports)])

    async def run(self) -> None:
        """Go on until the world stops."""
        async with self._http:
            while not self.world.stopping:
                if self._dice.random() < 0.4:
                    await self.feed()
                else:
                    await self.work(lease_s=self._dice.choice(LEASES_S), wait_ms=50)

    async def feed(self) -> None:
        """Push an input."""
        key, txn = self._key(self._dice.randrange(KEYS)), self.world.next_version("input")
        item = {"queue": INPUTS, "partition": key, "transactionId": txn, "payload": {"input": txn, "key": key}}
        start_ns, _answer, outcome, why = await self._call("POST", "/api/v1/push", {"items": [item]})
        self.world.note(Feed(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, key=key, txn=txn))

    async def work(self, *, lease_s: int, wait_ms: int) -> bool | None:
        """Pop one input and take its step. False: there was none; None: nobody knows."""
        query = urlencode({
            "consumerGroup": GROUP, "subscriptionMode": "all", "batch": 1, "leaseSeconds": lease_s, "wait": "true",
            "timeout": wait_ms})
        _start_ns, answer, outcome, _why = await self._call("GET", f"/api/v1/pop/queue/{INPUTS}?{query}")
        if answer is None or outcome is not Outcome.OK:
            return None
        if answer.status == 204:
            return False
        body = answer.json()
        (message,) = (read_message(raw) for raw in body["messages"])
        await self._step(message, body["leaseId"])
        return True

    async def _step(self, message: Message, lease_id: str) -> None:
        assert isinstance(message.payload, dict)
        key, attempt = message.payload["key"], self.world.next_version("attempt")
        payload = {**message.payload, "attempt": attempt}
        body = {
            "operations": [
                {
                    "type": "ack", "transactionId": message.txn, "partitionId": message.partition_id,
                    "consumerGroup": GROUP, "leaseId": lease_id, "status": "completed",
                },
                {"type": "push", "items": [
                    {"queue": OUTPUTS, "partition": key, "transactionId": attempt, "payload": payload}]},
            ],
            "requiredLeases": [lease_id],
            "kv": [{"op": "incr", "ns": COUNTS, "key": key, "delta": 1, "forever": True}],
            "timers": [{
                "op": "schedule", "queue": LATE, "timerKey": attempt, "txn": attempt, "partition": key,
                "delayMs": self._dice.choice((0, self._dice.randint(1, TIMER_MS_MAX))),
                "payload": base64.b64encode(json.dumps(payload).encode()).decode(),
            }],
        }
        start_ns, _answer, outcome, why = await self._call("POST", "/api/v1/transaction", body)
        self.world.note(PipelineStep(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, key=key,
            input_txn=message.txn, attempt=attempt))

    async def read_counts(self) -> dict[str, int]:
        """How many steps each key has counted."""
        operations = [{"op": "get", "ns": COUNTS, "key": self._key(number)} for number in range(KEYS)]
        _start_ns, answer, outcome, why = await self._call("POST", "/api/v1/kv", {"operations": operations})
        assert answer is not None and outcome is Outcome.OK, why
        return {result["key"]: result["value"] for result in answer.json()["results"] if result["found"]}

    async def _call(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> Any:
        return await told(self._http, self.world, method, target, body)

    def _key(self, number: int) -> str:
        return f"{self.world.prefix}line-{number}"
