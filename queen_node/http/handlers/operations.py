"""Health, metrics and status: what an operator, a load balancer and Prometheus ask.

These touch no group and wait for nothing, so that a node that is overloaded, full or stopped still answers (AD-8).
Contract: admin.md 2 and 3, cluster.md 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import trio

from queen_node.http.messages import JSON, Request, Response, json_response
from queen_node.http.routes import Handler
from queen_node.metrics import Exposition, Metrics
from queen_node.processes import usage

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
FAILED_SHOWN_MAX = 16


class ApplyFailure(msgspec.Struct, frozen=True, rename={"class_": "class"}):
    """The entry that stopped a group. class_: `deterministic` or `node-local`."""

    class_: str
    index: int
    term: int
    digest: str
    command: str
    effect: str | None
    error: str


class Groups(msgspec.Struct, frozen=True):
    """Counts of the groups on this node; `failed` by id (AD-7). `behind`: not caught up, so not ready."""

    hosted: int
    leading: int
    quiet: int
    behind: int
    failed: tuple[int, ...] = ()


class Health(msgspec.Struct, frozen=True):
    """A node's condition at one moment; log numbers are group 0's (AD-7).

    role: leader, follower, learner, candidate, stopped. leader_known: or one was just now, and calls are held until
    the next is elected. lag_ms: 0 on a leader and a single node. quorum_ack_ms: for how long the leader, or the
    last one, has missed its majority; None: this node never knew of one. storage_ready: the store is open and replay
    reached the tail of the log.
    """

    role: str
    leader_known: bool
    leads_others: bool
    term: int
    applied: int
    commit: int
    lag_ms: int
    quorum_ack_ms: int | None
    storage_ready: bool
    cluster_version: int
    kinds: int
    groups: Groups
    failure: ApplyFailure | None = None
    skipped: tuple[str, ...] = ()


class HealthView(Protocol):
    """Where the handlers learn of the node's condition. Must answer at once, whatever the node goes through."""

    def health(self) -> Health: ...


class ReadyLimits(msgspec.Struct, frozen=True):
    """Beyond these a node is not ready. quorum_ms 0: not checked."""

    lag_ms: int = 2000
    quorum_ms: int = 5000


def is_ready(health: Health, limits: ReadyLimits) -> bool:
    """Whether clients should be sent to this node (cluster.md 13, AD-7)."""
    heard = health.quorum_ack_ms is not None and health.quorum_ack_ms <= limits.quorum_ms
    return (
        health.role != "stopped"
        and health.leader_known
        and health.lag_ms <= limits.lag_ms
        and (heard or limits.quorum_ms == 0)
        and health.storage_ready
        and health.failure is None
        and not health.groups.failed
        and health.groups.behind == 0
    )


class Operations:
    """Handlers of the rows health, metrics, prometheus and status."""

    def __init__(
        self,
        view: HealthView,
        metrics: Metrics,
        limits: ReadyLimits,
        version: str,
        monotonic_s: Callable[[], float] = trio.current_time,
    ) -> None:
        self._view, self._metrics, self._limits, self._version = view, metrics, limits, version
        self._monotonic_s = monotonic_s
        self._exposition = Exposition(metrics, monotonic_s)

    def handlers(self) -> Mapping[str, Handler]:
        """By the names of the routes' table."""
        return {
            "health": self.health,
            "metrics": self.metrics,
            "prometheus": self.prometheus,
            "status": status,
        }

    async def health(self, request: Request) -> Response:
        """200 `healthy` or 503 `settling`, with one and the same body (AD-5)."""
        health = self._view.health()
        ready = is_ready(health, self._limits)
        document = {
            "status": "healthy" if ready else "settling",
            "engine": "raft",
            "version": self._version,
            "groups": {
                "hosted": health.groups.hosted,
                "leading": health.groups.leading,
                "quiet": health.groups.quiet,
                "behind": health.groups.behind,
                "failed": health.groups.failed[:FAILED_SHOWN_MAX],
            },
            "raft": {
                **_raft_shown(health),
                "quorumAckMs": health.quorum_ack_ms,
                "storageReady": health.storage_ready,
                "clusterVersion": health.cluster_version,
                "kinds": health.kinds,
                "apply": {"failure": health.failure, "skipped": health.skipped},
            },
        }
        return json_response(200, document) if ready else json_response(503, document, RETRY_IN_1_S)

    async def metrics(self, request: Request) -> Response:
        """The JSON document that the published client reads (AD-10). rss in bytes, cpu in seconds since the start, of
        all processes of the node."""
        metrics, health = self._metrics, self._view.health()
        requests_per_s, messages_per_s = metrics.rates()
        used = usage()
        document = {
            "uptime": round(self._monotonic_s() - metrics.started_s, 3),
            "requests": {"total": metrics.requests_total, "rate": requests_per_s},
            "messages": {"total": metrics.messages_total, "rate": messages_per_s},
            "database": {"poolSize": 0, "idleConnections": 0, "waitingRequests": 0},
            "memory": {"rss": used.resident_bytes, "heapTotal": 0, "heapUsed": 0, "external": 0, "arrayBuffers": 0},
            "cpu": {"user": used.user_s, "system": used.system_s},
            "raft": _raft_shown(health),
        }
        return json_response(200, document)

    async def prometheus(self, request: Request) -> Response:
        """Prometheus' text form (AD-11)."""
        for _ in self._exposition.refresh():
            await trio.lowlevel.checkpoint()
        return Response(200, self._exposition.text(), PROMETHEUS, _NO_CACHE)


async def status(request: Request) -> Response:
    """That the loop runs; touches no state (AD-6)."""
    return _STATUS


def _raft_shown(health: Health) -> dict[str, object]:
    """Where group 0 stands, in the words that both documents use. lag in ms."""
    return {
        "role": _role_shown(health),
        "leader": health.role == "leader",
        "term": health.term,
        "applied": health.applied,
        "commit": health.commit,
        "lag": health.lag_ms,
    }


def _role_shown(health: Health) -> str:
    """Group 0's role, marked when the node leads other groups (AD-7)."""
    return f"{health.role}+leader" if health.leads_others and health.role != "leader" else health.role


RETRY_IN_1_S = ((b"Retry-After", b"1"),)
_NO_CACHE = ((b"Cache-Control", b"no-cache"),)
_STATUS = Response(200, b'{"status":"ok","engine":"raft"}', JSON)
