"""A small HTTP/1.1 client for tests, written apart from the product so that both cannot share a mistake.

It never repeats a request, and it says what a failure means: `NotSent` (surely nothing happened) or `Unanswered`
(nobody knows). One client is one connection, made when needed, and carries one request at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import trio

# Shorter than the broker's deadline of 30 s, so that a late commit shows as unknown (guarantees.md 2).
ANSWER_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 5.0
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
READ_BYTES = 64 * 1024


class NotSent(Exception):
    """No byte of the request left this process: it was surely not applied."""


class Unanswered(Exception):
    """The request left, at least in part, and no whole answer came: it may have been applied, now or later."""


class BrokenAnswer(Exception):
    """What came back is no HTTP answer. Always the server's fault."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. Header names are in lower case; of a name sent twice the last value counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON, `Any` because tests look into answers of every shape. Raises ValueError when it is none."""
        return json.loads(self.body)


class HttpClient:
    """One keep-alive connection to 127.0.0.1:`port`. Use as an async context manager, or call `aclose`."""

    def __init__(self, port: int, *, timeout_s: float = ANSWER_TIMEOUT_S, host: str = "127.0.0.1") -> None:
        self.port, self.host, self.timeout_s = port, host, timeout_s
        self._stream: trio.SocketStream | None = None
        self._unread = bytearray()

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | str | Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send one request and wait for its answer. A sequence or mapping as `body` goes out as JSON.

        Raises NotSent, Unanswered, BrokenAnswer; after any of them the connection is gone.
        """
        raw = _body_bytes(body)
        head = [f"{method} {target} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        sent = dict(headers or {})
        if raw is not None:
            sent.setdefault("Content-Length", str(len(raw)))
            sent.setdefault("Content-Type", "application/json")
        head += [f"{name}: {value}" for name, value in sent.items()]
        message = "\r\n".join([*head, "", ""]).encode() + (raw or b"")
        await self._connect()
        try:
            with trio.fail_after(self.timeout_s if timeout_s is None else timeout_s):
                try:
                    await self.send_raw(message)
                except Unanswered:
                    pass  # a server that refuses a body unread answers and closes: the answer may wait all the same
                answer = await self.read_answer(without_body=method == "HEAD")
        except trio.TooSlowError:
            await self.aclose()
            raise Unanswered(f"{method} {target}: no answer in time") from None
        except BaseException:
            # Also when cancelled: a later request must not read this one's answer.
            await self.aclose()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            await self.aclose()
        return answer

    async def get(self, target: str, *, headers: Mapping[str, str] | None = None) -> Answer:
        """GET."""
        return await self.request("GET", target, headers=headers)

    async def post(
        self, target: str, body: bytes | str | Sequence[Any] | Mapping[str, Any] | None = None, *,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """POST."""
        return await self.request("POST", target, body, headers=headers)

    async def delete(self, target: str) -> Answer:
        """DELETE."""
        return await self.request("DELETE", target)

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are, connecting first when needed. Raises NotSent, Unanswered."""
        await self._connect()
        stream = self._stream
        if stream is None:
            raise NotSent("no connection")
        try:
            await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Unanswered(f"the connection broke while the request left: {error}") from error

    async def read_answer(self, *, without_body: bool = False) -> Answer:
        """The next answer on the connection. `without_body`: it answers a HEAD."""
        head = await self._read_head()
        status, headers = _parse_head(head)
        if 100 <= status < 200:
            return Answer(status, headers, b"")
        if without_body or status in (204, 304):
            return Answer(status, headers, b"")
        if "transfer-encoding" in headers:
            raise BrokenAnswer(f"an answer with transfer-encoding {headers['transfer-encoding']}")
        if "content-length" not in headers:
            raise BrokenAnswer(f"an answer with neither a body's length nor status 204: {head[:200]!r}")
        length = int(headers["content-length"])
        if length > BODY_BYTES_MAX:
            raise BrokenAnswer(f"an answer of {length} bytes")
        while len(self._unread) < length:
            await self._read_more()
        body = bytes(self._unread[:length])
        del self._unread[:length]
        return Answer(status, headers, body)

    async def read_until_closed(self) -> bytes:
        """Everything that still comes until the server closes. Raises trio.TooSlowError when it does not."""
        with trio.fail_after(self.timeout_s):
            try:
                while True:
                    await self._read_more()
            except Unanswered:
                rest = bytes(self._unread)
                await self.aclose()
                return rest

    async def aclose(self) -> None:
        """Drop the connection at once. Safe to call twice, and while cancelled."""
        stream, self._stream = self._stream, None
        self._unread.clear()
        if stream is not None:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _connect(self) -> None:
        if self._stream is not None:
            return
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                self._stream = await trio.open_tcp_stream(self.host, self.port)
        except (OSError, trio.TooSlowError) as error:
            raise NotSent(f"no connection to {self.host}:{self.port}: {error}") from error

    async def _read_head(self) -> bytes:
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            if len(self._unread) > HEAD_BYTES_MAX:
                raise BrokenAnswer("a head without an end")
            await self._read_more()
        head = bytes(self._unread[:end])
        del self._unread[: end + 4]
        return head

    async def _read_more(self) -> None:
        stream = self._stream
        if stream is None:
            raise Unanswered("the connection is closed")
        try:
            data = await stream.receive_some(READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Unanswered(f"the connection broke before the answer: {error}") from error
        if not data:
            raise Unanswered("the server closed the connection before the answer was whole")
        self._unread += data


def segment(name: str) -> str:
    """`name` as one segment of a path: everything that is not unreserved is percent-encoded, slashes too."""
    return quote(name, safe="")


def _body_bytes(body: bytes | str | Sequence[Any] | Mapping[str, Any] | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return json.dumps(body).encode()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not status.isdigit():
        raise BrokenAnswer(f"no status line: {lines[0]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise BrokenAnswer(f"no header line: {line!r}")
        headers[name.lower()] = value.strip()
    return int(status), headers
