"""A pipeline of transactions (W5 of guarantees.md): each step acks one input under its lease, pushes an output,
schedules a timer and counts, in one call."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any
from urllib.parse import urlencode

from tests.checkers.history import Ack, AckItem, Feed, Message, Outcome, PipelineStep, Pop
from tests.support.wire import read_message
from tests.workloads.leases import LEASES_S
from tests.workloads.road import Road, Told, push_one

INPUTS, OUTPUTS, LATE = "pipeline-inputs", "pipeline-outputs", "pipeline-outputs-late"
PIPELINE_QUEUES = INPUTS, OUTPUTS, LATE
GROUP = "pipeline"
COUNTS = "steps"
KEYS = 3
TIMER_MS_MAX = 500
BATCHES = (1, 1, 2)
FEEDS = 0.5  # of the calls
WAIT_MS = 50
DAWDLES, DAWDLE_S_MAX = 0.15, 3.0  # of the workers with something to do: another may have it meanwhile
REPEATS_MAX = 2  # of a step of which nobody knows


class PipelineClient:
    """One worker, which also feeds: dice of its own, one call at a time."""

    def __init__(self, road: Road, number: int, dice: Random) -> None:
        self._road, self._number, self._dice = road, number, dice

    async def step(self) -> None:
        """An input, or what is to be done for some."""
        if self._dice.random() < FEEDS:
            await self.feed()
        else:
            await self.work(lease_s=self._dice.choice(LEASES_S), wait_ms=WAIT_MS, batch=self._dice.choice(BATCHES))

    async def feed(self) -> None:
        """Push an input."""
        key, txn = self._key(self._dice.randrange(KEYS)), self._road.next_version("input")
        payload = {"input": txn, "key": key}
        await push_one(self._road, Feed, self._number, queue=INPUTS, partition=key, txn=txn, payload=payload)

    async def work(self, *, lease_s: int, wait_ms: int, batch: int = 1, dawdles: float = DAWDLES) -> bool | None:
        """Pop inputs and take their steps, up to the first that does not commit. False: there was none; None: nobody
        knows."""
        query = urlencode({
            "consumerGroup": GROUP, "subscriptionMode": "all", "batch": batch, "leaseSeconds": lease_s,
            "wait": "true", "timeout": wait_ms})
        told = await self._road.call("GET", f"/api/v1/pop/queue/{INPUTS}?{query}")
        body = told.body or {}
        messages = tuple(read_message(raw) for raw in body.get("messages", ()))
        lease_id = body.get("leaseId", "")
        self._road.note(Pop(
            client=self._number, **told.times(), queue=INPUTS, group=GROUP, lease_ms=1000 * lease_s,
            lease_id=lease_id, messages=messages))
        if told.outcome is not Outcome.OK:
            return None
        if messages and self._dice.random() < dawdles:
            await self._road.pause(self._dice.uniform(0, DAWDLE_S_MAX))
        for message in messages:
            if not await self._take_step(message, lease_id):
                break
        return bool(messages)

    async def _take_step(self, message: Message, lease_id: str) -> bool:
        """Whether it committed, as far as is known. One of which nobody knows is sent again as it was, with the same
        ids: it writes nothing twice (G-T3)."""
        attempt = self._road.next_version("attempt")
        document = self._document(message, lease_id, attempt)
        told = await self._send(document, message, lease_id, attempt)
        for _ in range(REPEATS_MAX):
            if told.outcome is not Outcome.INFO:
                break
            told = await self._send(document, message, lease_id, attempt)
            if "rejected_ack" in told.why:
                self._road.reached("the repeat of a step of which nobody knew was refused")
        return told.outcome is Outcome.OK

    async def _send(self, document: dict[str, Any], message: Message, lease_id: str, attempt: str) -> Told:
        told = await self._road.call("POST", "/api/v1/transaction", document)
        acked = told.body["results"][0] if told.outcome is Outcome.OK else {}
        self._road.note(Ack(
            client=self._number, **told.times(), group=GROUP, lease_id=lease_id,
            items=(AckItem(message, "completed", acked.get("success", False), acked.get("noop", False),
                           acked.get("redelivers", False)),)))
        self._road.note(PipelineStep(
            client=self._number, **told.times(), key=_key_of(message), input_txn=message.txn, attempt=attempt))
        return told

    def _document(self, message: Message, lease_id: str, attempt: str) -> dict[str, Any]:
        key = _key_of(message)
        payload = {"input": message.txn, "key": key, "attempt": attempt}
        return {
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

    async def read_counts(self) -> dict[str, int] | None:
        """How many steps each key has counted; None when it was not answered."""
        operations = [{"op": "get", "ns": COUNTS, "key": self._key(number)} for number in range(KEYS)]
        told = await self._road.call("POST", "/api/v1/kv", {"operations": operations})
        if told.outcome is not Outcome.OK:
            return None
        return {result["key"]: result["value"] for result in told.body["results"] if result["found"]}

    def _key(self, number: int) -> str:
        return f"{self._road.prefix}line-{number}"


def _key_of(message: Message) -> str:
    assert isinstance(message.payload, dict), message
    return str(message.payload["key"])
