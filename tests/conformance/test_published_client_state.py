"""Key/value and locks through the published Python client `queen-mq` 2.6.0, unchanged, against a node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from queen import KvError
from queen.kv import ops

from tests.conformance.conftest import Run


def test_key_value(run: Run, queue: str) -> None:
    """KV-10, KV-31, KV-50, KV-51: every call of `client.kv`, one after the other."""
    ns = queue.lower()

    async def scene(client: Any) -> None:
        kv = client.kv
        first = await kv.put(ns, "order/1", {"n": 1.50}, ttl_seconds=60)
        assert first["applied"] and not (await kv.put_if_absent(ns, "order/1", 2, forever=True))["applied"]
        lost = await kv.put(ns, "order/1", 3, forever=True, expect=first["version"] + 1)
        assert (lost["reason"], lost["value"], lost["version"]) == ("version", {"n": 1.5}, first["version"])
        assert (await kv.check(ns, "order/1", expect=first["version"]))["applied"]
        assert (await kv.get(ns, "order/1"))["value"] == {"n": 1.5}
        assert not (await kv.get(ns, "none"))["found"]
        assert (await kv.incr(ns, "count", delta=2, max=3, forever=True))["value"] == 2
        assert (await kv.incr(ns, "count", delta=2, max=3, forever=True))["reason"] == "limit"
        many = await kv.get_many(ns, ["order/1", "none", "count"])
        assert ([row["key"] for row in many["rows"]], many["missing"]) == (["count", "order/1"], ["none"])
        page = await kv.get_prefix(ns, "order/", keys_only=True)
        assert [row["key"] for row in page["rows"]] == ["order/1"] and not page["truncated"]
        await kv.put(ns, "order/2", None, forever=True)
        assert [row["key"] for row in await kv.list_all(ns, "order/", limit=1)] == ["order/1", "order/2"]
        results = await kv.batch([ops.delete(ns, "order/1"), ops.get(ns, "order/1")])
        assert results[0]["applied"] and not results[1]["found"]
        with pytest.raises(KvError, match="kv_bad_request"):
            await kv.get("No", "k")

    run(scene)


def test_locks_are_handed_on(run: Run, queue: str) -> None:
    """LK-20 to LK-24, LK-30: two handles, one holder; `get`, the row and the handle agree; the next token is higher."""
    async def scene(client: Any) -> None:
        first, second = (client.lock(queue, ttl_seconds=30) for _ in range(2))
        assert await first.acquire() and not await second.acquire()
        token = first.token
        (holder,) = (await client.locks.get(queue))["holders"]
        row = await client.kv.get("queen-locks", f"{queue}#0")
        assert holder["token"] == row["version"] == token and holder["owner"] == row["value"]["owner"] == first.owner
        assert await first.renew() and first.token > token
        renewed = first.token
        assert await first.release() and await second.acquire(wait=5)
        assert second.token > renewed
        assert await second.release()

    run(scene)


def test_a_semaphore_is_never_overdrawn(run: Run, queue: str) -> None:
    """LK-4, LK-20: twelve handles at once for three permits; slots are distinct, a freed one is handed out."""
    async def scene(client: Any) -> None:
        handles = [client.semaphore(queue, 3, ttl_seconds=30) for _ in range(12)]
        taken = await asyncio.gather(*(handle.acquire() for handle in handles))
        holders = [handle for handle, has in zip(handles, taken, strict=True) if has]
        assert sorted(handle.slot for handle in holders) == [0, 1, 2]
        freed = holders[1].slot
        waiter = next(handle for handle, has in zip(handles, taken, strict=True) if not has)
        assert await holders[1].release() and await waiter.acquire() and waiter.slot == freed
        assert await client.locks.release_all() == 3

    run(scene)


def test_a_guarded_write_of_a_replaced_holder_does_not_apply(run: Run, queue: str) -> None:
    """LK-31, LK-32, LK-50: in a key/value batch; the permit is freed by hand through KV."""
    ns = queue.lower()

    async def scene(client: Any) -> None:
        old, new = (client.lock(queue, ttl_seconds=30) for _ in range(2))
        assert await old.acquire()
        guard = old.guard()
        assert (await client.kv.batch([guard, ops.put(ns, "k", "old", forever=True)]))[1]["applied"]
        assert (await client.kv.delete("queen-locks", f"{queue}#0"))["applied"]
        assert await new.acquire()
        answer = await client.kv._http_client.post(
            "/api/v1/kv", {"operations": [ops.put(ns, "k", "late", forever=True), guard]})
        assert (answer["ok"], answer["failedIndex"], answer["kvReason"], answer["version"]) == (
            False, 1, "version", new.token)
        assert (await client.kv.get(ns, "k"))["value"] == "old"
        assert not await old.renew() and await new.release()

    run(scene)


def test_guarded_steps_follow_a_renewal_and_end_with_the_lock(run: Run, queue: str) -> None:
    """LK-31, TX-40: a bundle beside renewals commits; one of a replaced holder rolls back, and the handle knows."""
    async def scene(client: Any) -> None:
        old, new = (client.lock(queue, ttl_seconds=30) for _ in range(2))
        assert await old.acquire()

        for number in range(20):  # one renewal beside each: the client sends a bundle again three times at most
            bundle = client.transaction().guard(old).queue(queue).push([{"data": number}])
            committed, renewed = await asyncio.gather(bundle.commit(), old.renew())
            assert committed["success"] and renewed
        await client.kv.delete("queen-locks", f"{queue}#0")
        assert await new.acquire()
        late = await client.transaction().guard(old).queue(queue).push([{"data": "late"}]).commit()
        assert (late["success"], late["reason"], late["kvReason"]) == (False, "kv_precondition", "version")
        assert not old.held and await new.release()
        messages = await client.queue(queue).batch(100).pop()
        assert [message["data"] for message in messages] == list(range(20))

    run(scene)
