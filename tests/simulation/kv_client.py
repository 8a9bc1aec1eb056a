"""Key/value calls in virtual time (W3, W3b, W3c and W4 of guarantees.md): registers, counters, claims and pairs of keys
that live for ever, and keys that die: by a delete, or because their lifetime ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.checkers.history import Kv, Outcome
from tests.simulation.calls import KNOCK_US, Caller, Ground, Script, Step, Talk

NAMESPACE: Final = "simulation"
REGISTERS, COUNTERS, PAIRS, CLAIMS, DELETED, MORTALS = 2, 2, 2, 20, 2, 2
MORTAL_TTL_S: Final = 1
ROAMS: Final = 0.5  # of the calls: they go to another node than the last one did


class KvClient(Caller):
    """One client."""

    def __init__(self, ground: Ground, number: int, dice: Random) -> None:
        super().__init__(ground, number, dice)
        self._versions: dict[str, int] = {}  # of a key, as this client saw it last
        self._uncounted: set[str] = set()  # counters of which an increment's outcome is unknown
        self._steps: Sequence[tuple[int, Step]] = (
            (3, self._get), (2, self._put), (3, self._compare_and_set), (3, self._count), (2, self._claim),
            (2, self._write_pair), (2, self._read_pair), (3, self._mortal), (5, self._watch_mortal), (3, self._delete),
        )

    def run(self) -> Script:
        """Go on until the run's clients stop."""
        return self.go_on(self._steps)

    def read_everything(self) -> Script:
        """The last look at each key, once it is answered."""
        for kind, count in (("register", REGISTERS), ("counter", COUNTERS), ("claim", CLAIMS), ("deleted", DELETED),
                            ("mortal", MORTALS)):
            for number in range(count):
                while not (yield from self._read(f"{kind}-{number}")):
                    yield KNOCK_US
        for number in range(PAIRS):
            while not (yield from self._read(*_pair(number), kind="read pair")):
                yield KNOCK_US

    # --- rows for ever

    def _get(self) -> Script:
        yield from self._read(self._key("register", REGISTERS))

    def _put(self) -> Script:
        yield from self._write("put", self._key("register", REGISTERS))

    def _compare_and_set(self) -> Script:
        """If the register is still as this client saw it last."""
        key = self._key("register", REGISTERS)
        yield from self._write("cas", key, expect=self._versions.get(key, 0))

    def _count(self) -> Script:
        key = self._key("counter", COUNTERS)
        call = yield from self._call(
            "incr", (key,), [{"op": "incr", "ns": NAMESPACE, "key": key, "delta": 1, "forever": True}])
        if call.outcome is Outcome.INFO:
            self._uncounted.add(key)
        elif call.outcome is Outcome.OK and key in self._uncounted:
            self.ground.world.reached("counted again after an unknown outcome")

    def _claim(self) -> Script:
        """Many try; one may."""
        yield from self._write("claim", self._key("claim", CLAIMS), expect=0)

    def _write_pair(self) -> Script:
        keys, value = _pair(self._dice.randrange(PAIRS)), self.ground.next_version("value")
        yield from self._call("write pair", keys, [_put(key, value) for key in keys], wrote=value)

    def _read_pair(self) -> Script:
        yield from self._read(*_pair(self._dice.randrange(PAIRS)), kind="read pair")

    # --- rows that die

    def _mortal(self) -> Script:
        """A row with a lifetime: written, claimed, or written where it still lives as this client saw it last."""
        key, kind = self._key("mortal", MORTALS), self._dice.choice(("put", "claim", "claim", "cas"))
        expect = {"put": None, "claim": 0, "cas": self._versions.get(key, 0)}[kind]
        yield from self._write(kind, key, expect=expect, ttl_s=MORTAL_TTL_S)

    def _watch_mortal(self) -> Script:
        key = self._key("mortal", MORTALS)
        yield from self._read(key, *([self._key("register", REGISTERS)] if self._dice.random() < 0.3 else []))

    def _delete(self) -> Script:
        key, kind = self._key("deleted", DELETED), self._dice.choice(("put", "claim", "get", "delete", "delete"))
        if kind == "get":
            yield from self._read(key)
        elif kind == "delete":
            named = {"expect": self._versions[key]} if self._versions.get(key) and self._dice.random() < 0.5 else {}
            yield from self._call("delete", (key,), [{"op": "delete", "ns": NAMESPACE, "key": key, **named}])
        else:
            yield from self._write(kind, key, expect=0 if kind == "claim" else None)

    # --- calls

    def _read(self, *keys: str, kind: str = "get") -> Talk[bool]:
        """Returns whether it was answered."""
        call = yield from self._call(kind, keys, [{"op": "get", "ns": NAMESPACE, "key": key} for key in keys])
        return call.outcome is Outcome.OK

    def _write(self, kind: str, key: str, *, expect: int | None = None, ttl_s: int = 0) -> Script:
        value = self.ground.next_version("value")
        operation = _put(key, value, ttl_s)
        if kind == "claim":
            operation["op"] = "putIfAbsent"
        elif expect is not None:
            operation["expect"] = expect
        call = yield from self._call(kind, (key,), [operation], wrote=value, expect=expect, ttl_s=ttl_s)
        if call.outcome is Outcome.OK and not call.applied:
            self.ground.world.reached("a claim lost" if kind == "claim" else "a write refused by its version")

    def _call(
        self, kind: str, keys: tuple[str, ...], operations: list[dict[str, Any]], *, wrote: str | None = None,
        expect: int | None = None, ttl_s: int = 0,
    ) -> Talk[Kv]:
        """One call, noted down. Returns it."""
        if self._dice.random() < ROAMS:
            self.roam()
        answer = yield from self.ask("POST", "/api/v1/kv", {"operations": operations})
        results = answer.body["results"] if answer.outcome is Outcome.OK else []
        seen = tuple((result.get("value"), result.get("version", 0)) for result in results)
        for key, (_value, version) in zip(keys, seen, strict=False):
            if not version and self._versions.get(key):
                self.ground.world.reached("a row died under its readers")
            self._versions[key] = version
        call = Kv(
            client=self.number, **answer.times(), kind=kind, keys=keys, wrote=wrote, expect=expect, ttl_s=ttl_s,
            applied=any(result.get("applied", False) for result in results), seen=seen)
        self.ground.history.calls.append(call)
        return call

    def _key(self, kind: str, count: int) -> str:
        return f"{kind}-{self._dice.randrange(count)}"


def _pair(number: int) -> tuple[str, ...]:
    return f"pair-{number}-left", f"pair-{number}-right"


def _put(key: str, value: str, ttl_s: int = 0) -> dict[str, Any]:
    lifetime = {"ttlSeconds": ttl_s} if ttl_s else {"forever": True}
    return {"op": "put", "ns": NAMESPACE, "key": key, "value": value, **lifetime}
