"""The key/value routes, and that of locks, over the fake broker, called as the server calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from queen_node.commands import KvCaps
from queen_node.http.handlers.kv import KvHandlers
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.http.handlers.kv_gate import KvGate
from queen_node.http.handlers.locks import LockHandlers
from queen_node.http.routes import build_router
from queen_node.ids import IdMint
from queen_node.kv_figures import KvFigures
from queen_node.metrics import Metrics
from queen_node.quotas import Quotas, Rate, no_caps
from tests.support.fake_broker import FakeBroker
from tests.support.timer_door import MANY, Reply, answered


class KvDoor:
    """A door of its own with a clock for the rates."""

    def __init__(
        self, *, limits: KvLimits | None = None, reads: Rate = MANY, writes: Rate = MANY,
        caps_of: Callable[[bytes], KvCaps] = no_caps,
    ) -> None:
        self.broker = FakeBroker()
        self.now_ns = 0
        self.metrics = Metrics(0.0)
        gate = KvGate(
            self.broker, Quotas(reads=reads, writes=writes, clock_ns=lambda: self.now_ns, caps_of=caps_of),
            KvFigures(self.metrics, lambda: self.now_ns / 1e9), timeout_ms=30_000)
        kv = KvHandlers(gate, IdMint(), limits or KvLimits())
        self._router = build_router({**kv.handlers(), **LockHandlers(gate, IdMint()).handlers()})

    async def call(self, method: str, path: str, body: bytes = b"") -> Reply:
        """One request; `path` as on the wire, its query behind a question mark."""
        return await answered(self._router, method, path, body)

    async def post(self, *operations: object) -> Reply:
        """POST with these operations."""
        return await self.call("POST", "/api/v1/kv", msgspec.json.encode({"operations": operations}))

    async def all(self, *operations: object) -> list[Any]:
        """The elements of a call that must be taken and not be lost."""
        reply = await self.post(*operations)
        assert reply.status == 200 and "results" in reply.document, reply
        elements: list[Any] = reply.document["results"]
        assert [element["index"] for element in elements] == list(range(len(operations)))
        return elements

    async def one(self, operation: object) -> Any:
        """The element of a call of one operation."""
        return (await self.all(operation))[0]

    async def locks(self, *operations: object) -> Reply:
        """A call of locks."""
        return await self.call("POST", "/api/v1/locks", msgspec.json.encode({"operations": operations}))

    async def lock(self, word: str, name: str = "job", **fields: object) -> Any:
        """The element of a call of one operation on a lock; a lifetime of 30 s unless it says otherwise."""
        lifetime = {"ttlSeconds": 30} if word in ("acquire", "renew") else {}
        reply = await self.locks({"op": word, "name": name, **lifetime, **fields})
        assert reply.status == 200, reply
        element = reply.document["results"][0]
        assert (element["index"], element["op"], element["name"]) == (0, word, name)
        return element

    async def path(self, method: str, path: str, document: object = ...) -> Reply:
        """One request below /api/v1/kv/; a document given as `...` is none."""
        body = b"" if document is ... else msgspec.json.encode(document)
        return await self.call(method, f"/api/v1/kv/{path}", body)

    async def list(self, **fields: object) -> Any:
        """A page of the console that must be given."""
        reply = await self.call("POST", "/api/v1/resources/kv/list", msgspec.json.encode(fields))
        assert reply.status == 200, reply
        return reply.document

    def advance(self, seconds: float) -> None:
        """Move the group clock."""
        self.broker.now_us += round(seconds * 1_000_000)


def op(word: str, key: object = "k", **fields: object) -> dict[str, object]:
    """An operation on namespace `orders`; a write lives for ever unless it says otherwise; `...` leaves a field out."""
    made: dict[str, object] = {"op": word, "ns": "orders", "key": key}
    if word in ("put", "putIfAbsent", "incr") and "ttlSeconds" not in fields:
        made["forever"] = True
    if word in ("put", "putIfAbsent"):
        made["value"] = 1
    if word == "incr":
        made["delta"] = 1
    if word == "getMany":
        made |= {"key": ..., "keys": [key]}
    if word == "getPrefix":
        made |= {"key": ..., "prefix": key}
    return {name: value for name, value in (made | fields).items() if value is not ...}
