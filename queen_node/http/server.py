"""The client port: accepts connections, bounds their number, watches for slow ones, and drains at shutdown.

What one connection does is in `connection.py`, what a client may send in `reader.py`.

Bound: beyond `connections_max` a new connection gets 503 `overloaded` with Retry-After and is closed at once, unread.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Sequence

import structlog
import trio

from queen_node.config import Settings
from queen_node.errors import TOO_MANY_CONNECTIONS
from queen_node.http.connection import Connection, Limits, Phase, Shared
from queen_node.http.messages import encode, refusal_response
from queen_node.http.routes import Router
from queen_node.metrics import Metrics
from raft.invariants import must

BACKLOG = 1024  # connections the kernel holds until they are accepted
BIND_AGAIN_S = 0.01
ACCEPTS_MAX = 64  # accepted before the loop sees other tasks
WATCH_EVERY_S = 1.0  # so much later than its limit may a slow connection be cut off
ACCEPT_PAUSE_S = 0.1  # when the process has no file descriptor left: one may be closed meanwhile
DESCRIPTORS_FOR_OTHERS = 1024  # files of the store and the log, peers
DRAIN_S = 35.0  # a parked poll may take 30 s (CL-131)

_GONE_ALREADY = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger()


def unbound(address: str) -> socket.socket:
    """A non-blocking socket that can listen on `address`. Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    return listener


async def bind(listener: socket.socket, address: str, port: int, patience_s: float = 0.0) -> None:
    """Bind and listen. port 0: a free one. patience_s: how long to wait for a port in use. Raises OSError."""
    give_up_at_s = trio.current_time() + patience_s
    while True:
        try:
            listener.bind((address, port))
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or trio.current_time() >= give_up_at_s:
                raise
        await trio.sleep(BIND_AGAIN_S)
    listener.listen(BACKLOG)


def setting_of(error: OSError) -> str:
    """The variable that an operator has to change after a bind that failed."""
    return "PORT" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "QUEEN_BIND_ADDR"


def limits_from(settings: Settings, doors: int = 1) -> Limits:
    """The limits that an operator has set; of the connections, one of several doors takes its share."""
    return Limits(
        max_body_bytes=settings.max_body_bytes,
        head_timeout_s=settings.http_head_timeout_ms / 1000,
        body_min_bytes_per_s=settings.http_body_min_bytes_per_s,
        idle_timeout_s=settings.http_idle_timeout_ms / 1000,
        connections_max=-(-settings.http_connections_max // doors),
    )


def take_descriptors(connections_max: int) -> str | None:
    """Raise this process's limit of open files as far as it may; a sentence when that is too few for them."""
    wanted = connections_max + DESCRIPTORS_FOR_OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return f"the limit of open files is {hard}, and {connections_max} connections want {wanted}"


class Server:
    """Serves HTTP on listening sockets. `run` lasts until `drain` has finished, or it is cancelled."""

    def __init__(self, router: Router, limits: Limits, metrics: Metrics, *, shares_port: bool = False) -> None:
        """shares_port: other processes accept on the same socket; each takes one connection a turn, or the first that
        wakes would take all that come together."""
        self._shared = Shared(router, limits, now_s=0.0)
        self._limits = limits
        self._connections: set[Connection] = set()
        self._someone_came = trio.Event()
        self._accepting = trio.CancelScope()
        self._everything = trio.CancelScope()
        self._metrics = metrics
        self._accepts_max = 1 if shares_port else ACCEPTS_MAX
        metrics.routes = (*router.routes, router.nowhere)

    async def run(
        self, listeners: Sequence[socket.socket], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve. Takes over the listeners. Raises InvariantBroken (in a group) when a handler did."""
        must(bool(listeners), "a server without a listener")
        self._shared.now_s = trio.current_time()
        with self._everything:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch)
                async with trio.open_nursery() as serving:
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for listener in listeners:
                                accepting.start_soon(self._accept, listener, serving)
                            task_status.started()
                watching.cancel_scope.cancel()

    def drain(self, grace_s: float = DRAIN_S) -> None:
        """Stop accepting; answer what is in hand with `Connection: close`; past `grace_s` cut off the rest (CL-131).

        Returns at once; `run` returns when the last connection has ended. Handlers that wait learn of it by
        `Request.draining()`.
        """
        self._accepting.cancel()
        self._shared.draining.set()
        for connection in tuple(self._connections):
            if connection.phase is Phase.IDLE:
                connection.stop_reading()
        self._everything.deadline = trio.current_time() + grace_s

    async def _accept(self, listener: socket.socket, serving: trio.Nursery) -> None:
        with listener:
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    for _ in range(self._accepts_max):
                        connected, _address = listener.accept()
                        self._take(connected, serving)
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno in _NO_ROOM:
                        log.warning("no room for a new connection", reason=error.strerror, open=len(self._connections))
                        await trio.sleep(ACCEPT_PAUSE_S)
                    elif error.errno not in _GONE_ALREADY:
                        raise

    def _take(self, connected: socket.socket, serving: trio.Nursery) -> None:
        connected.setblocking(False)
        if len(self._connections) >= self._limits.connections_max:
            self._metrics.connections_refused += 1
            _turn_away(connected)
            return
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._metrics.connections_accepted += 1
        self._metrics.connections += 1
        if not self._connections:
            self._shared.now_s = trio.current_time()  # the watchman slept, and its time stood still
            self._someone_came.set()
        connection = Connection(connected, self._shared)
        self._connections.add(connection)
        serving.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._metrics.connections -= 1

    async def _watch(self) -> None:
        """The watchman: the one timer of all connections."""
        shortest_s = min(self._limits.head_timeout_s, self._limits.idle_timeout_s)
        every_s = min(WATCH_EVERY_S, shortest_s / 2)
        while True:
            if not self._connections:  # an idle node should stay idle
                self._someone_came = trio.Event()
                await self._someone_came.wait()
            await trio.sleep(every_s)
            now_s = self._shared.now_s = trio.current_time()
            for connection in tuple(self._connections):
                connection.look(now_s)


def _turn_away(connected: socket.socket) -> None:
    with connected:
        try:
            connected.send(_TOO_MANY)
        except OSError:
            pass  # gone, or it does not read: it learns by the close


_TOO_MANY = encode(refusal_response(TOO_MANY_CONNECTIONS), close=True)
