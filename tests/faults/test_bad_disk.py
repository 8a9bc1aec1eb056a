"""A disk that fails under the log: the node stops its work, stays up to say so, and loses nothing (CL-126, README 22).

Without root a disk is made to fail by a limit on the size of files, put upon the running writer process: every write
at or beyond the limit is EFBIG.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable
from os import kill
from random import Random

import pytest
import trio

from tests.conformance.calls import HOUR_MS, PATIENCE_S, POLL_S, Calls, b64
from tests.faults.campaign import Campaign
from tests.faults.load import TIMER_QUEUE, Shape, now_ns
from tests.support.figures import at_least, metric, wait_for_metric
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess, files_under, is_error_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit(2) and /proc are Linux's")

SHAPE = Shape(clients=4, delay_ms_max=800, lease_s_max=1)
SEGMENT_BYTES = 128 * 1024
STORE_FILE_BYTES_MAX = 1 << 20  # of the node's own files: its log lines are shorter, a flush of the store is not
STORE_PUSHES_MAX = 100  # of 400 kB: a durable point comes after 16 MiB
SAID = "the log cannot be written"


def nothing_more(node: NodeProcess) -> None:
    """Every write fails."""
    _limit_files(node, 0)


def not_beyond_here(node: NodeProcess) -> None:
    """The write that crosses the limit is torn: its first bytes arrive, the rest does not."""
    newest = files_under(node.data, ("segment-*.log",))[-1]
    _limit_files(node, len(newest.read_bytes().rstrip(b"\0")) + 700)


def no_new_segment(node: NodeProcess) -> None:
    """The room that the next segment wants in advance is refused, after the batch before it was acknowledged."""
    _limit_files(node, SEGMENT_BYTES + 512)


def no_writer(node: NodeProcess) -> None:
    """The writer process is gone."""
    kill(node.log_writer_id(), signal.SIGKILL)


@pytest.mark.parametrize("fault", [nothing_more, not_beyond_here, no_new_segment, no_writer])
async def test_the_log_fails_under_load(
    fault: Callable[[NodeProcess], None], node: NodeProcess, seed: int, again: str
) -> None:
    """CL-126, G-D1: stopped, up, every call refused; after a restart on a good disk all that was acknowledged is there.
    """
    node.settings["QUEEN_RAFT_SEGMENT_BYTES"] = str(SEGMENT_BYTES)
    node.announced.append(SAID)
    campaign = Campaign(node, seed, SHAPE, again=again)
    await campaign.begin()
    async with campaign.load():
        await campaign.world.wait_for_calls(campaign.dice.randint(50, 200))
        fault(node)
        await _wait_until_stopped(node)
        campaign.history.outages.append((now_ns(), now_ns()))
    await _must_refuse_everything(node)
    await _must_stay_up_with_timers_due(node)
    assert len([line for line in node.log_lines() if is_error_line(line)]) == 1, node.log_tail()
    if campaign.dice.random() < 0.5:
        assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    else:
        await trio.to_thread.run_sync(node.kill)
    await campaign.restart()
    async with campaign.load():
        await campaign.world.wait_for_calls(100)
    await campaign.finish()


async def test_calls_under_way_when_the_log_fails(node: NodeProcess) -> None:
    """CL-126: those that wait for the failed write and those behind them are answered, as are pops that are parked."""
    node.announced.append(SAID)
    await trio.to_thread.run_sync(node.start, {"QUEEN_TEST_FSYNC_DELAY_MS": "400"})
    statuses: list[int] = []

    async def say(method: str, target: str, body: object = None) -> None:
        async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
            answer = await http.request(method, target, body)  # type: ignore[arg-type]
            statuses.append(answer.status)

    async with HttpClient(node.port) as http, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(say, "GET", "/api/v1/pop/queue/q?wait=true&timeout=60000")
        await wait_for_metric(http, "queen_parked_long_polls", at_least(3))
        _limit_files(node, 0)
        for number in range(5):
            item = {"queue": "other", "transactionId": str(number), "payload": number}
            nursery.start_soon(say, "POST", "/api/v1/push", {"items": [item]})
    assert statuses == [503] * 8
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        assert (await http.get("/api/v1/pop/queue/other?subscriptionMode=all")).status == 204
    node.check_log()


async def test_the_store_cannot_be_flushed(node: NodeProcess, seed: int) -> None:
    """M-6, CL-126: the node's own files hit the limit at the first durable point; the log has what the store has not.
    """
    node.announced += ["the store cannot be flushed", "the store cannot be written"]
    dice = Random(seed)
    await trio.to_thread.run_sync(node.start)
    resource.prlimit(node.process_id, resource.RLIMIT_FSIZE, (STORE_FILE_BYTES_MAX, resource.RLIM_INFINITY))
    acknowledged: list[str] = []
    async with HttpClient(node.port) as http:
        calls = Calls(http, TIMER_QUEUE)
        for number in range(STORE_PUSHES_MAX):
            item = calls.item(dice.randbytes(200_000).hex(), transactionId=f"txn-{number}")
            answer = await http.post("/api/v1/push", {"items": [item]})
            if answer.status != 201:
                assert answer.status == 503, answer
                break
            acknowledged.append(f"txn-{number}")
    assert len(acknowledged) < STORE_PUSHES_MAX, "the store was flushed all the same"
    await _wait_until_stopped(node)
    await _must_refuse_everything(node)
    errors = [line for line in node.log_lines() if is_error_line(line)]
    assert 1 <= len(errors) <= 2, "one of the flush, and one when an entry met the same disk before"
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    await trio.to_thread.run_sync(node.start)
    found: list[str] = []
    async with HttpClient(node.port) as http:
        calls = Calls(http, TIMER_QUEUE)
        while messages := await calls.pop(subscriptionMode="all", commitOnDelivery="true", batch=1000):
            found += [message["transactionId"] for message in messages]
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1, "more than the one whose fate nobody was told"
    node.check_log()


def _limit_files(node: NodeProcess, size_bytes: int) -> None:
    writer = node.log_writer_id()
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


async def _wait_until_stopped(node: NodeProcess) -> None:
    async with HttpClient(node.port) as http:
        with trio.fail_after(PATIENCE_S):
            while True:
                if (await http.get("/health")).json()["raft"]["role"] == "stopped":
                    return
                await trio.sleep(POLL_S)


async def _must_refuse_everything(node: NodeProcess) -> None:
    """CL-126, AD-8: health and figures are answered, every call is refused as AD-33 says."""
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        health = await http.get("/health")
        assert (health.status, health.json()["raft"]["role"]) == (503, "stopped")
        assert health.json()["status"] == "settling"
        assert int(health.headers["retry-after"]) >= 1
        for path in ("/metrics", "/metrics/prometheus", "/status"):
            assert (await http.get(path)).status == 200, path
        calls = Calls(http, TIMER_QUEUE)
        message = {"transactionId": "x", "partitionId": "1"}
        for method, target, body in (
            ("POST", "/api/v1/timers", {"operations": [calls.operation("late")]}),
            ("DELETE", f"/api/v1/timers/{TIMER_QUEUE}/late", None),
            ("GET", f"/api/v1/timers/{TIMER_QUEUE}/late", None),
            ("GET", f"/api/v1/timers/{TIMER_QUEUE}", None),
            ("POST", "/api/v1/push", {"items": [calls.item("late", transactionId="late")]}),
            ("GET", f"/api/v1/pop/queue/{TIMER_QUEUE}", None),
            ("GET", f"/api/v1/pop/queue/{TIMER_QUEUE}?wait=true&timeout=60000", None),
            ("POST", "/api/v1/ack", message),
            ("POST", "/api/v1/ack/batch", {"acknowledgments": [message]}),
            ("POST", "/api/v1/lease/0199a7c2-61f1-7d55-b0e2-8b3f0a2d4e71/extend", {"seconds": 5}),
            ("POST", "/api/v1/configure", {"queue": "late", "options": {}}),
        ):
            answer = await http.request(method, target, body)
            assert answer.status == 503, (method, target, answer)
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]


async def _must_stay_up_with_timers_due(node: NodeProcess) -> None:
    """Deadlines that pass while the node is stopped propose nothing: the wheel turned on, and the process is there."""
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        if await metric(http, "queen_timers_pending"):
            await wait_for_metric(http, "queen_timers_due", at_least(1))
    assert node.is_running()
    assert await trio.to_thread.run_sync(node.health_status) == 503


async def test_a_timer_that_comes_due_on_a_stopped_node(node: NodeProcess) -> None:
    """CL-126, G-M4: it does not end the process, and fires after the restart. The log fails at a mark of its own, so no
    entry that waits to be written holds the group back from proposing.
    """
    node.announced.append(SAID)
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        calls = Calls(http, "q")
        await calls.schedule("soon", delayMs=700, payload=b64("kept"))
        _limit_files(node, 0)
        await _wait_until_stopped(node)
        refused = await calls.timers(calls.operation("never", delayMs=HOUR_MS))
        assert (refused.status, refused.json()["error"]) == (503, "timers_unavailable")
        await wait_for_metric(http, "queen_timers_due", at_least(1))
        turns = await metric(http, "queen_timers_tick_late_seconds_count")
        await wait_for_metric(http, "queen_timers_tick_late_seconds_count", at_least(turns + 3))
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        calls = Calls(http, "q")
        (message,) = await calls.pop_until(1)
        assert message["data"] == "kept"
        assert not (await calls.peek("never"))["found"]
    node.check_log()
