"""Clients of the key/value state: registers, counters, claims and pairs of keys (W3, W3b, W3c, W4 of guarantees.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

from tests.checkers.history import Kv, Outcome
from tests.faults.load import World, now_ns, told
from tests.support.http_client import HttpClient

NAMESPACE = "faults"
REGISTERS, COUNTERS, PAIRS, CLAIMS = 3, 2, 2, 40
FOREVER: Mapping[str, Any] = {"forever": True}


class KvClient:
    """One client: a connection, dice of its own, one call at a time."""

    def __init__(self, world: World, number: int, dice: Random) -> None:
        self.world, self.number, self._dice = world, number, dice
        self._http = HttpClient(world.ports[number % len(world.ports)])
        self._versions: dict[str, int] = {}  # of a key, as this client saw it last

    async def run(self) -> None:
        """Go on until the world stops."""
        steps: Sequence[Callable[[], Awaitable[None]]] = (
            self.get, self.get, self.put, self.compare_and_set, self.compare_and_set, self.count, self.claim,
            self.write_pair, self.read_pair)
        async with self._http:
            while not self.world.stopping:
                await self._dice.choice(steps)()

    async def get(self) -> None:
        """Read a register."""
        await self.read(self._key("register", REGISTERS))

    async def read(self, *keys: str, kind: str = "get") -> None:
        """Read these keys in one call, whatever they are."""
        await self._call(kind, keys, [_get(key) for key in keys])

    async def put(self) -> None:
        """Write a register, whatever it holds."""
        key, value = self._key("register", REGISTERS), self._new_value()
        await self._call("put", (key,), [{**_put(key, value), **FOREVER}], wrote=value)

    async def compare_and_set(self) -> None:
        """Write a register if it is still as this client saw it last."""
        key, value = self._key("register", REGISTERS), self._new_value()
        expect = self._versions.get(key, 0)
        await self._call("cas", (key,), [{**_put(key, value), **FOREVER, "expect": expect}], wrote=value, expect=expect)

    async def claim(self) -> None:
        """Claim a key; many try."""
        key, value = self._key("claim", CLAIMS), self._new_value()
        operation = {**_put(key, value), **FOREVER, "op": "putIfAbsent"}
        await self._call("claim", (key,), [operation], wrote=value, expect=0)

    async def count(self) -> None:
        """Add one."""
        key = self._key("counter", COUNTERS)
        await self._call("incr", (key,), [{"op": "incr", "ns": NAMESPACE, "key": key, "delta": 1, **FOREVER}])

    async def write_pair(self) -> None:
        """Write one value into two keys."""
        keys, value = self._pair(), self._new_value()
        await self._call("write pair", keys, [{**_put(key, value), **FOREVER} for key in keys], wrote=value)

    async def read_pair(self) -> None:
        """Read two keys in one call."""
        await self.read(*self._pair(), kind="read pair")

    async def read_everything(self) -> None:
        """The last look at each key."""
        for kind, count in (("register", REGISTERS), ("counter", COUNTERS), ("claim", CLAIMS)):
            for number in range(count):
                await self.read(f"{self.world.prefix}{kind}-{number}")
        for number in range(PAIRS):
            await self.read(*self._names_of_pair(number), kind="read pair")

    async def _call(
        self, kind: str, keys: tuple[str, ...], operations: list[dict[str, Any]], *, wrote: str | None = None,
        expect: int | None = None,
    ) -> None:
        start_ns, answer, outcome, why = await told(
            self._http, self.world, "POST", "/api/v1/kv", {"operations": operations})
        results = answer.json()["results"] if outcome is Outcome.OK and answer else []
        seen = tuple((result.get("value"), result.get("version", 0)) for result in results)
        for key, (_value, version) in zip(keys, seen, strict=False):
            self._versions[key] = version
        self.world.note(Kv(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, kind=kind, keys=keys,
            wrote=wrote, expect=expect, applied=any(result.get("applied", False) for result in results), seen=seen))

    def _key(self, kind: str, count: int) -> str:
        return f"{self.world.prefix}{kind}-{self._dice.randrange(count)}"

    def _pair(self) -> tuple[str, ...]:
        return self._names_of_pair(self._dice.randrange(PAIRS))

    def _names_of_pair(self, number: int) -> tuple[str, ...]:
        return tuple(f"{self.world.prefix}pair-{number}-{side}" for side in ("left", "right"))

    def _new_value(self) -> str:
        return self.world.next_version("value")


def _get(key: str) -> dict[str, Any]:
    return {"op": "get", "ns": NAMESPACE, "key": key}


def _put(key: str, value: str) -> dict[str, Any]:
    return {"op": "put", "ns": NAMESPACE, "key": key, "value": value}
