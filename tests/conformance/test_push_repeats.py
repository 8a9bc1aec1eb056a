"""What a producer may rely on beside the answer of one call: order, single items, repeats, other forms (push.md)."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.conformance.calls import Calls, texts
from tests.conformance.test_push import code
from tests.conformance.test_transaction import refused

ALL = {"subscriptionMode": "all", "commitOnDelivery": "true", "partitions": "64"}


@pytest.mark.parametrize("said", ["text/plain", "application/x-www-form-urlencoded", "text/json; charset=utf-16"])
async def test_the_content_type_is_not_looked_at(calls: Calls, said: str) -> None:
    """PU-2: the bytes are JSON whatever it says, and the answer is always JSON."""
    body = json.dumps({"items": [calls.item("é")]}, ensure_ascii=False)
    answer = await calls.http.request("POST", "/api/v1/push", body, headers={"Content-Type": said})
    assert (answer.status, answer.headers["content-type"]) == (201, "application/json")
    assert texts(await calls.pop(**ALL)) == ["é"]


async def test_options_without_effect_refuse_no_push(calls: Calls) -> None:
    """PU-32: maxSize, priority and ttl are options that no answer of this route depends on."""
    await calls.configure(maxSize=1, priority=9, ttl=1)
    assert [each["offset"] for each in await calls.push_texts("a", "b", "c")] == [0, 1, 2]
    assert texts(await calls.pop(**ALL)) == ["a", "b", "c"]


async def test_what_was_answered_is_before_what_is_sent_then(calls: Calls) -> None:
    """PU-41: in every partition that two pushes share."""
    places = ("left", "right")
    for number in range(20):
        await calls.push(*(calls.item(number, partition=place) for place in places[:: 1 - 2 * (number % 2)]))
    for place in places:
        numbers = texts(await calls.pop(place, **ALL))
        assert len(numbers) == 20 and all(before < after for before, after in pairwise(numbers))


async def test_each_item_has_a_fate_of_its_own(calls: Calls) -> None:
    """PU-42, PU-58: a stored id keeps the rest of a push from nothing; a transaction of the same items rolls back."""
    await calls.push_texts("stored")
    items = [calls.item(text, transactionId=text) for text in ("before", "stored", "after")]
    document = await refused(calls, {"type": "push", "items": items})
    assert (document["reason"], document["failedIndex"]) == ("duplicate", 1)
    assert texts(await calls.pop(**ALL)) == ["stored"]
    assert [each["status"] for each in await calls.push(*items)] == ["queued", "duplicate", "queued"]
    assert texts(await calls.pop(**ALL)) == ["before", "after"]
    await calls.schedule("timer", delayMs=0, txn="after", payload="MQ==")
    assert not (await calls.peek("timer"))["found"] and await calls.pop(**ALL) == []


async def test_a_repeat_stores_exactly_what_was_not_stored(calls: Calls) -> None:
    """PU-72: items with an id of their own; one without is stored again."""
    await calls.push_texts("a", "c")  # as if the answer to a call of a, b, c had been lost half-way
    named = [calls.item(text, transactionId=text) for text in "abc"]
    nameless = calls.item("nameless")
    first = await calls.push(*named, nameless)
    assert [each["status"] for each in first] == ["duplicate", "queued", "duplicate", "queued"]
    again = await calls.push(*named, nameless)
    assert [each["status"] for each in again] == ["duplicate"] * 3 + ["queued"]
    assert [each["message_id"] for each in again[:3]] == [each["message_id"] for each in first[:3]]
    assert texts(await calls.pop(**ALL)) == ["a", "c", "b", "nameless", "nameless"]


async def test_one_client_may_mix_forms(calls: Calls) -> None:
    """PU-61, PU-60: a binary body is declined and stores nothing; JSON on the same connection is taken."""
    binary = {"Content-Type": "application/x-queen-push"}
    for number in range(2):
        declined = await calls.http.request("POST", "/api/v1/push", b"QPB1" + bytes(40), headers=binary)
        assert code(declined) == (400, "bad_body")
        (taken,) = await calls.push(calls.item(number, traceId="3d813cbb-47fb-4b8d-8b4e-6f1e0ae41d7f"))
        assert taken["offset"] == number
    assert texts(await calls.pop(**ALL)) == [0, 1]
