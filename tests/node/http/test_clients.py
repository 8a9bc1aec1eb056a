"""Clients that are slow, that go away, that are too many; and a server that stops."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_node.http.connection import Limits
from queen_node.http.messages import TEXT, Request, Response
from queen_node.http.routes import Level, Route
from queen_node.http.server import bind, setting_of, unbound
from tests.node.http.serving import PATIENCE_S, SETTLE_S, Client, serving, until


async def ok(request: Request) -> Response:
    return Response(200, request.body, TEXT)


OK = [Route("GET", "/ok", Level.PUBLIC, ok), Route("POST", "/ok", Level.PUBLIC, ok)]
ASK = b"GET /ok HTTP/1.1\r\n\r\n"


async def pass_time(clock: MockClock, seconds: int) -> None:
    """Let the watchman look once a second. A packet may still come a look late: tests leave room for that."""
    for _ in range(seconds):
        await wait_all_tasks_blocked(SETTLE_S)
        clock.jump(1.0)
    await wait_all_tasks_blocked(SETTLE_S)


def is_open(client: Client) -> bool:
    """Whether the server has neither answered nor closed."""
    with socket.socket(fileno=os.dup(client.stream.socket.fileno())) as same:
        same.setblocking(False)
        try:
            same.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


# --- slow


async def test_a_slow_head_closes_the_connection_without_an_answer(mock_clock: MockClock) -> None:
    """README 30. The clock starts with the head's first byte, not with the connection."""
    async with serving(OK, Limits(head_timeout_s=10)) as node:
        client = await node.client()
        await pass_time(mock_clock, 15)
        await client.send(b"GET /ok HTTP/1.1\r\nX-A: ")
        for _ in range(9):  # a byte now and then does not help
            await pass_time(mock_clock, 1)
            assert is_open(client)
            await client.send(b"x")
        await pass_time(mock_clock, 3)
        await until(lambda: node.metrics.connections == 0)
        assert await client.rest() == b""


async def test_a_slow_body_is_408(mock_clock: MockClock) -> None:
    """README 30: over any 10 s, also after a fast beginning."""
    async with serving(OK, Limits(body_min_bytes_per_s=100)) as node:
        client = await node.client()
        await client.send(b"POST /ok HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
        for _ in range(20):
            await client.send(b"x" * 200)
            await pass_time(mock_clock, 1)
        await pass_time(mock_clock, 4)
        assert is_open(client)
        await pass_time(mock_clock, 3)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (408, b"close")
        await client.stream.aclose()


async def test_a_body_at_its_pace_is_read_however_long_it_takes(mock_clock: MockClock) -> None:
    async with serving(OK, Limits(body_min_bytes_per_s=100)) as node:
        client = await node.client()
        await client.send(b"POST /ok HTTP/1.1\r\nContent-Length: 7200\r\n\r\n")
        for _ in range(60):
            await client.send(b"x" * 120)
            await pass_time(mock_clock, 1)
        assert (await client.answer()).body == b"x" * 7200


async def test_an_idle_connection_is_closed_and_a_long_poll_is_not(mock_clock: MockClock) -> None:
    release = trio.Event()

    async def park(request: Request) -> Response:
        await release.wait()
        return Response(200, b"late", TEXT)

    async with serving([*OK, Route("GET", "/park", Level.PUBLIC, park)], Limits(idle_timeout_s=5)) as node:
        idle, fresh, parked = await node.client(), await node.client(), await node.client()
        assert (await idle.ask(ASK)).status == 200
        await parked.send(b"GET /park HTTP/1.1\r\n\r\n")
        await pass_time(mock_clock, 4)
        assert (await idle.ask(ASK)).status == 200
        await pass_time(mock_clock, 3)
        await until(lambda: node.metrics.connections == 2)
        assert await fresh.rest() == b""
        assert is_open(idle)
        await pass_time(mock_clock, 10)
        await until(lambda: node.metrics.connections == 1)
        assert await idle.rest() == b""
        release.set()
        assert (await parked.answer()).body == b"late"
        assert node.metrics.connections == 1


async def test_a_client_that_does_not_read_its_answer_is_cut_off(mock_clock: MockClock) -> None:
    """PA-23: and whoever wants to know that it was not delivered is told."""
    told = trio.Event()

    async def tell() -> None:
        told.set()

    async def large(request: Request) -> Response:
        return Response(200, bytes(50_000_000), TEXT, on_undelivered=tell)

    async with serving([Route("GET", "/large", Level.PUBLIC, large)], Limits(idle_timeout_s=5)) as node:
        client = await node.client()
        await client.send(b"GET /large HTTP/1.1\r\n\r\n")
        await pass_time(mock_clock, 4)
        assert not told.is_set()
        await pass_time(mock_clock, 4)
        await until(told.is_set)
        await until(lambda: node.metrics.connections == 0)


async def test_a_refused_client_that_stays_is_cut_off(mock_clock: MockClock) -> None:
    async with serving(OK) as node:
        client = await node.client()
        assert (await client.ask(b"BREW /pot HTTP/1.1\r\n\r\n")).status == 400
        await pass_time(mock_clock, 1)
        assert node.metrics.connections == 1
        await pass_time(mock_clock, 3)
        await until(lambda: node.metrics.connections == 0)


# --- gone


async def test_a_handler_learns_that_its_client_has_gone() -> None:
    """PA-23: by a close and by a reset alike."""
    parked, gone = trio.Event(), trio.Event()

    async def park(request: Request) -> Response:
        parked.set()
        await request.client_gone()
        gone.set()
        return Response(204)

    async with serving([Route("GET", "/park", Level.PUBLIC, park)]) as node:
        for reset in (False, True):
            client = await node.client()
            await client.send(b"GET /park HTTP/1.1\r\n\r\n")
            await parked.wait()
            await wait_all_tasks_blocked()
            assert not gone.is_set()
            if reset:
                client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await client.stream.aclose()
            with trio.fail_after(PATIENCE_S):
                await gone.wait()
            parked, gone = trio.Event(), trio.Event()


async def test_pipelined_bytes_do_not_count_as_gone_and_are_kept() -> None:
    """M-52, PA-23."""
    release = trio.Event()
    ended: list[str] = []

    async def park(request: Request) -> Response:
        async def watch(gone: Callable[[], Awaitable[None]]) -> None:
            await gone()
            ended.append("gone")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, request.client_gone)
            await release.wait()
            nursery.cancel_scope.cancel()
        return Response(200, b"parked", TEXT)

    async with serving([*OK, Route("GET", "/park", Level.PUBLIC, park)]) as node:
        client = await node.client()
        await client.send(b"GET /park HTTP/1.1\r\n\r\n")
        await wait_all_tasks_blocked()
        for piece in (b"POST /ok HTTP/1.1\r\nContent-", b"Length: 3\r\n\r\na", b"bc", ASK[:5]):
            await client.send(piece)
            await wait_all_tasks_blocked()
        assert not ended
        release.set()
        assert (await client.answer()).body == b"parked"
        assert (await client.answer()).body == b"abc"
        await client.send(ASK[5:])
        assert (await client.answer()).status == 200
        assert not ended


async def test_an_answer_for_a_client_that_has_gone_is_undelivered() -> None:
    """PA-23: also when the kernel would still take the bytes; a delivered one tells nobody."""
    told: list[str] = []

    async def park(request: Request) -> Response:
        async def tell() -> None:
            await trio.lowlevel.checkpoint()
            told.append(request.raw_query.decode())

        if request.raw_query == b"gone":
            await request.client_gone()
        return Response(200, b"leased", TEXT, on_undelivered=tell)

    async with serving([Route("GET", "/park", Level.PUBLIC, park)]) as node:
        gone, stays = await node.client(), await node.client()
        assert (await stays.ask(b"GET /park?stays HTTP/1.1\r\n\r\n")).body == b"leased"
        await gone.send(b"GET /park?gone HTTP/1.1\r\n\r\n")
        await gone.stream.aclose()
        await until(lambda: node.metrics.connections == 1)
        assert told == ["gone"]


# --- too many


async def test_connections_beyond_the_bound_are_turned_away() -> None:
    async with serving(OK, Limits(connections_max=2)) as node:
        first, second, third = await node.client(), await node.client(), await node.client()
        answer = await third.answer()
        assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
        assert await third.rest() == b""
        assert (await first.ask(ASK)).status == 200
        await second.stream.aclose()
        await until(lambda: node.metrics.connections == 1)
        assert (await (await node.client()).ask(ASK)).status == 200
        assert node.metrics.connections_refused == 1


# --- stopping


async def test_draining_answers_what_is_in_hand_and_closes_the_rest() -> None:
    """CL-131: parked calls learn of it, others finish; nothing new is accepted."""
    release = trio.Event()
    begun: list[str] = []

    async def work(request: Request) -> Response:
        begun.append("work")
        await release.wait()
        return Response(200, b"done", TEXT)

    async def park(request: Request) -> Response:
        begun.append("park")
        await request.draining()
        return Response(204)

    routes = [*OK, Route("GET", "/work", Level.PUBLIC, work), Route("GET", "/park", Level.PUBLIC, park)]
    async with serving(routes) as node:
        idle, working, parked, sending = [await node.client() for _ in range(4)]
        assert (await idle.ask(ASK)).status == 200
        await working.send(b"GET /work HTTP/1.1\r\n\r\n")
        await parked.send(b"GET /park HTTP/1.1\r\n\r\n")
        await sending.send(b"POST /ok HTTP/1.1\r\nContent-Length: 4\r\n\r\nab")
        await until(lambda: sorted(begun) == ["park", "work"])
        await wait_all_tasks_blocked(SETTLE_S)
        node.server.drain()
        assert await idle.rest() == b""
        answer = await parked.answer()
        assert (answer.status, answer.headers[b"connection"]) == (204, b"close")
        answer = await sending.ask(b"cd")
        assert (answer.body, answer.headers[b"connection"]) == (b"abcd", b"close")
        with pytest.raises(OSError, match="connect"):
            await node.client()
        release.set()
        answer = await working.answer()
        assert (answer.body, answer.headers[b"connection"]) == (b"done", b"close")
        for client in (working, parked, sending):
            assert await client.rest() == b""


async def test_run_returns_when_the_last_connection_has_ended(mock_clock: MockClock) -> None:
    """CL-131: bounded, whatever a handler does."""
    begun = trio.Event()

    async def never(request: Request) -> Response:
        begun.set()
        await trio.sleep_forever()
        return Response(200)

    async with serving([*OK, Route("GET", "/never", Level.PUBLIC, never)]) as node:
        client = await node.client()
        await client.send(b"GET /never HTTP/1.1\r\n\r\n")
        await begun.wait()
        node.server.drain(grace_s=30)
        await pass_time(mock_clock, 29)
        assert node.metrics.connections == 1
        await pass_time(mock_clock, 2)
        await until(lambda: node.metrics.connections == 0)
        assert await client.rest() == b""


async def test_a_bind_that_fails_names_the_setting_to_change() -> None:
    """README 24."""
    taken = unbound("127.0.0.1")
    with taken, unbound("127.0.0.1") as late, unbound("192.0.2.1") as strange:
        await bind(taken, "127.0.0.1", 0)
        with pytest.raises(OSError) as in_use:
            await bind(late, "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError) as nowhere:  # an address for documentation: no machine has it
            await bind(strange, "192.0.2.1", 0)
    assert (setting_of(in_use.value), setting_of(nowhere.value)) == ("PORT", "QUEEN_BIND_ADDR")
