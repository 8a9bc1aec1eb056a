"""Key/value state over HTTP against a running node (kv.md): what needs real consensus, time, doors and disks.

The rest of the page is shown over the handlers (tests/unit/handlers/test_kv.py) and the state (tests/unit/state).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from tests.conformance.calls import PATIENCE_S, POLL_S
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess


class Kv:
    """Calls on one namespace over one connection."""

    def __init__(self, http: HttpClient, namespace: str) -> None:
        self.http, self.namespace = http, namespace.lower()

    def op(self, word: str, key: str = "k", **fields: object) -> dict[str, object]:
        """An operation; a write lives for ever unless it says otherwise."""
        lifetime: dict[str, object] = {}
        if word in ("put", "putIfAbsent", "incr") and "ttlSeconds" not in fields:
            lifetime["forever"] = True
        return {"op": word, "ns": self.namespace, "key": key, **lifetime, **fields}

    async def all(self, *operations: object) -> list[dict[str, Any]]:
        """The elements of a call."""
        answer = await self.http.post("/api/v1/kv", {"operations": operations})
        assert answer.status == 200, answer
        elements: list[dict[str, Any]] = answer.json()["results"]
        return elements

    async def one(self, word: str, key: str = "k", **fields: object) -> dict[str, Any]:
        """The element of a call of one operation."""
        return (await self.all(self.op(word, key, **fields)))[0]

    async def keys_held(self) -> int:
        """Rows of the namespace, dead ones that are not swept yet among them."""
        answer = await self.http.get("/api/v1/resources/kv/namespaces")
        keys: dict[str, int] = {each["namespace"]: each["keys"] for each in answer.json()["namespaces"]}
        return keys.get(self.namespace, 0)


async def figures(http: HttpClient) -> dict[str, float]:
    """The node's metrics."""
    lines = (await http.get("/metrics/prometheus")).body.decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Until a condition holds that only a broken node does not reach."""
    with trio.fail_after(PATIENCE_S):
        while True:
            if await holds():
                return
            await trio.sleep(POLL_S)


async def test_eight_who_race_for_a_key_have_one_winner(node: NodeProcess, queue: str) -> None:
    """KV-70, KV-32: one winner, and the losers are told what it wrote."""
    elements: list[dict[str, Any]] = []

    async def race(number: int) -> None:
        async with HttpClient(node.port) as http:
            elements.append(await Kv(http, queue).one("putIfAbsent", value=number))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(race, number)
    (winner,) = (element for element in elements if element["applied"])
    assert {(each["value"], each["version"]) for each in elements} == {(winner["value"], winner["version"])}
    assert [each["reason"] for each in elements if not each["applied"]] == ["exists"] * 7


async def test_a_lock_is_no_connection(node: NodeProcess, queue: str) -> None:
    """LK-35: closing the connection that took it releases nothing; who asks elsewhere is told at once, and not parked.
    """
    take = {"operations": [{"op": "acquire", "name": queue, "ttlSeconds": 600}]}
    async with HttpClient(node.port) as http:
        (taken,) = (await http.post("/api/v1/locks", take)).json()["results"]
        assert taken["acquired"]
    async with HttpClient(node.port) as http:
        (refused,) = (await http.post("/api/v1/locks", take)).json()["results"]
        assert refused["reason"] == "held" and [each["token"] for each in refused["holders"]] == [taken["token"]]
        assert (await figures(http))["queen_parked_long_polls"] == 0


async def test_one_row_through_every_route(http: HttpClient, queue: str) -> None:
    """kv.md 1, KV-6, KV-53: the batch, the path and the console show one row; a version is the ETag."""
    kv = Kv(http, queue)
    path = f"/api/v1/kv/{kv.namespace}/a%2Fb"
    put = await http.request("PUT", path, {"value": {"n": 1}, "ttlSeconds": 60})
    version = put.json()["version"]
    got = await http.get(path)
    assert got.headers["etag"] == f'"{version}"' and got.json()["value"] == {"n": 1}
    assert (await kv.one("get", "a/b"))["version"] == version
    listed = await http.post("/api/v1/resources/kv/list", {"namespace": kv.namespace})
    assert [(row["key"], row["version"], row["expired"]) for row in listed.json()["rows"]] == [("a/b", version, False)]
    assert (await http.delete(path)).json()["value"] == {"n": 1}
    missed = await http.get(path)
    assert "etag" not in missed.headers and missed.json() == {"index": 0, "op": "get", "found": False, "key": "a/b"}
    assert await kv.keys_held() == 0


async def test_a_row_ends_at_its_time_and_is_swept(http: HttpClient, queue: str) -> None:
    """KV-22, KV-23: the end shows in reads first, then the sweep frees it; a row that lives on stays."""
    kv = Kv(http, queue)
    before = await figures(http)
    await kv.all(kv.op("put", "short", value=1, ttlSeconds=1), kv.op("put", "long", value=1, ttlSeconds=600))

    async def is_gone() -> bool:
        return not (await kv.one("get", "short"))["found"]

    async def is_swept() -> bool:
        return await kv.keys_held() == 1

    await wait_until(is_gone)
    await wait_until(is_swept)
    assert [(await kv.one("get", key))["found"] for key in ("short", "long")] == [False, True]

    async def is_counted() -> bool:  # a door's counts arrive with its next report
        now = await figures(http)
        return now['queen_kv_ops_total{op="put",outcome="applied"}'] - before.get(
            'queen_kv_ops_total{op="put",outcome="applied"}', 0) == 2

    await wait_until(is_counted)
    now = await figures(http)
    assert now["queen_kv_rows"] - before["queen_kv_rows"] == 1 and now["queen_kv_expired_not_pruned"] == 0
    assert now["queen_kv_stored_bytes"] - before["queen_kv_stored_bytes"] == len("long1")


async def test_pages_while_they_are_written(node: NodeProcess, queue: str) -> None:
    """KV-51, KV-54: over 2,500 keys, every key that was there from the start is met once, in order."""
    async with HttpClient(node.port) as http, HttpClient(node.port) as other:
        kv = Kv(http, queue)
        keys = [f"key{number:05}" for number in range(0, 5000, 2)]
        for begin in range(0, len(keys), 250):
            await kv.all(*(kv.op("put", key, value=0) for key in keys[begin : begin + 250]))
        met: list[str] = []
        after: object = None
        while True:
            page = (await kv.all({
                "op": "getPrefix", "ns": kv.namespace, "prefix": "key", "limit": 1000, "keysOnly": True,
                "after": after}))[0]
            met += [row["key"] for row in page["rows"]]
            if not page["truncated"]:
                break
            after = page["nextAfter"]
            await Kv(other, queue).all(*_beside(kv, met))
        assert met == sorted(set(met)) and set(keys) <= set(met)


def _beside(kv: Kv, met: Sequence[str]) -> list[dict[str, object]]:
    """Writes of new keys before and behind the cursor."""
    return [kv.op("put", f"key{number:05}", value=1) for number in (1, 3, int(met[-1][3:]) + 1, 4999)]
