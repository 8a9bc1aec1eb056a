"""Pops (pop-ack.md 1 to 7): answers to the byte, waiting, groups, leases, what is taken and what is held back."""

from __future__ import annotations

import re
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
import trio

from tests.conformance.calls import PATIENCE_S, Calls, texts
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess

POP_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_the_answer(calls: Calls) -> None:
    """pop-ack.md 2, 11.1: every field, on both levels."""
    await calls.push(calls.item({"n": 1}, transactionId="t1", partition="customer-42"))
    answer = await calls.pop_answer(consumerGroup="billing", subscriptionMode="all")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    (message,) = body.pop("messages")
    partition_id, lease_id = body.pop("partitionId"), body.pop("leaseId")
    assert body == {
        "success": True, "queue": calls.queue, "partition": "customer-42", "consumerGroup": "billing",
        "partitionsClaimed": 1,
    }
    assert partition_id.isdecimal()
    assert str(uuid.UUID(lease_id)) == lease_id
    assert POP_TIME.fullmatch(message.pop("createdAt"))
    assert str(uuid.UUID(message["id"])) == message.pop("id")
    assert message == {
        "transactionId": "t1", "traceId": None, "data": {"n": 1}, "producerSub": None, "queue": calls.queue,
        "partitionId": partition_id, "partition": "customer-42", "leaseId": lease_id, "consumerGroup": "billing",
        "deliveryAttempt": 1, "offset": 0,
    }


async def test_204_to_the_byte(calls: Calls) -> None:
    """PA-6: no body, no Content-Type, no Content-Length; the connection goes on."""
    for _ in range(2):
        answer = await calls.pop_answer()
        assert (answer.status, answer.body) == (204, b"")
        assert not {"content-type", "content-length", "transfer-encoding"} & set(answer.headers)


async def test_many_empty_polls_on_one_connection(calls: Calls) -> None:
    """pop-ack.md 11.1, in a smaller number; an empty pop is not logged (README 2)."""
    for _ in range(500):
        assert (await calls.pop_answer()).status == 204


async def test_head_of_a_pop_route_is_answered_without_a_body(calls: Calls) -> None:
    """AD-33."""
    answer = await calls.http.request("HEAD", "/health")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("query", [
    "batch=x", "partitions=1.5", "wait=maybe", "timeout=soon", "leaseSeconds=x", "commitOnDelivery=2", "batch=1e3",
    "subscriptionFrom=yesterday&consumerGroup=g",
])
async def test_parameters_that_do_not_parse(calls: Calls, query: str) -> None:
    """PA-1, PA-30's Open: 400 in the pop's own form."""
    answer = await calls.http.get(f"/api/v1/pop/queue/{calls.queue}?{query}")
    body = answer.json()
    assert (answer.status, body["success"], body["messages"]) == (400, False, [])
    assert isinstance(body["error"], str)
    assert body["error"]
    assert set(body) == {"success", "error", "messages"}


@pytest.mark.parametrize("query", [
    "batch=0", "batch=-5", "partitions=0", "partitions=9999", "leaseSeconds=0", "leaseSeconds=99999999", "wait=1",
    "wait=0", "wait=false", "what=ever", "consumerGroup=", "timeout=99999999", "timeout=-1", "frames=true",
])
async def test_parameters_that_are_read_as_something(calls: Calls, query: str) -> None:
    """pop-ack.md 1, PA-1: clamped, absent or ignored, never refused."""
    await calls.push_texts("a")
    answer = await calls.http.get(f"/api/v1/pop/queue/{calls.queue}?{query}")
    assert answer.status == 200, answer


# ---- what a pop takes


async def test_budget_and_partitions(calls: Calls) -> None:
    """pop-ack.md 11.3: four partitions of five messages each; the budget is of the whole call."""
    for number in range(4):
        await calls.push_texts(*(f"{number}-{index}" for index in range(5)), partition=f"p{number}")
    for options, count, claimed in (
        ({}, 5, 1), ({"partitions": 3}, 15, 3), ({"batch": 10, "partitions": 5}, 10, 2), ({"batch": 3}, 3, 1),
        ({"autopilot": "true"}, 20, 4), ({"partitions": 64}, 20, 4),
    ):
        group = f"g{options}"
        answer = await calls.pop_answer(consumerGroup=group, subscriptionMode="all", **options)
        body = answer.json()
        assert (len(body["messages"]), body["partitionsClaimed"]) == (count, claimed), options
        assert {message["leaseId"] for message in body["messages"]} == {body["leaseId"]}


async def test_messages_come_partition_by_partition_in_order(calls: Calls) -> None:
    """PA-5."""
    for index in range(3):
        for partition in ("a", "b"):
            await calls.push_texts(f"{partition}{index}", partition=partition)
    popped = await calls.pop(partitions=2)
    places = [(message["partition"], message["offset"]) for message in popped]
    assert places in (
        [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)],
        [("b", 0), ("b", 1), ("b", 2), ("a", 0), ("a", 1), ("a", 2)],
    )


async def test_one_live_lease_a_partition_and_group(calls: Calls) -> None:
    """PA-11: the rest waits; another group is not hindered; another partition neither."""
    await calls.push_texts("a", "b")
    await calls.push_texts("c", partition="other")
    assert texts(await calls.pop("Default", batch=1)) == ["a"]
    assert await calls.pop("Default") == []
    assert texts(await calls.pop()) == ["c"]
    assert texts(await calls.pop("Default", consumerGroup="g", subscriptionMode="all")) == ["a", "b"]


async def test_ready_partitions_take_turns(calls: Calls) -> None:
    """PA-12: a served one goes to the back."""
    for partition in ("a", "b", "c"):
        await calls.push_texts(f"{partition}0", f"{partition}1", partition=partition)
    order = []
    for _ in range(6):
        (message,) = await calls.pop(batch=1, commitOnDelivery="true")
        order.append(message["data"])
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1"]


async def test_an_answer_holds_8_mib(calls: Calls) -> None:
    """PA-13: a message that would cross it stays, unless it is the first."""
    big = "x" * (3 * 1024 * 1024)
    for number in range(3):
        await calls.push(calls.item(f"{number}{big}"))
    await calls.push(calls.item("y" * (9 * 1024 * 1024)))
    assert [message["data"][0] for message in await calls.pop(commitOnDelivery="true")] == ["0", "1"]
    assert [message["data"][0] for message in await calls.pop(commitOnDelivery="true")] == ["2"]
    assert [message["data"][0] for message in await calls.pop(commitOnDelivery="true")] == ["y"]


async def test_delayed_processing_and_window_buffer(calls: Calls) -> None:
    """PA-14: held by the longer of the two, for stored messages too; lifting the option shows them."""
    await calls.configure(delayedProcessing=1)
    await calls.push_texts("a")
    assert await calls.pop() == []
    start = time.monotonic()
    assert texts(await calls.pop(wait="true", timeout=10000, commitOnDelivery="true")) == ["a"]
    assert time.monotonic() - start > 0.5  # from the push's answer on; far below the second it must be
    await calls.configure(delayedProcessing=3600, windowBuffer=3600)
    await calls.push_texts("b")
    assert await calls.pop() == []
    await calls.configure(delayedProcessing=None, windowBuffer=None)
    assert texts(await calls.pop()) == ["b"]


# ---- waiting


async def test_an_empty_long_poll_ends_at_its_deadline(calls: Calls) -> None:
    """PA-20, PA-22: not before, on a queue that is missing and on one whose messages are leased."""
    for _ in range(2):
        start = time.monotonic()
        assert (await calls.pop_answer(wait="true", timeout=400)).status == 204
        assert time.monotonic() - start >= 0.35  # PA-22: 50 ms before its deadline it is answered empty
        await calls.push_texts("a")
        await calls.pop(commitOnDelivery="true")


async def parked(node: NodeProcess, calls: Calls, got: list[str]) -> None:
    """A pop on a connection of its own, waiting as long as a test may."""
    async with HttpClient(node.port) as http:
        pop = Calls(http, calls.queue)
        got.extend(texts(await pop.pop(wait="true", timeout=int(PATIENCE_S * 1000))))


@pytest.mark.parametrize("waker", ["push", "other partition", "ack", "retry", "expiry", "option"])
async def test_a_parked_pop_is_woken(calls: Calls, node: NodeProcess, waker: str) -> None:
    """PA-21: by each of its wakers, long before its own deadline."""
    held = []
    if waker in ("ack", "retry", "expiry"):
        await calls.push_texts("first", "second")
        held = await calls.pop(batch=1, leaseSeconds=1 if waker == "expiry" else 60)
    if waker == "option":
        await calls.configure(delayedProcessing=3600)
        await calls.push_texts("first")
    got: list[str] = []
    start = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parked, node, calls, got)
        await trio.sleep(0.1)
        if waker in ("push", "other partition"):
            await calls.push_texts("first", partition="p" if waker == "other partition" else "Default")
        elif waker in ("ack", "retry"):
            await calls.ack(held, "completed" if waker == "ack" else "retry")
        elif waker == "option":
            await calls.configure(delayedProcessing=0)
    assert time.monotonic() - start < PATIENCE_S / 2
    assert got == {"ack": ["second"], "retry": ["first", "second"], "expiry": ["first", "second"]}.get(waker, ["first"])


async def test_the_oldest_parked_pop_is_served_first(calls: Calls, node: NodeProcess) -> None:
    """PA-12, M-41: one message, one pop; the others go on waiting and get the next ones, oldest first."""
    got: list[list[str]] = [[], [], []]
    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(parked, node, calls, got[index])
            await trio.sleep(0.1)
        for index in range(3):
            await calls.push_texts(str(index), partition=f"p{index}")
    assert got == [["0"], ["1"], ["2"]]


async def test_a_pop_nobody_received_costs_nothing(calls: Calls, node: NodeProcess) -> None:
    """PA-23, G-Q8: the client has gone, the message comes to the next one with attempt 1."""
    for _ in range(3):
        gone = HttpClient(node.port)
        with trio.move_on_after(0.15):
            await Calls(gone, calls.queue).pop(wait="true", timeout=20000)
        await gone.aclose()
    await calls.push_texts("a")
    with trio.fail_after(PATIENCE_S):
        (message,) = await calls.pop(wait="true", timeout=10000)
    assert (message["data"], message["deliveryAttempt"]) == ("a", 1)


# ---- groups


async def test_where_a_new_group_starts(calls: Calls) -> None:
    """PA-30, pop-ack.md 11.6: nothing said and `new` skip what was there; `all` and queue mode do not."""
    await calls.push_texts("old")
    for options in ({}, {"subscriptionMode": "new"}, {"subscriptionMode": "latest"}, {"subscriptionFrom": "now"}):
        assert await calls.pop(consumerGroup=f"new {options}", **options) == []
    for mode in ("all", "from_beginning", "earliest", "anything"):
        assert texts(await calls.pop(consumerGroup=mode, subscriptionMode=mode)) == ["old"]
    assert texts(await calls.pop(subscriptionMode="new")) == ["old"]
    await calls.push_texts("next")
    await calls.push_texts("elsewhere", partition="later")
    for options in ({}, {"subscriptionMode": "new"}, {"subscriptionFrom": "now"}):
        popped = await calls.pop(consumerGroup=f"new {options}", partitions=2, subscriptionMode="all")
        assert sorted(texts(popped)) == ["elsewhere", "next"], options  # the stored record wins over what is said now


async def test_a_group_that_starts_at_a_time(calls: Calls) -> None:
    """PA-30: the first message appended at or after it; wins over the mode; epoch ms or ISO."""
    await calls.push_texts("before")
    await trio.sleep(0.01)
    await calls.push_texts("after")
    created_at = (await calls.pop(consumerGroup="probe", subscriptionMode="all"))[1]["createdAt"]
    # createdAt is rounded up to the millisecond: one below it the message is surely at or after the time.
    between = datetime.fromisoformat(created_at) - timedelta(milliseconds=1)
    past, both = datetime(2001, 1, 1, 10, tzinfo=UTC), ["before", "after"]
    for start, expected in (
        (between.isoformat(), ["after"]), (str(int(between.timestamp() * 1000)), ["after"]), ("2001-01-01", both),
        (past.isoformat(" "), both), ("2001-01-01T10:00:00", both), ("0", both), ("2999-01-01", []),
    ):
        popped = await calls.pop(consumerGroup=start, subscriptionMode="new", subscriptionFrom=start)
        assert texts(popped) == expected, start


async def test_a_pop_that_names_a_group_makes_the_queue(calls: Calls) -> None:
    """PA-32: the record needs a home; a queue-mode pop makes nothing. A push after the answer is delivered (PA-31)."""
    assert await calls.pop(consumerGroup="g") == []
    await calls.push_texts("a")
    assert texts(await calls.pop(consumerGroup="g")) == ["a"]


# ---- leases


async def test_a_lease_runs_out(calls: Calls) -> None:
    """PA-35, PA-36, PA-24: the attempt grows, the lease is another, no retry is spent."""
    await calls.configure(retryLimit=0)
    await calls.push_texts("a")
    attempts, leases = [], set()
    for _ in range(3):
        (message,) = await calls.pop(wait="true", timeout=10000, leaseSeconds=1)
        attempts.append(message["deliveryAttempt"])
        leases.add(message["leaseId"])
    assert attempts == [1, 2, 3]
    assert len(leases) == 3


async def test_extend(calls: Calls) -> None:
    """PA-37: without body and type, with rubbish, with seconds; what is not live renews nothing."""
    await calls.push_texts("a")
    await calls.push_texts("b", partition="p")
    messages = await calls.pop(partitions=2, leaseSeconds=1)
    path = f"/api/v1/lease/{messages[0]['leaseId']}/extend"
    for body in (None, b"", b"{", b"[]", b'{"seconds":"x"}', b'{"seconds":100}', b'{"seconds":1}', b"null"):
        answer = await calls.http.post(path, body)
        renewed = answer.json()
        assert answer.status == 200
        assert set(renewed) == {"leaseId", "success", "renewed", "newExpiresAt", "expiresAt", "lease_expires_at"}
        assert (renewed["leaseId"], renewed["success"], renewed["renewed"]) == (messages[0]["leaseId"], True, 2), body
        assert renewed["newExpiresAt"] == renewed["expiresAt"] == renewed["lease_expires_at"]
    await trio.sleep(1.2)
    assert await calls.pop(partitions=2) == []
    await calls.ack(messages)
    for lease in (messages[0]["leaseId"], str(uuid.uuid4()), "no-uuid"):
        answer = await calls.http.post(f"/api/v1/lease/{lease}/extend")
        assert (answer.status, answer.json()) == (200, {
            "leaseId": lease, "success": False, "renewed": 0, "newExpiresAt": None, "expiresAt": None,
            "lease_expires_at": None,
        })


async def test_commit_on_delivery(calls: Calls) -> None:
    """PA-40: no lease, nothing to ack, attempt 1, also under its old name."""
    await calls.push_texts("a", "b")
    for name, data in (("commitOnDelivery", "a"), ("autoAck", "b")):
        answer = await calls.pop_answer(batch=1, **{name: "true"})
        body = answer.json()
        assert (body["leaseId"], texts(body["messages"])) == ("", [data])
        assert body["messages"][0]["deliveryAttempt"] == 1
    assert await calls.pop() == []


async def test_autopilot_echo(calls: Calls) -> None:
    """PA-41: only with it, only on the queue route; given values are never changed."""
    await calls.push_texts("a", "b", "c")
    echo = (await calls.pop_answer(autopilot="true", batch=2, consumerGroup="g", subscriptionMode="all")).json()
    assert set(echo["autopilot"]) == {"partitions", "batch", "waitMs"}
    assert (len(echo["messages"]), echo["autopilot"]["batch"]) == (2, 2)
    assert "autopilot" not in (await calls.pop_answer("Default", autopilot="true")).json()


async def test_a_message_in_every_partition_name(calls: Calls) -> None:
    """PA-2: segments are split before they are decoded."""
    await calls.push_texts("a", partition="x/y")
    assert texts(await calls.pop("x/y")) == ["a"]
    assert (await calls.http.get(f"/api/v1/pop/queue/{calls.queue}/partition/x/y")).status == 404


@pytest.mark.parametrize("target", [
    "/api/v1/pop/queue/" + "q" * 412, "/api/v1/pop/queue/q/partition/" + "p" * 411,
    "/api/v1/pop/queue/q?consumerGroup=" + "g" * 411,
])
async def test_names_too_long(http: HttpClient, target: str) -> None:
    """pop-ack.md 10: 413 `name_too_long`."""
    answer = await http.get(target)
    assert (answer.status, answer.json()["code"]) == (413, "name_too_long")
