"""What travels between a connection and a handler: requests, responses, and the exact bytes of an answer.

Here: percent-decoding, query strings, status lines. Not here: sockets and parsing (`reader.py`, `connection.py`), which
handler answers what (`routes.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from queen_node.errors import Refusal, Refused, Shape
from queen_node.tenants import DEFAULT_TENANT

if TYPE_CHECKING:
    from queen_node.http.routes import Route

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Hook = Callable[[], Awaitable[None]]

# Two hexadecimal digits in any case -> the byte they mean. 484 entries; a look-up also rejects what is no hexadecimal.
_DIGITS = b"0123456789abcdefABCDEF"
_BYTE_OF = {bytes((high, low)): bytes.fromhex(chr(high) + chr(low)) for high in _DIGITS for low in _DIGITS}


class BadPath(Exception):
    """A path part that is no percent-encoded UTF-8. Routes answer it in their own shape; else 400 `bad_request`."""


class BadQuery(Exception):
    """A query string that is no percent-encoded UTF-8. Routes answer it in their own shape; else 400 `bad_request`."""


class Peer(Protocol):
    """The client's side of a request, as far as a handler that waits needs to know it."""

    async def wait_gone(self) -> None:
        """Return once the client has closed its side."""

    async def wait_draining(self) -> None:
        """Return once the node has begun to stop."""


class Request:
    """One request, complete with its body.

    method: as sent ("GET"). raw_path, raw_query: bytes as sent, without the "?" between them. params: captured parts of
    the path, still raw. route: what answers it. tenant: whose state it is about, 16 bytes. keep_alive: whether the
    client lets the connection live on.
    """

    __slots__ = (
        "_headers", "_lowered", "_peer", "_query", "_segments",
        "body", "keep_alive", "method", "params", "raw_path", "raw_query", "route", "tenant",
    )

    def __init__(
        self,
        method: str,
        raw_path: bytes,
        raw_query: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
        body: bytes = b"",
        peer: Peer | None = None,
    ) -> None:
        self.method = method
        self.raw_path = raw_path
        self.raw_query = raw_query
        self._headers = headers
        self._lowered: dict[bytes, bytes] | None = None
        self.body = body
        self.keep_alive = True
        self.params: Mapping[str, bytes] = _NO_PARAMS
        self.route: Route | None = None
        self.tenant = DEFAULT_TENANT
        self._peer = peer
        self._query: dict[str, str] | None = None
        self._segments: tuple[bytes, ...] | None = None

    def header(self, name: bytes) -> bytes | None:
        """Value of a header by its lower-case name; None when it was not sent. Of a name sent twice the last counts."""
        if self._lowered is None:
            # The parser leaves the blanks behind a value on it, which are none of it (RFC 9110, 5.5).
            self._lowered = {
                name.lower(): value.rstrip(b" \t") for name, value in self._headers.items()} if self._headers else {}
        return self._lowered.get(name)

    def announced_bytes(self) -> int:
        """Content-Length; 0 when the head does not say how long the body is."""
        length = self.header(b"content-length")
        return int(length) if length is not None and length.isdigit() else 0

    @property
    def segments(self) -> tuple[bytes, ...]:
        """The raw path split at "/" before any decoding: %2F belongs to a name (PA-2, TM-3). Nothing is normalised."""
        if self._segments is None:
            self._segments = tuple(self.raw_path.split(b"/")[1:])
        return self._segments

    def text(self, name: str) -> str:
        """A captured path part, percent-decoded once as UTF-8; a "+" stays a plus. Raises BadPath (TM-3, AD-1)."""
        try:
            return percent_decoded(self.params[name])
        except ValueError as error:
            raise BadPath(f"{name} in the path: {error}") from None

    @property
    def query(self) -> Mapping[str, str]:
        """Query parameters: "+" is a space, then percent-decoded UTF-8; a name's last value wins. Raises BadQuery."""
        if self._query is None:
            self._query = parse_query(self.raw_query) if self.raw_query else {}
        return self._query

    async def client_gone(self) -> None:
        """Wait until the client has closed its side; a long poll races its answer with this (PA-23).

        A client that only closes its sending half counts as gone. Bytes of a pipelined request do not; past 64 KiB of
        them the end of the stream cannot be seen any more and this waits for ever. One task of a request may wait here.
        """
        if self._peer is None:
            await trio.sleep_forever()
        else:
            await self._peer.wait_gone()

    async def draining(self) -> None:
        """Wait until the node has begun to stop: a parked call should answer soon (CL-131)."""
        if self._peer is None:
            await trio.sleep_forever()
        else:
            await self._peer.wait_draining()


class Response:
    """One answer.

    headers: further ones, `(b"Retry-After", b"1")`. on_undelivered: awaited when the answer could not be handed to the
    client's connection (PA-23); never once the kernel took all bytes, whatever becomes of them then.
    """

    __slots__ = ("body", "content_type", "headers", "on_undelivered", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        on_undelivered: Hook | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.on_undelivered = on_undelivered


def json_response(status: int, document: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """A document of plain values (or msgspec structs) as JSON."""
    return Response(status, msgspec.json.encode(document), JSON, headers)


def refused_response(refused: Refused) -> Response:
    """The answer that tells a client of a refusal; 429 and 503 carry Retry-After in whole seconds (AD-33)."""
    retry_after_s = refused.refusal.retry_after_s
    headers = ((b"Retry-After", b"%d" % retry_after_s),) if retry_after_s else ()
    content_type = TEXT if refused.refusal.shape is Shape.PLAIN else JSON
    return Response(refused.refusal.status, refused.body(), content_type, headers)


def refusal_response(refusal: Refusal, text: str = "") -> Response:
    """The same for a refusal without particulars; `text` replaces the table's sentence."""
    return refused_response(Refused(refusal, text))


def encode(response: Response, *, close: bool = False, head_only: bool = False) -> bytes:
    """The bytes of an answer. head_only: the request was HEAD, so the body is dropped and its length kept.

    A 204 has no body, no Content-Type and no Content-Length (PA-6).
    """
    status, body = response.status, response.body
    if response.content_type is JSON and not response.headers and not close and not head_only and status != 204:
        return b"%b%d\r\n\r\n%b" % (_json_head(status), len(body), body)  # nearly every answer: one copy
    parts = [_STATUS_LINES.get(status) or _status_line(status)]
    if status != 204:
        parts.append(b"Content-Type: %b\r\nContent-Length: %d\r\n" % (response.content_type, len(body)))
    parts.extend(b"%b: %b\r\n" % header for header in response.headers)
    parts.append(b"Connection: close\r\n\r\n" if close else b"\r\n")
    if status != 204 and not head_only:
        parts.append(body)
    return b"".join(parts)


def percent_decoded(raw: bytes) -> str:
    """Percent-decode once, as UTF-8. Raises ValueError on a bad escape or bad UTF-8: neither is ever passed through."""
    if b"%" not in raw:
        return raw.decode("utf-8")
    first, *rest = raw.split(b"%")
    decoded = [first]
    for part in rest:
        byte = _BYTE_OF.get(part[:2])
        if byte is None:
            raise ValueError("bad percent-encoding")
        decoded.append(byte)
        decoded.append(part[2:])
    return b"".join(decoded).decode("utf-8")


def parse_query(raw: bytes) -> dict[str, str]:
    """Pairs of a query string. A name without "=" has an empty value; empty pieces are skipped. Raises BadQuery."""
    pairs = {}
    for piece in raw.replace(b"+", b" ").split(b"&"):
        if not piece:
            continue
        name, _, value = piece.partition(b"=")
        try:
            pairs[percent_decoded(name)] = percent_decoded(value)
        except ValueError as error:
            raise BadQuery(f"query string: {error}") from None
    return pairs


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode("ascii"))


def _json_head(status: int) -> bytes:
    return _JSON_HEADS.get(status) or _status_line(status) + _JSON_HEAD_END


_NO_PARAMS: Mapping[str, bytes] = {}
_JSON_HEAD_END = b"Content-Type: application/json\r\nContent-Length: "
_STATUS_LINES = {int(status): _status_line(status) for status in HTTPStatus if status >= 200}
_JSON_HEADS = {status: line + _JSON_HEAD_END for status, line in _STATUS_LINES.items()}
