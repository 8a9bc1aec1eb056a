"""Acks (pop-ack.md 8): statuses, the cursor's arithmetic, fences, retries, repeats."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import trio

from tests.conformance.calls import Calls, texts
from tests.support.http_client import HttpClient

STALE = "invalid or expired lease"
GONE_BY = "already committed: the cursor moved past this message before this ack"
UNRESOLVED = (
    "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers")
NO_CONSUMER = "consumer not found"


def verdicts(items: list[dict[str, Any]], *names: str) -> list[Any]:
    """The named fields of each item, as one value or a tuple."""
    return [item[names[0]] if len(names) == 1 else tuple(item[name] for name in names) for item in items]


async def test_the_answer(calls: Calls) -> None:
    """PA-45: a top-level array, one object per item, for a batch and for one alone."""
    await calls.push_texts("a", "b")
    a, b = await calls.pop()
    body = {"transactionId": "a", "partitionId": a["partitionId"], "leaseId": a["leaseId"], "error": None,
            "consumerGroup": None}
    answer = await calls.http.post("/api/v1/ack", body)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [{
        "index": 0, "transactionId": "a", "success": True, "error": None, "leaseReleased": False, "dlq": False,
        "noop": False,
    }]
    assert await calls.ack([b]) == [{
        "index": 0, "transactionId": "b", "success": True, "error": None, "leaseReleased": True, "dlq": False,
        "noop": False,
    }]
    empty = await calls.http.post("/api/v1/ack/batch", {"acknowledgments": []})
    assert (empty.status, empty.body) == (200, b"[]")


@pytest.mark.parametrize("status", [None, "completed", "success", "acked", "ok"])
async def test_words_for_completed(calls: Calls, status: str | None) -> None:
    """PA-45."""
    await calls.push_texts("a")
    messages = await calls.pop()
    (item,) = await calls.ack(messages, [status])
    assert (item["success"], item["leaseReleased"]) == (True, True)
    assert await calls.pop() == []


@pytest.mark.parametrize("status", ["failed", "retry", "nack", "", "Completed"])
async def test_words_that_bring_it_back(calls: Calls, status: str) -> None:
    """PA-45, PA-24: any other word is `failed`; exact spelling."""
    await calls.push_texts("a")
    (item,) = await calls.ack(await calls.pop(), status)
    assert (item["success"], item["leaseReleased"], item["dlq"]) == (True, True, False)
    (message,) = await calls.pop()
    assert message["deliveryAttempt"] == 2


@pytest.mark.parametrize("path", ["/api/v1/ack", "/api/v1/ack/batch"])
@pytest.mark.parametrize("body", [b"", b"null", b"7", b'"x"', b"[]", b"{}", b'{"acknowledgments":{}}',
                                  b'{"acknowledgments":[7]}', b'{"acknowledgments":[{}]}', b"{"])
async def test_what_is_no_ack(http: HttpClient, path: str, body: bytes) -> None:
    """PA-45: 400 `bad_body` (`bad_request` where only a field is missing, pop-ack.md 10)."""
    answer = await http.post(path, body)
    assert answer.status == 400, answer
    assert answer.json()["code"] in ("bad_body", "bad_request")


async def test_silent_gaps_are_completed(calls: Calls) -> None:
    """PA-50: the middle one moves the cursor to itself; the lease stays until the last."""
    await calls.push_texts(*"abcde")
    messages = await calls.pop()
    (middle,) = await calls.ack([messages[2]])
    assert (middle["success"], middle["leaseReleased"]) == (True, False)
    first, second = await calls.ack(messages[:2])
    assert verdicts([first, second], "success", "noop") == [(True, True)] * 2
    assert await calls.pop() == []
    (last,) = await calls.ack([messages[4]])
    assert last["leaseReleased"]
    assert await calls.pop() == []


async def test_first_alone(calls: Calls) -> None:
    """PA-50, pop-ack.md 11.4: the rest comes again when the lease is given up."""
    await calls.push_texts(*"abc")
    messages = await calls.pop(leaseSeconds=1)
    await calls.ack(messages[:1])
    assert texts(await calls.pop(wait="true", timeout=10000)) == ["b", "c"]


async def test_a_failure_inside_a_completed_batch(calls: Calls) -> None:
    """PA-51: the cursor stops below it; what is above answers `redelivers` and comes again."""
    await calls.push_texts(*"abcd")
    messages = await calls.pop()
    items = await calls.ack(messages, ["completed", "failed", "completed", "dlq"])
    assert verdicts(items, "success") == [True] * 4
    assert [item.get("redelivers", False) for item in items][2:] == [True, True]
    assert verdicts(items, "leaseReleased") == [True] * 4
    again = await calls.pop()
    assert texts(again) == ["b", "c", "d"]
    assert verdicts(again, "deliveryAttempt") == [1, 1, 1]  # the cursor moved: another first offset (PA-24)


async def test_a_filed_message_does_not_stop_the_cursor(calls: Calls) -> None:
    """PA-52: silent gaps below it are done, the lease is released."""
    await calls.push_texts(*"abcd")
    messages = await calls.pop()
    (item,) = await calls.ack([messages[2]], "dlq")
    assert (item["success"], item["dlq"], item["leaseReleased"]) == (True, True, True)
    assert texts(await calls.pop()) == ["d"]


async def test_several_dead_letters_in_one_call(calls: Calls) -> None:
    """PA-52, pop-ack.md 11.4."""
    await calls.push_texts(*"abcd")
    items = await calls.ack(await calls.pop(), ["dlq", "completed", "dlq", "completed"])
    assert verdicts(items, "success", "dlq") == [(True, True), (True, False), (True, True), (True, False)]
    assert await calls.pop() == []


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_retry_limit(calls: Calls, limit: int) -> None:
    """PA-55: N failures redeliver, the next one files; `retry` and expiry spend nothing."""
    await calls.configure(retryLimit=limit)
    await calls.push_texts("a")
    await calls.ack(await calls.pop(), "retry")
    for _ in range(limit):
        (item,) = await calls.ack(await calls.pop(), "failed")
        assert item["dlq"] is False
    (item,) = await calls.ack(await calls.pop(), "failed")
    assert (item["success"], item["dlq"]) == (True, True)
    assert await calls.pop() == []


@pytest.mark.parametrize(("dead", "after", "filed"), [
    (True, True, True), (True, False, True), (False, True, True), (False, False, False),
])
async def test_the_two_switches_of_dead_letters(calls: Calls, dead: bool, after: bool, filed: bool) -> None:
    """PA-55: either files; neither drops: the cursor passes, `dlq:false`."""
    await calls.configure(retryLimit=0, deadLetterQueue=dead, dlqAfterMaxRetries=after)
    await calls.push_texts("a", "b")
    a, _ = await calls.pop()
    (item,) = await calls.ack([a], "failed")
    assert (item["success"], item["dlq"]) == (True, filed)
    assert texts(await calls.pop()) == ["b"]


async def test_a_lowered_limit_counts_at_the_next_failure(calls: Calls) -> None:
    """PA-55."""
    await calls.configure(retryLimit=10)
    await calls.push_texts("a")
    for _ in range(2):
        await calls.ack(await calls.pop(), "failed")
    await calls.configure(retryLimit=1)
    (item,) = await calls.ack(await calls.pop(), "failed")
    assert item["dlq"]


async def test_the_budget_is_each_messages_own(calls: Calls) -> None:
    """PA-55: the counter starts anew when the cursor moves forward."""
    await calls.configure(retryLimit=1)
    await calls.push_texts("a", "b")
    for _ in range(2):
        messages = await calls.pop(batch=1)
        (item,) = await calls.ack(messages, "failed")
        assert item["dlq"] is False
        await calls.ack(await calls.pop(batch=1))


async def test_the_dead_letters_themselves(calls: Calls) -> None:
    """PA-56, G-Q9, QU-40: payload, id, offset, group, reason and the retries spent, newest first."""
    await calls.configure(retryLimit=1)
    await calls.push(calls.item({"n": 0}, transactionId="a"), calls.item([1, 2], transactionId="b"))
    for _ in range(2):
        messages = await calls.pop(batch=1)
        await calls.ack(messages, "failed")
    other = await calls.pop()
    body = {"transactionId": "b", "partitionId": other[0]["partitionId"], "leaseId": other[0]["leaseId"],
            "status": "dlq", "error": "poison"}
    assert (await calls.http.post("/api/v1/ack", body)).json()[0]["dlq"]
    found = (await calls.http.get(f"/api/v1/dlq?queue={calls.queue}")).json()
    assert found["total"] == 2
    assert set(found["pagination"]) == {"limit", "offset"}
    newest, oldest = found["messages"]
    assert set(newest) >= {
        "id", "transactionId", "partitionId", "queue", "partition", "consumerGroup", "errorMessage", "retryCount",
        "data", "producerSub", "createdAt", "failedAt", "offset",
    }
    names = ("transactionId", "data", "offset", "errorMessage", "consumerGroup")
    assert verdicts([newest, oldest], *names) == [
        ("b", [1, 2], 1, "poison", "__QUEUE_MODE__"), ("a", {"n": 0}, 0, "Retries exhausted", "__QUEUE_MODE__")]
    assert oldest["retryCount"] == 1


# ---- fences


async def test_leases_that_are_not_live(calls: Calls) -> None:
    """PA-47, G-Q6, pop-ack.md 11.7: stale, foreign and of the wrong group; nothing moves."""
    await calls.push_texts("a")
    old = await calls.pop(leaseSeconds=1)
    new = await calls.pop(wait="true", timeout=10000)
    assert texts(new) == ["a"]
    for lease, group in ((old[0]["leaseId"], None), (str(uuid.uuid4()), None), (new[0]["leaseId"], "other")):
        (item,) = await calls.ack(new, lease=lease, group=group)
        assert (item["success"], item["error"]) == (False, STALE)
    (item,) = await calls.ack(new)
    assert item["success"]


async def test_an_expired_lease_that_nobody_took(calls: Calls) -> None:
    """PA-47: it is stale all the same."""
    await calls.push_texts("a")
    messages = await calls.pop(leaseSeconds=1)
    await trio.sleep(1.1)
    (item,) = await calls.ack(messages)
    assert (item["success"], item["error"]) == (False, STALE)


async def test_an_ack_without_a_lease(calls: Calls) -> None:
    """PA-48: no fence; it may complete somebody else's batch. `""` is none."""
    await calls.push_texts("a", "b")
    messages = await calls.pop()
    (item,) = await calls.ack(messages[1:], lease="")
    assert (item["success"], item["leaseReleased"]) == (True, True)
    assert await calls.pop() == []


async def test_rows_of_the_item_table(calls: Calls) -> None:
    """pop-ack.md 8: at or below the cursor, not found, unknown partition, group unknown there; lookups are inside."""
    await calls.push_texts("a", "b", "c")
    messages = await calls.pop(batch=2)
    await calls.ack(messages[:1])
    rows = [
        ({**messages[0]}, "completed", (True, None, True)),
        ({**messages[0]}, "failed", (False, GONE_BY, False)),
        ({**messages[0], "transactionId": "never"}, "completed", (False, UNRESOLVED, False)),
        ({**messages[0], "transactionId": "c"}, "completed", (False, UNRESOLVED, False)),  # above the claim
    ]
    for message, status, expected in rows:
        (item,) = await calls.ack([message], status)
        assert (item["success"], item["error"], item["noop"]) == expected, (message["transactionId"], status)
    for place in ("999999999", "x", ""):
        (item,) = await calls.ack([{**messages[1], "partitionId": place}], lease=None)
        assert (item["success"], item["error"]) == (False, NO_CONSUMER)
    (item,) = await calls.ack(messages[1:], lease=None, group="never popped")
    assert (item["success"], item["error"]) == (False, NO_CONSUMER)
    (item,) = await calls.ack(messages[1:])
    assert item["success"]
    assert texts(await calls.pop()) == ["c"]


async def test_parts_do_not_affect_each_other(calls: Calls) -> None:
    """PA-46, PA-38: one partition fails and is released, the other keeps its lease and completes later."""
    await calls.push_texts("a", partition="p1")
    await calls.push_texts("b", partition="p2")
    messages = sorted(await calls.pop(partitions=2), key=lambda message: str(message["partition"]))
    items = await calls.ack([messages[0], {**messages[1], "leaseId": str(uuid.uuid4())}], ["failed", "completed"])
    assert verdicts(items, "success") == [True, False]
    assert texts(await calls.pop("p1")) == ["a"]
    assert await calls.pop("p2") == []
    (item,) = await calls.ack(messages[1:])
    assert item["success"]


async def test_the_same_ack_again(calls: Calls) -> None:
    """PA-59, G-Q7: answered as the first time, also after the partition went to somebody else; another one is not."""
    await calls.push_texts("a", "b", "c")
    messages = await calls.pop(batch=2)
    first = await calls.ack(messages)
    assert verdicts(first, "success") == [True, True]
    other = await calls.pop()
    assert texts(other) == ["c"]
    again = await calls.ack(messages)
    assert verdicts(again, "success", "error") == [(True, None), (True, None)]
    (item,) = await calls.ack([{**messages[0], "transactionId": "c"}], "failed")
    assert (item["success"], item["error"]) == (False, STALE)
    (item,) = await calls.ack(other)
    assert item["success"]


async def test_a_failed_ack_again(calls: Calls) -> None:
    """PA-59: the repeat spends no second retry and takes nothing from the one who has the message now."""
    await calls.configure(retryLimit=1)
    await calls.push_texts("a")
    messages = await calls.pop()
    await calls.ack(messages, "failed")
    second = await calls.pop()
    (repeat,) = await calls.ack(messages, "failed")
    assert (repeat["success"], repeat["dlq"]) == (True, False)
    (item,) = await calls.ack(second)
    assert item["success"]


async def test_ids_that_repeat(calls: Calls) -> None:
    """PA-53: the k-th item of an id means its k-th occurrence in the claim; surplus items mean the last one."""
    await calls.configure(dedupWindowSeconds=0)
    for number in range(3):
        await calls.push(calls.item(number, transactionId="same"))
    messages = await calls.pop()
    items = await calls.ack([*messages, messages[0]], ["completed", "completed", "completed", "retry"])
    assert verdicts(items, "success") == [True] * 4
    again = await calls.pop()
    assert texts(again) == [2]
    (item,) = await calls.ack(again)
    assert (item["success"], item["leaseReleased"]) == (True, True)
