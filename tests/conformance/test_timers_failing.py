"""Fires that fail (timers.md TM-54, TM-55, W14): attempts, backoff, the dead letter, and what works in between.

The node of this file has the hook that makes fires into one queue fail, and backoffs short enough for a test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta

import pytest
import trio

from tests.conformance.calls import HOUR_MS, PATIENCE_S, POLL_S, Calls, b64, texts
from tests.conformance.conftest import running, watched
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess

FAILING = "failing"
ATTEMPTS_MAX = 3
BACKOFF_MS = 200


@pytest.fixture(scope="module")
def failing_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose fires into FAILING fail for good."""
    settings = {
        "QUEEN_TEST_FIRE_FAIL_QUEUE": FAILING, "QUEEN_SWEEPER_BACKOFF_MIN_MS": str(BACKOFF_MS),
        "QUEEN_SWEEPER_BACKOFF_MAX_MS": str(2 * BACKOFF_MS), "QUEEN_SWEEPER_MAX_ATTEMPTS": str(ATTEMPTS_MAX),
    }
    yield from running(NodeProcess(tmp_path_factory.mktemp("failing"), settings, hooks=True))


@pytest.fixture
async def failing(failing_node: NodeProcess) -> AsyncIterator[Calls]:
    """Calls on the failing queue."""
    for _ in watched(failing_node):
        async with HttpClient(failing_node.port) as http:
            yield Calls(http, FAILING)


async def wait_for_attempts(failing: Calls, key: str, count: int) -> dict[str, object]:
    """Until the timer has failed so often; what peek shows then."""
    with trio.fail_after(PATIENCE_S):
        while True:
            peeked = await failing.peek(key)
            assert peeked["found"], "gone before its time"
            if peeked["attempts"] >= count:
                return peeked
            await trio.sleep(POLL_S)


async def test_a_failed_fire_stays_pending(failing: Calls) -> None:
    """TM-54, TM-40: attempts and the reason in peek, `deliverAt` as it was, `updatedAt` moves; listed and counted."""
    scheduled = await failing.schedule("stays", delayMs=10)
    peeked = await wait_for_attempts(failing, "stays", 1)
    assert peeked["deliverAt"] == scheduled["deliverAt"]
    assert peeked["messageId"] == scheduled["messageId"]
    assert isinstance(peeked["lastError"], str)
    assert peeked["lastError"]
    assert peeked["claimed"] is False
    assert str(peeked["updatedAt"]) >= str(peeked["createdAt"])
    assert await failing.page("?mode=count&prefix=stays") == {"count": 1}
    assert (await failing.cancel("stays"))["status"] == "cancelled"  # TM-31: in backoff too


async def test_a_due_schedule_whose_fire_is_refused_is_stored(failing: Calls) -> None:
    """TM-21: the answer stays `scheduled`, that attempt is counted, and the timer is pending like any other."""
    assert (await failing.schedule("due", delayMs=0))["status"] == "scheduled"
    assert (await wait_for_attempts(failing, "due", 1))["found"]
    assert (await failing.cancel("due"))["status"] == "cancelled"


async def test_backoff_doubles_and_ends_in_a_dead_letter(failing: Calls) -> None:
    """TM-54, TM-55, G-M9: at least 1, then 2 backoffs apart; after the last attempt the timer is gone."""
    await failing.schedule("dies", delayMs=10)
    moments = []
    for attempt in range(1, ATTEMPTS_MAX):
        peeked = await wait_for_attempts(failing, "dies", attempt)
        moments.append(datetime.fromisoformat(str(peeked["updatedAt"])))
    assert moments[1] - moments[0] >= timedelta(milliseconds=BACKOFF_MS)
    await failing.wait_until_fired("dies")
    assert await failing.pop() == []
    letters = (await failing.http.get(f"/api/v1/dlq?queue={FAILING}&consumerGroup=__timer__")).json()
    (letter,) = [row for row in letters["messages"] if row["transactionId"] == "txn-dies"]
    assert (letter["queue"], letter["partition"], letter["consumerGroup"]) == (FAILING, "Default", "__timer__")
    assert (letter["offset"], letter["data"]) == (-1, {"key": "dies"})
    assert letter["errorMessage"]
    metrics = (await failing.http.get("/metrics/prometheus")).body.decode()
    counted = [line for line in metrics.splitlines() if line.startswith("queen_timers_dlq_total")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in counted) >= 1


async def test_rescheduling_in_backoff(failing: Calls) -> None:
    """TM-53: attempts 0, no error, another id; the backoff is forgotten."""
    await failing.schedule("again", delayMs=10)
    old = await wait_for_attempts(failing, "again", 1)
    new = await failing.schedule("again", delayMs=HOUR_MS)
    assert new["status"] == "rescheduled"
    peeked = await failing.peek("again")
    assert (peeked["attempts"], peeked["lastError"]) == (0, None)
    assert peeked["messageId"] != old["messageId"]
    assert peeked["createdAt"] == old["createdAt"]  # this key's first schedule since it was last absent
    await failing.cancel("again")


async def test_rescheduling_in_backoff_to_another_queue_is_another_timer(failing: Calls) -> None:
    """TM-1: the identity holds the queue; the neighbour fires at once."""
    await failing.schedule("both", delayMs=10)
    await wait_for_attempts(failing, "both", 1)
    await failing.schedule("both", delayMs=0, queue="neighbour-1", payload=b64("fine"))
    assert texts(await Calls(failing.http, "neighbour-1").pop()) == ["fine"]
    await failing.cancel("both")


async def test_it_never_holds_up_its_neighbours(failing: Calls) -> None:
    """TM-54, CL-76: 50 that fail and one that does not, due together."""
    answer = await failing.timers(
        *(failing.operation(f"bad{number}", delayMs=100) for number in range(50)),
        failing.operation("good", queue="neighbour-2", delayMs=100, payload=b64("good")),
    )
    assert answer.status == 200
    assert texts(await Calls(failing.http, "neighbour-2").pop_until(1)) == ["good"]
    for number in range(50):
        await failing.wait_until_fired(f"bad{number}")
