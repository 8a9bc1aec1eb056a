"""A socket to a peer becomes a websocket: options, limits, and the library's handshake held within bounds.

The library (trio-websocket) runs a task of its own for each websocket, and while a handshake is under way it waits for
ever for one whose socket has ended. So the socket tells of its end here.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import trio
from h11 import ProtocolError as HttpError
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)
from wsproto.utilities import ProtocolError as WebSocketError

from raft.peer_frames import FRAME_MAX_BYTES, MalformedFrame
from raft.peer_handshake import PATH, Address, Purpose

RECEIVE_BYTES: Final = 64 * 1024  # the library's 4 KiB cost 2.4 times as much a MiB
INBOX_FRAMES: Final = 64  # the library answers no ping while its own queue is full; its default is one message
BULK_SEND_BUFFER_BYTES: Final = 256 * 1024  # M-60
LIMITS: Final[dict[str, Any]] = {
    "message_queue_size": INBOX_FRAMES, "max_message_size": FRAME_MAX_BYTES, "receive_buffer_size": RECEIVE_BYTES,
}
HANDSHAKE_MAX_BYTES: Final = 256 * 1024  # that a peer may say before it is done; the library bounds no refusal
REASON_MAX_CHARS: Final = 200  # of what a peer says about its end, in our log

Opened = TypeVar("Opened")


class PeerFault(Exception):
    """What a peer did wrong, or did not do. Ends the connection."""


CONNECTION_ENDS: Final = (
    PeerFault, MalformedFrame, ConnectionClosed, HandshakeError, WebSocketError, HttpError, OSError,
    trio.BrokenResourceError, trio.ClosedResourceError,
)
"""What a network and a peer can do to a connection; nothing else may be caught."""


def reason_of(end: BaseException) -> str:
    """Why a connection ended, one line for the log. end: one of CONNECTION_ENDS, or a group of them."""
    while isinstance(end, BaseExceptionGroup):
        end = end.exceptions[0]
    if isinstance(end, ConnectionRejected):
        return _one_line(f"refused with {end.status_code}: {(end.body or b'').decode('utf-8', 'replace')}")
    if isinstance(end, ConnectionClosed):
        closed = end.reason
        return _one_line(f"ended by the peer: {closed.code} {closed.reason or ''}") if closed else "ended"
    return _one_line(str(end) or type(end).__name__)


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:REASON_MAX_CHARS]).strip()


class _Guard:
    """Stands for the nursery in which the library starts the task that reads: whatever that raises is the peer's doing.

    It parses what strangers send before they have shown the token, and nothing of ours runs in it. What it lets
    through when a head holds a byte above 127 (UnicodeDecodeError) would end the node.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, read: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(self._run, read)

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except HandshakeError:
            raise  # says more than we can
        except Exception as error:
            raise PeerFault(f"cannot be read: {type(error).__name__}: {error}") from error


class _PeerStream(trio.abc.Stream):
    """A stream that calls `ended` when it ends, or when too much comes before `is_open` is set.

    gathers: what is sent is kept, and goes with what is sent next. One who sends at a time: the library sees to that.
    """

    def __init__(self, stream: trio.SocketStream, ended: Callable[[], None]) -> None:
        self._stream, self._ended = stream, ended
        self._taken_bytes = 0
        self._gathered: list[bytes | bytearray | memoryview] = []
        self.is_open = self.gathers = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._gathered or self.gathers:
            self._gathered.append(data)
            if self.gathers:
                return
            data = b"".join(self._gathered)
            self._gathered.clear()
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._ended()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = b""
        try:
            data = await self._stream.receive_some(max_bytes)
        finally:
            self._taken_bytes += len(data)
            if not data or (not self.is_open and self._taken_bytes > HANDSHAKE_MAX_BYTES):
                self._ended()
        return data

    async def aclose(self) -> None:
        self._ended()
        await self._stream.aclose()


class PeerSocket:
    """A websocket to a peer, its handshake done."""

    def __init__(self, websocket: WebSocketConnection, stream: _PeerStream) -> None:
        self._stream = stream
        self.websocket = websocket

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, at least one, in one write: the peer's loop wakes once for all of them."""
        *before, last = messages
        try:
            for message in before:
                self._stream.gathers = True
                await self.websocket.send_message(message)
        finally:
            self._stream.gathers = False
        await self.websocket.send_message(last)


class Asking:
    """A peer that asks for a websocket."""

    def __init__(self, request: WebSocketRequest, stream: _PeerStream) -> None:
        self._stream = stream
        self.request = request

    async def accept(self) -> PeerSocket:
        """Grant it."""
        return PeerSocket(await self.request.accept(), self._stream)


@asynccontextmanager
async def dialled(
    address: Address, headers: list[tuple[bytes, bytes]], purpose: Purpose, *, within_s: float
) -> AsyncIterator[PeerSocket]:
    """A websocket to a peer that granted it. Raises what CONNECTION_ENDS names, in a group or alone."""
    with trio.move_on_after(within_s) as patience:
        try:
            stream = await trio.open_tcp_stream(*address)
        except ValueError as error:  # what the resolver does not take for a name at all: UnicodeError, of its codec
            raise PeerFault(f"its host cannot be looked up: {error}") from error
    if patience.cancelled_caught:
        raise PeerFault(f"not reached within {within_s} s")
    set_options(stream, purpose)

    async def open_one(nursery: Any, peer_stream: Any) -> PeerSocket:
        return PeerSocket(await wrap_client_stream(
            nursery, peer_stream, str(address), PATH, extra_headers=headers, **LIMITS), peer_stream)

    async with _opened(stream, open_one, within_s) as peer_socket:
        yield peer_socket


def asked(stream: trio.SocketStream, *, within_s: float) -> AbstractAsyncContextManager[Asking]:
    """What a peer that connected asks for. Raises as `dialled` does."""

    async def open_one(nursery: Any, peer_stream: Any) -> Asking:
        return Asking(await wrap_server_stream(nursery, peer_stream, **LIMITS), peer_stream)

    return _opened(stream, open_one, within_s)


def set_options(stream: trio.SocketStream, purpose: Purpose) -> None:
    """M-60. No delay on both: a frame is whole when it is handed over."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if purpose is Purpose.BULK:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BULK_SEND_BUFFER_BYTES)


@asynccontextmanager
async def _opened(
    stream: trio.SocketStream, open_one: Callable[[Any, Any], Awaitable[Opened]], within_s: float
) -> AsyncIterator[Opened]:
    async with stream, trio.open_nursery() as nursery:
        with trio.move_on_after(within_s) as patience:
            peer_stream = _PeerStream(stream, patience.cancel)
            opened = await open_one(_Guard(nursery), peer_stream)
        if patience.cancelled_caught:
            raise PeerFault(f"ended during the handshake, or did not complete it in {within_s} s")
        peer_stream.is_open = True
        yield opened
        nursery.cancel_scope.cancel()
