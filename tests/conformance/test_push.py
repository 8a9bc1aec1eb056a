"""POST /api/v1/push (push.md): the answer's array, dedup, payload bytes, names, what is declined."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import trio

from tests.conformance.calls import Calls, texts
from tests.support.http_client import Answer, HttpClient, segment
from tests.support.node_process import NodeProcess


def code(answer: Answer) -> tuple[int, str]:
    """Status and code of a common refusal (AD-30)."""
    body = answer.json()
    assert set(body) <= {"error", "code", "invalid"}, body
    assert isinstance(body["error"], str)
    assert body["error"]
    return answer.status, body["code"]


async def test_the_answer(calls: Calls) -> None:
    """push.md 10.1: length, order, fields and offsets for queued, repeated, stored and mixed items over partitions."""
    (stored,) = await calls.push(calls.item("s", transactionId="stored"))
    results = await calls.push(
        calls.item(1, transactionId="a"),
        calls.item(2, transactionId="a"),
        calls.item(3, transactionId="stored"),
        calls.item(4, transactionId="a", partition="p1"),
        calls.item(5, transactionId="b", partition=None),
        calls.item(6, partition="p2"),
        calls.item(7, partition="p1"),
    )
    assert [list(result) for result in results] == [
        ["index", "message_id", "transaction_id", "queueName", "status", "offset"]] * 7
    assert [result["index"] for result in results] == list(range(7))
    assert {result["queueName"] for result in results} == {calls.queue}
    assert [(result["status"], result["offset"]) for result in results] == [
        ("queued", 1), ("duplicate", 1), ("duplicate", 0), ("queued", 0), ("queued", 2), ("queued", 0), ("queued", 1)]
    assert results[1]["message_id"] == results[0]["message_id"]
    assert results[2]["message_id"] == stored["message_id"]
    ids = {result["message_id"] for result in results if result["status"] == "queued"}
    assert len(ids) == 5
    assert all(uuid.UUID(one).version == 7 for one in ids)
    # Without an id of the caller's the message id, as text, is the transaction id.
    assert results[5]["transaction_id"] == results[5]["message_id"]


async def test_an_empty_push(http: HttpClient) -> None:
    """PU-11."""
    answer = await http.post("/api/v1/push", {"items": []})
    assert (answer.status, answer.body) == (201, b"[]")
    assert answer.headers["content-type"] == "application/json"


async def test_concurrent_pushes_of_one_id(calls: Calls, node: NodeProcess) -> None:
    """push.md 10.2, PU-54: of eight at once one is queued, seven name it."""
    results: list[dict[str, Any]] = []

    async def push_one() -> None:
        async with HttpClient(node.port) as http:
            results.extend(await Calls(http, calls.queue).push_texts("one"))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(push_one)
    assert sorted(result["status"] for result in results) == ["duplicate"] * 7 + ["queued"]
    assert len({result["message_id"] for result in results}) == 1
    assert {result["offset"] for result in results} == {0}


async def test_the_dedup_window(calls: Calls) -> None:
    """PU-51, PU-52, PU-55: 0 switches the check off, but not inside a call; raised again it applies to the ids kept."""
    await calls.push_texts("x")
    await calls.configure(dedupWindowSeconds=0)
    assert [(result["status"], result["offset"]) for result in await calls.push_texts("x", "x")] == [
        ("queued", 1), ("duplicate", 1)]
    await calls.configure(dedupWindowSeconds=3600)
    (again,) = await calls.push_texts("x")
    assert (again["status"], again["offset"]) == ("duplicate", 0)  # the lowest offset inside the window is named


async def test_the_window_ends(calls: Calls) -> None:
    """PU-51: an id older than the window is a new message; a duplicate meanwhile did not renew it."""
    await calls.configure(dedupWindowSeconds=1)
    await calls.push_texts("x")
    await trio.sleep(0.6)
    assert [result["status"] for result in await calls.push_texts("x")] == ["duplicate"]
    await trio.sleep(0.6)
    assert [result["status"] for result in await calls.push_texts("x")] == ["queued"]


RAW_PAYLOADS = [
    b"1.0", b"1e400", b"-0", b'{"a":1,"a":2}', b"18446744073709551616", b"9007199254740993", b"null", b'""', b"[]",
    b'"\\u00e9\\ud83d\\ude00"', '"é😀"'.encode(), b'{ "b" : 1,\n\t"a":[ 1 , 2 ] }', b'"\\ud800"', b"true",
    b'"a\\/b"', b"[[[[[[[[1]]]]]]]]",
]


@pytest.mark.parametrize("raw", RAW_PAYLOADS)
async def test_payload_bytes_survive(calls: Calls, raw: bytes) -> None:
    """PU-12, push.md 10.4: number spelling, key order, repeated keys and inner whitespace come back as sent."""
    name = json.dumps(calls.queue).encode()
    answer = await calls.http.post("/api/v1/push", b'{"items":[{"queue":' + name + b',"payload":' + raw + b"}]}")
    assert answer.status == 201, answer
    popped = await calls.pop_answer()
    assert b'"data":' + raw + b"," in popped.body or b'"data":' + raw + b"}" in popped.body, popped.body


@pytest.mark.parametrize("trace_id", [
    "6fa459ea-ee8a-3ca4-894e-db77e160355e", "6FA459EA-EE8A-4CA4-894E-DB77E160355E",
    "019a7c2f-61f1-7d55-b0e2-8b3f0a2d4e71",
])
async def test_a_valid_trace_id(calls: Calls, trace_id: str) -> None:
    """PU-13: any version, any case; answered in lower case."""
    await calls.push(calls.item(1, traceId=trace_id))
    (message,) = await calls.pop()
    assert message["traceId"] == trace_id.lower()


@pytest.mark.parametrize("trace_id", ["", "no uuid", 7, None, {"a": 1}, "6fa459ea-ee8a-4ca4-894e"])
async def test_an_invalid_trace_id_is_dropped(calls: Calls, trace_id: object) -> None:
    """PU-13: silently."""
    await calls.push(calls.item(1, traceId=trace_id))
    (message,) = await calls.pop()
    assert message["traceId"] is None


async def test_unknown_fields_and_owned_ones(calls: Calls) -> None:
    """PU-10: ignored, `data` and `producerSub` among them."""
    await calls.push(calls.item(1, data=2, producerSub="forged", delay=5, priority=9, messageId="x"))
    (message,) = await calls.pop()
    assert (message["data"], message["producerSub"]) == (1, None)


async def test_an_empty_transaction_id_counts_as_absent(calls: Calls) -> None:
    """PU-14."""
    results = await calls.push(calls.item(1, transactionId=""), calls.item(2, transactionId=""), calls.item(3))
    assert [result["status"] for result in results] == ["queued"] * 3
    assert all(result["transaction_id"] == result["message_id"] for result in results)


BAD_BODIES = [
    b"", b"null", b"[]", b"{}", b'{"items":null}', b'{"items":{}}', b'{"items":[1]}', b'{"items":[{}]}',
    b'{"items":[{"queue":"q"}]}', b'{"items":[{"payload":1}]}', b'{"items":[{"queue":"q","data":1}]}',
    b'{"items":[{"queue":7,"payload":1}]}', b'{"items":[{"queue":null,"payload":1}]}',
    b'{"items":[{"queue":"q","payload":1,"partition":7}]}', b'{"items":[{"queue":"q","payload":1,"transactionId":7}]}',
    b'{"items":[{"queue":"q","payload":NaN}]}', b'{"items":[{"queue":"q","payload":Infinity}]}',
    b'{"items":[{"queue":"q","payload":1}]', b'{"items":[{"queue":"\\ud800","payload":1}]}',
    b'{"items":[{"queue":"q","payload":1,"partition":"\\udfff"}]}', b'{"items":[{"queue":"q","payload":"\xff"}]}',
    b'{"items":[{"queue":"q","payload":01}]}', b"\xef\xbb\xbf{}", b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_what_is_no_push(http: HttpClient, body: bytes) -> None:
    """push.md 9: 400 `bad_body`, one malformed item refuses the whole call (PU-70); no depth of nesting is a 500."""
    assert code(await http.post("/api/v1/push", body)) == (400, "bad_body")


async def test_one_bad_item_refuses_all(calls: Calls) -> None:
    """PU-70, PU-22: nothing of the call is stored."""
    answer = await calls.http.post("/api/v1/push", {"items": [calls.item(1), {"queue": calls.queue}]})
    assert code(answer) == (400, "bad_body")
    assert await calls.pop() == []


@pytest.mark.parametrize(("field", "value"), [
    ("queue", ""), ("partition", ""), ("queue", "a\0b"), ("partition", "a\0"), ("transactionId", "t" * 65_536),
])
async def test_bad_names(calls: Calls, field: str, value: str) -> None:
    """push.md 3, 9: empty names, NUL, an id too long: 400 `bad_request`."""
    answer = await calls.http.post("/api/v1/push", {"items": [calls.item(1, **{field: value})]})
    assert code(answer) == (400, "bad_request")


async def test_the_longest_id(calls: Calls) -> None:
    """push.md 2: 65,535 bytes."""
    (result,) = await calls.push(calls.item(1, transactionId="t" * 65_535))
    assert result["status"] == "queued"
    (message,) = await calls.pop()
    assert message["transactionId"] == "t" * 65_535


async def test_the_budget_of_names(calls: Calls) -> None:
    """PU-21, push.md 10.5: 411 bytes in, 412 refused, the whole call with it; counted as UTF-8."""
    base = calls.queue
    fits = base + "q" * (411 - len("p") - len(base))
    for queue, partition, taken in (
        (fits, "p", True), (fits, "pp", False), (fits + "q", "p", False), (fits, "é", False),
        (fits[:-2] + "é", "p", True),
    ):
        answer = await calls.http.post("/api/v1/push", {"items": [
            calls.item(1), calls.item(1, queue=queue, partition=partition)]})
        if taken:
            assert answer.status == 201, (answer, partition)
        else:
            assert code(answer) == (413, "name_too_long")
    assert len(await calls.pop()) == 2  # of the two calls that were taken


@pytest.mark.parametrize("name", ["a/b", "a#b", " lead and trail ", "..", ".", "😀", "ﬁ", "A", "é", "é", "%2F", "a\nb"])
async def test_names_without_rules(calls: Calls, name: str) -> None:
    """PU-20: byte for byte, no trimming, folding or normalising."""
    calls.queue += name
    await calls.push(calls.item(name, partition=name))
    (message,) = await calls.pop(name)
    assert (message["queue"], message["partition"], message["data"]) == (calls.queue, name, name)
    assert await calls.pop(name + " ") == []


@pytest.mark.parametrize(("body", "headers"), [
    (b"QPB1" + bytes(100), {}), (b"QPB1" + bytes(100), {"Content-Type": "application/x-queen-push"}),
    (b'{"items":[]}', {"Content-Type": "application/x-queen-push"}),
])
async def test_binary_bodies_are_declined(node: NodeProcess, body: bytes, headers: dict[str, str]) -> None:
    """PU-60, push.md 10.7: by the magic or by the header; the text tells the client what to switch off."""
    async with HttpClient(node.port) as http:
        answer = await http.request("POST", "/api/v1/push", body, headers=headers)
    assert code(answer) == (400, "bad_body")
    assert "binary_push" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/api/v1/push", "/api/v1/timers", "/api/v1/ack", "/api/v1/configure"])
async def test_an_encoded_body_is_declined(node: NodeProcess, path: str) -> None:
    """PU-63: 415, and `identity` is none; answers are never encoded."""
    async with HttpClient(node.port) as http:
        answer = await http.request("POST", path, b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
        assert code(answer) == (415, "bad_body")
    async with HttpClient(node.port) as http:
        headers = {"Content-Encoding": "identity", "Accept-Encoding": "gzip, zstd"}
        answer = await http.request("POST", "/api/v1/push", b'{"items":[]}', headers=headers)
        assert answer.status == 201
        assert "content-encoding" not in answer.headers


async def test_a_chunked_body(calls: Calls) -> None:
    """PU-70: a body without Content-Length is read as it arrives."""
    body = json.dumps({"items": [calls.item("chunked")]}).encode()
    chunks = b"".join(
        f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (body[:7], body[7:30], body[30:])) + b"0\r\n\r\n"
    head = f"POST /api/v1/push HTTP/1.1\r\nHost: h:{calls.http.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    await calls.http.send_raw(head.encode() + chunks)
    assert (await calls.http.read_answer()).status == 201
    assert texts(await calls.pop()) == ["chunked"]


async def test_a_large_push(calls: Calls) -> None:
    """PU-43, M-51: 5,000 items and 3 MB in one call are cut inside, and answered as one."""
    items = [calls.item("x" * 600, transactionId=f"t{number}", partition=f"p{number % 7}") for number in range(5000)]
    results = await calls.push(*items)
    assert [result["index"] for result in results] == list(range(5000))
    assert [result["transaction_id"] for result in results] == [item["transactionId"] for item in items]
    assert [result["offset"] for result in results] == [number // 7 for number in range(5000)]


async def test_frames_are_ignored(calls: Calls) -> None:
    """push.md 8: `frames=true` answers the normal JSON."""
    await calls.push_texts("a")
    answer = await calls.pop_answer(frames="true")
    assert answer.headers["content-type"] == "application/json"
    assert texts(answer.json()["messages"]) == ["a"]


async def test_a_queue_made_by_a_push(calls: Calls) -> None:
    """PU-30, push.md 10.6: lease 60, labels from the name."""
    calls.queue = f"billing.invoices.{calls.queue}"
    await calls.push_texts("a")
    made = await calls.configure()
    assert (made["namespace"], made["task"]) == ("billing", "invoices")
    assert (made["options"]["leaseTime"], made["options"]["retryLimit"]) == (60, 3)
    assert made["options"]["dedupWindowSeconds"] == 3600


async def test_expect_continue(calls: Calls) -> None:
    """The body comes after the server's 100."""
    body = json.dumps({"items": [calls.item("patient")]}).encode()
    head = (
        f"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n")
    await calls.http.send_raw(head.encode())
    with trio.fail_after(60):
        assert (await calls.http.read_answer()).status == 100
    await calls.http.send_raw(body)
    assert (await calls.http.read_answer()).status == 201


async def test_pipelined_requests_are_answered_in_order(calls: Calls) -> None:
    """M-52: requests of one connection run in order."""
    bodies = [json.dumps({"items": [calls.item(number)]}).encode() for number in range(20)]
    await calls.http.send_raw(b"".join(
        f"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        for body in bodies
    ) + f"GET /api/v1/pop/queue/{segment(calls.queue)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    for number in range(20):
        assert (await calls.http.read_answer()).json()[0]["offset"] == number
    assert texts((await calls.http.read_answer()).json()["messages"]) == list(range(20))
