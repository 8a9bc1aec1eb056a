"""What doors count arrives in the node's numbers, once."""

from __future__ import annotations

from queen_node.doorway.report import Reporter, Sums, pack_response, unpack_response
from queen_node.http.messages import Request, Response
from queen_node.http.routes import Level, Route
from queen_node.metrics import Metrics


async def answer(request: Request) -> Response:
    return Response(200)


class Counting:
    """A door that counts."""

    def __init__(self) -> None:
        self.metrics = Metrics(0.0)
        self.route = Route("POST", "/api/v1/push", Level.WRITE_ONLY, answer)
        self.metrics.routes = [self.route, Route("GET", "/silent", Level.PUBLIC, answer)]
        self.reporter = Reporter(self.metrics)

    def answer(self, status: int, seconds: float) -> None:
        self.route.answers[status] = self.route.answers.get(status, 0) + 1
        self.route.seconds.observe(seconds)


def test_two_doors_add_up_to_one_node() -> None:
    metrics = Metrics(0.0)
    sums, doors = Sums(metrics), [Counting(), Counting()]
    for seconds, door in enumerate(doors, start=1):
        door.answer(201, float(seconds))
        door.metrics.connections += 2
        door.metrics.count_rejected("timers_bad_op")
        door.metrics.kv_ops["get,applied"] = 1
        door.metrics.kv_op_ms["get"] = float(seconds)
        sums.add(door.reporter.take())
    doors[0].answer(201, 0.5)
    doors[0].answer(400, 0.5)
    doors[0].metrics.connections -= 1
    sums.add(doors[0].reporter.take())
    (route,) = metrics.routes
    assert (route.method, route.pattern, route.answers) == ("POST", "/api/v1/push", {201: 3, 400: 1})
    assert (sum(route.seconds.counts), route.seconds.total) == (4, 4.0)
    assert (metrics.connections, metrics.requests_total) == (3, 4)
    assert metrics.timers_schedule_rejected == {"timers_bad_op": 2}
    assert (metrics.kv_ops, metrics.kv_op_ms) == ({"get,applied": 2}, {"get": 2.0}), "of a latency, the last one"


def test_a_door_that_did_nothing_says_nothing() -> None:
    door = Counting()
    assert door.reporter.take() == b""
    door.answer(200, 0.1)
    assert door.reporter.take()
    assert door.reporter.take() == b""


def test_an_answer_about_the_node_crosses_whole() -> None:
    sent = Response(503, b"{}", b"text/plain", ((b"Retry-After", b"1"),))
    got = unpack_response(pack_response(sent))
    assert (got.status, got.body, got.content_type, got.headers) == (503, b"{}", b"text/plain", sent.headers)
