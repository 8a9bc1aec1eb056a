"""The arithmetic and the parsing that the benches stand on: a wrong percentile would be believed."""

from __future__ import annotations

import json
import math
import socket
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import calls
from bench.fires import ClockEstimate
from bench.http import Answer, AnswerParser, BadAnswer, request
from bench.jobs import Outcome
from bench.load import outcome_of_wrk
from bench.loop import ACCEPTED, Connection, Loop
from bench.prometheus import histogram_of, value_of
from bench.results import GOALS, Goal, Results, Table, Verdict
from bench.roles import Consumer, Lanes, Pacer
from bench.stats import Spread, median, percentile, ratio, spread

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\ncontent-length:16\r\n\r\n{\"error\":\"busy\"}"


# Percentiles, medians, ratios


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=300), st.integers(1, 1000))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[int], permille: int) -> None:
    found = percentile(sorted(values), permille / 10)
    shares = {value: Fraction(sum(other <= value for other in values), len(values)) for value in values}
    assert found == min(value for value, share in shares.items() if share >= Fraction(permille, 1000))


def test_percentiles_by_hand() -> None:
    hundred = list(range(1, 101))
    assert [percentile(hundred, percent) for percent in (1, 7, 50, 99, 99.5, 100)] == [1, 7, 50, 99, 100, 100]
    assert percentile([5], 50) == percentile([5], 0.1) == 5


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_a_percentile_outside_of_its_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile([1], percent)


def test_nothing_measured_has_no_percentile_no_spread_and_no_median() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)
    with pytest.raises(ValueError, match="nothing"):
        median([])
    assert spread([]) is None


def test_a_spread_needs_no_order() -> None:
    assert spread([3, 1, 2]) == Spread(count=3, p50=2, p99=3, max=3)


def test_medians() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5


def test_a_ratio_to_an_echo_that_failed_meets_no_goal() -> None:
    assert ratio(6200, 31000) == pytest.approx(0.2)
    assert ratio(6200, 0) == 0


# Goals


@pytest.mark.parametrize(
    ("value", "most", "met", "margin"),
    [(0.5, True, True, 2), (1, True, True, 1), (2, True, False, 0.5), (2, False, True, 2), (0.5, False, False, 0.5)],
)
def test_a_goal_is_met_on_its_side_of_the_bound(value: float, most: bool, met: bool, margin: float) -> None:
    verdict = Verdict(Goal("a figure", "ms", 1.0, most=most), value)
    assert (verdict.met, verdict.margin) == (met, margin)


def test_what_was_not_measured_meets_no_goal() -> None:
    verdict = Verdict(GOALS["fire p99"], math.nan)
    assert not verdict.met
    assert verdict.margin == 0


def test_a_value_is_judged_by_the_goal_of_that_name_only() -> None:
    results = Results("scale")
    results.judge("memory", 80)
    assert results.verdicts == [Verdict(GOALS["memory"], 80)]
    with pytest.raises(KeyError):
        results.judge("no such goal", 1)


def test_the_median_of_a_column_skips_what_was_not_measured() -> None:
    table = Table("t", ["round", "p50 ms"], [[1, 3.0], [2, None], [3, 1.0], [4, 2.0]])
    assert table.median_of("p50 ms") == 2.0
    assert math.isnan(Table("t", ["p50 ms"]).median_of("p50 ms"))


# Answers


@given(st.lists(st.sampled_from([OK, EMPTY, TOO_MANY]), max_size=6), st.data())
def test_answers_are_the_same_however_the_bytes_are_cut(answers: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(answers)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    parser = AnswerParser()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += parser.feed(whole[start:end])
    expected = {OK: (200, b"{}"), EMPTY: (204, b""), TOO_MANY: (429, b'{"error":"busy"}')}
    assert found == [expected[answer] for answer in answers]


@pytest.mark.parametrize(
    "rubbish",
    [
        b"SMTP 220\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(rubbish: bytes) -> None:
    with pytest.raises(BadAnswer):
        AnswerParser().feed(rubbish)


def test_a_refusal_becomes_one_line() -> None:
    assert calls.error_text(b'{"error":"busy","reason":"rate_limited","detail":"wait"}') == "busy rate_limited wait"
    assert calls.error_text(b"too large") == "too large"
    assert calls.error_text(b"[1]") == "[1]"


# Calls


@pytest.mark.parametrize(
    "template",
    [
        calls.schedule_template("timers", 1),
        calls.schedule_template("timers", 100),
        calls.push_template("messages", 100),
        calls.cancel_template("timers"),
        calls.fixed_template(),
    ],
)
def test_every_request_of_a_template_says_its_true_length(template: calls.Template) -> None:
    for sent in islice(template.requests(), 40):
        head, body = sent.split(b"\r\n\r\n", 1)
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        assert [int(length) for length in lengths] == ([len(body)] if body else [])
        assert b"<<" not in sent


def test_items_are_numbered_through_all_calls_and_pushes_deal_their_calls_to_the_lanes() -> None:
    requests = list(islice(calls.push_template("messages", 2).requests(), calls.LANES + 1))
    assert [b"txn-000000002" in requests[1], b"txn-000000003" in requests[1]] == [True, True]
    assert b'"partition":"p01"' in requests[1]
    assert b'"partition":"p00"' in requests[calls.LANES]


def test_cancels_name_the_timers_that_schedules_made() -> None:
    schedule = next(calls.schedule_template("timers", 1).requests(first=17))
    cancel = next(calls.cancel_template("timers").requests(first=17))
    assert b'"timerKey":"key-000000017"' in schedule
    assert cancel.startswith(b"DELETE /api/v1/timers/timers/key-000000017 HTTP/1.1\r\n")


def test_a_payload_has_the_size_that_the_tables_name() -> None:
    assert len(calls.payload(0)) == len(calls.payload(10**9)) == calls.PAYLOAD_BYTES
    assert calls.payload(1) != calls.payload(2)


def test_one_message_is_acked_alone_and_several_in_a_batch() -> None:
    message = calls.Message("txn-000000042", "4", "0198")
    assert message.number == 42
    assert calls.ack_call([message]).startswith(b"POST /api/v1/ack HTTP/1.1")
    assert calls.ack_call([message, message]).startswith(b"POST /api/v1/ack/batch HTTP/1.1")


def test_pops_ask_for_a_lease_unless_told_not_to() -> None:
    assert b"commitOnDelivery" not in calls.pop_call("q", batch=1)
    waiting = calls.pop_call("q", batch=1, partition="p01", wait_ms=500, keep=False)
    target = "/api/v1/pop/queue/q/partition/p01?batch=1&partitions=1&wait=true&timeout=500&commitOnDelivery=true"
    assert waiting == request("GET", target)


def test_times_are_read_to_the_microsecond() -> None:
    """TM-5: always six digits and Z."""
    assert calls.microseconds("2026-10-03T09:14:03.512887Z") == 1_791_018_843_512_887
    assert calls.microseconds("1970-01-01T00:00:00.000001Z") == 1


# Roles


def hang_up(*sockets: socket.socket) -> None:
    for end in sockets:
        end.close()


def delivery(*numbers: int) -> Answer:
    rows = [{"transactionId": f"txn-{number:09d}", "partitionId": "4", "leaseId": "0198"} for number in numbers]
    return Answer(200, json.dumps({"messages": rows}).encode())


def test_a_consumer_acks_what_came_and_pops_again() -> None:
    loop, (ours, theirs) = Loop(0), socket.socketpair()
    seen: list[int] = []
    consumer = Consumer(loop, lambda lane: b"pop", lambda messages, now_ns: seen.extend(m.number for m in messages))
    connection = Connection(ours, consumer, lane=0)
    assert consumer.begin(connection) == b"pop"
    ack = consumer.answered(connection, delivery(7, 8), 0)
    assert ack is not None
    assert ack.startswith(b"POST /api/v1/ack/batch")
    verdicts = b'[{"success":true},{"success":false,"error":"invalid or expired lease"}]'
    assert consumer.answered(connection, Answer(200, verdicts), 0) == b"pop"
    assert (seen, consumer.popped, consumer.acked) == ([7, 8], 2, 1)
    assert loop.refused == {"ack without success": 1}
    hang_up(ours, theirs)
    loop.close()


def test_a_consumer_of_what_is_there_ends_its_lane_at_the_first_empty_answer() -> None:
    loop, (ours, theirs) = Loop(0), socket.socketpair()
    consumer = Consumer(loop, lambda lane: b"pop", lambda messages, now_ns: None, pops_empty=False)
    assert consumer.answered(Connection(ours, consumer, lane=0), Answer(204, b""), 0) is None
    assert consumer.lanes_ended == 1
    hang_up(ours, theirs)
    loop.close()


def test_a_producer_rests_when_it_is_far_ahead_and_goes_on_when_its_lane_is_acked() -> None:
    loop, (ours, theirs) = Loop(0), socket.socketpair()
    lanes = Lanes(loop, "through", batch=2, batches_ahead=2)
    connection = Connection(ours, lanes, lane=0)
    pushed = Answer(201, b"[]")
    assert lanes.begin(connection) is not None
    assert lanes.answered(connection, pushed, 0) is not None
    assert lanes.answered(connection, pushed, 0) is None
    lanes.acked(0, 1)
    assert theirs.recv(100).startswith(b"POST /api/v1/push")
    assert lanes.pushed == 4
    hang_up(ours, theirs)
    loop.close()


def test_a_refused_push_is_no_message_to_wait_for() -> None:
    loop, (ours, theirs) = Loop(0), socket.socketpair()
    lanes = Lanes(loop, "through", batch=2, batches_ahead=1)
    connection = Connection(ours, lanes, lane=0)
    assert lanes.begin(connection) is not None
    assert lanes.answered(connection, Answer(429, b"{}"), 0) is not None
    assert lanes.pushed == 0
    hang_up(ours, theirs)
    loop.close()


def test_a_pacer_keeps_its_rate_and_counts_from_the_moment_due() -> None:
    loop, (ours, theirs) = Loop(0), socket.socketpair()
    pacer = Pacer(loop, iter([b"1", b"2", b"3"]), per_second=1000, count=3, start_ns=10_000_000)
    connection = Connection(ours, pacer, lane=0)
    pacer.begin(connection)
    assert pacer.wake(9_000_000) == 10_000_000  # too early
    assert pacer.wake(10_000_000) == 11_000_000
    assert (theirs.recv(10), connection.sent_ns) == (b"1", 10_000_000)
    assert pacer.wake(12_500_000) == 13_500_000  # the only connection still waits: looks again soon
    pacer.answered(connection, Answer(201, b"[]"), 13_000_000)
    assert pacer.wake(13_500_000) == 14_500_000
    assert (theirs.recv(10), connection.sent_ns) == (b"2", 11_000_000)
    pacer.answered(connection, Answer(503, b"{}"), 14_000_000)
    assert pacer.wake(14_500_000) is None
    assert list(pacer.due_ns) == [10_000_000, 11_000_000, 12_000_000]
    assert pacer.accepted == 1
    hang_up(ours, theirs)
    loop.close()


# Metrics


METRICS = """
# TYPE late histogram
late_bucket{group="a",le="0.005"} 10
late_bucket{group="a",le="0.01"} 19
late_bucket{group="a",le="+Inf"} 20
late_bucket{group="b",le="0.005"} 80.0
late_bucket{group="b",le="0.01"} 80.0
late_bucket{group="b",le="+Inf"} 80.0
late_count{group="a"} 20
pending{group="a"} 3
pending{group="b"} 4
up 1
"""


def test_series_of_a_family_are_added_up() -> None:
    assert value_of(METRICS, "pending") == 7
    assert value_of(METRICS, "up") == 1
    assert value_of(METRICS, "late") is None
    found = histogram_of(METRICS, "late")
    assert (found.bounds, found.counts) == ((0.005, 0.01, math.inf), (90, 99, 100))


def test_a_histogram_tells_a_percentile_by_the_bound_of_its_bucket() -> None:
    found = histogram_of(METRICS, "late")
    assert [found.at_most(percent) for percent in (50, 90, 99, 100)] == [0.005, 0.005, 0.01, math.inf]
    assert math.isnan(histogram_of("", "late").at_most(50))


def test_only_what_came_in_between_two_looks_counts() -> None:
    before = histogram_of(METRICS, "late")
    after = histogram_of(METRICS.replace('"b",le="+Inf"} 80.0', '"b",le="+Inf"} 82.0'), "late")
    assert after.since(before).counts == (0, 0, 2)
    assert after.since(histogram_of("", "late")) == after
    with pytest.raises(ValueError, match="buckets"):
        after.since(histogram_of('late_bucket{le="1"} 1', "late"))


# The node's clock


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=20),
)
def test_the_true_clock_is_within_the_error_of_its_estimate(offset_us: int, trips: list[tuple[int, int, int]]) -> None:
    """M-20: the group clock is BOOTTIME and a constant; each call encloses the constant."""
    estimate = ClockEstimate()
    for sent_us, way_there_us, way_back_us in trips:
        made_us = sent_us + way_there_us
        estimate.take(sent_us, made_us + offset_us, made_us + way_back_us)
    assert estimate.error_us >= 0
    assert abs(estimate.offset_us - offset_us) <= estimate.error_us
    assert estimate.error_us <= min(there + back for _, there, back in trips) / 2


def test_a_clock_that_was_never_seen_has_no_estimate() -> None:
    with pytest.raises(ValueError, match="no sample"):
        _ = ClockEstimate().offset_us


# Outcomes


WRK = (
    '{"requests":1000,"duration_us":2000000,"refused":{"status 400 or above":%d,"failed reads":0},'
    '"p50_us":900,"p99_us":4100,"max_us":9000}'
)


def test_wrk_counts_what_was_accepted_only() -> None:
    outcome = outcome_of_wrk(WRK % 100, items=10, load_cpu_s=0.5)
    assert outcome.calls == 1000
    assert outcome.items_per_s == 900 * 10 / 2
    assert outcome.load_cores == 0.25
    assert outcome.latency_ms == Spread(900, 0.9, 4.1, 9.0)
    assert outcome.trouble("schedule") == ["schedule: 100 × status 400 or above"]


def test_a_run_without_a_mishap_reports_none() -> None:
    assert outcome_of_wrk(WRK % 0, items=1, load_cpu_s=0.5).trouble("schedule") == []


def test_every_mishap_is_reported() -> None:
    outcome = Outcome(10, 7, 1.0, 0.1, {"429": 2, "503": 1}, example="429: rate_limited", missing=3, doubled=1, early=2)
    assert outcome.trouble("fires") == [
        "fires: 2 × 429",
        "fires: 1 × 503 (for example 429: rate_limited)",
        "fires: 3 missing",
        "fires: 1 delivered twice",
        "fires: 2 early",
    ]


def test_no_refusal_counts_as_accepted() -> None:
    assert all(status < 300 for status in ACCEPTED)
