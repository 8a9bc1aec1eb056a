"""Health, metrics and status."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
import structlog
import trio

from queen_node.http.handlers.operations import (
    FAILED_SHOWN_MAX,
    ApplyFailure,
    Groups,
    Health,
    Operations,
    ReadyLimits,
    is_ready,
)
from queen_node.http.messages import Request, Response
from queen_node.http.routes import build_router
from queen_node.metrics import Metrics
from queen_node.observability import set_up_logging

READY = Health(
    role="leader", leader_known=True, leads_others=False, term=3, applied=41, commit=42, lag_ms=0, quorum_ack_ms=20,
    storage_ready=True, cluster_version=1, kinds=1, groups=Groups(hosted=2, leading=2, quiet=1, behind=0),
)
FAILURE = ApplyFailure("deterministic", 7, 3, "d1", "push", None, "refused by a test hook")
GET = Request("GET", b"/health")


class View:
    """A node in one condition."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def health(self) -> Health:
        return self._health


def operations(health: Health, metrics: Metrics | None = None) -> Operations:
    return Operations(View(health), metrics or Metrics(10.0), ReadyLimits(), "0.1.0", lambda: 12.5)


def but(**changes: Any) -> Health:
    return msgspec.structs.replace(READY, **changes)


def read(response: Response) -> Any:
    return json.loads(response.body)


async def test_a_healthy_node() -> None:
    """AD-5, AD-7, cluster.md 13."""
    response = await operations(READY).health(GET)
    assert (response.status, response.headers) == (200, ())
    assert read(response) == {
        "status": "healthy", "engine": "raft", "version": "0.1.0",
        "groups": {"hosted": 2, "leading": 2, "quiet": 1, "behind": 0, "failed": []},
        "raft": {
            "role": "leader", "leader": True, "term": 3, "applied": 41, "commit": 42, "lag": 0, "quorumAckMs": 20,
            "storageReady": True, "clusterVersion": 1, "kinds": 1, "apply": {"failure": None, "skipped": []},
        },
    }


@pytest.mark.parametrize(
    "health",
    [
        but(role="stopped"),
        but(role="candidate", leader_known=False),
        but(role="follower", lag_ms=2001),
        but(quorum_ack_ms=5001),
        but(quorum_ack_ms=None),
        but(storage_ready=False),
        but(failure=FAILURE),
        but(groups=Groups(hosted=2, leading=1, quiet=0, behind=1)),
        but(groups=Groups(hosted=2, leading=1, quiet=0, behind=0, failed=(5,))),
    ],
)
async def test_a_node_that_is_not_ready_says_the_same_with_503(health: Health) -> None:
    """AD-5, README 22; AD-33: with Retry-After."""
    response = await operations(health).health(GET)
    assert (response.status, response.headers) == (503, ((b"Retry-After", b"1"),))
    document = read(response)
    assert document["status"] == "settling"
    assert document["raft"].keys() == read(await operations(READY).health(GET))["raft"].keys()


@pytest.mark.parametrize("health", [but(lag_ms=2000), but(quorum_ack_ms=5000), but(role="follower")])
def test_the_bounds_themselves_are_ready(health: Health) -> None:
    assert is_ready(health, ReadyLimits())


def test_the_quorum_check_can_be_switched_off() -> None:
    """config.md 5: QUEEN_RAFT_READY_QUORUM_MS=0."""
    assert is_ready(but(quorum_ack_ms=None), ReadyLimits(quorum_ms=0))


async def test_what_failed_is_named_and_bounded() -> None:
    """AD-7, README 22."""
    groups = Groups(hosted=50, leading=0, quiet=0, behind=0, failed=tuple(range(50)))
    document = read(await operations(but(failure=FAILURE, skipped=("g1/7:d0",), groups=groups)).health(GET))
    assert document["groups"]["failed"] == list(range(FAILED_SHOWN_MAX))
    assert document["raft"]["apply"] == {
        "failure": {
            "class": "deterministic", "index": 7, "term": 3, "digest": "d1", "command": "push", "effect": None,
            "error": "refused by a test hook",
        },
        "skipped": ["g1/7:d0"],
    }


async def test_a_role_is_group_0s_and_marked_when_the_node_leads_others() -> None:
    """AD-7."""
    document = read(await operations(but(role="follower", leads_others=True)).health(GET))
    assert (document["raft"]["role"], document["raft"]["leader"]) == ("follower+leader", False)


async def test_the_json_metrics() -> None:
    """AD-10: keys as the published client reads them."""
    metrics = Metrics(10.0)
    metrics.push_messages, metrics.pop_messages = 4, 3
    document = read(await operations(READY, metrics).metrics(GET))
    assert document["uptime"] == 2.5
    assert document["requests"] == {"total": 0, "rate": 0.0}
    assert document["messages"] == {"total": 7, "rate": 0.0}
    assert document["database"] == {"poolSize": 0, "idleConnections": 0, "waitingRequests": 0}
    assert set(document["memory"]) == {"rss", "heapTotal", "heapUsed", "external", "arrayBuffers"}
    assert set(document["cpu"]) == {"user", "system"}
    assert document["raft"] == {"role": "leader", "leader": True, "term": 3, "applied": 41, "commit": 42, "lag": 0}


async def test_the_prometheus_text_and_its_headers() -> None:
    """AD-11."""
    response = await operations(READY).prometheus(GET)
    assert response.content_type == b"text/plain; version=0.0.4; charset=utf-8"
    assert response.headers == ((b"Cache-Control", b"no-cache"),)
    assert b"\nqueen_uptime_seconds 2.5\n" in response.body


async def test_a_scrape_lets_others_run_between_its_steps() -> None:
    """AD-8: it looks at all groups, and a node may have thousands."""
    metrics, passes, steps = Metrics(10.0), 0, 50
    metrics.before_scrape.append(lambda: iter([None] * steps))

    async def count_passes() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_passes)
        await operations(READY, metrics).prometheus(GET)
        nursery.cancel_scope.cancel()
    assert passes >= steps // 2, "all but the first few of the steps, whoever comes first in each pass"


async def test_status_says_that_the_loop_runs() -> None:
    """AD-6."""
    assert read(await operations(but(role="stopped")).handlers()["status"](GET)) == {"status": "ok", "engine": "raft"}


def test_all_handlers_have_their_rows() -> None:
    router = build_router(operations(READY).handlers())
    assert {route.pattern for route in router.routes} == {"/health", "/metrics", "/metrics/prometheus", "/status"}


def test_log_lines_are_json_from_their_level_on() -> None:
    """config.md 1: QUEEN_LOG_JSON, LOG_LEVEL, QUEEN_SERVER_ID."""
    stream = io.StringIO()
    try:
        set_up_logging("info", as_json=True, stream=stream, server_id="queen-7")
        log = structlog.get_logger()
        log.debug("not shown")
        try:
            raise ValueError("why")
        except ValueError as error:
            log.error("became leader", group=3, exc_info=error)
    finally:
        structlog.reset_defaults()
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["group"]) == ("became leader", "error", 3)
    assert event["timestamp"].endswith("Z")
    assert event["server"] == "queen-7"
    assert event["exception"][0]["exc_value"] == "why"


def test_log_lines_for_people() -> None:
    stream = io.StringIO()
    try:
        set_up_logging("warn", as_json=False, stream=stream, server_id="queen-7")
        log = structlog.get_logger()
        log.info("not shown")
        log.warning("reserved", variable="QUEEN_S3_KEY")
    finally:
        structlog.reset_defaults()
    (line,) = stream.getvalue().splitlines()
    assert "reserved" in line and "variable=QUEEN_S3_KEY" in line
    assert "server=queen-7" in line
