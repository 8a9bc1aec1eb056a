"""The usual calls, one method each, for tests that are about their answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import trio

from tests.support.http_client import Answer, HttpClient, segment

POLL_S = 0.02
PATIENCE_S = 30.0  # for a condition that only a broken node does not reach; never a measure of speed
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def b64(payload: object) -> str:
    """A JSON value as a timer's payload."""
    return base64.b64encode(json.dumps(payload, separators=(",", ":")).encode()).decode()


class Calls:
    """Calls on one queue over one connection."""

    def __init__(self, http: HttpClient, queue: str) -> None:
        self.http, self.queue = http, queue

    # ---- timers

    def operation(self, key: str = "key", **fields: object) -> dict[str, object]:
        """A valid schedule with `fields` put over it; a field that is `...` is left out."""
        whole: dict[str, object] = {
            "op": "schedule", "queue": self.queue, "timerKey": key, "delayMs": HOUR_MS, "txn": f"txn-{key}",
            "payload": b64({"key": key}), **fields,
        }
        return {name: value for name, value in whole.items() if value is not ...}

    async def timers(self, *operations: Mapping[str, object]) -> Answer:
        """POST of operations."""
        return await self.http.post("/api/v1/timers", {"operations": operations})

    async def schedule(self, key: str = "key", **fields: object) -> dict[str, Any]:
        """One schedule that must be taken; its result."""
        answer = await self.timers(self.operation(key, **fields))
        assert answer.status == 200, answer
        result: dict[str, Any] = answer.json()["results"][0]
        return result

    async def peek(self, key: str = "key") -> dict[str, Any]:
        """What is pending under a key."""
        answer = await self.http.get(f"/api/v1/timers/{segment(self.queue)}/{segment(key)}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json()
        return found

    async def cancel(self, key: str = "key", query: str = "") -> dict[str, Any]:
        """DELETE of a timer."""
        answer = await self.http.delete(f"/api/v1/timers/{segment(self.queue)}/{segment(key)}{query}")
        assert answer.status == 200, answer
        verdict: dict[str, Any] = answer.json()
        return verdict

    async def page(self, query: str = "") -> dict[str, Any]:
        """GET of the list."""
        answer = await self.http.get(f"/api/v1/timers/{segment(self.queue)}{query}")
        assert answer.status == 200, answer
        page: dict[str, Any] = answer.json()
        return page

    async def wait_until_fired(self, key: str = "key") -> None:
        """Until nothing is pending under the key."""
        with trio.fail_after(PATIENCE_S):
            while True:
                if not (await self.peek(key))["found"]:
                    return
                await trio.sleep(POLL_S)

    # ---- messages

    def item(self, payload: object = None, **fields: object) -> dict[str, object]:
        """A push item with `fields` put over it; a field that is `...` is left out."""
        whole: dict[str, object] = {"queue": self.queue, "payload": payload, **fields}
        return {name: value for name, value in whole.items() if value is not ...}

    async def push(self, *items: Mapping[str, object]) -> list[dict[str, Any]]:
        """A push that must be taken; its results."""
        answer = await self.http.post("/api/v1/push", {"items": items})
        assert answer.status == 201, answer
        results: list[dict[str, Any]] = answer.json()
        return results

    async def push_texts(self, *texts: str, partition: str = "Default") -> list[dict[str, Any]]:
        """Each text as a message whose id is the text."""
        return await self.push(*(self.item(text, transactionId=text, partition=partition) for text in texts))

    async def pop_answer(self, partition: str | None = None, **options: object) -> Answer:
        """One pop, whatever comes."""
        place = f"/partition/{segment(partition)}" if partition is not None else ""
        query = urlencode(options)
        return await self.http.get(f"/api/v1/pop/queue/{segment(self.queue)}{place}" + (f"?{query}" if query else ""))

    async def pop(self, partition: str | None = None, **options: object) -> list[dict[str, Any]]:
        """The messages of one pop; none for a 204."""
        answer = await self.pop_answer(partition, **options)
        assert answer.status in (200, 204), answer
        messages: list[dict[str, Any]] = answer.json()["messages"] if answer.status == 200 else []
        return messages

    async def pop_until(self, count: int) -> list[dict[str, Any]]:
        """Pop and commit until so many have come, not more."""
        messages: list[dict[str, Any]] = []
        with trio.fail_after(PATIENCE_S):
            while len(messages) < count:
                messages += await self.pop(wait="true", timeout=1000, commitOnDelivery="true", partitions=64)
        assert len(messages) == count, messages
        return messages

    async def ack(
        self, messages: Sequence[Mapping[str, Any]], status: str | Sequence[str | None] = "completed", *,
        group: str | None = None, lease: str | None = "own",
    ) -> list[dict[str, Any]]:
        """A batch ack. `status`: one for all, or one each. `lease`: another than the messages' own, None for none."""
        statuses = [status] * len(messages) if isinstance(status, str) else status
        items = []
        for message, word in zip(messages, statuses, strict=True):
            item: dict[str, Any] = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
            if word is not None:
                item["status"] = word
            if lease is not None:
                item["leaseId"] = message["leaseId"] if lease == "own" else lease
            items.append(item)
        body: dict[str, Any] = {"acknowledgments": items}
        if group is not None:
            body["consumerGroup"] = group
        answer = await self.http.post("/api/v1/ack/batch", body)
        assert answer.status == 200, answer
        verdicts: list[dict[str, Any]] = answer.json()
        return verdicts

    async def configure(self, **options: object) -> dict[str, Any]:
        """Options of the queue."""
        answer = await self.http.post("/api/v1/configure", {"queue": self.queue, "options": options})
        assert answer.status == 200, answer
        configured: dict[str, Any] = answer.json()
        return configured


def texts(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The payloads."""
    return [message["data"] for message in messages]
