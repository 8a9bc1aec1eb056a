"""Transactions over HTTP (transactions.md): a step whole or not at all, as a client sees it."""

from __future__ import annotations

from typing import Any

from tests.conformance.calls import HOUR_MS, Calls, texts
from tests.support.http_client import Answer

NEVER = "00000000-0000-7000-8000-000000000000"


async def transact(calls: Calls, *operations: dict[str, Any], **lists: Any) -> Answer:
    """One transaction."""
    return await calls.http.post("/api/v1/transaction", {"operations": operations, "requiredLeases": [], **lists})


async def committed(calls: Calls, *operations: dict[str, Any], **lists: Any) -> list[dict[str, Any]]:
    """The results of one that must commit."""
    answer = await transact(calls, *operations, **lists)
    assert answer.status == 200, answer
    document = answer.json()
    assert document["success"] is True, document
    results: list[dict[str, Any]] = document["results"]
    return results


async def refused(calls: Calls, *operations: dict[str, Any], status: int = 200, **lists: Any) -> dict[str, Any]:
    """The body of one that must be refused (TX-50, TX-51, TX-54)."""
    answer = await transact(calls, *operations, **lists)
    assert answer.status == status, answer
    document: dict[str, Any] = answer.json()
    assert document["transactionId"]
    assert (document["success"], document["results"]) == (False, [])
    assert document["error"].endswith("; the transaction rolled back")
    assert ("code" in document) == (status != 200)
    assert "retry-after" not in answer.headers
    return document


def ack(message: dict[str, Any], status: Any = "completed", **fields: Any) -> dict[str, Any]:
    """An ack of a popped message under its own lease."""
    return {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"],
            "status": status, "leaseId": message["leaseId"], **fields}


async def test_a_step_happens_whole(calls: Calls) -> None:
    """TX-2, TX-40, TX-63: acked, pushed, scheduled, cancelled; and a read afterwards sees all of it."""
    await calls.push_texts("in", partition="work")
    await calls.schedule("old")
    (message,) = await calls.pop("work")
    results = await committed(
        calls, ack(message), {"type": "push", "items": [calls.item("out-1"), calls.item("out-2")]},
        timers=[calls.operation("new"), {"op": "cancel", "queue": calls.queue, "timerKey": "old"}])
    assert [(result["index"], result["type"]) for result in results] == [
        (0, "ack"), (1, "push"), (2, "push"), (3, "timer"), (4, "timer")]
    assert [result.get("status") for result in results[3:]] == ["scheduled", "cancelled"]
    assert await calls.pop("work") == []
    assert texts(await calls.pop("Default")) == ["out-1", "out-2"]
    assert (await calls.peek("new"))["messageId"] == results[3]["messageId"]
    assert not (await calls.peek("old"))["found"]


async def test_a_refused_step_leaves_nothing(calls: Calls) -> None:
    """TX-20, TX-53: neither offsets, cursors, leases, attempts, timers, nor new partitions."""
    await calls.push_texts("in", "stored", partition="work")
    (message, other) = await calls.pop("work")
    again = calls.item(transactionId="stored", partition="work")
    document = await refused(
        calls, ack(message, "failed"), ack(other),
        {"type": "push", "items": [calls.item("new", partition="fresh"), again]}, timers=[calls.operation("k")])
    assert (document["reason"], document["failedIndex"], document["offset"]) == ("duplicate", 3, 1)
    assert document["error"].startswith("QDUP")
    assert not (await calls.peek("k"))["found"]
    assert await calls.pop("fresh") == []
    assert [item["success"] for item in await calls.ack([message, other])] == [True, True]
    assert await calls.pop("work") == [], "the lease was still whole, and no attempt was spent"


async def test_a_repeated_step_is_refused_by_its_released_lease(calls: Calls) -> None:
    """TX-33, TX-61, TX-62, PA-60: and the plain ack route answers the same ack as the first time (PA-59)."""
    await calls.push_texts("in")
    messages = await calls.pop()
    step = ack(messages[0]), {"type": "push", **calls.item("out", partition="out")}
    await committed(calls, *step)
    document = await refused(calls, *step)
    assert (document["reason"], document["failedIndex"]) == ("rejected_ack", 0)
    assert document["error"].startswith("QTXN")
    assert texts(await calls.pop("out", consumerGroup="g", subscriptionMode="all")) == ["out"]
    (item,) = await calls.ack(messages)
    assert (item["success"], item["error"]) == (True, None)


async def test_leases_lent_and_lost(calls: Calls) -> None:
    """TX-31, TX-32, transactions.md 9.4: one lease is lent, two are not; one that is gone takes all along."""
    await calls.push_texts("a", "b", partition="one")
    await calls.push_texts("c", partition="two")
    (a, b), (c,) = await calls.pop("one"), await calls.pop("two")
    unleased = {key: value for key, value in ack(b).items() if key != "leaseId"}
    assert (await refused(calls, {**unleased, "transactionId": "zzz"}, requiredLeases=[a["leaseId"]]))[
        "reason"] == "rejected_ack"
    assert (await refused(calls, ack(c), ack(a, leaseId=NEVER)))["failedIndex"] == 1
    results = await committed(calls, ack(a), ack(c), unleased)
    assert [result["success"] for result in results] == [True, True, True]
    assert await calls.pop("one") + await calls.pop("two") == []


async def test_a_pop_that_waits_is_served_by_a_transaction(calls: Calls) -> None:
    """PA-21, M-41: by its push, and by a timer that is due in it, behind the pushes (TX-7)."""
    await committed(calls, {"type": "push", "items": [calls.item("a")]}, timers=[
        calls.operation("now", delayMs=0), calls.operation("later", delayMs=HOUR_MS)])
    assert texts(await calls.pop_until(2)) == ["a", {"key": "now"}]
    assert not (await calls.peek("now"))["found"]
    assert (await calls.peek("later"))["found"]


async def test_state_moves_with_the_step(calls: Calls) -> None:
    """TX-21, TX-23, TX-52, TM-61: a key, its timer and the input in one step; the gate stops it the second time."""
    await calls.push_texts("a", "b")
    (a, b) = await calls.pop()
    key = {"ns": "orders", "key": calls.queue}
    first, read = await committed(calls, kv=[
        {"op": "put", **key, "value": {"status": "held"}, "forever": True}, {"op": "get", **key}])
    assert (read["value"], read["version"]) == ({"status": "held"}, first["version"])
    step: dict[str, Any] = {
        "kv": [{"op": "put", **key, "value": {"status": "paid"}, "ttlSeconds": 60, "expect": first["version"],
                "required": True}],
        "timers": [calls.operation("hold")]}
    push = {"type": "push", "items": [calls.item("out", partition="out")]}
    results = await committed(calls, ack(a), push, **step)
    assert [result["type"] for result in results] == ["ack", "push", "kv", "timer"]
    await calls.cancel("hold")
    document = await refused(calls, ack(b), push, **step)
    assert document["error"].startswith("QKV")
    assert {name: document[name] for name in ("reason", "ok", "failedIndex", "kvReason", "version", "value")} == {
        "reason": "kv_precondition", "ok": False, "failedIndex": 2, "kvReason": "version",
        "version": results[2]["version"], "value": {"status": "paid"}}
    assert not (await calls.peek("hold"))["found"]
    assert texts(await calls.pop("out", consumerGroup="g", subscriptionMode="all")) == ["out"]
    assert (await calls.ack([b]))[0]["leaseReleased"]


async def test_timers_are_refused_as_on_their_route(calls: Calls) -> None:
    """TM-60, TM-63, TX-6: horizon, duplicates; the whole transaction with them."""
    push = {"type": "push", **calls.item("never")}
    beyond = calls.operation("k", delayMs=7_776_000_001)
    document = await refused(calls, push, timers=[calls.operation("j"), beyond], status=403)
    assert (document["reason"], document["code"], document["failedIndex"]) == (
        "timer_horizon_exceeded", "timer_horizon_exceeded", 2)
    twice = await refused(calls, push, timers=[calls.operation("j"), calls.operation("j")], status=400)
    assert twice["reason"] == "timers_duplicate_key_in_call"
    assert not (await calls.peek("j"))["found"]
    assert await calls.pop() == []


async def test_shapes(calls: Calls) -> None:
    """TX-3, TX-4, TX-55, TX-58."""
    assert (await refused(calls))["reason"] == "bad_request"
    assert (await refused(calls, {"type": "kv"}, status=400))["code"] == "bad_request"
    too_long = await transact(calls, {"type": "push", "queue": "q" * 412, "payload": 1})
    assert (too_long.status, too_long.json()["code"]) == (413, "name_too_long")
    binary = await calls.http.request("POST", "/api/v1/transaction", b"QTB1...")
    assert (binary.status, binary.json()["reason"]) == (400, "bad_request")
