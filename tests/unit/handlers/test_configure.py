"""POST /api/v1/configure (queues.md 1)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from queen_node.broker import Lane
from queen_node.errors import STORAGE_FULL, Refused
from queen_node.http.handlers.configure import BODY_BYTES_MAX, CHECKS, FIELD_OF, SECONDS_MAX, ConfigureHandlers
from queen_node.http.messages import Request, Response
from queen_node.ids import IdMint
from queen_node.state.keys import QUEUE
from queen_node.state.rows import QueueOptions
from tests.support.inward_broker import InwardBroker

DEFAULTS = {
    "leaseTime": 300, "retryLimit": 3, "deadLetterQueue": True, "dlqAfterMaxRetries": True, "dedupWindowSeconds": 3600,
    "delayedProcessing": 0, "windowBuffer": 0, "retentionEnabled": False, "retentionSeconds": 0,
    "completedRetentionSeconds": 0, "maxWaitTimeSeconds": 0, "encryptionEnabled": False, "minPopWaitTime": 0,
    "priority": 0, "maxSize": 0, "ttl": 3600, "retryDelay": 1000, "retentionSinkHold": "",
    "retentionSinkHoldMaxSeconds": 604800,
}


class Door:
    """The handler with its broker."""

    def __init__(self) -> None:
        self.broker = InwardBroker()
        self.handlers = ConfigureHandlers(self.broker, IdMint())

    async def send(self, body: bytes) -> Response:
        return await self.handlers.configure(Request("POST", b"/api/v1/configure", body=body))

    async def configure(self, **body: Any) -> dict[str, Any]:
        response = await self.send(json.dumps({"queue": "orders"} | body).encode())
        assert response.status == 200
        answer: dict[str, Any] = json.loads(response.body)
        return answer

    async def refused(self, body: bytes | dict[str, Any]) -> Refused:
        """The refusal; nothing may be written then."""
        with pytest.raises(Refused) as caught:
            await self.send(body if isinstance(body, bytes) else json.dumps({"queue": "orders"} | body).encode())
        assert not self.broker.node.rows(QUEUE)
        return caught.value


@pytest.fixture
def door() -> Door:
    return Door()


async def test_the_answer_has_all_keys(door: Door) -> None:
    """QU-3."""
    answer = await door.configure()
    assert UUID(answer.pop("queueId")).version == 7
    assert answer == {
        "configured": True, "partitionId": None, "queue": "orders", "namespace": "", "task": "", "storage": "segments",
        "options": DEFAULTS,
    }
    assert door.broker.calls == [(30_000, Lane.DRAINING, ())]


def test_every_option_is_checked() -> None:
    assert FIELD_OF.keys() == DEFAULTS.keys()
    assert tuple(CHECKS) == QueueOptions.__struct_fields__


@pytest.mark.parametrize(("option", "sent", "stands"), [
    ("leaseTime", 1, 1), ("leaseTime", 86_400, 86_400), ("leaseTime", 86_401, 86_400),
    ("dedupWindowSeconds", -1, 0), ("dedupWindowSeconds", 10**9, 10**9),
    ("minPopWaitTime", 90_000, 60_000), ("minPopWaitTime", -5, 0), ("minPopWaitTime", 30, 30),
    ("retryLimit", 0, 0), ("retryDelay", 5, 5), ("ttl", 0, 0), ("maxSize", (1 << 53) - 1, (1 << 53) - 1),
    ("delayedProcessing", SECONDS_MAX, SECONDS_MAX), ("retentionEnabled", True, True),
    ("retentionSinkHold", "a.B_9-", "a.B_9-"), ("retentionSinkHold", "", ""),
    ("retentionSinkHoldMaxSeconds", 60, 60), ("retentionSinkHoldMaxSeconds", 31_536_000, 31_536_000),
])
async def test_values_are_taken_and_clamped(door: Door, option: str, sent: object, stands: object) -> None:
    """Queues.md 1, options; section 8, 2."""
    assert (await door.configure(options={option: sent}))["options"] == DEFAULTS | {option: stands}


@pytest.mark.parametrize(("option", "sent"), [
    ("leaseTime", 0), ("leaseTime", -1), ("leaseTime", "60"), ("leaseTime", 60.5), ("leaseTime", True),
    ("retryLimit", -1), ("deadLetterQueue", 1), ("deadLetterQueue", "true"), ("retentionSeconds", -1),
    ("dedupWindowSeconds", "x"), ("dedupWindowSeconds", SECONDS_MAX + 1), ("windowBuffer", 10**300),
    ("maxSize", 1 << 53), ("priority", []), ("ttl", {}), ("retentionSinkHold", 5), ("retentionSinkHold", "a/b"),
    ("retentionSinkHold", "a\n"), ("retentionSinkHold", "x" * 65), ("retentionSinkHoldMaxSeconds", 59),
    ("retentionSinkHoldMaxSeconds", 31_536_001), ("namespace", 5), ("task", "a\0"),
])
async def test_wrong_values_are_refused_by_name(door: Door, option: str, sent: object) -> None:
    """QU-4: nothing written."""
    refused = await door.refused({"options": {"retryLimit": 1, option: sent}})
    assert (refused.refusal.status, refused.refusal.code) == (400, "bad_request")
    assert json.loads(refused.body())["invalid"] == option


@pytest.mark.parametrize(("body", "code", "invalid"), [
    (b"{}", "bad_request", "queue"), (b'{"queue":""}', "bad_request", "queue"),
    (b'{"queue":5}', "bad_request", "queue"), (b'{"queue":null}', "bad_request", "queue"),
    (b'{"queue":"a\\u0000"}', "bad_request", "queue"),
    (b'{"queue":"q","mode":"x"}', "bad_request", "mode"), (b'{"queue":"q","mode":{}}', "bad_request", "mode"),
    (b'{"queue":"q","options":5}', "bad_request", "options"), (b'{"queue":"q","options":[]}', "bad_request", "options"),
    (b"", "bad_body", None), (b"[]", "bad_body", None), (b"null", "bad_body", None),
    (b'{"queue":"\xff"}', "bad_body", None),
    (b'{"queue":"q","ttl":NaN}', "bad_body", None), (b'{"queue":"\\ud800"}', "bad_body", None),
    (b'{"queue":"q","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_body", None),
    (b'{"queue":"q","x":"' + b"x" * BODY_BYTES_MAX + b'"}', "bad_body", None),
    (b'{"queue":"q","x":' + b"9" * 9000 + b"}", "bad_body", None),
])
async def test_bodies_that_are_refused(door: Door, body: bytes, code: str, invalid: str | None) -> None:
    """QU-4."""
    refused = await door.refused(body)
    answer = json.loads(refused.body())
    assert (refused.refusal.status, answer["code"], answer.get("invalid")) == (400, code, invalid)


async def test_a_name_over_the_budget(door: Door) -> None:
    """QU-4, PU-21."""
    assert (await door.refused({"queue": "q" * 412})).refusal.status == 413
    assert (await door.configure(queue="q" * 411))["queue"] == "q" * 411


async def test_a_full_volume_takes_no_configuring(door: Door) -> None:
    """README 26: it changes something and empties nothing."""
    door.broker.lets_change = False
    refused = await door.refused({"queue": "orders"})
    assert refused.refusal is STORAGE_FULL


async def test_merge_null_and_replace(door: Door) -> None:
    """QU-1."""
    await door.configure(namespace="ns", task="t", options={"leaseTime": 5, "retryLimit": 9, "ttl": 1})
    kept = await door.configure(options={"ttl": None}, namespace=None, task=None, mode=None)
    assert kept["options"] == DEFAULTS | {"leaseTime": 5, "retryLimit": 9}
    assert (kept["namespace"], kept["task"]) == ("ns", "t")
    merged = await door.configure(options={"leaseTime": 6}, mode="merge", namespace="", task=5)
    assert merged["options"] == DEFAULTS | {"leaseTime": 6, "retryLimit": 9}
    assert (merged["namespace"], merged["task"]) == ("ns", "t")
    replaced = await door.configure(options={"ttl": 2}, mode="replace", task="new")
    assert replaced["options"] == DEFAULTS | {"ttl": 2}
    assert (replaced["namespace"], replaced["task"]) == ("", "new")


async def test_labels_inside_options_are_options(door: Door) -> None:
    """QU-1: there, null is the default."""
    assert (await door.configure(options={"namespace": "ns", "task": "t"}))["namespace"] == "ns"
    answer = await door.configure(options={"namespace": None}, namespace="outer")
    assert (answer["namespace"], answer["task"]) == ("", "t")
    assert "ignored" not in answer


async def test_without_options_the_top_level_holds_them(door: Door) -> None:
    """QU-1."""
    answer = await door.configure(leaseTime=5, retryLimit=None, namespace="ns", surprise=1, options=None)
    assert answer["options"] == DEFAULTS | {"leaseTime": 5}
    assert (answer["namespace"], answer["ignored"]) == ("ns", ["surprise"])


async def test_stray_names_are_ignored_and_named(door: Door) -> None:
    """QU-1, QU-4: beside an options object, top-level options are stray."""
    answer = await door.configure(leaseTime=5, options={"retryLimit": 1, "colour": "red", "größe": 1})
    assert answer["options"] == DEFAULTS | {"retryLimit": 1}
    assert answer["ignored"] == ["leaseTime", "colour", "größe"]


async def test_create_of_the_published_client_twice(door: Door) -> None:
    """QU-2."""
    create = {
        "leaseTime": 300, "retryLimit": 3, "priority": 0, "delayedProcessing": 0, "windowBuffer": 0, "maxSize": 0,
        "retentionSeconds": 0, "completedRetentionSeconds": 0, "encryptionEnabled": False,
    }
    first = await door.configure(namespace=None, task=None, options=create)
    await door.configure(options={"leaseTime": 9, "dedupWindowSeconds": 9})
    second = await door.configure(namespace=None, task=None, options=create)
    assert first["queueId"] == second["queueId"]
    assert second["options"] == DEFAULTS | {"dedupWindowSeconds": 9}


@pytest.mark.parametrize("code", ["timeout", "retry", "no_leader"])
async def test_a_group_that_cannot_decide(door: Door, code: str) -> None:
    door.broker.unavailable = code
    refused = await door.refused({})
    assert (refused.refusal.status, refused.refusal.code) == (503, code)
