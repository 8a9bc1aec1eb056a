"""Refusals of a node in trouble: a full disk (507), too much under way (429), a disk too slow to answer in time (503).

Each node here has a trouble of its own. What a healthy node refuses stands in the other files of this folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.conformance.calls import PATIENCE_S, Calls, b64, texts
from tests.conformance.test_push import code
from tests.conformance.test_timers_schedule import refusal
from tests.support.figures import at_least, metric, wait_for_metric
from tests.support.http_client import Answer, HttpClient
from tests.support.node_process import NodeProcess

QUEUE = "q"
SMALL_LOG = {"QUEEN_RAFT_SEGMENT_BYTES": str(4 * 1024 * 1024)}
FULL_DISK = {"QUEEN_RAFT_DISK_HIGH_PCT": "1", "QUEEN_RAFT_DISK_LOW_PCT": "1"}
SLOW_FSYNC_MS = 1500
SLOW_DISK = {"QUEEN_TEST_FSYNC_DELAY_MS": str(SLOW_FSYNC_MS)}
HURRY = {"QUEEN_STMT_TIMEOUT_MS": "200", "POP_DEFAULT_TIMEOUT_MS": "200"}
TIGHT = {"QUEEN_RAFT_ADMIT_MAX_MB": "1", "QUEEN_RAFT_ADMIT_HOLD_MS": "100"}
ALL = {"subscriptionMode": "all"}
POLLS = 10_000
POLLS_GROWTH_BYTES_MAX = 8 << 20  # less than a kilobyte a poll: what is kept of each would show


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node not yet started, on a folder of its own."""
    process = NodeProcess(tmp_path / "node", SMALL_LOG, hooks=True)
    yield process
    process.close()
    print(process.log_tail())
    process.check_log()


@asynccontextmanager
async def started(node: NodeProcess, extra: Mapping[str, str] | None = None) -> AsyncIterator[Calls]:
    """Start, lend calls over one connection, stop in good order."""
    await trio.to_thread.run_sync(node.start, extra)
    async with HttpClient(node.port) as http:
        yield Calls(http, QUEUE)
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()


# ---- 507


async def test_a_full_disk_takes_only_what_frees_space(node: NodeProcess) -> None:
    """CL-127, AD-8, TM-71, admin.md 8: 507 for pushes and schedules; PA-64: cancels, pops, acks, fires and reads."""
    node.announced.append("disk gate closed")
    async with started(node) as calls:
        await calls.push_texts("one", "two")
        await calls.schedule("kept", payload=b64("never"))
        await calls.schedule("in body")
        await calls.schedule("soon", delayMs=1500, payload=b64("fired"))
    async with started(node, FULL_DISK) as calls:
        http = calls.http
        await wait_for_metric(http, "queen_raft_storage_full", at_least(1))
        pushed = await http.post("/api/v1/push", {"items": [calls.item("three")]})
        assert code(pushed) == (507, "storage_full")
        for operations in (
            [calls.operation("new")], [calls.operation("kept")],
            [{"op": "cancel", "queue": QUEUE, "timerKey": "in body"}, calls.operation("new")],
        ):
            scheduled = await calls.timers(*operations)
            assert refusal(scheduled) == (507, "storage_full", "storage_full")
            assert scheduled.json()["code"] == "storage_full"
        assert (await calls.peek("in body"))["found"], "a refused call applies nothing"
        assert not (await calls.peek("new"))["found"]

        in_body = await calls.timers({"op": "cancel", "queue": QUEUE, "timerKey": "in body"})
        assert in_body.json()["results"][0]["status"] == "cancelled"
        assert (await calls.cancel("kept"))["status"] == "cancelled"
        await calls.wait_until_fired("soon")
        messages = await calls.pop(**ALL)
        assert texts(messages) == ["one", "two", "fired"]
        extended = await http.post(f"/api/v1/lease/{messages[0]['leaseId']}/extend", {"seconds": 30})
        assert extended.status == 200
        assert all(verdict["success"] for verdict in await calls.ack(messages))
        assert (await calls.page())["rows"] == []
        await must_tell_figures(http, health=200)
    async with started(node) as calls:
        assert (await calls.push_texts("four"))[0]["status"] == "queued"
        assert texts(await calls.pop(**ALL)) == ["four"]


# ---- 429


async def test_too_much_under_way(node: NodeProcess) -> None:
    """CL-34, push.md 9, timers.md 7: 429 after the hold, with Retry-After, for what grows; the rest passes; none stays.
    """
    async with started(node, {**SLOW_DISK, **TIGHT}) as calls:
        http = calls.http
        large = calls.item("x" * 900_000, transactionId="large")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(must_answer, node, "POST", "/api/v1/push", {"items": [large]}, 201)
            await wait_for_metric(http, "queen_raft_inflight", at_least(1))
            second = calls.item("y" * 200_000, transactionId="refused")
            pushed = await http.post("/api/v1/push", {"items": [second]})
            assert code(pushed) == (429, "overloaded")
            assert 1 <= int(pushed.headers["retry-after"]) <= 5
            scheduled = await calls.timers(calls.operation("refused", payload=b64("z" * 200_000)))
            assert refusal(scheduled) == (429, "overloaded", "overloaded")
            assert scheduled.json()["code"] == "overloaded"
            assert 1 <= int(scheduled.headers["retry-after"]) <= 5
            assert await metric(http, "queen_raft_inflight") >= 1, "the first call was answered before the others"
            await must_tell_figures(http, health=200)
            assert (await calls.cancel("nothing"))["status"] == "absent"
        assert texts(await calls.pop(**ALL, batch=10)) == ["x" * 900_000]
        assert not (await calls.peek("refused"))["found"]
        assert await metric(http, 'queen_raft_admit_total{outcome="refused"}') == 2


# ---- 503


async def test_a_disk_too_slow_for_the_calls_deadline(node: NodeProcess) -> None:
    """timers.md 7, pop-ack.md 10, push.md 9: what was proposed is unknown, what was not surely did not happen (CL-23).
    """
    async with started(node, HURRY) as calls:
        await calls.push_texts("one")
        (message,) = await calls.pop(**ALL, leaseSeconds=60)
    async with started(node, {**SLOW_DISK, **HURRY}) as calls:
        ack = {"transactionId": "one", "partitionId": message["partitionId"], "leaseId": message["leaseId"]}
        push = {"items": [calls.item("late", transactionId="late")]}
        for call, code_known, never_code in (
            (("POST", "/api/v1/timers", {"operations": [calls.operation("late")]}), "timers_timeout", "no_leader"),
            (("DELETE", "/api/v1/timers/q/gone", None), "timers_timeout", "no_leader"),
            (("POST", "/api/v1/push", push), "timeout", "no_leader"),
            (("POST", "/api/v1/ack", ack), "outcome_unknown", "no_leader"),
            (("POST", "/api/v1/configure", {"queue": "other", "options": {}}), "timeout", "no_leader"),
        ):
            await wait_for_metric(calls.http, "queen_raft_inflight", nothing)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(must_be_unavailable, node, call, code_known)
                await wait_for_metric(calls.http, "queen_raft_inflight", at_least(1))
                # While that one is on its way to the disk, the next is not even proposed.
                await must_be_unavailable(node, call_again(call), never_code)
            await must_tell_figures(calls.http, health=200)
        await wait_for_metric(calls.http, "queen_raft_inflight", nothing)
    async with started(node) as calls:
        assert (await calls.peek("late"))["found"], "unknown meant: it happened"
        assert not (await calls.peek("late again"))["found"]
        assert texts(await calls.pop(**ALL)) == ["late"]
        assert (await calls.ack([message]))[0]["success"], "acknowledged already: a repeat is as good"


def nothing(count: float) -> bool:
    """For wait_for_metric."""
    return count == 0


def call_again(call: tuple[str, str, Any]) -> tuple[str, str, Any]:
    """The same call under another key or id."""
    method, target, body = call
    if body and "operations" in body:
        body = {"operations": [{**body["operations"][0], "timerKey": "late again"}]}
    elif body and "items" in body:
        body = {"items": [{**body["items"][0], "transactionId": "late again", "payload": "late again"}]}
    return method, target, body


# ---- what stays cheap


async def test_ten_thousand_empty_polls(node: NodeProcess) -> None:
    """CL-26, PA-20: 204 each; no entry, no admission, no memory; also when the queue is not there at all."""
    async with started(node, TIGHT) as calls:
        http = calls.http
        await calls.push_texts("one")
        assert texts(await calls.pop(**ALL, commitOnDelivery="true")) == ["one"]
        targets = [f"/api/v1/pop/queue/{QUEUE}?subscriptionMode=all", "/api/v1/pop/queue/not-there"]
        await poll_empty(http, targets, POLLS // 10)  # until every buffer and cache has its size
        before, held = await figures(http), await metric(http, 'queen_raft_admit_total{outcome="admitted"}')
        await poll_empty(http, targets, POLLS)
        after = await figures(http)
        assert after["raft"]["applied"] == before["raft"]["applied"], "an empty pop is not logged"
        assert await metric(http, 'queen_raft_admit_total{outcome="admitted"}') == held
        assert await metric(http, 'queen_raft_admit_total{outcome="refused"}') == 0
        assert after["memory"]["rss"] - before["memory"]["rss"] < POLLS_GROWTH_BYTES_MAX
        assert await metric(http, "queen_parked_long_polls") == 0
        await calls.push_texts("two")
        assert texts(await calls.pop()) == ["two"]


async def poll_empty(http: HttpClient, targets: list[str], count: int) -> None:
    """So many pops on one connection, each of which must find nothing."""
    for number in range(count):
        answer = await http.get(targets[number % len(targets)])
        assert (answer.status, answer.body) == (204, b"")


# ---- ground


async def must_answer(node: NodeProcess, method: str, target: str, body: Any, status: int) -> Answer:
    """A call on a connection of its own."""
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        answer = await http.request(method, target, body)
    assert answer.status == status, answer
    return answer


async def must_be_unavailable(node: NodeProcess, call: tuple[str, str, Any], finest: str) -> None:
    """503 whose finest word is `finest`, and a time after which to come again (AD-33)."""
    answer = await must_answer(node, *call, 503)
    body = answer.json()
    assert body.get("reason", body.get("code")) == finest, (call, answer)
    assert int(answer.headers["retry-after"]) >= 1


async def must_tell_figures(http: HttpClient, *, health: int) -> None:
    """AD-8: what an operator asks is answered whatever the node goes through."""
    assert (await http.get("/health")).status == health
    for path in ("/metrics", "/metrics/prometheus", "/status"):
        assert (await http.get(path)).status == 200, path


async def figures(http: HttpClient) -> dict[str, Any]:
    """The JSON document of /metrics."""
    document: dict[str, Any] = (await http.get("/metrics")).json()
    return document
