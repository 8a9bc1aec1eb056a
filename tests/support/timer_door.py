"""The timer routes over the fake broker, called as the server calls them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from queen_node.errors import Refused
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.timers import TimerHandlers
from queen_node.http.messages import Request, Response, refused_response
from queen_node.http.routes import Router, build_router
from queen_node.ids import IdMint
from queen_node.quotas import Quotas, Rate
from tests.support.fake_broker import FakeBroker

MANY = Rate(1e6, 1_000_000)


@dataclass
class Reply:
    """An answer as a client sees it."""

    status: int
    document: Any
    headers: dict[str, str]

    @property
    def reason(self) -> tuple[int, str, str]:
        """(status, error, reason) of a refusal."""
        return self.status, self.document["error"], self.document["reason"]

    @property
    def detail(self) -> str:
        """The text for people."""
        return str(self.document["detail"])


async def answered(router: Router, method: str, path: str, body: bytes) -> Reply:
    """The answer to one request; `path` as on the wire, its query behind a question mark."""
    raw_path, _, raw_query = path.encode().partition(b"?")
    request = Request(method, raw_path, raw_query, {}, body)
    route = router.find(request)
    try:
        response: Response = await route.handler(request)
    except Refused as refused:
        response = refused_response(refused)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Reply(response.status, json.loads(response.body), headers)


class TimerDoor:
    """A door of its own with a clock for the rates."""

    def __init__(self, *, limits: TimerLimits | None = None, writes: Rate = MANY) -> None:
        self.broker = FakeBroker()
        self.now_ns = 0
        self.firing = True
        self.subject: bytes | None = None
        self.rejected: list[str] = []
        quotas = Quotas(reads=MANY, writes=writes, clock_ns=lambda: self.now_ns)
        self.handlers = TimerHandlers(
            self.broker, IdMint(), quotas, limits or TimerLimits(), firing=lambda: self.firing,
            subject_of=lambda _request: self.subject, on_rejected=self.rejected.append)
        self._router = build_router({
            "timers_batch": self.handlers.apply, "timers_cancel": self.handlers.cancel,
            "timers_peek": self.handlers.peek, "timers_list": self.handlers.look,
        })

    async def call(self, method: str, path: str, body: bytes = b"") -> Reply:
        """One request; `path` as on the wire, its query behind a question mark."""
        return await answered(self._router, method, path, body)

    async def post(self, *operations: object) -> Reply:
        """POST with these operations."""
        return await self.call("POST", "/api/v1/timers", msgspec.json.encode({"operations": operations}))

    async def get(self, path: str) -> Reply:
        """GET below /api/v1/timers/."""
        return await self.call("GET", f"/api/v1/timers/{path}")

    async def delete(self, path: str) -> Reply:
        """DELETE below /api/v1/timers/."""
        return await self.call("DELETE", f"/api/v1/timers/{path}")


def op(key: str = "k", **fields: object) -> dict[str, object]:
    """A good schedule, with fields replaced; a field given as `...` is left out."""
    made: dict[str, object] = {
        "op": "schedule", "queue": "q", "timerKey": key, "delayMs": 1000, "txn": f"txn-{key}",
        "payload": text_of(b'{"n":1}'), **fields,
    }
    return {name: value for name, value in made.items() if value is not ...}


def text_of(payload: bytes) -> str:
    """Base64."""
    return base64.b64encode(payload).decode()
