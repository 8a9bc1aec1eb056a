"""The load generator's engine: many connections, one epoll, one thread, no framework between the bytes and the clock.

What is sent when is the business of a `Role` (bench/roles.py); this file moves bytes, counts refusals and keeps time.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from bench.calls import error_text
from bench.http import Answer, AnswerParser

RECEIVE_BYTES = 256 * 1024
RECONNECTS_MAX = 1000
EVENTS_MAX = 256
IDLE_WAIT_S = 0.1

ACCEPTED = frozenset((200, 201, 204))


class Role(Protocol):
    """What a kind of client does. Both methods give the next request to send, or None to leave the connection idle."""

    def begin(self, connection: Connection) -> bytes | None: ...

    def answered(self, connection: Connection, answer: Answer, now_ns: int) -> bytes | None: ...


class Connection:
    """One socket and the request that it waits for an answer to."""

    __slots__ = ("lane", "out", "parser", "role", "sent_ns", "sock")

    def __init__(self, sock: socket.socket, role: Role, lane: int) -> None:
        self.sock = sock
        self.role = role
        self.lane = lane  # its number among the connections of its role
        self.parser = AnswerParser()
        self.out = b""  # what the kernel did not take yet
        self.sent_ns = 0  # when the request was sent, or, with a fixed rate, when it was due


class Loop:
    """Runs roles against one port until a moment, or until they say that they are done."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._reconnects = 0
        self._wakes: list[Callable[[int], int | None]] = []
        self.calls = 0
        self.refused: Counter[str] = Counter()
        self.example = ""

    def add(self, role: Role, connections: int) -> None:
        """Opens the connections of a role; each sends its first request at once. Raises OSError."""
        for lane in range(connections):
            self._open(role, lane)

    def on_time(self, wake: Callable[[int], int | None]) -> None:
        """`wake(now_ns)` is called when its moment has come and says the next one; None: never again."""
        self._wakes.append(wake)

    def send(self, connection: Connection, request: bytes, due_ns: int = 0) -> None:
        """Sends on an idle connection. due_ns: since when the call counts, if not since now."""
        connection.sent_ns = due_ns or time.monotonic_ns()
        try:
            taken = connection.sock.send(request)
        except BlockingIOError:
            taken = 0
        except OSError as problem:
            self._lost(connection, str(problem))
            return
        if taken < len(request):
            connection.out = request[taken:]
            self._epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)

    def run(self, until_ns: int, is_done: Callable[[], bool] = lambda: False) -> None:
        """Serves until `until_ns` (monotonic) or until `is_done`. Raises BadAnswer; OSError when reconnecting fails."""
        while not is_done():
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                return
            wait_s = min(until_ns - now_ns, self._wake_up(now_ns)) / 1e9
            # epoll waits in whole milliseconds, too coarse for a steady rate; select on it waits in microseconds.
            if wait_s < IDLE_WAIT_S:
                select.select((self._epoll,), (), (), max(wait_s, 0))
                events = self._epoll.poll(0, EVENTS_MAX)
            else:
                events = self._epoll.poll(IDLE_WAIT_S, EVENTS_MAX)
            for fd, event in events:
                connection = self._connections.get(fd)
                if connection is not None:
                    self._serve(connection, event)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._epoll.close()

    def count_refused(self, what: str, example: str = "") -> None:
        """Notes something that should not have come, for the report."""
        self.refused[what] += 1
        self.example = self.example or f"{what}: {example}"

    def _wake_up(self, now_ns: int) -> int:
        """Calls those whose moment has come; gives the time until the next in ns."""
        next_ns = now_ns + int(IDLE_WAIT_S * 1e9)
        for wake in list(self._wakes):
            due_ns = wake(now_ns)
            if due_ns is None:
                self._wakes.remove(wake)
            else:
                next_ns = min(next_ns, due_ns)
        return next_ns - now_ns

    def _open(self, role: Role, lane: int) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        connection = Connection(sock, role, lane)
        self._connections[sock.fileno()] = connection
        self._epoll.register(sock, select.EPOLLIN)
        request = role.begin(connection)
        if request is not None:
            self.send(connection, request)

    def _lost(self, connection: Connection, why: str) -> None:
        """A connection that the node closed is counted and opened again, so that the load stays what it should be."""
        self.count_refused("connection lost", why)
        self._reconnects += 1
        del self._connections[connection.sock.fileno()]
        connection.sock.close()
        if self._reconnects > RECONNECTS_MAX:
            raise ConnectionError(f"lost {RECONNECTS_MAX} connections, the last one: {why}")
        self._open(connection.role, connection.lane)

    def _serve(self, connection: Connection, event: int) -> None:
        if event & select.EPOLLOUT and connection.out:
            self._send_rest(connection)
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = connection.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._lost(connection, str(problem))
            return
        if not data:
            self._lost(connection, "closed by the node")
            return
        now_ns = time.monotonic_ns()
        for answer in connection.parser.feed(data):
            self.calls += 1
            if answer.status not in ACCEPTED:
                self.count_refused(str(answer.status), error_text(answer.body))
            request = connection.role.answered(connection, answer, now_ns)
            if request is not None:
                self.send(connection, request)

    def _send_rest(self, connection: Connection) -> None:
        try:
            taken = connection.sock.send(connection.out)
        except BlockingIOError:
            return
        except OSError as problem:
            self._lost(connection, str(problem))
            return
        connection.out = connection.out[taken:]
        if not connection.out:
            self._epoll.modify(connection.sock, select.EPOLLIN)

