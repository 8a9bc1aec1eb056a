"""GET /api/v1/dlq: the dead letters of one queue or of all (queues.md 5)."""

from __future__ import annotations

from collections.abc import Mapping

from queen_node.answers import read_result
from queen_node.broker import Broker, Unavailable
from queen_node.errors import BAD_REQUEST, UNDECIDED, Refused
from queen_node.http.messages import BadQuery, Request, Response
from queen_node.http.parameters import parse_time_us, whole_number
from queen_node.queries import Query, query

LIMIT_DEFAULT, LIMIT_MAX = 100, 1000
OFFSET_MAX = 1_000_000
EVER_US = (1 << 63) - 1



class DeadLetterHandlers:
    """Lists dead letters. timeout_ms: how long a call waits for the read."""

    def __init__(self, broker: Broker, *, timeout_ms: int = 30_000) -> None:
        self._broker, self._timeout_ms = broker, timeout_ms

    async def list(self, request: Request) -> Response:
        """A page, newest `failedAt` first (QU-40). Raises Refused."""
        try:
            parameters = request.query
        except BadQuery as error:
            raise Refused(BAD_REQUEST, str(error)) from None
        asked = query(
            Query.DEAD_LETTERS, _name(parameters, "queue"), _name(parameters, "consumerGroup"),
            _name(parameters, "partition"), _time_us(parameters, "from", 0), _time_us(parameters, "to", EVER_US),
            min(max(whole_number(parameters, "limit", BAD_REQUEST, LIMIT_DEFAULT), 1), LIMIT_MAX),
            min(max(whole_number(parameters, "offset", BAD_REQUEST, 0), 0), OFFSET_MAX))
        try:
            raw = await self._broker.read(request.tenant, asked, timeout_ms=self._timeout_ms)
        except Unavailable as error:
            raise Refused(UNDECIDED[error.code]) from None
        return Response(*read_result(raw))


def _name(parameters: Mapping[str, str], name: str) -> bytes | None:
    return parameters.get(name, "").encode() or None


def _time_us(parameters: Mapping[str, str], name: str, default_us: int) -> int:
    text = parameters.get(name)
    if not text:
        return default_us
    at_us = parse_time_us(text)
    if at_us is None:
        raise Refused(BAD_REQUEST, "must be an ISO-8601 time or epoch milliseconds", field=name, got=text[:64])
    return at_us
