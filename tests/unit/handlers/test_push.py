"""POST /api/v1/push: answers, limits and refusals (push.md 2 to 4, 8, 9)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
import structlog

from queen_node.broker import Lane
from queen_node.errors import ENCRYPTION_KEY_MISSING, OVERLOADED, Refused
from queen_node.http.handlers.push import PushHandlers
from queen_node.http.handlers.push_items import NAMES_BYTES_MAX, TRANSACTION_ID_BYTES_MAX
from queen_node.http.handlers.push_parts import PART_BYTES_MAX, PART_ITEMS_MAX
from queen_node.http.messages import Request, Response
from queen_node.ids import IdMint
from queen_node.places import place
from queen_node.state.keys import QUEUE
from tests.support.inward_broker import InwardBroker


class Door:
    """The handler with its broker, and a clock for the pace of its log lines."""

    def __init__(self) -> None:
        self.broker = InwardBroker()
        self.now_s = 100.0
        self.handlers = PushHandlers(self.broker, IdMint(), monotonic_s=lambda: self.now_s)

    async def send(self, body: bytes) -> Response:
        return await self.handlers.push(Request("POST", b"/api/v1/push", body=body))

    async def push(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        response = await self.send(json.dumps({"items": items}).encode())
        assert response.status == 201
        answer: list[dict[str, Any]] = json.loads(response.body)
        return answer

    async def refused(self, body: bytes | dict[str, Any]) -> Refused:
        """The refusal of a body, or of a call with this one item; nothing may be stored then."""
        before = len(self.broker.writes)
        raw = body if isinstance(body, bytes) else json.dumps({"items": [body]}).encode()
        with pytest.raises(Refused) as caught:
            await self.send(raw)
        assert len(self.broker.writes) == before
        return caught.value


@pytest.fixture
def door() -> Door:
    return Door()


def item(**fields: Any) -> dict[str, Any]:
    return {"queue": "orders", "payload": 1} | fields


async def test_the_answer_has_one_object_an_item_in_order(door: Door) -> None:
    """Section 4; section 10, 1: queued, repeated in the call, stored duplicate, over three partitions."""
    first = await door.push(item(transactionId="a"))
    assert first == [{
        "index": 0, "message_id": first[0]["message_id"], "transaction_id": "a", "queueName": "orders",
        "status": "queued", "offset": 0,
    }]
    assert list(first[0]) == ["index", "message_id", "transaction_id", "queueName", "status", "offset"]
    mixed = await door.push(
        item(transactionId="b"), item(transactionId="c", partition="p"), item(transactionId="a"),
        item(transactionId="b", queue="bills"), item(transactionId="b"))
    assert [(one["index"], one["status"], one["offset"], one["queueName"]) for one in mixed] == [
        (0, "queued", 1, "orders"), (1, "queued", 0, "orders"), (2, "duplicate", 0, "orders"),
        (3, "queued", 0, "bills"), (4, "duplicate", 1, "orders")]
    assert mixed[2]["message_id"] == first[0]["message_id"]
    assert mixed[4]["message_id"] == mixed[0]["message_id"]


async def test_an_item_without_an_id_gets_its_message_id_as_text(door: Door) -> None:
    """PU-14, PU-15."""
    for absent in ({}, {"transactionId": None}, {"transactionId": ""}):
        answer = (await door.push(item(**absent)))[0]
        assert answer["transaction_id"] == answer["message_id"]
        assert UUID(answer["message_id"]).version == 7
    assert len(door.broker.node.messages()) == 3


async def test_no_items_answer_an_empty_array_and_propose_nothing(door: Door) -> None:
    """PU-11."""
    response = await door.send(b'{"items":[]}')
    assert (response.status, response.body, door.broker.writes) == (201, b"[]", [])


async def test_a_call_goes_out_with_what_the_group_needs_to_know(door: Door) -> None:
    """PU-70, M-41: deadline of 30 s, the lane of pushes, the place of every item."""
    await door.push(item(), item(queue="bills"), item())
    orders, bills = place(b"orders", b"Default"), place(b"bills", b"Default")
    assert door.broker.calls == [(30_000, Lane.PUSHES, (orders, bills, orders))]


PAYLOADS = [
    b"1.0", b"1e400", b'{"a":1,"a":2}', b"18446744073709551616", b"-0", b"null", b'""', b'{ "z" : [ 1 ,2 ],"a":{} }',
    b'"\\u00e9\\n\\/"', '"é😀"'.encode(), b'"\\ud83d\\ude00"',
    b'"lone \\ud800 \\uDC00, escaped \\\\ud800"', b'"\\u0000"',
]


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_payload_bytes_are_kept(door: Door, payload: bytes) -> None:
    """PU-12; section 10, 4."""
    await door.send(b'{"items":[{"queue":"orders","payload": %b }]}' % payload)
    assert door.broker.node.messages()[0].payload == payload


@pytest.mark.parametrize(("sent", "kept"), [
    ('"550e8400-e29b-41d4-a716-446655440000"', "550e8400e29b41d4a716446655440000"),
    ('"550E8400-E29B-11D4-A716-446655440000"', "550e8400e29b11d4a716446655440000"),
    ('"550e8400-e29b-41d4-a716-44665544000"', None), ('"{550e8400-e29b-41d4-a716-446655440000}"', None),
    ('"550e8400e29b41d4a716446655440000"', None), ('"x"', None), ('""', None), ("null", None), ("5", None),
    ("[{}]", None), ('"\\ud800"', None), ('"550e8400-e29b-41d4-a716-446655440000\\n"', None),
])
async def test_a_trace_id_is_kept_or_dropped_silently(door: Door, sent: str, kept: str | None) -> None:
    """PU-13."""
    response = await door.send(b'{"items":[{"queue":"orders","payload":1,"traceId":%b}]}' % sent.encode())
    assert response.status == 201
    trace_id = door.broker.node.messages()[0].trace_id
    assert (trace_id.hex() if trace_id else None) == kept


async def test_unknown_fields_mean_nothing(door: Door) -> None:
    """PU-10: data is no payload, producerSub is never honoured."""
    await door.push(item(data=2, producerSub="mallory", delay=5, priority=1, ttl=1, headers={}))
    message = door.broker.node.messages()[0]
    assert (message.payload, message.producer_sub) == (b"1", None)
    assert (await door.refused({"queue": "orders", "data": 1})).refusal.code == "bad_body"


@pytest.mark.parametrize(("fields", "status", "code", "text"), [
    ({"queue": None}, 400, "bad_body", "index 0: queue"),
    ({"queue": 7}, 400, "bad_body", "index 0: queue"),
    ({"partition": 7}, 400, "bad_body", "index 0: partition"),
    ({"transactionId": 7}, 400, "bad_body", "index 0: transactionId"),
    ({"queue": ""}, 400, "bad_request", "index 0: queue"),
    ({"partition": ""}, 400, "bad_request", "index 0: partition"),
    ({"queue": "a\0b"}, 400, "bad_request", "index 0: queue"),
    ({"partition": "\0"}, 400, "bad_request", "index 0: partition"),
    ({"transactionId": "é" * 32_768}, 400, "bad_request", "index 0: transactionId"),
    ({"queue": "q" * (NAMES_BYTES_MAX - 6)}, 413, "name_too_long", "limit 411, got 412"),
    ({"queue": "é" * 203}, 413, "name_too_long", "limit 411, got 413"),
])
async def test_one_wrong_item_refuses_the_whole_call(
    door: Door, fields: dict[str, Any], status: int, code: str, text: str,
) -> None:
    """PU-14, PU-21, PU-22, section 9: nothing is stored, and the answer names index and field."""
    refused = await door.refused(item(**fields))
    assert (refused.refusal.status, refused.refusal.code) == (status, code)
    assert text in refused.text
    behind = await door.refused(json.dumps({"items": [item(), item(), item(**fields)]}).encode())
    assert text.replace("index 0", "index 2") in behind.text
    assert json.loads(behind.body())["code"] == code


async def test_names_and_ids_fit_up_to_their_limits(door: Door) -> None:
    """PU-14, PU-21; section 10, 5: 411 bytes in, 65,535 of an id, any characters."""
    long_id = "x" * TRANSACTION_ID_BYTES_MAX
    names = ["q" * (NAMES_BYTES_MAX - 7), "a/b", "#", " ", "😀", "..", "\n", '"', "%2F"]
    answer = await door.push(*(item(queue=name, transactionId=long_id) for name in names))
    assert [(one["queueName"], one["transaction_id"]) for one in answer] == [(name, long_id) for name in names]


async def test_names_are_looked_at_before_the_other_fields(door: Door) -> None:
    """Section 9's order."""
    items = [item(transactionId="x" * (TRANSACTION_ID_BYTES_MAX + 1)), item(queue="q" * 500)]
    assert (await door.refused(json.dumps({"items": items}).encode())).refusal.code == "name_too_long"


@pytest.mark.parametrize("body", [
    b"", b"null", b"[]", b"{}", b'{"items":null}', b'{"items":{}}', b'{"items":[1]}', b'{"items":[null]}',
    b'{"items":[{"payload":1}]}', b'{"items":[{"queue":"q"}]}', b'{"items":[{"queue":"q","payload":NaN}]}',
    b'{"items":[{"queue":"q","payload":[Infinity]}]}', b'{"items":[{"queue":"q","payload":-Infinity}]}',
    b'{"items":[{"queue":"q\\ud800","payload":1}]}', b'{"items":[{"queue":"q","payload":1,"partition":"\\udc00"}]}',
    b'{"items":[{"queue":"q","payload":1,"transactionId":"\\ud83d\\ud83d"}]}',
    b'{"items":[{"queue":"q","payload":"\xff"}]}', b'{"items":[{"queue":"q","payload":"\xed\xa0\x80"}]}',
    b'{"items":[{"queue":"q","payload":1,"other":"\xc0\x80"}]}', b'{"items":[{"queue":"\xff","payload":1}]}',
    b'{"items":[{"queue":"q","payload":1}]} x', b'{"items":[{"queue":"q","payload":1}', b"\xef\xbb\xbf{}",
    b'{"items":[{"queue":"q","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    b'{"items":[{"queue":"q\\ud800","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
])
async def test_what_is_not_this_routes_json(door: Door, body: bytes) -> None:
    """PU-12, section 9; section 10, 5: 400 bad_body, never a 500."""
    assert (await door.refused(body)).refusal.code == "bad_body"


async def test_an_encrypted_queue_without_a_key_refuses_the_call(door: Door) -> None:
    """PU-71; section 10, 9."""
    door.broker.node.configure("vault", encryption_enabled=True)
    with pytest.raises(Refused) as caught:
        await door.push(item(), item(queue="vault"))
    assert caught.value.refusal is ENCRYPTION_KEY_MISSING and "vault" in str(caught.value)
    assert [key for key, _ in door.broker.node.rows(QUEUE)] == [QUEUE + b"vault"]


@pytest.mark.parametrize("code", ["timeout", "retry", "no_leader"])
async def test_a_group_that_cannot_decide(door: Door, code: str) -> None:
    """Section 9: 503 with Retry-After: 1."""
    door.broker.unavailable = code
    refused = await door.refused(item())
    assert (refused.refusal.status, refused.refusal.code, refused.refusal.retry_after_s) == (503, code, 1)


# --- large calls


async def test_a_large_call_is_cut_and_answered_as_one(door: Door) -> None:
    """PU-43, PU-52, M-51: parts in order, within the bounds, equal ids of the whole call sent once."""
    door.broker.node.configure(dedup_window_seconds=0)
    count = 3 * PART_ITEMS_MAX + 10
    items = [item(transactionId=f"t{number % 700}", payload=number) for number in range(count)]
    answer = await door.push(*items)
    assert [one["index"] for one in answer] == list(range(count))
    assert [one["offset"] for one in answer] == [number % 700 for number in range(count)]
    assert [one["status"] for one in answer] == ["queued"] * 700 + ["duplicate"] * (count - 700)
    assert [one["transaction_id"] for one in answer] == [one["transactionId"] for one in items]
    assert answer[700]["message_id"] == answer[0]["message_id"]
    assert [len(command[2]) for command in door.broker.writes] == [256, 256, 188]
    assert {call[:2] for call in door.broker.calls} == {(30_000, Lane.PUSHES)}
    assert [int(message.payload) for message in door.broker.node.messages()] == list(range(700))


async def test_commands_of_a_large_call_stay_below_a_megabyte(door: Door) -> None:
    """M-50, M-51: one item larger than that goes alone."""
    sizes = [400_000, 400_000, 400_000, 3_000_000, 10, 10]
    answer = await door.push(*(item(payload="x" * size, transactionId=str(place)) for place, size in enumerate(sizes)))
    assert [one["offset"] for one in answer] == list(range(6))
    assert [len(command[2]) for command in door.broker.writes] == [2, 1, 1, 2]
    for command in door.broker.writes:
        assert len(command[2]) == 1 or sum(len(one[4]) for one in command[2]) <= PART_BYTES_MAX


@pytest.mark.parametrize("code", ["timeout", "retry", "no_leader"])
async def test_a_later_part_that_is_not_confirmed(door: Door, code: str) -> None:
    """PU-43: the whole call is 503 timeout, also when nobody led for that part: an earlier one is stored."""
    door.broker.unavailable, door.broker.unavailable_after = code, 1
    with pytest.raises(Refused) as caught:
        await door.push(*(item(transactionId=str(number)) for number in range(PART_ITEMS_MAX + 1)))
    assert caught.value.refusal.code == "timeout"
    door.broker.unavailable = ""
    again = await door.push(*(item(transactionId=str(number)) for number in range(PART_ITEMS_MAX + 1)))
    assert [one["status"] for one in again] == ["duplicate"] * PART_ITEMS_MAX + ["queued"]


async def test_a_wrong_item_far_behind_refuses_a_large_call(door: Door) -> None:
    """PU-22: decided before anything is proposed; the index is that of the call."""
    items = [item(payload="x" * 1000) for _ in range(2000)]
    items[1900] = item(queue="")
    refused = await door.refused(json.dumps({"items": items}).encode())
    assert "index 1900: queue" in refused.text


# --- before the body


async def test_admission_is_asked_with_the_bodys_length(door: Door) -> None:
    """CL-34, section 9; a chunked body has no length."""
    for headers, admitted in (({b"content-length": b"1234"}, 1234), ({}, 0)):
        verdict = door.handlers.before_push(Request("POST", b"/api/v1/push", headers=headers))
        assert verdict is None
        assert door.broker.admitted[-1] == admitted
    door.broker.refuse_admission = Refused(OVERLOADED)
    verdict = door.handlers.before_push(Request("POST", b"/api/v1/push"))
    assert verdict is not None and not isinstance(verdict, Response)
    with pytest.raises(Refused):
        await verdict


async def test_a_binary_body_is_declined_by_its_type_or_its_magic(door: Door) -> None:
    """PU-60; section 10, 7."""
    text = "binary push bodies are not supported; switch off binary_push and push_compression in the client"
    by_type = door.handlers.before_push(
        Request("POST", b"/api/v1/push", headers={b"content-type": b"Application/x-queen-push; v=1"}))
    assert isinstance(by_type, Response)
    by_magic = await door.send(b"QPB1\0\0\0\x05hello")
    for response in (by_type, by_magic):
        assert (response.status, json.loads(response.body)) == (400, {"error": text, "code": "bad_body"})
    assert (door.handlers.declined.count, door.broker.writes, door.broker.admitted) == (2, [], [])


async def test_declining_is_logged_once_a_minute(door: Door) -> None:
    """PU-62: a buffered client repeats every 250 ms for ever."""
    with structlog.testing.capture_logs() as lines:
        for _ in range(500):
            await door.send(b"QPB1")
            door.now_s += 0.25
    assert len(lines) == 3
    assert door.handlers.declined.count == 500
