"""The fire (timers.md 5): the message, its order, the dedup, and who is woken."""

from __future__ import annotations

from datetime import datetime

import trio

from tests.conformance.calls import HOUR_MS, PATIENCE_S, Calls, b64, texts
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess


async def test_the_message(calls: Calls) -> None:
    """TM-52, G-M2, G-M8: id, txn, payload, partition as promised; nothing marks it as a timer's."""
    result = await calls.schedule("k", delayMs=60, partition="p1", payload=b64({"orderId": 9137}))
    (message,) = await calls.pop_until(1)
    assert datetime.fromisoformat(message["createdAt"]) >= datetime.fromisoformat(result["deliverAt"])
    for changing in ("createdAt", "partitionId", "leaseId"):
        message.pop(changing)
    assert message == {
        "id": result["messageId"], "transactionId": "txn-k", "traceId": None, "data": {"orderId": 9137},
        "producerSub": None, "queue": calls.queue, "partition": "p1", "consumerGroup": "__QUEUE_MODE__",
        "deliveryAttempt": 1, "offset": 0,
    }
    assert await calls.peek("k") == {"found": False}


async def test_a_parked_pop_gets_the_fire(calls: Calls, node: NodeProcess) -> None:
    """TM-51, TM-57, PA-21: a pop parked before the due time is answered by it, also on a queue that did not exist."""
    async with HttpClient(node.port) as other, trio.open_nursery() as nursery:
        got: list[str] = []

        async def park() -> None:
            got.extend(texts(await Calls(other, calls.queue).pop(wait="true", timeout=15000)))

        nursery.start_soon(park)
        await calls.schedule("k", delayMs=250, payload=b64("fired"))
    assert got == ["fired"]


async def test_a_due_schedule_serves_a_parked_pop(calls: Calls, node: NodeProcess) -> None:
    """timers.md 11: TM-21 with a parked pop."""
    async with HttpClient(node.port) as other, trio.open_nursery() as nursery:
        got: list[str] = []

        async def park() -> None:
            got.extend(texts(await Calls(other, calls.queue).pop(wait="true", timeout=15000)))

        nursery.start_soon(park)
        await trio.sleep(0.1)  # likely parked by then; the other order must pass as well
        await calls.schedule("k", delayMs=0, payload=b64("due"))
    assert got == ["due"]


async def test_order_is_by_deadline_then_by_scheduling(calls: Calls) -> None:
    """TM-50, README 10: inside a partition, whatever the order of the keys and of the calls."""
    delays = {"d": 400, "a": 300, "c": 200, "b": 300, "e": 200}
    answer = await calls.timers(*(
        calls.operation(key, delayMs=delay, payload=b64(key)) for key, delay in delays.items()))
    assert answer.status == 200
    assert texts(await calls.pop_until(5)) == ["c", "e", "a", "b", "d"]


async def test_a_stored_txn_appends_nothing(calls: Calls) -> None:
    """TM-51, G-M7: pushed before, or fired before; the timer is done, its messageId appears nowhere."""
    await calls.push_texts("same")
    await calls.schedule("pushed", txn="same", delayMs=0)
    await calls.schedule("fired-1", txn="twice", delayMs=50, payload=b64("one"))
    await calls.schedule("fired-2", txn="twice", delayMs=100, payload=b64("two"))
    for key in ("pushed", "fired-1", "fired-2"):
        await calls.wait_until_fired(key)
    assert texts(await calls.pop(batch=10)) == ["same", "one"]


async def test_a_push_of_a_fired_txn_is_a_duplicate(calls: Calls) -> None:
    """TM-51, PU-50: the same dedup from the other side; another partition remembers nothing."""
    result = await calls.schedule("k", txn="t", delayMs=0)
    same, other = await calls.push(
        calls.item(1, transactionId="t"), calls.item(1, transactionId="t", partition="elsewhere"))
    assert (same["status"], same["message_id"], same["offset"]) == ("duplicate", result["messageId"], 0)
    assert other["status"] == "queued"


async def test_scheduling_twice_leaves_one_timer(calls: Calls) -> None:
    """TM-18: the same body again."""
    operation = calls.operation("k", delayMs=150)
    for expected in ("scheduled", "rescheduled"):
        assert (await calls.timers(operation)).json()["results"][0]["status"] == expected
    assert len(await calls.pop_until(1)) == 1
    await calls.timers(operation)  # fired meanwhile: a new timer, whose fire appends nothing
    await calls.wait_until_fired()
    assert await calls.pop() == []


async def test_rescheduling(calls: Calls) -> None:
    """TM-53: to an earlier and a later time, to another partition; the old version never fires."""
    await calls.schedule("earlier", delayMs=HOUR_MS, txn="e1", payload=b64("e1"))
    await calls.schedule("earlier", delayMs=50, txn="e2", payload=b64("e2"), partition="new")
    await calls.schedule("later", delayMs=100, txn="l1", payload=b64("l1"))
    await calls.schedule("later", delayMs=300, txn="l2", payload=b64("l2"))
    messages = await calls.pop_until(2)
    assert {message["data"]: message["partition"] for message in messages} == {"e2": "new", "l2": "Default"}
    assert await calls.pop() == []


async def test_a_fire_creates_its_queue(calls: Calls) -> None:
    """TM-51, PU-30: with a push's defaults, lease 60 s."""
    await calls.schedule("k", delayMs=0)
    assert (await calls.configure())["options"]["leaseTime"] == 60


async def test_delayed_processing_holds_a_fired_message(calls: Calls) -> None:
    """TM-51, PA-14: invisible until createdAt + D."""
    await calls.configure(delayedProcessing=1)
    await calls.schedule("k", delayMs=0)
    assert await calls.pop() == []
    with trio.fail_after(PATIENCE_S):
        assert len(await calls.pop(wait="true", timeout=10000)) == 1


async def test_timers_of_several_partitions_and_queues(calls: Calls) -> None:
    """TM-1, TM-51: same keys, same time, each to its place."""
    other = f"{calls.queue}.other"
    answer = await calls.timers(*(
        calls.operation("k", queue=queue, partition=partition, txn=f"{queue}/{partition}", delayMs=80)
        for queue, partition in ((calls.queue, "p1"), (other, "p2"))
    ))
    assert answer.status == 200
    (first,) = await calls.pop_until(1)
    (second,) = await Calls(calls.http, other).pop_until(1)
    assert (first["transactionId"], first["partition"]) == (f"{calls.queue}/p1", "p1")
    assert (second["transactionId"], second["partition"]) == (f"{other}/p2", "p2")
