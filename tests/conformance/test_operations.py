"""Routes and refusals (admin.md 8, 9), health, metrics, and the form of every answer."""

from __future__ import annotations

import json

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.calls import HOUR_MS, PATIENCE_S, Calls, b64
from tests.conformance.test_push import code
from tests.conformance.test_timers_schedule import refusal
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess

# path, the methods it has
ROUTES = [
    ("/health", {"GET", "HEAD"}), ("/status", {"GET", "HEAD"}), ("/metrics", {"GET", "HEAD"}),
    ("/metrics/prometheus", {"GET", "HEAD"}), ("/api/v1/push", {"POST"}), ("/api/v1/configure", {"POST"}),
    ("/api/v1/timers", {"POST"}), ("/api/v1/timers/q", {"GET", "HEAD"}),
    ("/api/v1/timers/q/k", {"GET", "HEAD", "DELETE"}),
    ("/api/v1/pop/queue/q", {"GET", "HEAD"}), ("/api/v1/pop/queue/q/partition/p", {"GET", "HEAD"}),
    ("/api/v1/ack", {"POST"}), ("/api/v1/ack/batch", {"POST"}), ("/api/v1/lease/x/extend", {"POST"}),
]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.mark.parametrize(("path", "method"), [
    (path, method) for path, methods in ROUTES for method in METHODS if method not in methods])
async def test_wrong_methods(http: HttpClient, path: str, method: str) -> None:
    """admin.md 9.1, PU-1: 404 in JSON, without a body for HEAD (AD-33)."""
    answer = await http.request(method, path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert answer.json() == {"error": "Not Found", "code": "no_such_route"}


@pytest.mark.parametrize("path", [
    "/nowhere", "/api", "/api/v1", "/api/v1/", "/api/v1/nothing", "/api/v1/timers/", "/api/v1/timers/q/",
    "/api/v1/push/", "/streams/x", "/internal/x", "/api/v1/ephemeral/push", "/api/v1/status/buffers",
    "/api/v1/system/maintenance", "/api/v1/resources/queues/q/sizes", "/health/", "//health", "/api/v1/pop/queue/",
    "/api/v1/pop/queue/q/partition/", "/%2e%2e/etc/passwd",
])
async def test_no_such_route(http: HttpClient, path: str) -> None:
    """AD-27, README 11, AD-25: never HTML, whatever the method."""
    for method in ("GET", "POST", "DELETE"):
        answer = await http.request(method, path)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
        assert answer.json() == {"error": "Not Found", "code": "no_such_route"}


# ---- every row of timers.md section 7 that a healthy single node can be made to say


async def test_timers_413_plain(narrow: HttpClient) -> None:
    """timers.md 7, AD-30: a body over QUEEN_MAX_BODY_BYTES is refused in plain text."""
    answer = await narrow.request("POST", "/api/v1/timers", b"x" * (1024 * 1024 + 1))
    assert answer.status == 413
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.body


async def test_timers_limits_come_from_the_settings(narrow: HttpClient) -> None:
    """timers.md 7, AD-34: horizon, payload and operations; the text names the limit and what was sent."""
    calls = Calls(narrow, "limits")
    far = await calls.timers(calls.operation("k", delayMs=60_001))
    assert refusal(far) == (403, "timer_horizon_exceeded", "timers_horizon")
    assert "60001" in far.json()["detail"]
    assert "60000" in far.json()["detail"]
    large = await calls.timers(calls.operation("k", delayMs=1, payload=b64("x" * 63)))
    assert refusal(large) == (413, "payload_too_large", "timers_payload_too_large")
    many = await calls.timers(*(calls.operation(f"k{number}") for number in range(4)))
    assert refusal(many) == (400, "timers_bad_request", "timers_too_many_ops")


async def test_timers_429_and_what_it_never_touches(narrow: HttpClient) -> None:
    """TM-26, TM-27, TM-31, G-M10: one token a POST; 429 names a way for its cancels; DELETE and reads cost none.
    TA-54, KV-92: neither do transactions, whatever they hold."""
    calls = Calls(narrow, "rates")
    statuses = [(await calls.timers(calls.operation("k", delayMs=1000))).status for _ in range(12)]
    assert 200 in statuses or 429 in statuses[:1]  # an earlier test may have spent the burst
    assert statuses[-1] == 429
    cancel = {"op": "cancel", "queue": "rates", "timerKey": "other"}
    refused = await calls.timers(calls.operation("k", delayMs=1000), cancel)
    assert refusal(refused) == (429, "rate_limited", "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-queen-timers-hint"] == "DELETE /api/v1/timers/:queue/:timerKey"
    unparsed = await calls.http.post("/api/v1/timers", b"{")
    assert refusal(unparsed) == (400, "timers_bad_request", "timers_bad_body")  # README 28: costs no token
    for _ in range(30):
        assert (await calls.cancel("k"))["status"] in ("cancelled", "absent")
        assert (await calls.http.get("/api/v1/timers/rates/k")).status == 200
        put = {"op": "put", "ns": "rates", "key": "k", "value": 1, "forever": True}
        both = await calls.http.post("/api/v1/transaction", {
            "operations": [], "kv": [put], "timers": [calls.operation("k", delayMs=1000)]})
        assert (both.status, both.json()["success"]) == (200, True)
        assert (await calls.http.post("/api/v1/push", {"items": [calls.item(1)]})).status == 201


async def test_a_body_that_is_too_large_while_it_arrives(narrow: HttpClient) -> None:
    """push.md 9: a chunked body is refused when it passes the bound."""
    chunk = f"{64 * 1024:x}\r\n".encode() + b"x" * (64 * 1024) + b"\r\n"
    await narrow.send_raw(b"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with trio.open_nursery() as nursery:

        async def feed() -> None:
            for _ in range(17):
                await narrow.send_raw(chunk)

        nursery.start_soon(feed)
        with trio.fail_after(PATIENCE_S):
            answer = await narrow.read_answer()
        nursery.cancel_scope.cancel()
    assert answer.status == 413


# ---- bytes that are no HTTP


@pytest.mark.parametrize("raw", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET /health HTTP/1.1\r\nHost: h\r\nBad Name: x\r\n\r\n", b"\0" * 64,
])
async def test_bytes_that_are_no_request(node: NodeProcess, raw: bytes) -> None:
    """Issue 3, 8: no input costs a traceback or a stuck connection: 400 or a close, and the node goes on."""
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        await http.send_raw(raw)
        said = await http.read_until_closed()
    assert said == b"" or said.startswith(b"HTTP/1.1 400 "), said
    async with HttpClient(node.port) as http:
        assert (await http.get("/health")).status == 200


async def test_a_head_too_large(node: NodeProcess) -> None:
    """errors.py: 431, or a close."""
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        await http.send_raw(b"GET /health HTTP/1.1\r\nHost: h\r\n" + b"X: " + b"y" * (2 * 1024 * 1024) + b"\r\n\r\n")
        said = await http.read_until_closed()
    assert said == b"" or said.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), said[:200]


async def test_keep_alive_and_close(node: NodeProcess) -> None:
    """A connection goes on after a refusal, and ends when it is asked to."""
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        for path, status in (("/nowhere", 404), ("/health", 200)):
            await http.send_raw(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert (await http.read_answer()).status == status
        await http.send_raw(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await http.read_answer()).status == 200
        assert await http.read_until_closed() == b""


# ---- health and figures


async def test_health(http: HttpClient) -> None:
    """AD-5, AD-7, cluster.md 13: the document of a ready single node."""
    answer = await http.get("/health")
    body = answer.json()
    assert answer.status == 200
    assert (body["status"], body["engine"]) == ("healthy", "raft")
    assert isinstance(body["version"], str)
    assert set(body["groups"]) >= {"hosted", "leading", "quiet", "behind", "failed"}
    assert (body["groups"]["behind"], body["groups"]["failed"]) == (0, [])
    raft = body["raft"]
    assert set(raft) >= {
        "role", "leader", "term", "applied", "commit", "lag", "quorumAckMs", "storageReady", "clusterVersion",
        "kinds", "apply",
    }
    assert raft["role"].startswith("leader")
    assert (raft["leader"], raft["lag"], raft["storageReady"]) == (True, 0, True)
    assert raft["apply"] == {"failure": None, "skipped": []}


async def test_status(http: HttpClient) -> None:
    """AD-6."""
    assert (await http.get("/status")).json() == {"status": "ok", "engine": "raft"}


async def test_metrics_json(http: HttpClient) -> None:
    """AD-10, admin.md 9.3: JSON, in the client's form."""
    answer = await http.get("/metrics")
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert set(body) == {"uptime", "requests", "messages", "database", "memory", "cpu", "raft"}
    assert set(body["requests"]) == set(body["messages"]) == {"total", "rate"}
    assert body["database"] == {"poolSize": 0, "idleConnections": 0, "waitingRequests": 0}
    assert set(body["memory"]) == {"rss", "heapTotal", "heapUsed", "external", "arrayBuffers"}
    assert set(body["cpu"]) == {"user", "system"}
    assert set(body["raft"]) == {"role", "leader", "term", "applied", "commit", "lag"}
    assert body["memory"]["rss"] > 10_000_000


FAMILIES = {
    "queen_uptime_seconds": "gauge", "queen_process_resident_memory_bytes": "gauge", "queen_parked_long_polls": "gauge",
    "queen_process_push_requests": "counter", "queen_process_pop_requests": "counter",
    "queen_process_ack_requests": "counter", "queen_process_push_messages": "counter",
    "queen_process_pop_messages": "counter", "queen_process_ack_messages": "counter", "queen_raft_index": "gauge",
    "queen_wal_fsync_seconds": "histogram", "queen_wal_batch_entries": "histogram",
    "queen_timers_pending": "gauge", "queen_timers_due": "gauge", "queen_timers_oldest_late_seconds": "gauge",
    "queen_timers_fire_lag_seconds": "histogram", "queen_timers_tick_late_seconds": "histogram",
    "queen_timers_fired": "counter", "queen_timers_fire_failures": "counter", "queen_timers_dlq": "counter",
    "queen_timers_schedule_rejected": "counter", "queen_timers_scheduled": "counter",
    "queen_timers_cancelled": "counter",
    "queen_loop_lag_seconds": "histogram", "queen_clock_offset_seconds": "gauge",
}


Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # (name, labels): value


async def figures(http: HttpClient) -> Figures:
    """Every sample of GET /metrics/prometheus, read by the official parser."""
    answer = await http.get("/metrics/prometheus")
    assert answer.status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


async def test_metrics_prometheus(http: HttpClient) -> None:
    """AD-11, AD-13, timers.md 8, admin.md 9.3: the official parser reads it; HELP and TYPE on each family."""
    answer = await http.get("/metrics/prometheus")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert {name: families[name].type for name in FAMILIES if name in families} == FAMILIES
    assert all(family.documentation for family in families.values())
    absent = ("queen_cluster_", "queen_sweeper_", "queen_admission_", "queen_db_pool_", "queen_ephemeral_")
    assert [name for name in families if name.startswith(absent)] == []


async def test_timer_figures_move(calls: Calls) -> None:
    """timers.md 8, FAULTS (gauges exported but never updated): pending, scheduled, fired, cancelled, rejected."""
    def of(found: Figures, name: str, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(value for (sample, given), value in found.items() if sample == name and wanted <= set(given))

    before = await figures(calls.http)
    await calls.push_texts("same")
    await calls.schedule("pending", delayMs=HOUR_MS)
    await calls.schedule("cancelled", delayMs=HOUR_MS)
    await calls.schedule("fires", delayMs=20)
    await calls.schedule("duplicate", delayMs=20, txn="same")
    await calls.cancel("cancelled")
    await calls.timers(calls.operation("bad", delayMs=None))
    for key in ("fires", "duplicate"):
        await calls.wait_until_fired(key)
    after = await figures(calls.http)

    def moved(name: str, **labels: str) -> float:
        return of(after, name, **labels) - of(before, name, **labels)

    assert moved("queen_timers_pending") == 1
    assert moved("queen_timers_fired_total", result="appended") == 1
    assert moved("queen_timers_fired_total", result="duplicate") == 1
    assert moved("queen_timers_cancelled_total", status="cancelled") == 1
    assert moved("queen_timers_schedule_rejected_total") == 1
    assert moved("queen_timers_scheduled_total") == 4
    assert moved("queen_timers_fire_lag_seconds_count") == 2
    assert all(calls.queue not in json.dumps(labels) for name, labels in after if "timers" in name)


async def test_errors_are_answers(calls: Calls) -> None:
    """AD-31, AD-34: JSON with `error`, no trace, no file name, for a handful of mistakes on each route."""
    for method, path, body in (
        ("POST", "/api/v1/push", b"\xff"), ("POST", "/api/v1/timers", b"[[[["), ("POST", "/api/v1/ack", b"{}"),
        ("POST", "/api/v1/configure", b"[]"), ("GET", "/api/v1/pop/queue/%ff", None),
        ("GET", f"/api/v1/pop/queue/{calls.queue}?batch=x", None), ("GET", "/api/v1/timers/%ff/k", None),
    ):
        answer = await calls.http.request(method, path, body)
        assert answer.status == 400, (path, answer)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]
        assert b"Traceback" not in answer.body
        assert b".py" not in answer.body
    assert code(await calls.http.post("/api/v1/push", b"{")) == (400, "bad_body")
