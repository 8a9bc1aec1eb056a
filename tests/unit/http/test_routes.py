"""The walk over the table of routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.http.messages import Request, Response
from queen_node.http.routes import TABLE, Level, Route, Router, build_router
from raft.invariants import InvariantBroken


async def answer(request: Request) -> Response:
    return Response(200)


ROUTER = build_router({row.name: answer for row in TABLE})


def found(method: str, path: bytes, router: Router = ROUTER) -> tuple[str, dict[str, bytes]]:
    request = Request(method, path)
    route = router.find(request)
    assert request.route is route
    return route.pattern, dict(request.params)


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", b"/health", "/health", {}),
        ("HEAD", b"/health", "/health", {}),
        ("POST", b"/api/v1/timers", "/api/v1/timers", {}),
        ("GET", b"/api/v1/timers/q", "/api/v1/timers/:queue", {"queue": b"q"}),
        ("GET", b"/api/v1/timers/q/k", "/api/v1/timers/:queue/*timerKey", {"queue": b"q", "timerKey": b"k"}),
        ("HEAD", b"/api/v1/timers/q/k", "/api/v1/timers/:queue/*timerKey", {"queue": b"q", "timerKey": b"k"}),
        ("DELETE", b"/api/v1/timers/a%2Fb/c/d//", "/api/v1/timers/:queue/*timerKey",
         {"queue": b"a%2Fb", "timerKey": b"c/d//"}),
        ("GET", b"/api/v1/timers/q//", "/api/v1/timers/:queue/*timerKey", {"queue": b"q", "timerKey": b"/"}),
        ("GET", b"/api/v1/timers/q/../.", "/api/v1/timers/:queue/*timerKey", {"queue": b"q", "timerKey": b"../."}),
        ("GET", b"/api/v1/pop/queue/o/partition/p", "/api/v1/pop/queue/:queue/partition/:partition",
         {"queue": b"o", "partition": b"p"}),
        ("POST", b"/api/v1/dlq/7/replay", "/api/v1/dlq/:id/replay", {"id": b"7"}),
        ("POST", b"/api/v1/lease/l-1/extend", "/api/v1/lease/:leaseId/extend", {"leaseId": b"l-1"}),
    ],
)
def test_routes_and_captures(method: str, path: bytes, pattern: str, params: dict[str, bytes]) -> None:
    """TM-3, PA-2: split at the slash, nothing normalised, captures raw."""
    assert found(method, path) == (pattern, params)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", b"/api/v1/timers/q/"),  # TM-3: an empty key
        ("DELETE", b"/api/v1/timers/q/"),
        ("GET", b"/api/v1/timers//k"),  # an empty queue
        ("GET", b"/api/v1/timers/"),
        ("GET", b"/api/v1/nothing"),
        ("GET", b"/health/"),
        ("GET", b"//health"),
        ("GET", b"/"),
        ("GET", b"*"),
        ("GET", b""),
        ("GET", b"http://host/health"),
        ("OPTIONS", b"/api/v1/push"),
        ("GET", b"/api/v1/push"),  # PU-1
        ("POST", b"/health"),
        ("HEAD", b"/api/v1/push"),
        ("GET", b"/internal/x"),
        ("GET", b"/streams/v1/x"),
        ("GET", b"/api/v1/pop/queue/o/partition/"),
        ("GET", b"/" * 5000),
    ],
)
def test_what_is_no_route(method: str, path: bytes) -> None:
    """AD-27, PU-1: also the wrong method on a known path."""
    assert found(method, path) == ("*", {})


async def test_no_route_answers_json() -> None:
    """AD-27: never HTML."""
    response = await ROUTER.nowhere.handler(Request("PUT", b"/api/v1/x"))
    assert response.status == 404
    assert response.body == b'{"error":"Not Found","code":"no_such_route"}'


def test_fixed_wins_over_one_and_one_over_rest() -> None:
    """AD-21: a static name wins over an id; a way that leads nowhere is left again."""
    patterns = ["/t/names", "/t/:id", "/t/names/x", "/t/:id/y", "/t/*all"]
    router = Router([Route("GET", pattern, Level.PUBLIC, answer) for pattern in patterns])
    assert found("GET", b"/t/names", router) == ("/t/names", {})
    assert found("GET", b"/t/7", router) == ("/t/:id", {"id": b"7"})
    assert found("GET", b"/t/names/x", router) == ("/t/names/x", {})
    assert found("GET", b"/t/names/y", router) == ("/t/:id/y", {"id": b"names"})
    assert found("GET", b"/t/names/z", router) == ("/t/*all", {"all": b"names/z"})
    assert found("GET", b"/t/", router) == ("*", {})


def test_a_row_without_a_handler_is_no_route() -> None:
    router = build_router({"health": answer})
    assert found("GET", b"/health", router)[0] == "/health"
    assert found("GET", b"/status", router)[0] == "*"


def test_mistakes_in_the_table_stop_the_node() -> None:
    with pytest.raises(InvariantBroken, match="no row names"):
        build_router({"helath": answer})
    with pytest.raises(InvariantBroken, match="two rows"):
        Router([Route("GET", "/a/:b", Level.PUBLIC, answer), Route("GET", "/a/:c", Level.PUBLIC, answer)])
    with pytest.raises(InvariantBroken, match="before the end"):
        Router([Route("GET", "/a/*b/c", Level.PUBLIC, answer)])


def matches_slowly(pattern: str, path: str) -> bool:
    """The rules of a pattern, said as plainly as possible."""
    wanted, given_ = pattern.split("/"), path.split("/")
    for place, part in enumerate(wanted):
        if part.startswith("*"):
            return "/".join(given_[place:]) != ""
        if place >= len(given_) or (part.startswith(":") and not given_[place]):
            return False
        if not part.startswith(":") and part != given_[place]:
            return False
    return len(wanted) == len(given_)


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=5).map(lambda parts: "/" + "/".join(parts)))
def test_the_walk_finds_what_a_list_of_patterns_would(path: str) -> None:
    patterns = ["/a", "/a/:x", "/a/:x/b", "/a/b/*r", "/:x/b", "/b/*r", "/a/b/c"]
    router = Router([Route("GET", pattern, Level.PUBLIC, answer) for pattern in patterns])
    matching = [pattern for pattern in patterns if matches_slowly(pattern, path)]
    pattern = found("GET", path.encode(), router)[0]
    assert pattern in matching if matching else pattern == "*"
