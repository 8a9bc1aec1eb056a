"""A client of timers whose fires fail (W14 of guarantees.md).

On one node they fail for good, on another for the moment, on the third they do not: it is the node that leads a group
that fails them, so a change of leaders mends them, or breaks them anew.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

import trio

from tests.checkers.failing import BACKOFF_MS, TIMER_GROUP
from tests.checkers.history import Doomed, Letter, Outcome
from tests.faults.load import World, now_ns, told
from tests.support.http_client import Answer, HttpClient, segment
from tests.support.wire import parse_time_us

FAILING = "faults-failing"
SETTINGS = {
    1: {"QUEEN_TEST_FIRE_FAIL_QUEUE": FAILING}, 2: {"QUEEN_TEST_FIRE_FAIL_QUEUE": f"{FAILING}:transient"}, 3: {},
}
MENDS = 3  # the node whose fires do not fail
BACKOFF = {"QUEEN_SWEEPER_BACKOFF_MIN_MS": str(BACKOFF_MS), "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS": str(BACKOFF_MS)}
DELAY_MS_MAX = 500
KEYS_MAX = 8  # with which it goes on
PAUSE_S = 0.05  # between two calls: what fails is tried five times, and is to leave the machine to the others
LETTERS_A_PAGE = 1000

Step = Callable[[str], Awaitable[bool]]


class FailingClient:
    """The one client of a world's keys: a connection, dice of its own, one call at a time."""

    def __init__(self, world: World, number: int, dice: Random) -> None:
        self.world, self.number, self._dice = world, number, dice
        self._http = HttpClient(world.ports[number % len(world.ports)])
        self._keys: list[str] = []

    async def run(self) -> None:
        """Go on until the world stops."""
        steps: Sequence[Step] = (self._schedule, self._cancel, self._peek)
        async with self._http:
            while not self.world.stopping:
                if len(self._keys) < KEYS_MAX or self._dice.random() < 0.4:
                    self._keys.append(f"{self.world.prefix}doomed-{len(self.world.history.calls)}")
                    self._keys = self._keys[-KEYS_MAX:]
                    key = self._keys[-1]
                    is_known = await self._schedule(key)
                else:
                    key = self._dice.choice(self._keys)
                    is_known = await self._dice.choice(steps)(key)
                if not is_known:
                    self._keys.remove(key)
                await trio.sleep(PAUSE_S)

    async def _schedule(self, key: str) -> bool:
        txn = self.world.next_version(key)
        delay_ms = self._dice.choice((0, self._dice.randint(1, DELAY_MS_MAX)))
        payload = base64.b64encode(json.dumps({"version": txn}).encode()).decode()
        operation = {
            "op": "schedule", "queue": FAILING, "timerKey": key, "txn": txn, "delayMs": delay_ms, "payload": payload}
        called = await self._call("POST", "/api/v1/timers", {"operations": [operation]})
        result = called[1].json()["results"][0] if called[2] is Outcome.OK and called[1] else {}
        return self._note(
            called, "schedule", key, txn=txn, status=result.get("status", ""),
            deliver_at_us=parse_time_us(result["deliverAt"]) if result else 0)

    async def _cancel(self, key: str) -> bool:
        called = await self._call("DELETE", f"/api/v1/timers/{FAILING}/{segment(key)}")
        body = called[1].json() if called[2] is Outcome.OK and called[1] else {}
        return self._note(
            called, "cancel", key, txn=body.get("txn") or "" if body.get("status") == "cancelled" else "")

    async def _peek(self, key: str) -> bool:
        called = await self._call("GET", f"/api/v1/timers/{FAILING}/{segment(key)}")
        body = called[1].json() if called[2] is Outcome.OK and called[1] else {}
        self._note(called, "peek", key, txn=body.get("txn") or "", attempts=body.get("attempts") or 0)
        return True

    async def letters(self) -> list[Letter]:
        """Every dead letter of the queue."""
        found: list[Letter] = []
        while True:
            target = (
                f"/api/v1/dlq?queue={FAILING}&consumerGroup={TIMER_GROUP}&limit={LETTERS_A_PAGE}&offset={len(found)}")
            _start_ns, answer, outcome, why = await self._call("GET", target)
            assert answer is not None and outcome is Outcome.OK, why
            rows = answer.json()["messages"]
            found += [Letter(
                row["transactionId"], row["consumerGroup"], row["offset"], row["retryCount"], row["data"],
                parse_time_us(row["failedAt"])) for row in rows]
            if not rows:
                return found

    def _note(self, called: tuple[int, Answer | None, Outcome, str], kind: str, key: str, **told: Any) -> bool:
        """Whether it is known what became of it."""
        start_ns, _answer, outcome, why = called
        self.world.note(Doomed(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, kind=kind, key=key,
            **told))
        return outcome is not Outcome.INFO

    async def _call(
        self, method: str, target: str, body: Mapping[str, Any] | None = None,
    ) -> tuple[int, Answer | None, Outcome, str]:
        return await told(self._http, self.world, method, target, body)
