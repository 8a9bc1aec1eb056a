"""No input costs a traceback or a stuck connection."""

from __future__ import annotations

from contextlib import suppress

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from queen_node.http.connection import Limits
from queen_node.http.messages import TEXT, Request, Response
from queen_node.http.routes import Level, Route
from tests.node.http.serving import PATIENCE_S, Client, serving, until


async def echo(request: Request) -> Response:
    await trio.lowlevel.checkpoint()
    return Response(200, request.text("rest").encode() + str(dict(request.query)).encode() + request.body, TEXT)


ROUTES = [Route(method, "/e/*rest", Level.PUBLIC, echo) for method in ("GET", "POST")]
GOOD = b"GET /e/a HTTP/1.1\r\nHost: x\r\n\r\n"
PIECES = st.sampled_from([
    GOOD,
    b"HEAD /e/c HTTP/1.1\r\n\r\n",
    b"GET /e/%zz?%ff HTTP/1.1\r\n\r\n",
    b"GET /e/g HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"GET /e/h HTTP/1.0\r\n\r\n",
    b"GET /e/i HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"POST /e/b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /e/d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"POST /e/e HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    b"POST /e/f HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    b"POST /e/j HTTP/1.1\r\nContent-Length: 999999\r\n\r\n",
    b"\r\n", b"GET ", b"\x00\xff", b"0\r\n\r\n", b": ", b"HTTP/1.1",
]) | st.binary(max_size=20)


async def send_and_watch_it_end(client: Client, pieces: list[bytes]) -> bytes:
    """Send, end, and read until the server closes, which it must."""
    with suppress(trio.BrokenResourceError):  # the server has refused and closed
        for piece in pieces:
            await client.send(piece)
            await trio.lowlevel.checkpoint()
        await client.stream.send_eof()
    received = await client.rest()
    await client.stream.aclose()
    return received


@settings(max_examples=80)
@given(pieces=st.lists(PIECES, max_size=8), cuts=st.integers(1, 50))
async def test_any_bytes_end_in_a_closed_connection(pieces: list[bytes], cuts: int) -> None:
    data = b"".join(pieces)
    with capture_logs() as lines, trio.fail_after(PATIENCE_S):
        async with serving(ROUTES, Limits(max_body_bytes=1000)) as node:
            received = await send_and_watch_it_end(
                await node.client(), [data[start : start + cuts] for start in range(0, len(data), cuts)][:200])
            assert not received or received.startswith(b"HTTP/1.1 ")
            next_one = await node.client()
            assert (await next_one.ask(GOOD)).status == 200
            await until(lambda: node.metrics.connections == 1)
    assert not lines


async def test_connections_that_say_nothing_hold_up_nobody() -> None:
    async with serving(ROUTES) as node:
        silent = [await node.client() for _ in range(200)]
        talking = await node.client()
        assert (await talking.ask(GOOD)).status == 200
        for client in silent:
            await client.stream.aclose()
        await until(lambda: node.metrics.connections == 1)
