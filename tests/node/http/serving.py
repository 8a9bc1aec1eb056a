"""A server on a free loopback port, and a client that sees every byte."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from trio.testing import wait_all_tasks_blocked

from queen_node.http.connection import Limits
from queen_node.http.routes import Route, Router
from queen_node.http.server import Server, bind, unbound
from queen_node.metrics import Metrics

PATIENCE_S = 60.0  # for what only a broken server does not do; never a measure of speed
SETTLE_S = 0.002  # real time without an event: loopback packets have arrived by then, unless the machine is very busy
LOOKS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Header names are lower-case."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class Client:
    """One connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self, head_only: bool = False) -> Answer:
        """The next answer on the connection."""
        with trio.fail_after(PATIENCE_S):
            while b"\r\n\r\n" not in self._bytes:
                await self._more()
            head, self._bytes = self._bytes.split(b"\r\n\r\n", 1)
            first, *lines = head.split(b"\r\n")
            headers = {name.lower(): value for name, value in (line.split(b": ", 1) for line in lines)}
            length = 0 if head_only else int(headers.get(b"content-length", b"0"))
            while len(self._bytes) < length:
                await self._more()
            body, self._bytes = self._bytes[:length], self._bytes[length:]
            return Answer(int(first.split(b" ")[1]), headers, body)

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def rest(self) -> bytes:
        """All that still comes, until the server closes."""
        with trio.fail_after(PATIENCE_S):
            data, self._bytes = self._bytes, b""
            while True:
                try:
                    piece = await self.stream.receive_some()
                except trio.BrokenResourceError:
                    return data
                if not piece:
                    return data
                data += piece

    async def _more(self) -> None:
        piece = await self.stream.receive_some()
        if not piece:
            raise EOFError(f"closed after {self._bytes!r}")
        self._bytes += piece


class Serving:
    """A running server."""

    def __init__(self, server: Server, metrics: Metrics, address: tuple[str, int]) -> None:
        self.server, self.metrics, self.address = server, metrics, address

    async def client(self) -> Client:
        return Client(await trio.open_tcp_stream(*self.address))


async def until(holds: Callable[[], bool]) -> None:
    """Return once it holds. Counts looks, not time: the clock may be a mock."""
    for _ in range(LOOKS_MAX):
        if holds():
            return
        await wait_all_tasks_blocked(SETTLE_S)
    raise AssertionError("it never came to hold")


async def listening() -> socket.socket:
    """A socket that listens on a free port of the loopback address."""
    listener = unbound("127.0.0.1")
    await bind(listener, "127.0.0.1", 0)
    return listener


@asynccontextmanager
async def serving(routes: Sequence[Route], limits: Limits | None = None) -> AsyncIterator[Serving]:
    metrics = Metrics(started_s=0.0)
    server = Server(Router(routes), limits or Limits(), metrics)
    listener = await listening()
    address = listener.getsockname()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, [listener])
        yield Serving(server, metrics, address)
        nursery.cancel_scope.cancel()
