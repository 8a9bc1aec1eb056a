"""The key/value routes from request to answer (kv.md 1 to 6, 10)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from queen_node import commands
from queen_node.errors import OVERLOADED, STORAGE_FULL, Refused
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.quotas import Rate
from queen_node.state import kv, kv_rows
from tests.support.kv_door import KvDoor, op
from tests.support.timer_door import MANY

NOW = "2023-11-14T22:13:20.000000Z"  # of the fake broker's clock
BAD = 400, "kv_bad_request"


async def test_the_example_of_the_page() -> None:
    """kv.md 10: KV-4, KV-7, KV-10, KV-32, KV-33, KV-71; each element's fields and no others."""
    door = KvDoor()
    reply = await door.post(
        {"op": "putIfAbsent", "ns": "orders", "key": "9137", "value": {"status": "paid"}, "ttlSeconds": 2592000},
        {"op": "get", "ns": "orders", "key": "9137"},
        {"op": "getMany", "ns": "orders", "keys": ["9137", "9138"]},
        {"op": "incr", "ns": "limits", "key": "acme:0914", "delta": 1, "max": 100, "ttlSeconds": 120})
    row = {"key": "9137", "value": {"status": "paid"}, "version": 1, "expiresAt": "2023-12-14T22:13:20.000000Z",
           "updatedAt": NOW}
    assert (reply.status, reply.document) == (200, {"results": [
        {"index": 0, "op": "putIfAbsent", "applied": True, "key": "9137", "value": {"status": "paid"}, "version": 1},
        {"index": 1, "op": "get", "found": True, **row},
        {"index": 2, "op": "getMany", "rows": [row], "missing": ["9138"], "truncated": False},
        {"index": 3, "op": "incr", "applied": True, "key": "acme:0914", "value": 1, "version": 2}]})
    lost = await door.path("PUT", "orders/9137", {"value": {"status": "shipped"}, "ttlSeconds": 2592000, "expect": 7})
    assert lost.document == {
        "index": 0, "op": "put", "applied": False, "reason": "version", "key": "9137", "value": {"status": "paid"},
        "version": 1}
    back = await door.post(op("putIfAbsent", "9137", required=True))
    assert (back.status, back.document) == (200, {
        "ok": False, "reason": "kv_precondition", "failedIndex": 0, "kvReason": "exists", "version": 1,
        "value": {"status": "paid"}})
    refused = await door.path("GET", "orders/9137?x=1")
    assert refused.document == {
        "error": "kv_bad_request", "reason": "kv_no_query_string", "detail": "this route takes no query string"}


async def test_the_shapes_of_the_other_elements() -> None:
    """KV-2, KV-10: a verdict is a 200 with a field; expiresAt is null for a row that lives for ever."""
    door = KvDoor()
    elements = await door.all(
        op("put", "a", value=None), op("check", "a", expect=0), op("check", "b", expect=0), op("delete", "c"),
        op("get", "a"), op("get", "b"), op("getPrefix", "a", keysOnly=True), op("getPrefix", "z"))
    assert elements == [
        {"index": 0, "op": "put", "applied": True, "key": "a", "value": None, "version": 1},
        {"index": 1, "op": "check", "applied": False, "reason": "exists", "key": "a", "value": None, "version": 1},
        {"index": 2, "op": "check", "applied": True, "key": "b", "version": 0},
        {"index": 3, "op": "delete", "applied": False, "reason": "absent", "key": "c", "value": None, "version": 0},
        {"index": 4, "op": "get", "found": True, "key": "a", "value": None, "version": 1, "expiresAt": None,
         "updatedAt": NOW},
        {"index": 5, "op": "get", "found": False, "key": "b"},
        {"index": 6, "op": "getPrefix", "rows": [
            {"key": "a", "version": 1, "expiresAt": None, "updatedAt": NOW}], "truncated": False, "nextAfter": None},
        {"index": 7, "op": "getPrefix", "rows": [], "truncated": False, "nextAfter": None}]
    assert await door.one(op("delete", "a")) == {
        "index": 0, "op": "delete", "applied": True, "key": "a", "value": None, "version": 1}


async def test_the_bare_array_is_the_same_call_and_a_query_string_is_ignored() -> None:
    """kv.md 1; KV-4."""
    door = KvDoor()
    reply = await door.call("POST", "/api/v1/kv?x=1", msgspec.json.encode([op("put", "a"), op("get", "a")]))
    assert [element["op"] for element in reply.document["results"]] == ["put", "get"]


async def test_an_empty_call_costs_a_read_token_and_proposes_nothing() -> None:
    """kv.md 11."""
    door = KvDoor(reads=Rate(1, 1), writes=Rate(1, 1))
    assert (await door.post()).document == {"results": []}
    assert (await door.post()).reason == (429, "rate_limited", "rate_limited")
    assert door.broker.writes == []


# --- one refusal after the other

BAD_TTLS: list[object] = [0, -1, 1.5, "5", True, 3_155_760_001, []]
BAD_NUMBERS: list[object] = ["1", True, []]
OPERATIONS: list[tuple[object, str]] = [
    ({"op": "frob", "ns": "orders", "key": "k"}, "kv_unknown_op"),
    ({"ns": "orders", "key": "k"}, "kv_unknown_op"),
    ({"op": 1, "ns": "orders", "key": "k"}, "kv_unknown_op"),
    ("put", "kv_bad_body"),
    (op("get", ns=...), "kv_bad_namespace"),
    (op("get", ns=7), "kv_bad_namespace"),
    *((op("get", ns=name), "kv_bad_namespace") for name in ("", "Orders", "-a", "a b", "é", "a" * 65, "a\n")),
    (op("get", key=...), "kv_bad_key"),
    *((op("get", key=name), "kv_bad_key") for name in ("", "a\0b", 7, None)),
    (op("put", value=...), "kv_bad_body"),
    (op("put", forever=...), "kv_expiry_not_specified"),
    (op("put", forever=False), "kv_expiry_not_specified"),
    (op("put", forever="yes"), "kv_expiry_not_specified"),
    (op("put", forever=True, ttlSeconds=5), "kv_expiry_not_specified"),
    *((op(word, ttlSeconds=ttl), "kv_bad_ttl") for word in ("put", "putIfAbsent", "incr")
      for ttl in BAD_TTLS),
    *((op(word, expect=expect), "kv_bad_expect") for word in ("put", "delete", "check")
      for expect in (None, -1, 1.5, "1", True)),
    (op("check"), "kv_bad_expect"),
    (op("putIfAbsent", expect=1), "kv_bad_expect"),
    (op("incr", expect=0), "kv_bad_expect"),
    (op("incr", delta=...), "kv_bad_delta"),
    *((op("incr") | {name: value}, "kv_bad_delta") for name in ("delta", "min", "max") for value in BAD_NUMBERS),
    (op("incr", min=2, max=1), "kv_bad_delta"),
    (op("put", required="yes"), "kv_bad_body"),
    (op("check", expect=0, required=None), "kv_bad_body"),
    *((op("getMany", keys=keys), "kv_bad_key") for keys in (..., [], "k", [1], [""], ["a\0"])),
    *((op("getPrefix", prefix=prefix), "kv_prefix_required") for prefix in (..., "", 7)),
    (op("getPrefix", "a\0"), "kv_bad_key"),
    (op("getPrefix", after=7), "kv_bad_key"),
    *((op("getPrefix", limit=limit), "kv_bad_body") for limit in (1.5, "5", True, None)),
    (op("getPrefix", keysOnly=1), "kv_bad_body"),
    *((op("get") | {name: "t"}, "kv_tenant_not_an_input") for name in ("tenant", "tenantId", "tenant_id", "_tenant")),
]


@pytest.mark.parametrize(("operation", "reason"), OPERATIONS)
async def test_one_bad_operation_refuses_the_call_whole(operation: object, reason: str) -> None:
    """KV-10 to KV-14, KV-20, KV-31, KV-33, KV-42, KV-50, KV-51: and says which it is."""
    door = KvDoor()
    reply = await door.post(op("put", "other"), operation)
    assert reply.reason == (*BAD, reason)
    assert reply.detail.startswith("op at index 1: ")
    assert door.broker.writes == []


@pytest.mark.parametrize("body", [b"", b"nonsense", b"{}", b'{"operations":null}', b'{"operations":{}}', b"7",
                                  b'{"operations":[{"op":"put","ns":"n","key":"k","forever":true,"value":"\xff"}]}'])
async def test_a_body_that_is_no_json_of_the_route_costs_nothing(body: bytes) -> None:
    """KV-5; README 28."""
    door = KvDoor(reads=Rate(1, 1), writes=Rate(1, 1))
    for _ in range(3):
        assert (await door.call("POST", "/api/v1/kv", body)).reason == (*BAD, "kv_bad_body")


async def test_unknown_fields_and_fields_of_other_operations_are_ignored() -> None:
    """KV-13, KV-20, KV-33: on reads `required` is not looked at, on others a lifetime is not."""
    door = KvDoor()
    elements = await door.all(
        op("put", "a", note="x", delta="x"), op("get", "a", required="x", expect="x", ttlSeconds=-1),
        op("delete", "b", ttlSeconds=-1, value="x"), op("check", "c", expect=0, forever="x"))
    assert [element.get("applied", element.get("found")) for element in elements] == [True, True, False, True]


async def test_names_at_their_limits() -> None:
    """KV-11, kv.md 3: n passes, n + 1 does not; prefix and after are as long as a key may be."""
    door = KvDoor()
    long = "é" * 256
    assert (await door.one(op("put", long, ns="a" * 64)))["applied"]
    assert (await door.one(op("getPrefix", long, after=long, ns="a" * 64)))["rows"] == []
    for operation in (op("put", long + "x"), op("getMany", keys=[long + "x"]), op("getPrefix", long + "x"),
                      op("getPrefix", after=long + "x")):
        reply = await door.post(operation)
        assert reply.reason == (413, "payload_too_large", "kv_key_too_large")


async def test_values_come_back_equal_and_compact() -> None:
    """KV-12: exactly so many bytes are taken; numbers keep their digits, strings their blanks."""
    door = KvDoor(limits=KvLimits(value_max_bytes=10))
    body = b'[{"op":"put","ns":"n","key":"k","forever":true,"value": [ 1.50, "a b" ] },'
    body = body.replace(b'"a b"', b'" "') + b'{"op":"get","ns":"n","key":"k"}]'
    response = await door.call("POST", "/api/v1/kv", body)
    assert response.document["results"][1]["value"] == [1.5, " "]
    stored = kv_rows.find(door.broker.machine.store, b"n", b"k")
    assert stored is not None and stored.value == b'[1.50," "]'
    assert (await door.one(op("put", value="a" * 8)))["applied"]
    reply = await door.post(op("put", value="a" * 9))
    assert reply.reason == (413, "payload_too_large", "kv_value_too_large")


@pytest.mark.parametrize("blank", ["", " "])
async def test_a_lone_surrogates_escape_is_kept_in_a_value_and_nowhere_else(blank: str) -> None:
    """KV-12, KV-11: as in a push (PU-12), by every way in."""
    door = KvDoor()
    value = f'["\\ud800",{blank}"\\uDFFF \\\\ud800 \\ud83d\\ude00"]'
    batch = f'[{{"op":"put","ns":"n","key":"k","forever":true,"value":{value}}},{{"op":"get","ns":"n","key":"%s"}}]'
    assert (await door.call("POST", "/api/v1/kv", (batch % "k").encode())).status == 200
    assert (await door.path("GET", "n/k")).document["value"] == json.loads(value)
    assert (await door.call("PUT", "/api/v1/kv/n/p", f'{{"forever":true,"value":{value}}}'.encode())).status == 200
    stored = kv_rows.find(door.broker.machine.store, b"n", b"p")
    assert stored is not None and stored.value == value.replace(f",{blank}", ",").encode()
    assert (await door.call("POST", "/api/v1/kv", (batch % "\\ud800").encode())).reason == (*BAD, "kv_bad_key")
    assert (await door.call("POST", "/api/v1/kv", (batch % "k" + "]").encode())).reason == (*BAD, "kv_bad_body")


async def test_what_is_no_text_in_the_path_is_named() -> None:
    """KV-3, KV-11."""
    for path, reason in (("%ff/k", "kv_bad_namespace"), ("%/k", "kv_bad_namespace"), ("n/%ff", "kv_bad_key")):
        assert (await KvDoor().path("GET", path)).reason == (*BAD, reason)


async def test_operations_and_keys_at_their_limits() -> None:
    """kv.md 3: each operation names one key, getMany its keys, getPrefix its clamped limit."""
    door = KvDoor(limits=KvLimits(operations_max=3, keys_max=10))
    assert len(await door.all(*[op("get")] * 3)) == 3
    assert (await door.post(*[op("get")] * 4)).reason == (*BAD, "kv_too_many_ops")
    nine = op("getMany", keys=[str(number) for number in range(9)])
    assert len(await door.all(nine, op("get"))) == 2
    for too_many in ([nine, op("get"), op("get")], [op("getPrefix", limit=11)], [op("getPrefix")]):
        assert (await door.post(*too_many)).reason == (*BAD, "kv_too_many_keys")
    assert len(await door.all(op("getPrefix", limit=10))) == 1


async def test_a_limit_is_clamped_and_never_refused() -> None:
    """KV-51."""
    door = KvDoor()
    await door.all(*(op("put", f"k{number}") for number in range(3)))
    for limit, count in ((0, 1), (-5, 1), (2.0, 2), (10**30, 3)):
        page = await door.one(op("getPrefix", limit=limit))
        assert len(page["rows"]) == count
        assert page["nextAfter"] == (page["rows"][-1]["key"] if count < 3 else None)


async def test_a_key_is_written_once_in_a_call() -> None:
    """KV-15: reads and checks do not count, nor does the same key of another namespace."""
    door = KvDoor()
    assert (await door.post(op("put"), op("delete"))).reason == (*BAD, "kv_duplicate_key_in_call")
    elements = await door.all(op("check", expect=0), op("put"), op("get"), op("incr", ns="other"))
    assert [element.get("applied", element.get("found")) for element in elements] == [True] * 4


async def test_a_large_body_is_read_in_slices() -> None:
    """M-51: more than 256 KiB; an error behind the first slice is found too."""
    door = KvDoor()
    operations = [op("put", f"k{number}", value="v" * 60_000) for number in range(9)]
    assert all(element["applied"] for element in await door.all(*operations))
    reply = await door.post(*operations[:8], op("put", ns="No"))
    assert reply.reason == (*BAD, "kv_bad_namespace") and reply.detail.startswith("op at index 8: ")


# --- paths

@pytest.mark.parametrize(("path", "key"), [
    ("a/b", "a/b"), ("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a//b", "a//b"), ("a/", "a/"), ("./..", "./.."),
    ("a+b", "a+b"), ("%C3%BC", "ü"), ("list", "list"), ("a%230", "a#0"),
])
async def test_both_spellings_of_a_key_are_one_row(path: str, key: str) -> None:
    """KV-3: through path and batch; no literal segment lives below /kv/:ns/."""
    door = KvDoor()
    written = await door.path("PUT", f"orders/{path}", {"value": [1], "forever": True})
    assert written.document == {"index": 0, "op": "put", "applied": True, "key": key, "value": [1], "version": 1}
    assert (await door.one(op("get", key)))["found"]
    got = await door.path("GET", f"orders/{path}")
    assert (got.document["key"], got.headers) == (key, {"ETag": '"1"'})
    gone = await door.path("DELETE", f"orders/{path}")
    assert gone.document == {"index": 0, "op": "delete", "applied": True, "key": key, "value": [1], "version": 1}
    missed = await door.path("GET", f"orders/{path}")
    assert (missed.status, missed.document, missed.headers) == (
        200, {"index": 0, "op": "get", "found": False, "key": key}, {})


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_paths_that_name_no_row(method: str) -> None:
    """KV-3, KV-4, KV-11."""
    door = KvDoor()
    body = {"value": 1, "forever": True} if method == "PUT" else ...
    for path in ("orders/", "orders"):
        assert (await door.path(method, path, body)).status == 404
    for path, reason in (
        ("orders/k?forever=true", "kv_no_query_string"), ("orders/%FF", "kv_bad_key"), ("orders/%ZZ", "kv_bad_key"),
        ("Orders/k", "kv_bad_namespace"), ("orders/%00", "kv_bad_key"),
    ):
        assert (await door.path(method, path, body)).reason == (*BAD, reason)
    reply = await door.path(method, "orders/" + "k" * 513, body)
    assert reply.reason == (413, "payload_too_large", "kv_key_too_large")


@pytest.mark.parametrize(("method", "document", "reason"), [
    ("PUT", ..., "kv_bad_body"), ("PUT", [1], "kv_bad_body"), ("DELETE", [1], "kv_bad_body"),
    *((method, {"value": 1, "forever": True, name: "x"}, "kv_field_in_path")
      for method in ("PUT", "DELETE") for name in ("op", "ns", "namespace", "key")),
    ("PUT", {"value": 1, "forever": True, "tenant": "x"}, "kv_tenant_not_an_input"),
    ("PUT", {"forever": True}, "kv_bad_body"), ("PUT", {"value": 1}, "kv_expiry_not_specified"),
    ("DELETE", {"expect": None}, "kv_bad_expect"), ("DELETE", {"required": 1}, "kv_bad_body"),
])
async def test_bodies_of_the_path_routes(method: str, document: object, reason: str) -> None:
    """KV-5."""
    assert (await KvDoor().path(method, "orders/k", document)).reason == (*BAD, reason)


async def test_conditions_on_the_path_routes() -> None:
    """KV-33: the same body as in a batch; failedIndex is 0."""
    door = KvDoor()
    lost = await door.path("PUT", "orders/k", {"value": 1, "forever": True, "expect": 5, "required": True})
    assert lost.document == {
        "ok": False, "reason": "kv_precondition", "failedIndex": 0, "kvReason": "absent", "version": 0, "value": None}
    await door.path("PUT", "orders/k", {"value": 1, "forever": True, "expect": 0})
    assert (await door.path("DELETE", "orders/k", {"expect": 1})).document["applied"]


# --- the console

async def test_namespaces_and_pages_of_the_console() -> None:
    """KV-1, KV-80, KV-81, KV-23: dead rows count in `keys`, and are seen only where they are asked for."""
    door = KvDoor()
    await door.all(
        op("put", "b", ttlSeconds=1, value="xy"), op("put", "a", value=[1]), op("put", "ba"), op("put", ns="zoo"),
        op("put", "x", ns="queen-locks"))
    door.advance(1)
    reply = await door.call("GET", "/api/v1/resources/kv/namespaces")
    assert reply.document == {"namespaces": [
        {"namespace": "orders", "keys": 3}, {"namespace": "queen-locks", "keys": 1}, {"namespace": "zoo", "keys": 1}]}
    ended = "2023-11-14T22:13:21.000000Z"
    rows = {
        "a": {"key": "a", "value": [1], "version": 2, "expiresAt": None, "updatedAt": NOW, "expired": False},
        "b": {"key": "b", "value": "xy", "version": 1, "expiresAt": ended, "updatedAt": NOW, "expired": True},
        "ba": {"key": "ba", "value": 1, "version": 3, "expiresAt": None, "updatedAt": NOW, "expired": False},
    }
    assert await door.list(namespace="orders") == {
        "rows": [rows["a"], rows["ba"]], "truncated": False, "nextAfter": None, "bytes": 4}
    assert await door.list(namespace="orders", prefix="b", includeExpired=True) == {
        "rows": [rows["b"], rows["ba"]], "truncated": False, "nextAfter": None, "bytes": 5}
    page = await door.list(namespace="orders", limit=1, keysOnly=True)
    del rows["a"]["value"]
    assert page == {"rows": [rows["a"]], "truncated": True, "nextAfter": "a", "bytes": 0}
    assert [row["key"] for row in (await door.list(namespace="orders", after="a"))["rows"]] == ["ba"]
    assert await door.list(namespace="none") == {"rows": [], "truncated": False, "nextAfter": None, "bytes": 0}


@pytest.mark.parametrize(("fields", "reason"), [
    ({}, "kv_bad_namespace"), ({"namespace": "No"}, "kv_bad_namespace"),
    ({"namespace": "n", "limit": "1"}, "kv_bad_body"), ({"namespace": "n", "prefix": 1}, "kv_bad_key"),
    ({"namespace": "n", "keysOnly": 1}, "kv_bad_body"), ({"namespace": "n", "includeExpired": "x"}, "kv_bad_body"),
    ({"namespace": "n", "tenant": "t"}, "kv_tenant_not_an_input"),
])
async def test_what_a_page_may_be_asked_for(fields: dict[str, object], reason: str) -> None:
    """KV-81, KV-13."""
    reply = await KvDoor().call("POST", "/api/v1/resources/kv/list", msgspec.json.encode(fields))
    assert reply.reason == (*BAD, reason)


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/api/v1/resources/kv/namespaces?x"), ("POST", "/api/v1/resources/kv/list?namespace=n")])
async def test_the_console_takes_no_query_string(method: str, path: str) -> None:
    """KV-4."""
    assert (await KvDoor().call(method, path, b"{}")).reason == (*BAD, "kv_no_query_string")


async def test_a_page_ends_after_its_bytes_and_after_many_dead_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-81; M-50."""
    door = KvDoor()
    await door.all(*(op("put", f"dead{number}", ttlSeconds=1) for number in range(5)), op("put", "k1"), op("put", "k2"))
    door.advance(1)
    monkeypatch.setattr(kv, "READ_BYTES_MAX", 1)
    page = await door.list(namespace="orders", prefix="k")
    assert ([row["key"] for row in page["rows"]], page["nextAfter"], page["bytes"]) == (["k1"], "k1", 1)
    monkeypatch.setattr(kv, "ROWS_LOOKED_AT_MAX", 3)
    page = await door.list(namespace="orders")
    assert (page["rows"], page["truncated"], page["nextAfter"]) == ([], True, "dead2")


# --- rates, admission, the broker

async def test_a_call_spends_one_token_of_its_bucket() -> None:
    """KV-61: a call that writes or checks a write token, one that reads a read token; Retry-After says when."""
    reading: list[tuple[Any, ...]] = [("POST", "/api/v1/kv", [op("get"), op("getMany"), op("getPrefix")]),
               ("GET", "/api/v1/kv/orders/k", None), ("GET", "/api/v1/resources/kv/namespaces", None),
               ("POST", "/api/v1/resources/kv/list", {"namespace": "n"})]
    writing: list[tuple[Any, ...]] = [*(("POST", "/api/v1/kv", [op("get"), operation]) for operation in (
        op("put"), op("putIfAbsent"), op("delete"), op("incr"), op("check", expect=0), op("check"))),
        ("PUT", "/api/v1/kv/orders/k", {"value": 1, "forever": True}), ("DELETE", "/api/v1/kv/orders/k", None)]
    for calls, reads, writes in ((reading, Rate(0.25, 1), MANY), (writing, MANY, Rate(0.25, 1))):
        for method, path, document in calls:
            door = KvDoor(reads=reads, writes=writes)
            body = b"" if document is None else msgspec.json.encode(document)
            assert (await door.call(method, path, body)).status in (200, 400)
            refused = await door.call(method, path, body)
            assert refused.reason == (429, "rate_limited", "rate_limited")
            assert refused.headers == {"Retry-After": "4"}
            door.now_ns += 4_000_000_000
            assert (await door.call(method, path, body)).status in (200, 400)


async def test_what_cannot_grow_passes_a_full_disk() -> None:
    """KV-63: reads, deletes and checks pass; any put, putIfAbsent or incr does not."""
    door = KvDoor()
    for refusal, status in ((STORAGE_FULL, 507), (OVERLOADED, 429)):
        door.broker.refuse_admission = Refused(refusal)
        await door.all(op("get"), op("delete"), op("check", expect=0))
        assert (await door.path("DELETE", "orders/k")).status == 200
        for word in ("put", "putIfAbsent", "incr"):
            reply = await door.post(op("get"), op(word))
            assert reply.reason == (status, refusal.code, refusal.code) and reply.document["code"] == refusal.code
        assert (await door.path("PUT", "orders/k", {"value": 1, "forever": True})).status == status


@pytest.mark.parametrize(("code", "answer"), [
    ("timeout", (503, "kv_unavailable", "kv_timeout")), ("retry", (503, "kv_unavailable", "kv_retry")),
    ("no_leader", (503, "kv_unavailable", "kv_no_leader")), ("tenant_limit", (403, "tenant_limit", "tenant_limit")),
    ("news", (503, "kv_unavailable", "kv_retry")),
])
async def test_what_no_group_decided(code: str, answer: tuple[int, str, str]) -> None:
    """kv.md 4, KV-64."""
    door = KvDoor()
    door.broker.unavailable = code
    for operation in (op("put"), op("get")):
        reply = await door.post(operation)
        assert reply.reason == answer
        assert reply.headers == ({"Retry-After": "1"} if reply.status == 503 else {})


async def test_what_a_door_counts() -> None:
    """kv.md 9: operations by outcome, bytes of values, refused reads; a lost call applied nothing."""
    door = KvDoor(reads=Rate(1, 4))
    await door.all(op("put", "a", value="12"), op("check", "a", expect=0), op("get", "a"), op("getPrefix", "a"))
    await door.post(op("incr", "n"), op("delete", "a", expect=0, required=True), op("get", "a"))
    await door.all(op("get", "none"))
    door.broker.unavailable = "timeout"
    for operation in (op("incr"), op("get"), op("get"), op("get"), op("get")):
        await door.post(operation)
    metrics = door.metrics
    assert metrics.kv_ops == {
        "put,applied": 1, "check,rejected": 1, "get,applied": 2, "getPrefix,applied": 1, "incr,rejected": 1,
        "delete,rejected": 1, "get,rejected": 1, "incr,error": 1, "get,error": 3}
    assert metrics.kv_bytes == {"written": 4, "read": 8}
    assert metrics.kv_read_rejected == {"kv_timeout": 3, "rate_limited": 1}
    assert metrics.kv_op_ms["put"] == 0.0


# --- what a node judges, and what it does not keep


async def test_sizes_are_judged_by_the_node_that_took_the_call() -> None:
    """KV-60: what one node let through applies and is read on a node whose settings would refuse it."""
    wide, narrow = KvDoor(), KvDoor(limits=KvLimits(value_max_bytes=10, operations_max=1))
    values = {"a": "x" * 65_534, "b": "y" * 11}
    writes = [op("put", key, value=value) for key, value in values.items()]
    assert (await narrow.post(*writes)).reason == (400, "kv_bad_request", "kv_too_many_ops")
    assert (await narrow.post(writes[1])).reason == (413, "payload_too_large", "kv_value_too_large")
    await wide.all(*writes)
    ((_kind, request_id, operations, one, _caps),) = wide.broker.writes
    narrow.broker.apply(commands.kv(request_id, operations, one=one))  # type: ignore[arg-type]
    assert {key: (await narrow.one(op("get", key)))["value"] for key in values} == values


async def test_a_value_is_kept_nowhere_but_in_the_state() -> None:
    """KV-72, KV-6: what another node wrote shows in the next read of the same door, by every route, with its ETag."""
    here, there = KvDoor(), KvDoor()
    await here.one(op("put", value="old"))
    first = await here.path("GET", "orders/k")
    assert first.document["value"] == (await here.one(op("get")))["value"] == "old"
    await there.post(op("put", value="new"))
    ((_kind, request_id, operations, one, _caps),) = there.broker.writes
    here.broker.apply(commands.kv(request_id, operations, one=one))  # type: ignore[arg-type]
    second = await here.path("GET", "orders/k")
    assert second.document["value"] == (await here.one(op("get")))["value"] == "new"
    assert second.document["version"] > first.document["version"]
    page = await here.list(namespace="orders")
    assert [row["value"] for row in page["rows"]] == ["new"]


async def test_an_end_is_told_behind_an_entry_that_carries_it() -> None:
    """KV-53, KV-70, M-23: the next leader's clock may be behind; a row that one read called dead lives for no other.
    One entry an end: reads of rows that live, and of an end that is told, need none."""
    reads: dict[str, Callable[[KvDoor], Awaitable[Any]]] = {
        "get": lambda door: door.one(op("get", "a")),
        "many": lambda door: door.one(op("getMany", "a")),
        "prefix": lambda door: door.one(op("getPrefix", "a")),
        "path": lambda door: door.path("GET", "orders/a"),
        "list": lambda door: door.list(namespace="orders", includeExpired=True),
        "lock": lambda door: door.lock("get", "held"),
    }
    for name, read in reads.items():
        door = KvDoor()
        await door.one(op("put", "a", ttlSeconds=30))
        await door.lock("acquire", "held")
        door.advance(29)
        writes = len(door.broker.writes)
        await read(door)
        assert len(door.broker.writes) == writes, name
        door.advance(1)
        first = await read(door)
        assert len(door.broker.writes) == writes + 1, name
        assert door.broker.machine.store.meta.stamp_us == door.broker.now_us
        second = await read(door)
        assert len(door.broker.writes) == writes + 1, name
        assert first == second, name
    assert not (await door.one(op("get", "a")))["found"]
    assert [row["expired"] for row in (await door.list(namespace="orders", includeExpired=True))["rows"]] == [True]
