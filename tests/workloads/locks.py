"""Clients of locks: permits for a while, work under their guard, and tokens that are dead (W11, W11b of guarantees.md).

They look at no clock: a client goes on with every token that it was ever given, and it is the guard that stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.checkers.history import Guarded, Holders, Outcome, Permit
from tests.workloads.road import Road, Told

GUARDED = "guarded"  # a partition for each permit
LIMITS = {"lock": 1, "semaphore": 2}
TTLS_S = (1, 1, 2)
KEPT = 4  # tokens that a client goes on with, most of them dead


@dataclass(frozen=True, slots=True)
class Held:
    """A permit as its client believes in it. guard: as the answer gave it."""

    name: str
    slot: int
    token: int
    owner: str
    guard: Mapping[str, Any]

    @property
    def lock(self) -> str:
        return f"{self.name}#{self.slot}"


class LockClient:
    """One client: dice of its own, one call at a time."""

    def __init__(self, road: Road, number: int, dice: Random) -> None:
        self._road, self._number, self._dice = road, number, dice
        self._kept: deque[Held] = deque(maxlen=KEPT)

    async def step(self) -> None:
        """One call."""
        steps: Sequence[Callable[[], Awaitable[None]]] = (
            self.acquire, self.work, self.work, self.work, self.renew, self.release, self.look)
        await (self._dice.choice(steps) if self._kept else self.acquire)()

    async def acquire(self) -> None:
        """Try to get one, as an owner never seen before."""
        name = self._dice.choice(list(LIMITS))
        operation = {
            "op": "acquire", "name": f"{self._road.prefix}{name}", "owner": self._road.next_version("owner"),
            "ttlSeconds": self._dice.choice(TTLS_S), "limit": LIMITS[name]}
        await self._permit(operation, slot=-1)

    async def renew(self) -> None:
        """One of those that were given, with its owner or without."""
        held = self._dice.choice(self._kept)
        proof = {"owner": held.owner} if self._dice.random() < 0.5 else {}
        await self._permit({
            "op": "renew", "name": held.name, "slot": held.slot, "token": held.token,
            "ttlSeconds": self._dice.choice(TTLS_S), **proof}, slot=held.slot, owner=held.owner)

    async def release(self) -> None:
        """One of those that were given. Its token is kept, and is dead."""
        held = self._dice.choice(self._kept)
        await self._permit(
            {"op": "release", "name": held.name, "slot": held.slot, "token": held.token}, slot=held.slot,
            owner=held.owner)

    async def work(self) -> None:
        """Push into the protected partition under a guard, most often that of the last permit."""
        held = self._kept[-1] if self._dice.random() < 0.7 else self._dice.choice(self._kept)
        txn = self._road.next_version("work")
        item = {"queue": GUARDED, "partition": held.lock, "transactionId": txn, "payload": {"token": held.token}}
        told = await self._road.call("POST", "/api/v1/transaction", {
            "operations": [{"type": "push", "items": [item]}], "kv": [held.guard]})
        if "kv_precondition" in told.why:
            self._road.reached("a lost guard stopped work")
        self._road.note(Guarded(client=self._number, **told.times(), lock=held.lock, token=held.token, txn=txn))

    async def look(self) -> None:
        """Who holds it."""
        name = f"{self._road.prefix}{self._dice.choice(list(LIMITS))}"
        told, result = await self._call({"op": "get", "name": name})
        self._road.note(Holders(
            client=self._number, **told.times(), name_asked=name,
            held=tuple(
                (f"{name}#{each['slot']}", each["token"], each["owner"]) for each in result.get("holders", ()))))

    async def _permit(self, operation: dict[str, Any], *, slot: int, owner: str = "") -> None:
        told, result = await self._call(operation)
        kind, name = operation["op"], operation["name"]
        done = result.get({"acquire": "acquired", "renew": "renewed", "release": "released"}[kind], False)
        slot = result.get("slot", slot)
        granted = (operation["token"] if kind == "release" else result["token"]) if done else 0
        owner = owner or operation["owner"]
        if done:
            self._road.reached(f"a permit: {kind}")
        if done and kind != "release":
            self._kept.append(Held(name, slot, granted, owner, result["guard"]))
        self._road.note(Permit(
            client=self._number, **told.times(), kind=kind, lock=f"{name}#{slot}", owner=owner,
            ttl_ms=1000 * operation.get("ttlSeconds", 0), token=operation.get("token", 0), granted=granted))

    async def _call(self, operation: Mapping[str, Any]) -> tuple[Told, dict[str, Any]]:
        told = await self._road.call("POST", "/api/v1/locks", {"operations": [operation]})
        return told, told.body["results"][0] if told.outcome is Outcome.OK else {}
