"""What a client gets back for what it sends, over real sockets."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from queen_node.errors import TIMERS_BAD_QUERY, Refused
from queen_node.http.connection import Limits
from queen_node.http.messages import TEXT, Request, Response
from queen_node.http.routes import Level, Route, Router
from queen_node.http.server import Server
from queen_node.metrics import Metrics
from raft.invariants import InvariantBroken, must
from tests.node.http.serving import Client, listening, serving


async def echo(request: Request) -> Response:
    return Response(200, request.method.encode() + b" " + request.raw_path + b" " + request.body, TEXT)


async def fail(request: Request) -> Response:
    raise OSError("a file name that no client may see")


ECHO = [Route(method, "/echo/*rest", Level.PUBLIC, echo) for method in ("GET", "POST")]


async def test_a_connection_answers_one_request_after_the_other() -> None:
    async with serving(ECHO) as node:
        client = await node.client()
        for number in (b"1", b"2", b"3"):
            answer = await client.ask(b"GET /echo/" + number + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (answer.status, answer.body) == (200, b"GET /echo/" + number + b" ")
            assert b"connection" not in answer.headers
        assert node.metrics.connections_accepted == 1
        assert node.metrics.requests_total == 3


async def test_pipelined_requests_are_answered_in_order() -> None:
    """M-52. More than a turn and more than one read."""
    count = 3000
    async with serving(ECHO) as node, trio.open_nursery() as nursery:
        client = await node.client()
        head = b"POST /echo/%d HTTP/1.1\r\nContent-Length: 2\r\n\r\nxy"
        nursery.start_soon(client.send, b"".join(head % number for number in range(count)))
        for number in range(count):
            assert (await client.answer()).body == b"POST /echo/%d xy" % number


async def test_an_answer_is_not_held_back_by_a_long_poll_behind_it() -> None:
    """M-52: the second runs after the first and does not delay it."""
    release = trio.Event()
    running: list[str] = []

    async def park(request: Request) -> Response:
        running.append("park")
        await release.wait()
        return Response(200, b"parked", TEXT)

    async with serving([*ECHO, Route("GET", "/park", Level.PUBLIC, park)]) as node:
        client = await node.client()
        await client.send(b"GET /echo/1 HTTP/1.1\r\n\r\nGET /park HTTP/1.1\r\n\r\nGET /echo/2 HTTP/1.1\r\n\r\n")
        assert (await client.answer()).body == b"GET /echo/1 "
        assert running == ["park"]
        release.set()
        assert (await client.answer()).body == b"parked"
        assert (await client.answer()).body == b"GET /echo/2 "


async def test_a_parked_pipelined_handler_sees_exceptions_and_cancellation_as_any_other() -> None:
    async def wait_and_fail(request: Request) -> Response:
        with trio.move_on_after(0):
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        raise Refused(TIMERS_BAD_QUERY)

    async with serving([*ECHO, Route("GET", "/fail", Level.PUBLIC, wait_and_fail)]) as node:
        client = await node.client()
        await client.send(b"GET /echo/1 HTTP/1.1\r\n\r\nGET /fail HTTP/1.1\r\n\r\nGET /echo/2 HTTP/1.1\r\n\r\n")
        assert [(await client.answer()).status for _ in range(3)] == [200, 400, 200]


async def test_a_body_in_pieces_and_in_chunks() -> None:
    async with serving(ECHO) as node:
        client = await node.client()
        for piece in (b"POST /echo/a HT", b"TP/1.1\r\nContent-Le", b"ngth: 4\r\n\r\n", b"ab", b"cd"):
            await client.send(piece)
            await trio.testing.wait_all_tasks_blocked()
        assert (await client.answer()).body == b"POST /echo/a abcd"
        answer = await client.ask(
            b"POST /echo/b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")
        assert answer.body == b"POST /echo/b abcde"


async def test_head_is_answered_as_get_without_the_body() -> None:
    """AD-33, TA-43."""
    async with serving(ECHO) as node:
        client = await node.client()
        await client.send(b"HEAD /echo/abc HTTP/1.1\r\n\r\n")
        answer = await client.answer(head_only=True)
        assert (answer.status, answer.headers[b"content-length"]) == (200, b"15")
        assert (await client.ask(b"GET /echo/x HTTP/1.1\r\n\r\n")).body == b"GET /echo/x "


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with serving(ECHO) as node:
        client = await node.client()
        await client.send(b"POST /echo/a HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer()).status == 100
        assert (await client.ask(b"hi")).body == b"POST /echo/a hi"


async def test_what_the_head_decides_is_answered_before_the_body() -> None:
    """PU-60, push.md 9: refused from the header alone; the body is not read."""

    def decline(request: Request) -> Response | None:
        return Response(400, b"no", TEXT) if request.header(b"content-type") == b"application/x-queen-push" else None

    async def hold(request: Request) -> Response | None:
        await trio.lowlevel.checkpoint()
        return Response(429, b"full", TEXT)

    routes = [
        Route("POST", "/push", Level.PUBLIC, echo, before_body=decline),
        Route("POST", "/held", Level.PUBLIC, echo, before_body=hold),
    ]
    async with serving(routes) as node:
        for extra, status in ((b"Content-Type: application/x-queen-push\r\n", 400), (b"", 100)):
            client = await node.client()
            await client.send(b"POST /push HTTP/1.1\r\n" + extra + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            answer = await client.answer()
            assert answer.status == status
        assert (await client.ask(b"123456789")).body == b"POST /push 123456789"
        client = await node.client()
        answer = await client.ask(b"POST /held HTTP/1.1\r\nContent-Length: 99999\r\n\r\nx")
        assert (answer.status, answer.headers[b"connection"]) == (429, b"close")
        assert await client.rest() == b""
        whole = await (await node.client()).ask(b"POST /held HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        assert (whole.status, b"connection" in whole.headers) == (429, False)


@pytest.mark.parametrize(
    ("request_bytes", "status", "content_type"),
    [
        (b"POST /echo/a HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413, TEXT),
        (b"POST /echo/a HTTP/1.1\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001, 413, TEXT),
        (b"POST /echo/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3E9\r\n" + b"x" * 900 + b"x" * 101, 413, TEXT),
        (b"POST /echo/a HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415, b"application/json"),
        (b"GET /" + b"x" * 200_000, 431, b"application/json"),
        (b"BREW /pot HTTP/1.1\r\n\r\n", 400, b"application/json"),
    ],
)
async def test_refused_requests_end_the_connection_after_a_full_answer(
    request_bytes: bytes, status: int, content_type: bytes,
) -> None:
    """admin.md 8, PU-63, AD-34. What was complete before is answered first."""
    async with serving(ECHO, Limits(max_body_bytes=1000)) as node:
        client = await node.client()
        await client.send(b"GET /echo/1 HTTP/1.1\r\n\r\n" + request_bytes)
        assert (await client.answer()).status == 200
        answer = await client.answer()
        assert (answer.status, answer.headers[b"content-type"]) == (status, content_type)
        assert answer.headers[b"connection"] == b"close"
        assert answer.body
        assert await client.rest() == b""


async def test_a_head_that_is_refused_is_answered_without_a_body() -> None:
    """AD-33."""
    async with serving(ECHO, Limits(max_body_bytes=1000)) as node:
        client = await node.client()
        await client.send(b"HEAD /echo/a HTTP/1.1\r\nContent-Length: 1001\r\n\r\n")
        head, found, behind = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ") and (found, behind) == (b"\r\n\r\n", b"")


async def test_a_client_may_send_all_before_it_reads_a_refusal() -> None:
    """PU-60: what still comes is discarded for a while, or the close would destroy the answer on its way."""
    async with serving(ECHO, Limits(max_body_bytes=1000)) as node:
        client = await node.client()
        await client.send(b"POST /echo/a HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n")
        for _ in range(80):
            await client.send(bytes(100_000))
        assert (await client.answer()).status == 413
        assert await client.rest() == b""


async def test_an_upgrade_is_declined_by_answering() -> None:
    async with serving(ECHO) as node:
        client = await node.client()
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        await client.send(b"GET /echo/1 HTTP/1.1\r\n" + upgrade + b"GET /echo/2 HTTP/1.1\r\n\r\n")
        assert (await client.answer()).body == b"GET /echo/1 "
        assert (await client.answer()).body == b"GET /echo/2 "


async def test_a_failing_handler_costs_one_answer_and_a_log_line() -> None:
    """AD-34: no inner detail; other requests and connections go on."""
    async with serving([*ECHO, Route("GET", "/fail", Level.PUBLIC, fail)]) as node:
        other, client = await node.client(), await node.client()
        with capture_logs() as lines:
            answer = await client.ask(b"GET /fail HTTP/1.1\r\n\r\n")
        assert answer.status == 500
        assert answer.body == b'{"error":"internal error","code":"internal"}'
        assert [(line["log_level"], line["route"]) for line in lines] == [("error", "/fail")]
        for each in (client, other):
            assert (await each.ask(b"GET /echo/1 HTTP/1.1\r\n\r\n")).status == 200


async def test_refusals_and_bad_paths_are_answers() -> None:
    """AD-30; also out of a handler's own nursery, and without a log line."""

    async def refuse(request: Request) -> Response:
        async with trio.open_nursery():
            raise Refused(TIMERS_BAD_QUERY, field="limit")

    async def path(request: Request) -> Response:
        return Response(200, request.text("rest").encode())

    async def query(request: Request) -> Response:
        return Response(200, request.query["a"].encode())

    routes = [
        Route("GET", "/refuse", Level.PUBLIC, refuse),
        Route("GET", "/path/*rest", Level.PUBLIC, path),
        Route("GET", "/query", Level.PUBLIC, query),
    ]
    async with serving(routes) as node:
        client = await node.client()
        with capture_logs() as lines:
            refused = await client.ask(b"GET /refuse HTTP/1.1\r\n\r\n")
            assert b'"reason":"timers_bad_query"' in refused.body
            for target in (b"/path/%zz", b"/query?a=%ff"):
                answer = await client.ask(b"GET " + target + b" HTTP/1.1\r\n\r\n")
                assert (answer.status, b'"code":"bad_request"' in answer.body) == (400, True)
        assert not lines


@pytest.mark.parametrize("in_nursery", [False, True])
async def test_a_broken_invariant_stops_the_server(in_nursery: bool) -> None:
    async def break_it(request: Request) -> Response:
        if in_nursery:
            async with trio.open_nursery():
                must(False, "flushed what we do not hold")
        must(False, "flushed what we do not hold")
        return Response(200)

    with pytest.raises(ExceptionGroup) as caught:
        async with serving([Route("GET", "/break", Level.PUBLIC, break_it)]) as node:
            client = await node.client()
            await client.send(b"GET /break HTTP/1.1\r\n\r\n")
            await client.rest()
            await trio.sleep_forever()
    assert caught.value.subgroup(InvariantBroken) is not None


async def test_answers_are_not_held_back_by_a_hook_that_waits() -> None:
    """push.md 9: the hold of an admission."""
    release = trio.Event()

    async def hold(request: Request) -> Response | None:
        await release.wait()
        return None

    async with serving([*ECHO, Route("POST", "/held", Level.PUBLIC, echo, before_body=hold)]) as node:
        for body in (b"xy", b""):
            client = await node.client()
            head = b"POST /held HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
            await client.send(b"GET /echo/1 HTTP/1.1\r\n\r\n" + head)
            assert (await client.answer()).body == b"GET /echo/1 "
            release.set()
            assert (await client.ask(body)).body == b"POST /held " + body
            release = trio.Event()


async def test_two_listeners_are_one_server() -> None:
    server = Server(Router(ECHO), Limits(), Metrics(0.0))
    listeners = [await listening(), await listening()]
    addresses = [listener.getsockname() for listener in listeners]
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, listeners)
        for address in addresses:
            client = Client(await trio.open_tcp_stream(*address))
            assert (await client.ask(b"GET /echo/1 HTTP/1.1\r\n\r\n")).status == 200
        server.drain()


async def test_a_large_answer_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def large(request: Request) -> Response:
        return Response(200, body, TEXT)

    async with serving([Route("GET", "/large", Level.PUBLIC, large)]) as node:
        client = await node.client()
        await client.send(b"GET /large HTTP/1.1\r\n\r\n" * 2)
        assert (await client.answer()).body == body
        assert (await client.answer()).body == body
