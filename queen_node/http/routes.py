"""The one table of routes, and the walk that finds a request's row in it.

Patterns: "/api/v1/timers/:queue/*key". A `:name` captures one segment, never an empty one; a `*name` captures all that
follows, slashes included, never nothing ("/timers/q/" is no route, TM-3). A fixed segment wins over `:name`, and
that over `*name` (AD-21). Captured parts stay raw bytes: they are split first and decoded later, once (PA-2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from queen_node.errors import BAD_TENANT_TEXT, NO_SUCH_ROUTE, RESERVED_TENANT
from queen_node.http.messages import Request, Response, json_response, refusal_response
from queen_node.metrics import Histogram, latency_histogram
from queen_node.tenants import HEADER, RESERVED, BadTenant, tenant_of
from raft.invariants import must

Handler = Callable[[Request], Awaitable[Response]]

# Runs when the head is complete, before any wait for the body: a Response refuses the call and the body stays unread. A
# hook that has to wait (the hold of an admission) returns an awaitable.
BeforeBody = Callable[[Request], "Response | Awaitable[Response | None] | None"]

DEPTH_MAX = 12  # segments of a pattern; bounds the walk whatever a client sends


class Level(Enum):
    """What a caller must be allowed to do (tenancy-auth 4). HEAD needs the level of GET."""

    PUBLIC = "public"
    READ_ONLY = "read-only"
    WRITE_ONLY = "write-only"
    READ_WRITE = "read-write"
    ADMIN = "admin"


@dataclass(slots=True)
class Route:
    """One row of the table, and how often and how slowly it answered.

    answers: count of its answers by status. seconds: from the first look at the request to its answer, waits included.
    """

    method: str
    pattern: str
    level: Level
    handler: Handler
    before_body: BeforeBody | None = None
    answers: dict[int, int] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=latency_histogram)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. name: under which its handler, and its hook if it has one, is handed to `build_router`."""

    method: str
    pattern: str
    level: Level
    name: str


TABLE = (
    Row("GET", "/health", Level.PUBLIC, "health"),
    Row("GET", "/metrics", Level.PUBLIC, "metrics"),
    Row("GET", "/metrics/prometheus", Level.PUBLIC, "prometheus"),
    Row("GET", "/status", Level.READ_ONLY, "status"),
    # --- the cell's members (cluster.md 10, AD-16)
    Row("GET", "/api/v1/raft/status", Level.ADMIN, "raft_status"),
    Row("GET", "/api/v1/raft/members", Level.ADMIN, "raft_members"),
    Row("GET", "/api/v1/raft/liveness", Level.READ_ONLY, "raft_liveness"),
    Row("GET", "/api/v1/system/raft/membership", Level.ADMIN, "membership"),
    Row("POST", "/api/v1/system/raft/membership/learners", Level.ADMIN, "membership_learners"),
    Row("POST", "/api/v1/system/raft/membership/promote", Level.ADMIN, "membership_promote"),
    Row("PUT", "/api/v1/system/raft/membership/voters", Level.ADMIN, "membership_voters"),
    Row("DELETE", "/api/v1/system/raft/membership/members/:id", Level.ADMIN, "membership_remove"),
    Row("POST", "/api/v1/system/raft/transfer", Level.ADMIN, "raft_transfer"),
    # --- timers
    Row("POST", "/api/v1/timers", Level.WRITE_ONLY, "timers_batch"),  # a cancel in the body needs READ_WRITE (TA-41)
    Row("DELETE", "/api/v1/timers/:queue/*timerKey", Level.READ_WRITE, "timers_cancel"),
    Row("GET", "/api/v1/timers/:queue/*timerKey", Level.READ_ONLY, "timers_peek"),
    Row("GET", "/api/v1/timers/:queue", Level.READ_ONLY, "timers_list"),
    # --- key/value
    Row("POST", "/api/v1/kv", Level.READ_WRITE, "kv_batch"),
    Row("GET", "/api/v1/kv/:ns/*key", Level.READ_ONLY, "kv_get"),
    Row("PUT", "/api/v1/kv/:ns/*key", Level.READ_WRITE, "kv_put"),
    Row("DELETE", "/api/v1/kv/:ns/*key", Level.READ_WRITE, "kv_delete"),
    Row("GET", "/api/v1/resources/kv/namespaces", Level.READ_ONLY, "kv_namespaces"),
    Row("POST", "/api/v1/resources/kv/list", Level.READ_ONLY, "kv_list"),  # a read: its cursor is a key
    Row("POST", "/api/v1/locks", Level.READ_WRITE, "locks"),  # for a get too (locks.md 2)
    # --- messages
    Row("POST", "/api/v1/push", Level.WRITE_ONLY, "push"),
    Row("GET", "/api/v1/pop", Level.READ_WRITE, "pop_discover"),  # a pop moves a cursor, so it is no read
    Row("GET", "/api/v1/pop/queue/:queue", Level.READ_WRITE, "pop_queue"),
    Row("GET", "/api/v1/pop/queue/:queue/partition/:partition", Level.READ_WRITE, "pop_partition"),
    Row("POST", "/api/v1/ack", Level.READ_WRITE, "ack"),
    Row("POST", "/api/v1/ack/batch", Level.READ_WRITE, "ack_batch"),
    Row("POST", "/api/v1/lease/:leaseId/extend", Level.READ_WRITE, "lease_extend"),
    Row("POST", "/api/v1/transaction", Level.READ_WRITE, "transaction"),
    # --- queues
    Row("POST", "/api/v1/configure", Level.READ_WRITE, "configure"),
    Row("GET", "/api/v1/resources/queues", Level.READ_ONLY, "queues_list"),
    Row("GET", "/api/v1/resources/queues/:queue", Level.READ_ONLY, "queue_get"),
    Row("GET", "/api/v1/resources/queues/:queue/depth", Level.READ_ONLY, "queue_depth"),
    Row("DELETE", "/api/v1/resources/queues/:queue", Level.ADMIN, "queue_delete"),
    # --- dead letters
    Row("GET", "/api/v1/dlq", Level.READ_ONLY, "dlq_list"),
    Row("DELETE", "/api/v1/dlq", Level.ADMIN, "dlq_purge"),
    Row("POST", "/api/v1/dlq/:id/replay", Level.READ_WRITE, "dlq_replay"),
    Row("POST", "/api/v1/messages/:partitionId/:transactionId/retry", Level.READ_WRITE, "message_retry"),
)


def build_router(
    handlers: Mapping[str, Handler], hooks: Mapping[str, BeforeBody] | None = None, *, tenancy: bool = False,
) -> Router:
    """The node's router. handlers: by the names of TABLE; a row without one is no route yet and answers 404.

    hooks: what runs before the body is read, by the same names. tenancy: every call is about the tenant that its header
    names; without it no header is read at all (TA-2).
    """
    hooks = hooks or {}
    if tenancy:
        handlers = {name: _of_tenant(handler) for name, handler in handlers.items()}
        hooks = {name: _before_body_of_tenant(hook) for name, hook in hooks.items()}
    rows = [row for row in TABLE if row.name in handlers]
    left_over = (handlers.keys() | hooks.keys()) - {row.name for row in rows}
    must(not left_over, "handlers or hooks that no row names", names=sorted(left_over))
    return Router([Route(row.method, row.pattern, row.level, handlers[row.name], hooks.get(row.name)) for row in rows])


def _of_tenant(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        refusal = _take_tenant(request)
        return refusal if refusal is not None else await handler(request)

    return handle


def _before_body_of_tenant(hook: BeforeBody) -> BeforeBody:
    def before_body(request: Request) -> Response | Awaitable[Response | None] | None:
        refusal = _take_tenant(request)
        return refusal if refusal is not None else hook(request)

    return before_body


def _take_tenant(request: Request) -> Response | None:
    """Note whose call it is; the answer to one that is nobody's (TA-3, TA-5)."""
    try:
        request.tenant = tenant_of(request.header(HEADER))
    except BadTenant:
        return json_response(400, {"error": BAD_TENANT_TEXT})
    return refusal_response(RESERVED_TENANT) if request.tenant in RESERVED else None


class _Step:
    """One segment of the patterns below a common beginning. forks: more than one way may lead on from here."""

    __slots__ = ("fixed", "forks", "here", "one", "rest")

    def __init__(self) -> None:
        self.fixed: dict[bytes, _Step] = {}
        self.one: _Step | None = None
        self.here: dict[str, _Leaf] = {}
        self.rest: dict[str, _Leaf] = {}
        self.forks = False

    def find(self, method: str, parts: Sequence[bytes], at: int) -> _Leaf | None:
        """The leaf of `parts[at:]`. Takes at most DEPTH_MAX steps and, where patterns fork, as many steps back."""
        step = self
        while at < len(parts):
            if step.forks:
                return step.find_at_fork(method, parts, at)
            segment = parts[at]
            following = step.fixed.get(segment) or (step.one if segment else None)
            if following is None:
                return step.find_rest(method, parts, at)
            step = following
            at += 1
        return step.here.get(method)

    def find_at_fork(self, method: str, parts: Sequence[bytes], at: int) -> _Leaf | None:
        """The same where more than one way leads on: a fixed segment first, then `:name`, then `*name`."""
        segment = parts[at]
        for step in (self.fixed.get(segment), self.one if segment else None):
            leaf = None if step is None else step.find(method, parts, at + 1)
            if leaf is not None:
                return leaf
        return self.find_rest(method, parts, at)

    def find_rest(self, method: str, parts: Sequence[bytes], at: int) -> _Leaf | None:
        """The leaf whose `*name` takes all from `at` on, unless that is nothing."""
        return self.rest.get(method) if parts[at] or at + 1 < len(parts) else None


class _Leaf:
    """A row with its captures: (name, place) of each `:name`, and the place where a `*name` begins."""

    __slots__ = ("captures", "rest_at", "rest_name", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.captures: list[tuple[str, int]] = []
        self.rest_name: str | None = None
        self.rest_at = 0

    def params(self, parts: Sequence[bytes]) -> dict[str, bytes]:
        captured = {}
        for name, place in self.captures:
            captured[name] = parts[place]
        if self.rest_name is not None:
            captured[self.rest_name] = b"/".join(parts[self.rest_at :])
        return captured


class Router:
    """Finds the row of a request. Paths without captures cost one look-up; the others one walk over their segments."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self.nowhere = Route("*", "*", Level.PUBLIC, no_such_route)  # counts what no row answers
        self._fixed: dict[tuple[str, bytes], Route] = {}
        self._root = _Step()
        for route in self.routes:
            self._add(route)
        _mark_forks(self._root)

    def find(self, request: Request) -> Route:
        """The request's row, or `nowhere`; also kept in `request.route`, with the captures in `request.params`."""
        method = request.method
        route = self._fixed.get((method, request.raw_path))
        if route is None:
            parts = request.raw_path.split(b"/")
            leaf = None if parts[0] else self._root.find(method, parts, 1)
            if leaf is None:
                route = self.nowhere
            else:
                route = leaf.route
                request.params = leaf.params(parts)
        request.route = route
        return route

    def _add(self, route: Route) -> None:
        parts = route.pattern.split("/")
        must(route.pattern.startswith("/"), "a pattern without a slash in front", pattern=route.pattern)
        must(len(parts) <= DEPTH_MAX, "a pattern deeper than the walk", pattern=route.pattern)
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            if not any(part.startswith((":", "*")) for part in parts):
                key = (method, route.pattern.encode())
                must(key not in self._fixed, "two rows for one route", method=method, pattern=route.pattern)
                self._fixed[key] = route
            self._grow(method, route, parts)

    def _grow(self, method: str, route: Route, parts: Sequence[str]) -> None:
        step, leaf = self._root, _Leaf(route)
        for place, part in enumerate(parts[1:], start=1):
            if part.startswith("*"):
                must(place == len(parts) - 1, "a `*` capture before the end", pattern=route.pattern)
                leaf.rest_name, leaf.rest_at = part[1:], place
            elif part.startswith(":"):
                leaf.captures.append((part[1:], place))
                step.one = step.one or _Step()
                step = step.one
            else:
                step = step.fixed.setdefault(part.encode(), _Step())
        leaves = step.here if leaf.rest_name is None else step.rest
        must(method not in leaves, "two rows for one route", method=method, pattern=route.pattern)
        leaves[method] = leaf


def _mark_forks(step: _Step) -> None:
    step.forks = bool(step.fixed) + (step.one is not None) + bool(step.rest) > 1
    for below in (*step.fixed.values(), step.one):
        if below is not None:
            _mark_forks(below)


async def no_such_route(request: Request) -> Response:
    """What no row answers, wrong methods included: 404 in JSON, never HTML, whatever the method (AD-27, PU-1)."""
    return _NO_SUCH_ROUTE


_NO_SUCH_ROUTE = refusal_response(NO_SUCH_ROUTE)
