"""HTTP/1.1 from the client's side, as little of it as a load generator needs: requests as bytes, answers by length.

A real client library costs more than the node it would measure. Chunked answers are refused: the node sends none.
"""

from __future__ import annotations

import socket
from typing import NamedTuple, Self

HEAD_BYTES_MAX = 64 * 1024
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
_NO_BODY = (204, 304)


class BadAnswer(Exception):
    """The bytes that came are no answer that this parser understands."""


class Answer(NamedTuple):
    status: int
    body: bytes


def request(method: str, target: str, body: bytes = b"", tenant: str = "") -> bytes:
    """One whole request, ready to be sent. tenant: none named when empty."""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n"
    if tenant:
        head += f"x-queen-tenant: {tenant}\r\n"
    if body or method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


class AnswerParser:
    """Cuts what a connection receives into answers. One for each connection."""

    __slots__ = ("_body_at", "_end", "_held", "_status")

    def __init__(self) -> None:
        self._held = b""
        self._end = 0  # where the answer in hand ends within `_held`; 0 while its head is incomplete
        self._body_at = 0
        self._status = 0

    def feed(self, data: bytes) -> list[Answer]:
        """The answers that `data` completes, in order. Raises BadAnswer."""
        held = self._held = self._held + data if self._held else data
        answers: list[Answer] = []
        while held:
            if not self._end and not self._read_head(held):
                break
            if len(held) < self._end:
                break
            answers.append(Answer(self._status, held[self._body_at : self._end]))
            held = self._held = held[self._end :]
            self._end = 0
        return answers

    def _read_head(self, held: bytes) -> bool:
        head_end = held.find(_HEAD_END)
        if head_end < 0:
            if len(held) > HEAD_BYTES_MAX:
                raise BadAnswer(f"a head of more than {HEAD_BYTES_MAX} bytes")
            return False
        if not held.startswith(b"HTTP/1.") or not held[9:12].isdigit():
            raise BadAnswer(f"not a status line: {held[:40]!r}")
        self._status = int(held[9:12])
        self._body_at = self._end = head_end + len(_HEAD_END)
        if self._status not in _NO_BODY:
            self._end += _content_length(held[:head_end])
        return True


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(_LENGTH)
    if at < 0:
        raise BadAnswer(f"no Content-Length in {head[:200]!r}")
    at += len(_LENGTH)
    end = lowered.find(b"\r\n", at)
    digits = lowered[at : end if end >= 0 else len(lowered)].strip()
    if not digits.isdigit():
        raise BadAnswer(f"Content-Length {digits!r}")
    return int(digits)


class Client:
    """One blocking connection, for what a bench does beside its load: preparing, asking, checking."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        """Raises OSError when nothing listens there."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = AnswerParser()

    def call(self, method: str, target: str, body: bytes = b"", tenant: str = "") -> Answer:
        """One request, one answer. Raises OSError (also when it takes too long) and BadAnswer."""
        self._socket.sendall(request(method, target, body, tenant))
        while True:
            data = self._socket.recv(256 * 1024)
            if not data:
                raise ConnectionError(f"the node closed the connection instead of answering {method} {target}")
            answers = self._parser.feed(data)
            if answers:
                return answers[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
