"""From the bytes of one connection to requests. Every decision about what a client may send is here; nothing awaits.

The connection feeds what it has read and takes `ready` requests in order. A `failure` is final: what was complete
before it is still answered, then the refusal, then the connection closes. The parsing itself is llhttp's.
"""

from __future__ import annotations

import re
from collections import deque

import httptools

from queen_node.errors import BAD_HTTP, BODY_TOO_LARGE, BODY_TOO_SLOW, ENCODED_BODY, HEAD_TOO_LARGE, Refused
from queen_node.http.messages import Peer, Request

HEAD_MAX_BYTES = 64 * 1024  # request line and headers; a head that comes in one read may exceed it by that read
READ_MAX_BYTES = 64 * 1024  # of one read: as small requests in a pipeline they take about 6 ms to parse
FRAMING_MAX_BYTES = 1024 * 1024  # of a chunked body: what chunk sizes and trailers may take beyond the limit of a body

_NO_ASCII = re.compile(rb"[\x80-\xff]")
_METHODS = {name.encode(): name for name in ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")}

# Headers that say nothing of how a body comes, as clients mostly write them: a request of these alone is not looked at
# further. Content-Length is among them because a body that came with its head is counted as it is.
_is_usual = frozenset(
    spelled for name in (
        b"Host", b"Content-Type", b"Content-Length", b"Accept", b"Accept-Encoding", b"Accept-Language", b"User-Agent",
        b"Authorization", b"Connection",
    ) for spelled in (name, name.lower())).issuperset


class RequestReader:
    """The parser of one connection.

    ready: complete requests, oldest first. current: one whose head is complete and whose body is not. failure: why
    no more can be read. in_head: bytes of a head have come and not yet all. (Behind a complete request of the same read
    that shows only from the target on: one more callback a request would cost more than it is worth.)
    """

    __slots__ = (
        "_body", "_body_bytes", "_fed_bytes", "_head_checked", "_head_is_usual", "_headers", "_parser", "_peer", "_url",
        "current", "expects_continue", "failure", "in_head", "max_body_bytes", "on_header", "ready",
    )

    def __init__(self, max_body_bytes: int, peer: Peer | None = None) -> None:
        self.max_body_bytes = max_body_bytes
        self.ready: deque[Request] = deque()
        self.current: Request | None = None
        self.expects_continue = False
        self.failure: Refused | None = None
        self.in_head = False
        self._peer = peer
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self.on_header = self._headers.__setitem__  # the parser calls it for each header: no Python frame of ours
        self._body: list[bytes] = []
        self._body_bytes = 0  # of the current request
        self._fed_bytes = 0  # since the current request or its head began, by whole reads
        self._head_checked = False
        self._head_checked = self._head_is_usual = False
        self._parser = httptools.HttpRequestParser(self)

    @property
    def body_bytes(self) -> int:
        """How much of the current request's body has come."""
        return self._body_bytes

    def feed(self, data: bytes) -> None:
        """Take in bytes as they were read. Never raises; after a `failure` the bytes are dropped."""
        if self.current is None and not self.in_head and not data.isascii():
            data = _with_escaped_target(data)
        while data and self.failure is None:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The request asked for another protocol. We decline by answering it as if it had not (RFC 9110, 7.8);
                # what follows it is read by a new parser, for the old one has stopped.
                declined = self.ready[-1]
                if declined.method == "CONNECT":
                    declined.keep_alive = False
                    return
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if framing := _framing(declined):
                    # The old parser has passed over its body, which would be read as a request now: one that a trusted
                    # front has never seen. The new one is told of a request with nothing but that body.
                    self.feed(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                    self.current = self.ready.pop()
                    self._head_is_usual = False
                    self._check_head()
                continue
            except httptools.HttpParserCallbackError:
                raise  # a fault of ours, not of the client
            except httptools.HttpParserError as error:
                if not (self.ready and not self.ready[-1].keep_alive):  # what follows a last request is nobody's
                    self.failure = self.failure or Refused(BAD_HTTP, f"not a well-formed HTTP request: {error}")
                return
            if self.current is not None:
                if not self._head_checked:
                    self._check_head()
                self._check_unfinished(len(data))
            elif self._url or self._headers or not self.ready:
                self.in_head = True
                self._check_unfinished(len(data))
            return

    def fail_slow_body(self, min_bytes_per_s: int, window_s: int) -> None:
        """The body came more slowly than the client is allowed to."""
        pace = f"{min_bytes_per_s} bytes a second over {window_s} s"
        self.failure = Refused(BODY_TOO_SLOW, f"the request's body came more slowly than {pace}")

    # --- called by the parser

    def on_url(self, url: bytes) -> None:
        self._url += url  # split when the read ended within it

    def on_headers_complete(self) -> None:
        parser, headers, url = self._parser, self._headers, self._url
        path, _, query = url.partition(b"?")
        if not path.startswith(b"/"):
            path = _without_authority(path)
        method = parser.get_method()
        request = Request(_METHODS.get(method) or method.decode("ascii"), path, query, headers.copy(), b"", self._peer)
        request.keep_alive = parser.should_keep_alive()
        if (b"Connection" in headers or b"connection" in headers) and parser.get_http_version() == "1.0":
            request.keep_alive = False  # such a client reuses a connection only after a word that we never say
        self._head_is_usual = _is_usual(headers)
        headers.clear()
        self._url = b""
        self.in_head = False
        self._head_checked = False
        self._fed_bytes = 0
        self.current = request

    def on_body(self, piece: bytes) -> None:
        if not self._head_checked and not (self._head_is_usual and len(piece) <= self.max_body_bytes):
            self._check_head()
        if self.failure is None:
            self._body.append(piece)
            self._body_bytes += len(piece)
            if self._body_bytes > self.max_body_bytes:  # only a chunked one: the others were refused by their head
                self._refuse_body(f"more than {self.max_body_bytes}")

    def on_message_complete(self) -> None:
        request = self.current
        self.current = None
        if self.failure is not None or request is None:
            return
        if self._body_bytes:
            self._take_body(request)
        if self._headers:
            self._headers.clear()  # trailers: never headers, or they would slip past a trusted front
        self._fed_bytes = 0
        self.ready.append(request)

    # --- limits

    def _take_body(self, request: Request) -> None:
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._body_bytes = 0

    def _check_head(self) -> None:
        """What a head says of the body that follows. Most requests have none, or none by their first read's end."""
        self._head_checked = True
        request = self.current
        if request is None:
            return
        length = request.header(b"content-length")
        if length is not None and int(length) > self.max_body_bytes:
            self._refuse_body(length.decode("ascii"))
        elif (request.header(b"content-encoding") or b"identity").lower() != b"identity":
            self.failure = Refused(ENCODED_BODY)  # PU-63
        self.expects_continue = (
            (request.header(b"expect") or b"").lower() == b"100-continue"
            and self._parser.get_http_version() != "1.0")  # whose clients know no interim answer (RFC 9110, 10.1.1)

    def _check_unfinished(self, read_bytes: int) -> None:
        """Bound what a request may take up that does not end: a head, or the framing and trailers of a chunked body."""
        self._fed_bytes += read_bytes
        if self.current is None:
            if self._fed_bytes > HEAD_MAX_BYTES:
                self.failure = self.failure or Refused(HEAD_TOO_LARGE, limit=HEAD_MAX_BYTES, got=self._fed_bytes)
        elif self._fed_bytes > self.max_body_bytes + FRAMING_MAX_BYTES:
            self._refuse_body(f"{self._fed_bytes} with its framing")

    def _refuse_body(self, got: str) -> None:
        self._body.clear()
        self.failure = self.failure or Refused(BODY_TOO_LARGE, limit=self.max_body_bytes, got=got)


def _framing(request: Request) -> bytes:
    """The header that says how a body follows; empty: none does."""
    for name in (b"transfer-encoding", b"content-length"):
        value = request.header(name)
        if value is not None and value.strip(b"0"):
            return b"%b: %b" % (name, value)
    return b""


def _with_escaped_target(data: bytes) -> bytes:
    """What begins with a request line, whose target the parser takes in ASCII only.

    Names are any Unicode (PU-20), and a hand-written call puts them into its path as they are: so they get the escapes
    that they lack, where the line came whole. Of UTF-8 the route judges, as of any escapes (TM-3).
    """
    line, end, rest = data.partition(b"\n")
    if not end or line.isascii():
        return data
    return _NO_ASCII.sub(lambda found: b"%%%02X" % ord(found[0]), line) + end + rest


def _without_authority(target: bytes) -> bytes:
    """The path of "http://host/path", as a proxy may send it (RFC 9112, 3.2.2); "*" and "host:port" stay."""
    _scheme, found, rest = target.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found else target
