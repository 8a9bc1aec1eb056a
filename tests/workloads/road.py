"""A client's way to the nodes, whatever these run on, and what an answer says about a call (guarantees.md 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tests.checkers.history import Call, Outcome, Push


class Told(NamedTuple):
    """What a client knows of its call. body: the document of an OK, else None; so of a 204."""

    start_ns: int
    end_ns: int
    outcome: Outcome
    why: str
    body: Any

    def times(self) -> dict[str, Any]:
        """The fields that every call in a history has."""
        return {"start_ns": self.start_ns, "end_ns": self.end_ns, "outcome": self.outcome, "why": self.why}


class Road(Protocol):
    """One client's. prefix: of every name that it uses, so that clients of several runs or tenants do not meet."""

    prefix: str

    async def call(self, method: str, target: str, document: Mapping[str, Any] | None = None) -> Told:
        """One HTTP call to one node; nothing is repeated inside it."""
        ...

    async def pause(self, seconds: float) -> None:
        """Do nothing for so long."""
        ...

    def next_version(self, name: str) -> str:
        """A text that is unique in the run and begins with the prefix."""
        ...

    def note(self, call: Call) -> None:
        """Write down a call that has ended."""
        ...

    def reached(self, mark: str) -> None:
        """A branch that random runs seldom reach."""
        ...


async def push_one(
    road: Road, kind: type[Push], client: int, *, queue: str, partition: str, txn: str, payload: object,
) -> None:
    """Push one message and note it as a call of that kind."""
    item = {"queue": queue, "partition": partition, "transactionId": txn, "payload": payload}
    told = await road.call("POST", "/api/v1/push", {"items": [item]})
    result = told.body[0] if told.outcome is Outcome.OK else {}
    road.note(kind(
        client=client, **told.times(), queue=queue, partition=partition, txn=txn, payload=payload,
        status=result.get("status", ""), message_id=result.get("message_id", ""), offset=result.get("offset", -1)))


def rolled_back(body: Any) -> bool:
    """Whether an answer with a status of success says that nothing was done (TX-50, KV-33)."""
    return isinstance(body, dict) and "reason" in body and False in (body.get("success"), body.get("ok"))
