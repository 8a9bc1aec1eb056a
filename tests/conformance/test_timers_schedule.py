"""POST /api/v1/timers (timers.md 2): what is taken, what is refused, and with which words."""

from __future__ import annotations

import base64
import re
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conformance.calls import DAY_MS, HOUR_MS, Calls, b64
from tests.support.http_client import Answer, HttpClient

WIRE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
HORIZON_MS = 90 * DAY_MS


def refusal(answer: Answer) -> tuple[int, str, str]:
    """Status, `error`, `reason`; checks the form on the way (TM-6)."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert set(body) - {"code"} == {"error", "reason", "detail"}, body
    assert isinstance(body["detail"], str)
    assert body["detail"]
    return answer.status, body["error"], body["reason"]


def bad(reason: str) -> tuple[int, str, str]:
    """A refusal of the common kind."""
    return 400, "timers_bad_request", reason


async def test_the_example_of_the_page(calls: Calls) -> None:
    """TM-16, TM-17, TM-5, TM-40 (timers.md 9): field by field, and nothing else."""
    answer = await calls.timers(
        calls.operation("order-9137", delayMs=DAY_MS, txn="remind-9137", payload="eyJvcmRlcklkIjo5MTM3fQ=="),
        {"op": "cancel", "queue": calls.queue, "timerKey": "order-9000", "txn": "remind-9000"},
    )
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    scheduled, absent = answer.json()["results"]
    assert list(answer.json()) == ["results"]
    message_id, deliver_at = scheduled.pop("messageId"), scheduled.pop("deliverAt")
    assert scheduled == {
        "ok": True, "status": "scheduled", "queue": calls.queue, "timerKey": "order-9137", "txn": "remind-9137"}
    assert absent == {
        "ok": False, "status": "absent", "queue": calls.queue, "timerKey": "order-9000", "txn": "remind-9000"}
    assert str(uuid.UUID(message_id)) == message_id
    assert WIRE_TIME.fullmatch(deliver_at)
    peeked = await calls.peek("order-9137")
    created_at = peeked.pop("createdAt")
    assert peeked.pop("updatedAt") == created_at
    assert datetime.fromisoformat(deliver_at) - datetime.fromisoformat(created_at) == timedelta(days=1)
    assert peeked == {
        "found": True, "queue": calls.queue, "timerKey": "order-9137", "partition": "Default",
        "deliverAt": deliver_at, "txn": "remind-9137", "messageId": message_id,
        "payload": "eyJvcmRlcklkIjo5MTM3fQ==", "payloadZstd": False, "encrypted": False, "producerSub": None,
        "attempts": 0, "lastError": None, "claimed": False,
    }


async def test_body_forms(calls: Calls) -> None:
    """TM-10: an object with operations, or the bare array; an empty list is no call (timers.md 10)."""
    for body in ({"operations": [calls.operation("a")]}, [calls.operation("b")]):
        answer = await calls.http.post("/api/v1/timers", body)
        assert answer.status == 200, answer
        assert answer.json()["results"][0]["status"] == "scheduled"
    for empty in (b'{"operations":[]}', b"[]"):
        answer = await calls.http.post("/api/v1/timers", empty)
        assert (answer.status, answer.json()) == (200, {"results": []})


@pytest.mark.parametrize("body", [
    b"", b"null", b"7", b'"text"', b"{}", b'{"operations":null}', b'{"operations":{}}', b'{"operations":[1]}',
    b'[null]', b'{"operations":[', b"\xff\xfe", b'[{"op":NaN}]', b'{"ops":[]}',
])
async def test_anything_else_is_no_body(http: HttpClient, body: bytes) -> None:
    """TM-10."""
    answer = await http.post("/api/v1/timers", body)
    status, error, reason = refusal(answer)
    assert (status, error) == (400, "timers_bad_request")
    # An element that is no object is a bad element of a good array, or no body: the page leaves it open.
    assert reason in ({"timers_bad_body", "timers_bad_op"} if body in (b'{"operations":[1]}', b"[null]")
                      else {"timers_bad_body"})


async def test_the_body_is_read_whatever_its_type_says(calls: Calls) -> None:
    """TM-4; unknown query parameters are ignored too."""
    operation = f'[{{"op":"schedule","queue":"{calls.queue}","timerKey":"k","delayMs":1e7,"txn":"t","payload":"MQ=="}}]'
    answer = await calls.http.request(
        "POST", "/api/v1/timers?what=ever", operation, headers={"Content-Type": "text/plain"})
    assert answer.status == 200, answer


Row = tuple[str, object, tuple[int, str, str]]  # field, value (... = left out), what comes of it

TOO_FAR = (403, "timer_horizon_exceeded", "timers_horizon")
KEY_TOO_LONG = (413, "name_too_long", "name_too_long")
ONE_BYTE_TOO_MANY = base64.b64encode(b'"' + b"x" * (1024 * 1024 - 1) + b'"').decode()
OWNED = (
    "producerSub", "producer_sub", "messageId", "message_id", "deliverAt", "deliver_at", "delaySeconds",
    "delay_seconds", "attempts", "tenant", "tenantId", "tenant_id", "claimToken", "claim_token", "claimedUntil",
    "claimed_until", "_anything", "_",
)


def rows(name: str, expected: tuple[int, str, str], *values: object) -> list[Row]:
    """A row for each value of a field."""
    return [(name, value, expected) for value in values]


FIELDS: list[Row] = [
    *rows("op", bad("timers_bad_op"), ..., None, 7, "", "Schedule", "fire", ["schedule"]),
    *rows("queue", bad("timers_queue_required"), ..., None, "", 7, ["q"]),
    *rows("timerKey", bad("timers_bad_op"), ..., None, "", 7, "a\0b", {}),
    *rows("timerKey", KEY_TOO_LONG, "k" * 513, "ü" * 257),
    *rows("delayMs", bad("timers_delay_required"), ..., None, "60000", True, [1], {}),
    *rows("delayMs", TOO_FAR, HORIZON_MS + 1, HORIZON_MS + 0.5, 10**18, 10**30, 1e300),
    *rows("txn", bad("timers_bad_op"), ..., None, "", 7, {}, "t" * 65_536),
    *rows("payload", bad("timers_payload_required"), ..., None, "", 7, {"a": 1}),
    *rows("payload", bad("timers_payload_not_base64"),
          "*", "MQ", "MQ=", "MQ==\n", " MQ==", "M Q==", "-_8=", "MQ===", "ü"),
    *rows("payload", (413, "payload_too_large", "timers_payload_too_large"), ONE_BYTE_TOO_MANY),
    *rows("partition", bad("timers_bad_op"), 7, False, ["p"], {}),
    *rows("payloadZstd", bad("timers_zstd_unsupported"), True),
    *rows("encrypted", bad("timers_server_owned_field"), True),
    *(row for name in OWNED for row in rows(name, bad("timers_server_owned_field"), "x")),
]


@pytest.mark.parametrize(("field", "value", "expected"), FIELDS, ids=[
    f"{name}-{str(value)[:12]!r}-{number}" for number, (name, value, _) in enumerate(FIELDS)])
async def test_every_field_refused(calls: Calls, field: str, value: object, expected: tuple[int, str, str]) -> None:
    """TM-10, TM-11, TM-15, TM-20, TM-22, TM-23, TM-25: the one bad operation is named, and none of its call applies."""
    answer = await calls.timers(calls.operation("before"), calls.operation("it", **{field: value}))
    assert refusal(answer) == expected
    assert "index 1" in answer.json()["detail"]
    assert not (await calls.peek("before"))["found"]
    assert (await calls.page())["rows"] == []


@pytest.mark.parametrize(("field", "value"), [
    ("timerKey", "k" * 512), ("timerKey", "ü" * 256), ("timerKey", "☂ /../%2F+"), ("delayMs", HORIZON_MS),
    ("delayMs", 2**31 - 1), ("delayMs", 2**31), ("delayMs", 2**32), ("txn", "t" * 65_535), ("txn", "ünïcode\n"),
    ("partition", None), ("partition", ""), ("partition", "p/1 ☂"), ("payloadZstd", False), ("encrypted", False),
    ("whatever", 7), ("op", "reschedule"),
    ("payload", base64.b64encode(b'"' + b"x" * (1024 * 1024 - 2) + b'"').decode()),
], ids=lambda value: str(value)[:12])
async def test_every_field_taken(calls: Calls, field: str, value: Any) -> None:
    """TM-10, TM-20, TM-22: the bounds themselves, and nothing breaks at 2^31 ms or 2^32."""
    result = await calls.schedule("it", **{field: value})
    assert result["status"] == "scheduled"
    peeked = await calls.peek(value if field == "timerKey" else "it")
    assert peeked["found"]
    assert peeked["partition"] == (value if field == "partition" and value else "Default")
    delay = datetime.fromisoformat(peeked["deliverAt"]) - datetime.fromisoformat(peeked["createdAt"])
    assert delay == timedelta(milliseconds=value if field == "delayMs" else HOUR_MS)


@pytest.mark.parametrize(("delay_ms", "whole_ms"), [(0.5 + HOUR_MS, HOUR_MS + 1), (float(HOUR_MS), HOUR_MS)])
async def test_a_fraction_is_rounded_up(calls: Calls, delay_ms: float, whole_ms: int) -> None:
    """TM-20."""
    await calls.schedule("it", delayMs=delay_ms)
    peeked = await calls.peek("it")
    delay = datetime.fromisoformat(peeked["deliverAt"]) - datetime.fromisoformat(peeked["createdAt"])
    assert delay == timedelta(milliseconds=whole_ms)


@pytest.mark.parametrize("delay_ms", [0, -1, -(10**18), -0.5])
async def test_what_is_due_already_fires_in_its_entry(calls: Calls, delay_ms: float) -> None:
    """TM-20, TM-21: the answer is `scheduled`, a peek finds nothing, a pop finds the message at once."""
    result = await calls.schedule("it", delayMs=delay_ms)
    assert result["status"] == "scheduled"
    assert await calls.peek("it") == {"found": False}
    (message,) = await calls.pop()
    assert message["id"] == result["messageId"]
    assert message["transactionId"] == "txn-it"
    # Below zero counts as zero: deliverAt is the entry's stamp (timers.md 10), and createdAt is it rounded up.
    stamp, created = datetime.fromisoformat(result["deliverAt"]), datetime.fromisoformat(message["createdAt"])
    assert timedelta(0) <= created - stamp < timedelta(milliseconds=1)


async def test_a_half_millisecond_fires(calls: Calls) -> None:
    """TM-20: 0.5 ms is 1 ms, not 0; it comes all the same."""
    result = await calls.schedule("it", delayMs=0.5)
    (message,) = await calls.pop_until(1)
    assert message["id"] == result["messageId"]


@pytest.mark.parametrize("count", [1, 256])
async def test_as_many_operations_as_allowed(calls: Calls, count: int) -> None:
    """TM-13, TM-16: as many results, in order."""
    answer = await calls.timers(*(calls.operation(f"k{number}") for number in range(count)))
    assert answer.status == 200, answer
    assert [result["timerKey"] for result in answer.json()["results"]] == [f"k{number}" for number in range(count)]


async def test_one_operation_too_many(calls: Calls) -> None:
    """TM-13: 257."""
    answer = await calls.timers(*(calls.operation(f"k{number}") for number in range(257)))
    assert refusal(answer) == bad("timers_too_many_ops")
    assert (await calls.page())["rows"] == []


async def test_a_call_too_large(calls: Calls) -> None:
    """README 21: more than 8 MiB of payload in one call."""
    payload = base64.b64encode(b'"' + b"x" * (1024 * 1024 - 2) + b'"').decode()
    answer = await calls.timers(*(calls.operation(f"k{number}", payload=payload) for number in range(9)))
    assert refusal(answer) == (413, "payload_too_large", "timers_call_too_large")


async def test_one_operation_a_key_and_call(calls: Calls) -> None:
    """TM-14: schedules and cancels counted alike; the same key in two queues is two timers (TM-1)."""
    twice = await calls.timers(calls.operation("k"), {"op": "cancel", "queue": calls.queue, "timerKey": "k"})
    assert refusal(twice) == bad("timers_duplicate_key_in_call")
    assert not (await calls.peek("k"))["found"]
    apart = await calls.timers(calls.operation("k"), calls.operation("k", queue=f"{calls.queue}.other"))
    assert [result["status"] for result in apart.json()["results"]] == ["scheduled", "scheduled"]


async def test_names_that_do_not_fit_are_refused_at_the_schedule(calls: Calls) -> None:
    """TM-25, PU-21: tenant, queue and partition together; 411 bytes remain."""
    long_queue = calls.queue + "q" * (400 - len(calls.queue))
    fits = await calls.timers(calls.operation("k", queue=long_queue, partition="p" * 11))
    assert fits.status == 200, fits
    answer = await calls.timers(calls.operation("k", queue=long_queue, partition="p" * 12))
    assert refusal(answer) == (413, "name_too_long", "name_too_long")
    assert answer.json()["code"] == "name_too_long"


async def test_the_words_scheduled_and_rescheduled(calls: Calls) -> None:
    """TM-12: the answer says what was there, whichever word was sent; TM-53: everything is replaced."""
    first = await calls.schedule("k", op="reschedule", partition="old")
    second = await calls.schedule("k", txn="txn-new", payload=b64("new"), partition="new", delayMs=DAY_MS)
    assert (first["status"], second["status"]) == ("scheduled", "rescheduled")
    assert second["messageId"] != first["messageId"]
    peeked = await calls.peek("k")
    assert (peeked["txn"], peeked["payload"], peeked["partition"]) == ("txn-new", b64("new"), "new")
    assert (peeked["messageId"], peeked["deliverAt"]) == (second["messageId"], second["deliverAt"])
    assert peeked["createdAt"] < peeked["updatedAt"]
    assert (await calls.page("?mode=count&prefix=k")) == {"count": 1}


async def test_operations_apply_in_order(calls: Calls) -> None:
    """TM-15, TM-21: several due timers of one call fire in array order, a cancel beside them finds what was there."""
    await calls.schedule("old")
    answer = await calls.timers(
        calls.operation("c", delayMs=0), {"op": "cancel", "queue": calls.queue, "timerKey": "old"},
        calls.operation("a", delayMs=-5), calls.operation("b", delayMs=0),
    )
    assert [result["status"] for result in answer.json()["results"]] == [
        "scheduled", "cancelled", "scheduled", "scheduled"]
    assert answer.json()["results"][1] == {
        "ok": True, "status": "cancelled", "queue": calls.queue, "timerKey": "old", "txn": "txn-old"}
    assert [message["transactionId"] for message in await calls.pop()] == ["txn-c", "txn-a", "txn-b"]


async def test_a_payload_that_is_no_json_comes_as_base64(calls: Calls) -> None:
    """timers.md 10: accepted; peek shows the bytes as sent, the message shows them under a name of their own."""
    raw = base64.b64encode(b"\x00\xff not json").decode()
    await calls.schedule("later", payload=raw)
    assert (await calls.peek("later"))["payload"] == raw
    await calls.schedule("now", payload=raw, delayMs=0)
    (message,) = await calls.pop()
    assert message["data"] == {"_raw_b64": raw}


async def test_a_cancel_in_the_batch_echoes(calls: Calls) -> None:
    """TM-16: `absent` has the txn sent, else null."""
    answer = await calls.timers(
        {"op": "cancel", "queue": calls.queue, "timerKey": "a", "txn": "mine"},
        {"op": "cancel", "queue": calls.queue, "timerKey": "b"},
    )
    assert [result["txn"] for result in answer.json()["results"]] == ["mine", None]
    assert [result["ok"] for result in answer.json()["results"]] == [False, False]
