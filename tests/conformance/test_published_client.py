"""The published Python client `queen-mq` 2.6.0, unchanged, against a node: what its users do all day.

The client lives on asyncio; each test runs a loop of its own.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from datetime import timedelta
from typing import Any

import pytest
from queen import TimerError

from tests.conformance.calls import HOUR_MS
from tests.conformance.conftest import Run


def test_it_is_the_published_one() -> None:
    """README 11, issue 3: 2.6.0."""
    assert importlib.metadata.version("queen-mq") == "2.6.0"


def test_push_pop_ack(run: Run, queue: str) -> None:
    """create, push with all callbacks, pop one (autopilot off) and all, ack single and batch, nothing left."""
    async def scene(client: Any) -> None:
        created = await client.queue(queue).config({"lease_time": 30}).create()
        assert created["configured"]
        assert created["options"]["leaseTime"] == 30
        results = await client.queue(queue).push(
            [{"data": {"n": number}, "transactionId": f"t{number}"} for number in range(5)])
        assert [result["status"] for result in results] == ["queued"] * 5
        duplicates: list[Any] = []

        async def on_duplicate(items: list[Any], error: Exception) -> None:
            duplicates.extend(items)

        await client.queue(queue).push({"data": {"n": 0}, "transactionId": "t0"}).on_duplicate(on_duplicate)
        assert [item["transactionId"] for item in duplicates] == ["t0"]
        (first,) = await client.queue(queue).autopilot(False).wait(False).pop()
        assert first["data"] == {"n": 0}
        assert (await client.ack(first))["success"]
        rest = await client.queue(queue).batch(10).wait(False).pop()
        assert [message["data"]["n"] for message in rest] == [1, 2, 3, 4]
        assert (await client.ack(rest, True))["success"]
        assert await client.queue(queue).batch(10).wait(False).pop() == []

    run(scene)


def test_nack_redelivers_and_files(run: Run, queue: str) -> None:
    """nack three times; the fourth failure files the message under the default limit."""
    async def scene(client: Any) -> None:
        await client.queue(queue).create()
        await client.queue(queue).push({"data": 1})
        for attempt in range(1, 5):
            (message,) = await client.queue(queue).batch(1).wait(False).pop()
            assert message["deliveryAttempt"] == attempt
            answer = await client.ack(message, False, {"error": "no luck"})
            assert (answer["success"], answer["dlq"]) == (True, attempt == 4)
        assert await client.queue(queue).batch(1).wait(False).pop() == []
        letters = await client.queue(queue).dlq().get()
        assert [(letter["data"], letter["errorMessage"]) for letter in letters["messages"]] == [(1, "no luck")]

    run(scene)


def test_groups_and_partitions(run: Run, queue: str) -> None:
    """A group reads beside another; acks carry the group; a partition is popped by its name."""
    async def scene(client: Any) -> None:
        await client.queue(queue).partition("eu").push({"data": "e"})
        await client.queue(queue).partition("us").push({"data": "u"})
        for group in ("one", "two"):
            builder = client.queue(queue).group(group).subscription_mode("all").wait(False)
            messages = await builder.batch(10).partitions(4).pop()
            assert sorted(message["data"] for message in messages) == ["e", "u"]
            assert (await client.ack(messages, True, {"group": group}))["success"]
        (message,) = await client.queue(queue).partition("us").wait(False).batch(5).pop()
        assert message["data"] == "u"

    run(scene)


def test_a_long_poll_with_autopilot(run: Run, queue: str) -> None:
    """The client's default pop: wait, autopilot, no sizes; woken by a push."""
    async def scene(client: Any) -> None:
        waiting = asyncio.create_task(client.queue(queue).pop_result())
        await asyncio.sleep(0.1)
        await client.queue(queue).push({"data": "x"})
        result = await waiting
        assert [message["data"] for message in result.messages] == ["x"]
        assert result.autopilot is not None

    run(scene)


def test_commit_on_delivery(run: Run, queue: str) -> None:
    """At most once: nothing comes again."""
    async def scene(client: Any) -> None:
        await client.queue(queue).push([{"data": 1}, {"data": 2}])
        builder = client.queue(queue).commit_on_delivery().wait(False).batch(1)
        assert [message["data"] for message in await builder.pop()] == [1]
        assert [message["data"] for message in await builder.pop()] == [2]
        assert await builder.pop() == []

    run(scene)


@pytest.mark.parametrize("each", [True, False])
def test_consume(run: Run, queue: str, each: bool) -> None:
    """consume with a group, each and in batches, over partitions; all are acked, so a second consumer finds nothing."""
    async def scene(client: Any) -> None:
        for number in range(30):
            await client.queue(queue).partition(f"p{number % 3}").push({"data": number})
        seen: list[int] = []

        async def handle(found: Any) -> None:
            seen.extend(message["data"] for message in (found if isinstance(found, list) else [found]))

        consumer = client.queue(queue).group("workers").subscription_mode("all").batch(5).partitions(2)
        consumer = consumer.limit(30).timeout_millis(2000).concurrency(1)
        await (consumer.each() if each else consumer).consume(handle)
        assert sorted(seen) == list(range(30))
        for partition in range(3):
            assert [n for n in seen if n % 3 == partition] == list(range(partition, 30, 3))
        assert await client.queue(queue).group("workers").batch(10).partitions(9).wait(False).pop() == []

    run(scene)


def test_consume_with_a_failing_handler(run: Run, queue: str) -> None:
    """each: the failure is nacked and comes again; nothing behind it overtakes in its partition."""
    async def scene(client: Any) -> None:
        await client.queue(queue).push([{"data": number} for number in range(3)])
        seen: list[int] = []

        async def handle(message: Any) -> None:
            seen.append(message["data"])
            if message["data"] == 1 and seen.count(1) == 1:
                raise ValueError("once")

        await client.queue(queue).batch(3).limit(4).each().timeout_millis(2000).consume(handle)
        assert seen == [0, 1, 1, 2]

    run(scene)


def test_consume_renews_its_lease(run: Run, queue: str) -> None:
    """A handler that takes longer than the lease keeps its message (renew_lease, PA-37 without a body)."""
    async def scene(client: Any) -> None:
        await client.queue(queue).config({"lease_time": 1}).create()
        await client.queue(queue).push({"data": "slow"})
        stolen: list[Any] = []

        async def handle(message: Any) -> None:
            for _ in range(8):
                await asyncio.sleep(0.2)
                stolen.extend(await client.queue(queue).batch(1).wait(False).pop())

        await client.queue(queue).batch(1).limit(1).renew_lease(True, 200).timeout_millis(2000).consume(handle)
        assert stolen == []
        assert await client.queue(queue).batch(1).wait(False).pop() == []  # its ack was good

    run(scene)


def test_renew(run: Run, queue: str) -> None:
    """One call a lease; a lease that is gone is told apart."""
    async def scene(client: Any) -> None:
        await client.queue(queue).push([{"data": 1}, {"data": 2}])
        messages = await client.queue(queue).batch(2).wait(False).pop()
        (renewed,) = await client.renew(messages)
        assert renewed["success"]
        assert renewed["newExpiresAt"]
        await client.ack(messages)
        assert (await client.renew(messages[0]))["success"] is False

    run(scene)


def test_buffered_push(run: Run, queue: str) -> None:
    """A buffer of the client's flushes by number and by hand; everything arrives once, in order."""
    async def scene(client: Any) -> None:
        builder = client.queue(queue).buffer({"message_count": 10, "time_millis": 60_000})
        for number in range(25):
            assert (await builder.push({"data": number}))["buffered"]
        await client.queue(queue).flush_buffer()
        messages = await client.queue(queue).batch(100).wait(False).pop()
        assert [message["data"] for message in messages] == list(range(25))

    run(scene)


def test_timers(run: Run, queue: str) -> None:
    """schedule, reschedule, peek, list, cancel, by method and by builder."""
    async def scene(client: Any) -> None:
        scheduled = await client.timers.schedule(queue, "order/9137", {"orderId": 9137}, delay_ms=HOUR_MS)
        assert (bool(scheduled), scheduled["status"]) == (True, "scheduled")
        again = await client.timers.reschedule(
            queue, "order/9137", {"orderId": 9137}, delay=timedelta(hours=2), txn="t2", partition="p")
        assert (again["status"], again["txn"]) == ("rescheduled", "t2")
        assert again["deliverAt"] > scheduled["deliverAt"]
        peeked = await client.timers.peek(queue, "order/9137")
        assert (bool(peeked), peeked["partition"], peeked["messageId"]) == (True, "p", again["messageId"])
        for number in range(5):
            await client.timer(queue).key(f"k{number}").payload(number).after_ms(HOUR_MS).schedule()
        rows = await client.timers.list_all(queue, limit=2)
        assert [row["timerKey"] for row in rows] == ["k0", "k1", "k2", "k3", "k4", "order/9137"]
        assert (await client.timers.list(queue, after="k3", limit=1))["nextAfter"] == "k4"
        cancelled = await client.timers.cancel(queue, "order/9137")
        assert (bool(cancelled), cancelled["txn"]) == (True, "t2")
        absent = await client.timers.cancel(queue, "order/9137", txn="t2")
        assert (bool(absent), absent["status"], absent["txn"]) == (False, "absent", "t2")
        assert not await client.timers.peek(queue, "order/9137")

    run(scene)


def test_a_timer_is_consumed(run: Run, queue: str) -> None:
    """From the schedule to the handler that waited before."""
    async def scene(client: Any) -> None:
        seen: list[Any] = []

        async def handle(messages: Any) -> None:
            seen.extend(messages if isinstance(messages, list) else [messages])

        async def consume() -> None:
            await client.queue(queue).limit(1).timeout_millis(10_000).consume(handle)

        waiting = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        result = await client.timer(queue).key("k").payload({"type": "hold-expired"}).after_ms(200).schedule()
        await waiting
        assert [(message["id"], message["data"]) for message in seen] == [
            (result["messageId"], {"type": "hold-expired"})]

    run(scene)


def test_a_batch_of_timers(run: Run, queue: str) -> None:
    """Results by index; a mixed batch; a refusal has its code and reason, and is no retry."""
    async def scene(client: Any) -> None:
        op = client.timers.op
        results = await client.timers.batch([
            *(op.schedule(queue, f"k{number}", number, delay_ms=HOUR_MS) for number in range(3)),
            op.cancel(queue, "nothing", txn="x"),
        ])
        assert [result["status"] for result in results] == ["scheduled"] * 3 + ["absent"]
        with pytest.raises(TimerError) as refused:
            await client.timers.schedule(queue, "far", 1, delay_ms=100 * 24 * HOUR_MS)
        assert (refused.value.status, refused.value.code, refused.value.reason) == (
            403, "timer_horizon_exceeded", "timers_horizon")

    run(scene)


def test_a_transaction(run: Run, queue: str) -> None:
    """ack, push and timers whole; a repeat raises with "rolled back" and does nothing (TX-50, TX-51, TX-62)."""
    async def scene(client: Any) -> None:
        await client.queue(queue).push([{"data": number, "transactionId": f"in-{number}"} for number in range(2)])
        messages = await client.queue(queue).batch(10).group("g").subscription_mode("all").pop()

        def step() -> Any:
            transaction = client.transaction().ack(messages, context={"consumer_group": "g"})
            transaction = transaction.queue(queue).partition("out").push(
                [{"data": {"n": 1}, "transactionId": "out-1"}, {"data": None}])
            return transaction.timer(queue).key("k").payload({"late": True}).after_ms(HOUR_MS).txn("t").schedule()

        done = await step().commit()
        assert bool(done)
        assert [result["type"] for result in done["results"]] == ["ack", "ack", "push", "push", "timer"]
        assert (await client.timers.peek(queue, "k"))["messageId"] == done["results"][4]["messageId"]
        with pytest.raises(Exception, match="rolled back"):
            await step().commit()
        out = await client.queue(queue).partition("out").batch(10).group("g").subscription_mode("all").pop()
        assert [message["data"] for message in out] == [{"n": 1}, None]
        cancelled = await client.transaction().timer(queue).key("k").cancel().commit()
        assert cancelled["results"][0]["status"] == "cancelled"

    run(scene)


def test_a_transaction_with_state(run: Run, queue: str) -> None:
    """put, incr, check and the gate `once`: a lost gate is returned and not raised (TX-50, TX-52)."""
    async def scene(client: Any) -> None:
        def step() -> Any:
            transaction = client.transaction().once("done", queue, ttl_seconds=60)
            transaction = transaction.kv.put("orders", queue, {"status": "paid"}, forever=True)
            transaction = transaction.kv.incr("orders", f"{queue}/count", delta=1, forever=True)
            return transaction.queue(queue).push({"data": "receipt"})

        done = await step().commit()
        assert [result["type"] for result in done["results"]] == ["push", "kv", "kv", "kv"]
        assert done["results"][3]["value"] == 1
        lost = await step().commit()
        assert (bool(lost), lost["reason"], lost["failedIndex"], lost["kvReason"]) == (
            False, "kv_precondition", 1, "exists")
        read = await client.transaction().kv.get_many("orders", [queue, f"{queue}/count"]).commit()
        assert [row["value"] for row in read["results"][0]["rows"]] == [{"status": "paid"}, 1]
        assert [message["data"] for message in await client.queue(queue).batch(10).pop()] == ["receipt"]

    run(scene)


def test_transactions_that_are_refused(run: Run, queue: str) -> None:
    """A stored id raises; `ack(message, False)` fails the message; one without its group is refused (2.2, TX-35)."""
    async def scene(client: Any) -> None:
        await client.queue(queue).push([{"data": 1, "transactionId": "stored"}])
        (message,) = await client.queue(queue).batch(1).group("g").subscription_mode("all").pop()
        with pytest.raises(Exception, match=r"QDUP.*rolled back"):
            await client.transaction().queue(queue).push([{"data": 2, "transactionId": "stored"}]).commit()
        with pytest.raises(Exception, match=r"QTXN.*rolled back"):
            await client.transaction().ack(message).commit()
        with pytest.raises(Exception, match="delayMs"):
            await client.transaction().timer(queue).key("k").payload(1).after_ms(100 * 24 * HOUR_MS).schedule().commit()
        assert await client.transaction().ack(message, False, context={"consumer_group": "g"}).commit()
        (again,) = await client.queue(queue).batch(1).group("g").pop()
        assert again["deliveryAttempt"] == 2

    run(scene)


def test_health_and_metrics(run: Run) -> None:
    """admin.md 1: the two calls of the admin module that this release has, and `None` for neither."""
    async def scene(client: Any) -> None:
        assert (await client.admin.health())["status"] == "healthy"
        assert (await client.admin.metrics())["raft"]["leader"] is True

    run(scene)
