"""A client of timers whose fires fail (W14 of guarantees.md).

It is the node that leads a group that fails them: on one they fail for good, on another for the moment, on the rest
they do not; so a change of leaders mends them, or breaks them anew.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any
from urllib.parse import quote

from tests.checkers.failing import TIMER_GROUP
from tests.checkers.history import Doomed, Letter, Outcome
from tests.support.wire import parse_time_us
from tests.workloads.road import Road, Told

FAILING = "failing"
DELAY_MS_MAX = 500
KEYS_MAX = 8  # with which it goes on
LETTERS_A_PAGE = 1000

Step = Callable[[str], Awaitable[bool]]


class FailingClient:
    """The one client of its keys: dice of its own, one call at a time."""

    def __init__(self, road: Road, number: int, dice: Random) -> None:
        self._road, self._number, self._dice = road, number, dice
        self._keys: list[str] = []

    async def step(self) -> None:
        """One call."""
        steps: Sequence[Step] = (self._schedule, self._cancel, self._peek)
        if len(self._keys) < KEYS_MAX or self._dice.random() < 0.4:
            self._keys.append(self._road.next_version("doomed"))
            self._keys = self._keys[-KEYS_MAX:]
            key = self._keys[-1]
            is_known = await self._schedule(key)
        else:
            key = self._dice.choice(self._keys)
            is_known = await self._dice.choice(steps)(key)
        if not is_known:
            self._keys.remove(key)

    async def _schedule(self, key: str) -> bool:
        txn = self._road.next_version(key.removeprefix(self._road.prefix))
        delay_ms = self._dice.choice((0, self._dice.randint(1, DELAY_MS_MAX)))
        payload = base64.b64encode(json.dumps({"version": txn}).encode()).decode()
        operation = {
            "op": "schedule", "queue": FAILING, "timerKey": key, "txn": txn, "delayMs": delay_ms, "payload": payload}
        told = await self._road.call("POST", "/api/v1/timers", {"operations": [operation]})
        result = told.body["results"][0] if told.outcome is Outcome.OK else {}
        return self._note(
            told, "schedule", key, txn=txn, status=result.get("status", ""),
            deliver_at_us=parse_time_us(result["deliverAt"]) if result else 0)

    async def _cancel(self, key: str) -> bool:
        told = await self._road.call("DELETE", f"/api/v1/timers/{FAILING}/{quote(key)}")
        body = told.body or {}
        return self._note(told, "cancel", key, txn=body.get("txn") or "" if body.get("status") == "cancelled" else "")

    async def _peek(self, key: str) -> bool:
        told = await self._road.call("GET", f"/api/v1/timers/{FAILING}/{quote(key)}")
        body = told.body or {}
        self._note(told, "peek", key, txn=body.get("txn") or "", attempts=body.get("attempts") or 0)
        return True

    async def letters(self) -> list[Letter] | None:
        """Every dead letter of the queue; None when a page was not answered."""
        found: list[Letter] = []
        while True:
            target = (
                f"/api/v1/dlq?queue={FAILING}&consumerGroup={TIMER_GROUP}&limit={LETTERS_A_PAGE}&offset={len(found)}")
            told = await self._road.call("GET", target)
            if told.outcome is not Outcome.OK:
                return None
            rows = told.body["messages"]
            found += [Letter(
                row["transactionId"], row["consumerGroup"], row["offset"], row["retryCount"], row["data"],
                parse_time_us(row["failedAt"])) for row in rows]
            if not rows:
                return found

    def _note(self, told: Told, kind: str, key: str, **seen: Any) -> bool:
        """Whether it is known what became of it."""
        self._road.note(Doomed(client=self._number, **told.times(), kind=kind, key=key, **seen))
        return told.outcome is not Outcome.INFO
