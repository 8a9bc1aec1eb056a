"""The task of one connection: read, parse, answer in order, write; and how it is cut off when the client is slow.

One task reads, answers and writes, so requests of one connection run in order (M-52). A request costs no timer, no
cancel scope and no nursery: the server's watchman looks at `phase` and `since_s` of every connection about once a
second and cuts off the slow ones by shutting their socket down, which wakes this task with an end of the stream.

The socket is a plain non-blocking one with trio's `wait_readable`: each call of trio's own `send` goes once around the
scheduler, which cost a quarter of all throughput. A task yields whenever it waits for the next request.
"""

from __future__ import annotations

import socket
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from enum import Enum, auto
from struct import pack
from time import perf_counter
from typing import Any

import structlog
import trio

from queen_node.http.failures import answer_for, raise_if_broken
from queen_node.http.messages import CONTINUE, Request, Response, encode, refused_response
from queen_node.http.reader import READ_MAX_BYTES, RequestReader
from queen_node.http.routes import BeforeBody, Router

READ_AHEAD_MAX_BYTES = 64 * 1024  # pipelined bytes taken in while a handler waits for its client to go
UNSENT_MAX_BYTES = 64 * 1024  # answers of pipelined requests put together before they are written
TURN_MAX_REQUESTS = 32  # pipelined requests answered before other connections get their turn
BODY_WINDOW_S = 10  # a body must bring its least rate over any such time
_AT_ONCE, _IN_ORDER = pack("ii", 1, 0), pack("ii", 0, 0)  # how the kernel ends a connection: on, seconds
LINGER_S = 2.0  # after a refusal, what still comes is discarded so long: the client must get to read the answer
UNDELIVERED_MAX_S = 5.0  # a hook of an undelivered answer may take

log = structlog.get_logger()


class Phase(Enum):
    """What a connection does; `since_s` says since when (reading a body: since the last look of the watchman)."""

    IDLE = auto()  # between requests
    HEAD = auto()
    BODY = auto()
    ANSWERING = auto()  # a handler runs: as long as it likes
    WRITING = auto()  # the client does not take its answer
    LINGERING = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may do. Times in seconds, checked about once a second."""

    max_body_bytes: int = 64 * 1024 * 1024
    head_timeout_s: float = 10.0
    body_min_bytes_per_s: int = 1024
    idle_timeout_s: float = 75.0  # also how long a write may make no progress
    connections_max: int = 10_000


class Shared:
    """What all connections of a server look at."""

    __slots__ = ("draining", "limits", "now_s", "router")

    def __init__(self, router: Router, limits: Limits, now_s: float) -> None:
        self.router, self.limits = router, limits
        self.now_s = now_s  # set by the watchman: a clock read for each request would be dearer than a timeout needs
        self.draining = trio.Event()


class Connection:
    """One client's connection, from accept to close. Only its own task closes the socket."""

    __slots__ = (
        "_body_samples", "_read_ahead", "_reader", "_shared", "_socket", "_undelivered", "_unsent", "phase", "since_s",
    )

    def __init__(self, connected: socket.socket, shared: Shared) -> None:
        self._socket, self._shared = connected, shared
        self._reader = RequestReader(shared.limits.max_body_bytes, self)
        self._read_ahead = b""
        self._unsent = b""
        self._undelivered: list[Response] = []  # answers in `_unsent` that want to know when they cannot be delivered
        self._body_samples: list[tuple[float, int]] = []  # (time, bytes by then) of BODY_WINDOW_S, oldest first
        self.phase = Phase.IDLE
        self.since_s = shared.now_s
        # Should this process be killed: the published client tries its next address after a reset, but takes an end
        # without an answer for final, which ends its consumers.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    async def run(self) -> None:
        """Serve until the client goes, breaks the rules or is cut off. Raises only InvariantBroken and Cancelled."""
        try:
            await self._serve()
        except OSError:
            await self._tell_undelivered()  # the client is gone
        except trio.Cancelled:
            await self._tell_undelivered()
            raise
        except Exception as error:
            raise_if_broken(error)
            log.error("connection failed", exc_info=error)
            await self._tell_undelivered()
        finally:
            trio.lowlevel.notify_closing(self._socket)
            _close(self._socket)

    async def _serve(self) -> None:
        reader = self._reader
        ready = reader.ready
        while True:
            data = self._read_ahead or await self._read()
            self._read_ahead = b""
            if data:
                reader.feed(data)
            elif reader.failure is None:
                return
            answered_count = 0
            while ready:
                self.phase = Phase.ANSWERING
                if not await self._answer(ready.popleft(), more=bool(ready)):
                    await self._linger()
                    return
                answered_count += 1
                if answered_count % TURN_MAX_REQUESTS == 0:
                    await trio.lowlevel.checkpoint()
            if reader.failure is not None:
                head_only = reader.current is not None and reader.current.method == "HEAD"
                await self._refuse(refused_response(reader.failure), head_only=head_only)
                return
            if reader.current is None:
                self._rest()
                if self._shared.draining.is_set() and not reader.in_head and not self._read_ahead:
                    return
            elif self.phase is not Phase.BODY and not await self._begin_body(reader.current):
                return

    def _rest(self) -> None:
        """Note what the connection waits for now."""
        if not self._reader.in_head:
            if self.phase is not Phase.IDLE:
                self.phase, self.since_s = Phase.IDLE, self._shared.now_s
        elif self.phase is not Phase.HEAD:
            self.phase, self.since_s = Phase.HEAD, self._shared.now_s

    # --- answering

    async def _answer(self, request: Request, more: bool) -> bool:
        """Run the handler and write what it answers. False: the connection is done. more: others wait behind it."""
        began_s = perf_counter()
        if self._unsent:
            response = await _telling_when_it_waits(self._respond(request), self._send_now)
        else:
            response = await self._respond(request)
        if (route := request.route) is not None:
            route.answers[response.status] = route.answers.get(response.status, 0) + 1
            route.seconds.observe(perf_counter() - began_s)
        close = not request.keep_alive or self._shared.draining.is_set()
        self._put(response, close, request.method == "HEAD")
        if (close or not more or len(self._unsent) >= UNSENT_MAX_BYTES) and (self._undelivered or not self._send_now()):
            await self._flush()
        return not close

    async def _respond(self, request: Request) -> Response:
        """The answer of the request's route: of its hook, unless that ran before the body came, or of its handler."""
        route = request.route
        try:
            if route is None:
                route = self._shared.router.find(request)
                if route.before_body is not None:
                    early = await _asked(route.before_body, request)
                    if early is not None:
                        return early
            return await route.handler(request)
        except Exception as error:
            return answer_for(error, request)

    async def _begin_body(self, request: Request) -> bool:
        """The head is complete and the body is not. False: it was refused and stays unread."""
        self.phase = Phase.ANSWERING
        route = self._shared.router.find(request)
        try:
            early = None if route.before_body is None else await _asked(route.before_body, request)
        except Exception as error:
            early = answer_for(error, request)
        if early is not None:
            route.answers[early.status] = route.answers.get(early.status, 0) + 1
            await self._refuse(early, head_only=request.method == "HEAD")
            return False
        if self._reader.expects_continue and not self._reader.body_bytes:
            self._unsent = CONTINUE
            await self._flush()
        self.phase, self.since_s = Phase.BODY, self._shared.now_s
        self._body_samples = [(self.since_s, self._reader.body_bytes)]
        return True

    async def _refuse(self, response: Response, head_only: bool = False) -> None:
        """Answer and be done with the client."""
        self._put(response, True, head_only)
        await self._flush()
        await self._linger()

    async def _linger(self) -> None:
        """Discard for a while what still comes: closing over unread bytes would destroy the last answer on its way."""
        self._socket.shutdown(socket.SHUT_WR)
        self.phase, self.since_s = Phase.LINGERING, self._shared.now_s
        while await self._read():
            pass

    # --- reading

    async def _read(self) -> bytes:
        """The next bytes; empty at the end of the stream. Always goes around the scheduler once.

        First around, then a look, then a wait: under load the client's next request has come by then, and registering
        with epoll costs more than a look in vain (measured, 64 connections: 52,000 requests/s without, 59,000 with).
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._socket.recv(READ_MAX_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)

    async def wait_gone(self) -> None:
        """Peer: return once the client closed its side. Pipelined bytes are kept for when their turn comes."""
        while len(self._read_ahead) < READ_AHEAD_MAX_BYTES:
            try:
                data = await self._read()
            except OSError:
                return
            if not data:
                return
            self._read_ahead += data
        await trio.sleep_forever()

    async def wait_draining(self) -> None:
        """Peer: return once the server has begun to stop."""
        await self._shared.draining.wait()

    # --- writing

    def _put(self, response: Response, close: bool, head_only: bool) -> None:
        """Add an answer to what is to be sent."""
        encoded = encode(response, close=close, head_only=head_only)
        self._unsent = self._unsent + encoded if self._unsent else encoded
        if response.on_undelivered is not None:
            self._undelivered.append(response)

    def _send_now(self) -> bool:
        """Hand to the kernel what it takes at once; True when that is all. A gone client shows at the next write."""
        unsent = self._unsent
        try:
            sent = self._socket.send(unsent)
        except OSError:
            return False
        if sent < len(unsent):
            self._unsent = unsent[sent:]
            return False
        self._unsent = b""
        self._undelivered.clear()
        return True

    async def _flush(self) -> None:
        """Write all answers out. Raises OSError when the client is gone; `run` tells those who have to know (PA-23)."""
        if not self._unsent:
            return
        if self._undelivered and self._client_has_gone():
            raise BrokenPipeError("the client closed before its answer")
        if not self._send_now():
            await self._write_slowly()

    async def _write_slowly(self) -> None:
        left = memoryview(self._unsent)
        phase, self.phase = self.phase, Phase.WRITING
        while left:
            self.since_s = self._shared.now_s
            await trio.lowlevel.wait_writable(self._socket)
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                continue
        self._unsent = b""
        self._undelivered.clear()
        self.phase = phase

    def _client_has_gone(self) -> bool:
        """A last look before an answer with a lease leaves: the kernel takes bytes for a client that closed, too."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    async def _tell_undelivered(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDELIVERED_MAX_S):
            for response in self._undelivered:
                if response.on_undelivered is not None:
                    try:
                        await response.on_undelivered()
                    except Exception as error:
                        raise_if_broken(error)
                        log.error("hook of an undelivered answer failed", exc_info=error)
        self._undelivered.clear()

    # --- cutting off; called by the watchman, never by the connection's own task

    def look(self, now_s: float) -> None:
        """Cut the connection off when it has taken longer than its phase allows."""
        phase = self.phase
        if phase is Phase.ANSWERING:
            return
        limits, age_s = self._shared.limits, now_s - self.since_s
        if phase is Phase.BODY:
            self._look_at_body(now_s)
        elif phase is Phase.IDLE:
            if age_s >= limits.idle_timeout_s:
                self.stop_reading()
        elif (
            (phase is Phase.HEAD and age_s >= limits.head_timeout_s)
            or (phase is Phase.WRITING and age_s >= limits.idle_timeout_s)
            or (phase is Phase.LINGERING and age_s >= LINGER_S)
        ):
            _shut_down(self._socket, socket.SHUT_RDWR)

    def stop_reading(self) -> None:
        """Wake the task with an end of the stream; a request that came at the same moment is still answered."""
        _shut_down(self._socket, socket.SHUT_RD)

    def _look_at_body(self, now_s: float) -> None:
        samples, body_bytes = self._body_samples, self._reader.body_bytes
        least = self._shared.limits.body_min_bytes_per_s
        samples.append((now_s, body_bytes))
        while now_s - samples[0][0] >= BODY_WINDOW_S:
            then_s, then_bytes = samples.pop(0)
            if body_bytes - then_bytes < least * (now_s - then_s):
                self._reader.fail_slow_body(least, BODY_WINDOW_S)
                self.stop_reading()
                return


def _close(connected: socket.socket) -> None:
    """In order: what was written goes out yet."""
    with connected:
        try:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _IN_ORDER)
        except OSError:
            pass  # the client was quicker


def _shut_down(connected: socket.socket, how: int) -> None:
    try:
        connected.shutdown(how)
    except OSError:
        pass  # the client was quicker


async def _asked(hook: BeforeBody, request: Request) -> Response | None:
    verdict = hook(request)
    return verdict if verdict is None or isinstance(verdict, Response) else await verdict


@types.coroutine
def _telling_when_it_waits(
    running: Coroutine[Any, Any, Response], waits: Callable[[], object],
) -> Generator[Any, Any, Response]:
    """Run a coroutine and call `waits` before it is suspended for the first time.

    So the answers of a pipeline are written together while handlers answer at once, and none of them is held back by a
    long poll behind it.
    """
    try:
        trap = running.send(None)
        waits()
        while True:
            try:
                sent = yield trap
            except BaseException as error:
                trap = running.throw(error)
            else:
                trap = running.send(sent)
    except StopIteration as done:
        answer: Response = done.value
        return answer
