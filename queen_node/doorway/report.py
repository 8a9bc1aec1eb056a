"""What a door counts, on its way to the node's numbers; and answers about the node on their way to a door.

A report holds what was added since the last one, so that the node adds up and keeps nothing a door. A gauge that the
door counts up and down (open connections) is added up alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from queen_node.http.messages import Request, Response
from queen_node.metrics import Histogram, Metrics, RouteCounts, latency_histogram

NUMBERS = ("connections", "connections_accepted", "connections_refused")
TABLES = (
    "push_declined", "timers_schedule_rejected", "admit_total", "kv_ops", "kv_bytes", "kv_read_rejected",
)
LATEST = ("kv_op_ms",)  # of these the node shows what any door said last

K = TypeVar("K")


class HistogramPart(msgspec.Struct, array_like=True, frozen=True):
    """What was observed: by bucket, and in sum."""

    counts: list[int]
    total: float


class RoutePart(msgspec.Struct, array_like=True, frozen=True):
    """Answers of one route by status, and how long they took."""

    method: str
    pattern: str
    answers: dict[int, int]
    seconds: HistogramPart


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a door counted. `lag`: of its loop, which is one of the node's loops."""

    numbers: dict[str, int]
    tables: dict[str, dict[str, int]]
    latest: dict[str, dict[str, float]]
    routes: list[RoutePart]
    lag: HistogramPart


class RouteTally:
    """A route's numbers at the node, which has no route itself. Implements `metrics.RouteCounts`."""

    def __init__(self, method: str, pattern: str) -> None:
        self.method, self.pattern = method, pattern
        self.answers: dict[int, int] = {}
        self.seconds = latency_histogram()


class Reporter:
    """The door's side: what of `metrics` the node has not been told."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told = _counted(metrics)

    def take(self) -> bytes:
        """The next report; empty when nothing happened."""
        counted, told = _counted(self._metrics), self._told
        if counted == told:
            return b""
        self._told = counted
        routes_told = {(route.method, route.pattern): route for route in told.routes}
        return msgspec.msgpack.encode(Report(
            _more(counted.numbers, told.numbers),
            {name: _more(table, told.tables[name]) for name, table in counted.tables.items()},
            {name: table for name, table in counted.latest.items() if table != told.latest[name]},
            [_more_of_route(route, routes_told.get((route.method, route.pattern))) for route in counted.routes],
            _more_observed(counted.lag, told.lag)))


class Sums:
    """The node's side: adds the reports of all doors to the node's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._routes: dict[tuple[str, str], RouteTally] = {}

    def add(self, raw: bytes) -> None:
        """Add a report."""
        report, metrics = _decode_report(raw), self._metrics
        for name, more in report.numbers.items():
            setattr(metrics, name, getattr(metrics, name) + more)
        for name, parts in report.tables.items():
            table: dict[str, int] = getattr(metrics, name)
            for key, more in parts.items():
                table[key] = table.get(key, 0) + more
        for name, latest in report.latest.items():
            getattr(metrics, name).update(latest)
        for part in report.routes:
            self._add_route(part)
        _add_observed(metrics.loop_lag_s, report.lag)

    def _add_route(self, part: RoutePart) -> None:
        name = part.method, part.pattern
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = RouteTally(*name)
            self._metrics.routes = [*self._routes.values()]
        for status, more in part.answers.items():
            route.answers[status] = route.answers.get(status, 0) + more
        _add_observed(route.seconds, part.seconds)


def pack_question(name: str, request: Request) -> bytes:
    """What a door's client asks the node itself, by the name of the route."""
    return msgspec.msgpack.encode((
        name, request.tenant, request.method, request.raw_path, request.raw_query, dict(request.params), request.body))


def unpack_question(raw: bytes) -> tuple[str, Request]:
    """The same again; its headers were judged at the door."""
    name, tenant, method, raw_path, raw_query, params, body = _decode_question(raw)
    request = Request(method, raw_path, raw_query, body=body)
    request.tenant, request.params = tenant, params
    return name, request


def pack_response(response: Response) -> bytes:
    """An answer of the node's own to a door's client."""
    return msgspec.msgpack.encode((response.status, response.body, response.content_type, response.headers))


def unpack_response(raw: bytes) -> Response:
    """The answer again."""
    return Response(*_decode_response(raw))


def _counted(metrics: Metrics) -> Report:
    return Report(
        {name: getattr(metrics, name) for name in NUMBERS},
        {name: dict(getattr(metrics, name)) for name in TABLES},
        {name: dict(getattr(metrics, name)) for name in LATEST},
        [_route_part(route) for route in metrics.routes if route.answers],
        _observed(metrics.loop_lag_s))


def _route_part(route: RouteCounts) -> RoutePart:
    return RoutePart(route.method, route.pattern, dict(route.answers), _observed(route.seconds))


def _observed(histogram: Histogram) -> HistogramPart:
    return HistogramPart(list(histogram.counts), histogram.total)


def _more(now: Mapping[K, int], then: Mapping[K, int]) -> dict[K, int]:
    return {key: value - then.get(key, 0) for key, value in now.items() if value != then.get(key, 0)}


def _more_observed(now: HistogramPart, then: HistogramPart) -> HistogramPart:
    return HistogramPart([a - b for a, b in zip(now.counts, then.counts, strict=True)], now.total - then.total)


def _more_of_route(now: RoutePart, then: RoutePart | None) -> RoutePart:
    if then is None:
        return now
    answers, seconds = _more(now.answers, then.answers), _more_observed(now.seconds, then.seconds)
    return RoutePart(now.method, now.pattern, answers, seconds)


def _add_observed(histogram: Histogram, part: HistogramPart) -> None:
    for place, more in enumerate(part.counts):
        histogram.counts[place] += more
    histogram.total += part.total


_decode_report = msgspec.msgpack.Decoder(Report).decode
_decode_question = msgspec.msgpack.Decoder(tuple[str, bytes, str, bytes, bytes, dict[str, bytes], bytes]).decode
_decode_response = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, tuple[tuple[bytes, bytes], ...]]).decode
