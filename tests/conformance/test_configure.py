"""POST /api/v1/configure (queues.md 1): options, defaults, merge and replace, refusals."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conformance.calls import Calls
from tests.conformance.test_push import code

DEFAULTS = {
    "leaseTime": 300, "retryLimit": 3, "deadLetterQueue": True, "dlqAfterMaxRetries": True, "dedupWindowSeconds": 3600,
    "delayedProcessing": 0, "windowBuffer": 0, "retentionEnabled": False, "retentionSeconds": 0,
    "completedRetentionSeconds": 0, "maxWaitTimeSeconds": 0, "encryptionEnabled": False, "minPopWaitTime": 0,
    "priority": 0, "maxSize": 0, "ttl": 3600, "retryDelay": 1000, "retentionSinkHold": "",
    "retentionSinkHoldMaxSeconds": 604_800,
}


async def configure(calls: Calls, **body: object) -> dict[str, Any]:
    """A call with a body of its own that must be taken."""
    answer = await calls.http.post("/api/v1/configure", {"queue": calls.queue, **body})
    assert answer.status == 200, answer
    configured: dict[str, Any] = answer.json()
    return configured


async def test_the_answer(calls: Calls) -> None:
    """QU-3: the 19 options as they now stand; no truthy `error`, which the client takes for a failure."""
    configured = await configure(calls)
    queue_id = configured.pop("queueId")
    assert str(uuid.UUID(queue_id)) == queue_id
    assert configured == {
        "configured": True, "partitionId": None, "queue": calls.queue, "namespace": "", "task": "",
        "storage": "segments", "options": DEFAULTS,
    }
    assert (await configure(calls))["queueId"] == queue_id


async def test_merge(calls: Calls) -> None:
    """QU-1: absent keeps, null is the default, a value is that value; labels of null are not said."""
    await configure(calls, namespace="n", task="t", options={"leaseTime": 7, "retryLimit": 9})
    merged = await configure(calls, namespace=None, task="", options={"retryLimit": None, "ttl": 5})
    assert (merged["namespace"], merged["task"]) == ("n", "t")
    assert merged["options"] == {**DEFAULTS, "leaseTime": 7, "ttl": 5}


async def test_replace(calls: Calls) -> None:
    """QU-1: everything absent goes to the default."""
    await configure(calls, options={"leaseTime": 7, "retryLimit": 9})
    replaced = await configure(calls, mode="replace", options={"retryLimit": 1})
    assert replaced["options"] == {**DEFAULTS, "retryLimit": 1}


async def test_options_at_top_level(calls: Calls) -> None:
    """QU-1, QU-4: without `options` the top level holds them; beside it stray keys are named and ignored."""
    top = await configure(calls, leaseTime=7, retryLimit=2)
    assert top["options"] == {**DEFAULTS, "leaseTime": 7, "retryLimit": 2}
    beside = await configure(calls, leaseTime=8, options={"retryLimit": 3, "shine": 1})
    assert beside["options"] == {**DEFAULTS, "leaseTime": 7, "retryLimit": 3}
    assert sorted(beside["ignored"]) == ["leaseTime", "shine"]


@pytest.mark.parametrize(("option", "sent", "stands"), [
    ("leaseTime", 100_000, 86_400), ("leaseTime", 1, 1), ("dedupWindowSeconds", -5, 0), ("retryLimit", 0, 0),
    ("minPopWaitTime", 99_999, 60_000), ("minPopWaitTime", -1, 0), ("deadLetterQueue", False, False),
    ("retentionSinkHold", "a.B_-9", "a.B_-9"), ("priority", 5, 5),
])
async def test_values_that_stand(calls: Calls, option: str, sent: object, stands: object) -> None:
    """queues.md 1: clamps where they are named."""
    assert (await configure(calls, options={option: sent}))["options"] == {**DEFAULTS, option: stands}


@pytest.mark.parametrize(("option", "value"), [
    ("leaseTime", 0), ("leaseTime", -1), ("leaseTime", "60"), ("leaseTime", 1.5), ("leaseTime", True),
    ("retryLimit", -1), ("retryLimit", {}), ("deadLetterQueue", "yes"), ("deadLetterQueue", 1),
    ("delayedProcessing", -1), ("windowBuffer", -1), ("retentionSeconds", -1),
    ("retentionSinkHold", "a b"), ("retentionSinkHold", "x" * 65),
    ("retentionSinkHoldMaxSeconds", 59), ("retentionSinkHoldMaxSeconds", 31_536_001), ("dedupWindowSeconds", "1"),
])
async def test_values_refused(calls: Calls, option: str, value: object) -> None:
    """QU-4: named in `invalid`, and nothing is written."""
    await configure(calls, options={"leaseTime": 7})
    answer = await calls.http.post("/api/v1/configure", {
        "queue": calls.queue, "options": {"retryLimit": 9, option: value}})
    assert code(answer) == (400, "bad_request")
    assert answer.json()["invalid"] == option
    assert (await configure(calls))["options"] == {**DEFAULTS, "leaseTime": 7}


@pytest.mark.parametrize("body", [
    b"{}", b'{"queue":null}', b'{"queue":7}', b'{"queue":""}', b'{"queue":"q","mode":"other"}',
])
async def test_bodies_refused(calls: Calls, body: bytes) -> None:
    """QU-1, QU-4."""
    assert code(await calls.http.post("/api/v1/configure", body)) == (400, "bad_request")


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"7"])
async def test_no_body(calls: Calls, body: bytes) -> None:
    """admin.md 8: not this route's JSON."""
    answer = await calls.http.post("/api/v1/configure", body)
    assert answer.status == 400, answer
    assert answer.json()["code"] in ("bad_body", "bad_request")


async def test_a_name_too_long(calls: Calls) -> None:
    """QU-4, PU-21."""
    answer = await calls.http.post("/api/v1/configure", {"queue": "q" * 412})
    assert code(answer) == (413, "name_too_long")
