"""The node's numbers as an operator reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from queen_node.http.messages import Request, Response
from queen_node.http.routes import Level, Route
from queen_node.metrics import FAMILIES, Exposition, Histogram, Kind, Metrics
from queen_node.observability import LAG_AVERAGE_SAMPLES, LoopWatch
from raft.peer_connection import PeerFigures
from raft.peer_frames import FrameKind
from raft.peer_handshake import Purpose


async def answer(request: Request) -> Response:
    return Response(200)


def scrape(metrics: Metrics) -> dict[str, Metric]:
    exposition = Exposition(metrics, lambda: metrics.started_s + 5.0)
    for _ in exposition.refresh():
        pass
    text = exposition.text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    samples = [each for family in families.values() for each in family.samples]
    (found,) = [each.value for each in samples if each.name == sample and each.labels == labels]
    return float(found)


def test_every_family_parses_with_help_and_type() -> None:
    """AD-11, by the official parser."""
    metrics = Metrics(started_s=100.0)
    metrics.timers_schedule_rejected["timers_bad_op"] = 1
    families = scrape(metrics)
    for family in FAMILIES:
        shown = families[family.name.removesuffix("_total")]
        assert (shown.type, shown.documentation) == (family.kind.value, family.meaning)
        assert (family.kind is Kind.COUNTER) == family.name.endswith("_total")
        assert family.kind is not Kind.HISTOGRAM or isinstance(getattr(metrics, family.attribute), Histogram)
    assert value(families, "queen_uptime_seconds") == 5.0
    assert value(families, "queen_process_resident_memory_bytes") > 1_000_000


def test_every_number_is_shown_once() -> None:
    kept = {"started_s", "before_scrape", "routes", "peers", "_rates"}
    shown = [family.attribute for family in FAMILIES if family.attribute != "timers_dead_lettered"]
    assert sorted(shown) == sorted(vars(Metrics(0.0)).keys() - kept)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_numbers_move() -> None:
    """timers.md 8: all have values."""
    metrics = Metrics(started_s=0.0)
    metrics.timers_fired["dead_lettered"] += 2
    metrics.timers_schedule_rejected["timers_too_many_ops"] = 3
    metrics.raft_index["applied"] = 17

    def refresh() -> Iterator[None]:
        yield
        metrics.timers_pending = 9

    metrics.before_scrape.append(refresh)
    families = scrape(metrics)
    assert value(families, "queen_timers_fired_total", result="dead_lettered") == 2
    assert value(families, "queen_timers_dlq_total") == 2
    assert value(families, "queen_timers_schedule_rejected_total", reason="timers_too_many_ops") == 3
    assert value(families, "queen_raft_index", kind="applied") == 17
    assert value(families, "queen_timers_pending") == 9


@given(st.lists(st.sampled_from([0.0, 0.005, 0.0051, 0.3, 60.0, 61.0, 1e9])))
def test_a_histogram_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    metrics = Metrics(started_s=0.0)
    for each in values:
        metrics.timers_fire_lag_s.observe(each)
    families = scrape(metrics)
    for bound in (0.005, 0.5, 60.0):
        counted = value(families, "queen_timers_fire_lag_seconds_bucket", le=str(bound))
        assert counted == sum(each <= bound for each in values)
    assert value(families, "queen_timers_fire_lag_seconds_count") == len(values)
    assert value(families, "queen_timers_fire_lag_seconds_sum") == pytest.approx(sum(values))


def test_requests_by_route_and_status() -> None:
    metrics = Metrics(started_s=0.0)
    called, silent = Route("GET", "/a/:b", Level.PUBLIC, answer), Route("GET", "/c", Level.PUBLIC, answer)
    called.answers.update({200: 4, 404: 1})
    called.seconds.observe(0.003)
    metrics.routes = [called, silent]
    families = scrape(metrics)
    assert metrics.requests_total == 5
    assert value(families, "queen_http_requests_total", method="GET", route="/a/:b", status="404") == 1
    assert value(families, "queen_http_request_seconds_bucket", method="GET", route="/a/:b", le="0.005") == 1
    assert all(sample.labels["route"] != "/c" for sample in families["queen_http_requests"].samples)


def test_what_goes_to_and_comes_from_each_peer() -> None:
    metrics = Metrics(started_s=0.0)
    two, three = PeerFigures(standing=frozenset({Purpose.CONTROL}), round_trip_s=0.002), PeerFigures()
    two.frames_sent[FrameKind.RAFT] += 3
    two.bytes_taken[FrameKind.NODE] += 500
    two.refused[FrameKind.CALL] += 1
    two.lost[FrameKind.CALL] += 2
    two.connects[Purpose.CONTROL] += 4
    metrics.peers = {2: two, 3: three}
    families = scrape(metrics)
    assert value(families, "queen_peer_connected", peer="2", connection="control") == 1
    assert value(families, "queen_peer_connected", peer="2", connection="bulk") == 0
    assert value(families, "queen_peer_connected", peer="3", connection="control") == 0
    assert value(families, "queen_peer_connects_total", peer="2", connection="control") == 4
    assert value(families, "queen_peer_frames_total", peer="2", direction="sent", kind="raft") == 3
    assert value(families, "queen_peer_bytes_total", peer="2", direction="taken", kind="node") == 500
    assert value(families, "queen_peer_dropped_total", peer="2", reason="refused", kind="call") == 1
    assert value(families, "queen_peer_dropped_total", peer="2", reason="lost", kind="call") == 2
    assert [sample.labels["peer"] for sample in families["queen_peer_round_trip_seconds"].samples] == ["2"]


def test_rates_over_the_last_seconds() -> None:
    metrics = Metrics(started_s=0.0)
    assert metrics.rates() == (0.0, 0.0)
    for second in range(30):
        metrics.note_rates(float(second))
        metrics.push_messages += 100 if second >= 15 else 0
    assert metrics.rates() == (0.0, 100.0)


def test_the_average_lag_starts_plain_and_then_forgets() -> None:
    metrics = Metrics(started_s=0.0)
    watch = LoopWatch(metrics)
    for second, lag_s in enumerate((0.001, 0.003)):
        watch.take(lag_s, float(second))
    assert metrics.loop_lag_avg_ms == pytest.approx(2.0)
    for second in range(10 * LAG_AVERAGE_SAMPLES):
        watch.take(0.05, float(second))
    assert metrics.loop_lag_avg_ms == pytest.approx(50.0, abs=0.1)
    assert sum(metrics.loop_lag_s.counts) == 2 + 10 * LAG_AVERAGE_SAMPLES


def test_a_route_is_what_the_metrics_expect() -> None:
    assert {"method", "pattern", "answers", "seconds"} <= {each.name for each in dataclasses.fields(Route)}
