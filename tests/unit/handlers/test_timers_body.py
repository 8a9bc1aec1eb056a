"""What a body of POST /api/v1/timers must look like, and which refusal says why it does not (TM-10 to TM-26)."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen_node.commands import PayloadFlag
from queen_node.errors import Refused
from queen_node.http.handlers.op_lists import SLICE_BYTES
from queen_node.http.handlers.timer_calls import (
    Call,
    ExactCall,
    TimerLimits,
    is_json,
    read_in_slices,
    read_quickly,
    whole_delay_ms,
)
from queen_node.ids import IdMint
from tests.support.timer_door import Reply, TimerDoor, op, text_of

HORIZON_MS = 7_776_000_000
PAYLOAD_MAX = 1 << 20


async def refused(*operations: object) -> Reply:
    """The refusal of a call; nothing of it may have been proposed."""
    door = TimerDoor()
    reply = await door.post(*operations)
    assert door.broker.writes == [] and reply.status >= 400
    assert door.rejected == [reply.document["reason"]]
    return reply


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"5", b'"text"', b"{}", b'{"operations":null}', b'{"operations":{}}', b'{"operations":5}',
    b'{"Operations":[]}', b"[] x", b"\xef\xbb\xbf[]", b"[" * 5000 + b"]" * 5000, b"[NaN]", b"[1,]",
])
async def test_a_body_that_is_not_this_routes_json(body: bytes) -> None:
    """TM-10."""
    reply = await TimerDoor().call("POST", "/api/v1/timers", body)
    assert reply.reason == (400, "timers_bad_request", "timers_bad_body")


WRONG: list[tuple[dict[str, object], int, str, str]] = [
    ({"op": ...}, 400, "timers_bad_request", "timers_bad_op"),
    ({"op": None}, 400, "timers_bad_request", "timers_bad_op"),
    ({"op": "Schedule"}, 400, "timers_bad_request", "timers_bad_op"),
    ({"op": "update"}, 400, "timers_bad_request", "timers_bad_op"),
    ({"op": 1}, 400, "timers_bad_request", "timers_bad_op"),
    ({"queue": ...}, 400, "timers_bad_request", "timers_queue_required"),
    ({"queue": None}, 400, "timers_bad_request", "timers_queue_required"),
    ({"queue": ""}, 400, "timers_bad_request", "timers_queue_required"),
    ({"queue": 7}, 400, "timers_bad_request", "timers_queue_required"),
    ({"queue": "a\0"}, 400, "timers_bad_request", "timers_bad_op"),
    ({"queue": "q" * 412, "partition": ...}, 413, "name_too_long", "name_too_long"),
    ({"queue": "ü" * 206, "partition": ...}, 413, "name_too_long", "name_too_long"),
    ({"timerKey": ...}, 400, "timers_bad_request", "timers_bad_op"),
    ({"timerKey": None}, 400, "timers_bad_request", "timers_bad_op"),
    ({"timerKey": ""}, 400, "timers_bad_request", "timers_bad_op"),
    ({"timerKey": []}, 400, "timers_bad_request", "timers_bad_op"),
    ({"timerKey": "a\0b"}, 400, "timers_bad_request", "timers_bad_op"),
    ({"timerKey": "k" * 513}, 413, "name_too_long", "name_too_long"),
    ({"timerKey": "ü" * 257}, 413, "name_too_long", "name_too_long"),
    ({"delayMs": ...}, 400, "timers_bad_request", "timers_delay_required"),
    ({"delayMs": None}, 400, "timers_bad_request", "timers_delay_required"),
    ({"delayMs": "5"}, 400, "timers_bad_request", "timers_delay_required"),
    ({"delayMs": True}, 400, "timers_bad_request", "timers_delay_required"),
    ({"delayMs": [1]}, 400, "timers_bad_request", "timers_delay_required"),
    ({"delayMs": HORIZON_MS + 1}, 403, "timer_horizon_exceeded", "timers_horizon"),
    ({"delayMs": HORIZON_MS + 0.25}, 403, "timer_horizon_exceeded", "timers_horizon"),
    ({"delayMs": 1e18}, 403, "timer_horizon_exceeded", "timers_horizon"),
    ({"delayMs": 10**30}, 403, "timer_horizon_exceeded", "timers_horizon"),
    ({"txn": ...}, 400, "timers_bad_request", "timers_bad_op"),
    ({"txn": None}, 400, "timers_bad_request", "timers_bad_op"),
    ({"txn": ""}, 400, "timers_bad_request", "timers_bad_op"),
    ({"txn": 5}, 400, "timers_bad_request", "timers_bad_op"),
    ({"txn": "t" * 65_536}, 400, "timers_bad_request", "timers_bad_op"),
    ({"payload": ...}, 400, "timers_bad_request", "timers_payload_required"),
    ({"payload": None}, 400, "timers_bad_request", "timers_payload_required"),
    ({"payload": ""}, 400, "timers_bad_request", "timers_payload_required"),
    ({"payload": {"a": 1}}, 400, "timers_bad_request", "timers_payload_required"),
    ({"payload": "YQ"}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": "YQ= ="}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": "YQ==\n"}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": " YQ=="}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": "-_8="}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": "===="}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": "YQ==YQ=="}, 400, "timers_bad_request", "timers_payload_not_base64"),
    ({"payload": text_of(b"1" * (PAYLOAD_MAX + 1))}, 413, "payload_too_large", "timers_payload_too_large"),
    ({"partition": 5}, 400, "timers_bad_request", "timers_bad_op"),
    ({"partition": "a\0"}, 400, "timers_bad_request", "timers_bad_op"),
    ({"partition": "p" * 411}, 413, "name_too_long", "name_too_long"),
    ({"payloadZstd": True}, 400, "timers_bad_request", "timers_zstd_unsupported"),
    ({"payloadZstd": "no"}, 400, "timers_bad_request", "timers_bad_op"),
    ({"encrypted": True}, 400, "timers_bad_request", "timers_server_owned_field"),
]


@pytest.mark.parametrize(("fields", "status", "error", "reason"), WRONG)
async def test_a_wrong_field_refuses_the_whole_call_and_is_named(
    fields: dict[str, object], status: int, error: str, reason: str,
) -> None:
    """TM-10, TM-15, TM-20, TM-22, TM-25: one bad operation among good ones, nothing applied, its index told."""
    reply = await refused(op("good"), op("bad", **fields), op("better"))
    assert reply.reason == (status, error, reason)
    assert reply.detail.startswith("op at index 1: ")


@pytest.mark.parametrize("name", [
    "producerSub", "messageId", "deliverAt", "delaySeconds", "attempts", "tenant", "tenantId", "claimToken",
    "claimedUntil", "producer_sub", "message_id", "deliver_at", "delay_seconds", "tenant_id", "claim_token",
    "claimed_until", "_", "_anything", "__proto__",
])
@pytest.mark.parametrize("word", ["schedule", "cancel"])
async def test_fields_that_the_broker_owns(name: str, word: str) -> None:
    """TM-11, whatever the value."""
    reply = await refused({**op(op=word), name: None})
    assert reply.reason == (400, "timers_bad_request", "timers_server_owned_field") and name in reply.detail


async def test_an_owned_field_spelt_with_escapes_is_still_owned() -> None:
    """TM-11."""
    body = msgspec.json.encode([op()]).replace(b'"txn"', b'"\\u005fid":1,"txn"')
    reply = await TimerDoor().call("POST", "/api/v1/timers", body)
    assert reply.document["reason"] == "timers_server_owned_field"


ALLOWED: list[dict[str, object]] = [
    {"colour": "red"}, {"encrypted": False}, {"encrypted": "true"}, {"": 1}, {"big": [1e300, {}]}, {"Attempts": 1},
    {"payloadZstd": False}, {"payloadZstd": None}, {"partition": None}, {"partition": ""}, {"partition": "p" * 410},
    {"delayMs": HORIZON_MS}, {"delayMs": HORIZON_MS - 0.5}, {"delayMs": 0}, {"delayMs": -1}, {"delayMs": -1e300},
    {"delayMs": 0.5}, {"timerKey": "k" * 512}, {"timerKey": "ü" * 256}, {"queue": "q" * 404}, {"txn": "t" * 65_535},
    {"timerKey": " "}, {"timerKey": "\u2028#/..%"}, {"payload": text_of(b"1" * PAYLOAD_MAX)}, {"payload": "YR=="},
]


@pytest.mark.parametrize("fields", ALLOWED)
async def test_what_is_allowed(fields: dict[str, object]) -> None:
    """TM-10, TM-11, TM-20, TM-22: other fields are ignored; limits are inclusive."""
    reply = await TimerDoor().post({**op(), **fields})
    assert reply.status == 200 and reply.document["results"][0]["status"] == "scheduled", reply.document


@pytest.mark.parametrize(("sent", "shown"), [
    (b"1e400", None), (b"-1e400", 0), (b"9" * 5000, None), (b"-" + b"9" * 5000, 0), (b"0.1", 1), (b"1.0", 1),
    (b"1999.0001", 2000), (b"-0.0", 0), (b"1E3", 1000),
])
async def test_delays_at_the_ends_of_what_numbers_can_be(sent: bytes, shown: int | None) -> None:
    """TM-20: fractions are rounded up, what is negative counts as 0, what cannot be held is beyond the horizon."""
    door = TimerDoor()
    body = msgspec.json.encode([op(delayMs=77)]).replace(b":77,", b":" + sent + b",")
    reply = await door.call("POST", "/api/v1/timers", body)
    if shown is None:
        assert reply.reason == (403, "timer_horizon_exceeded", "timers_horizon")
    else:
        assert reply.status == 200 and door.broker.writes[0][2][0][3] == shown  # type: ignore[index]


async def test_the_horizons_sentence() -> None:
    """timers.md 9."""
    reply = await refused(op(delayMs=999999999999))
    assert reply.detail == "op at index 0: delayMs 999999999999 is beyond the horizon of 7776000000 ms"


async def test_a_cancel_needs_no_more_than_its_name() -> None:
    """TM-10: fields of a schedule mean nothing in it; txn is an echo."""
    door = TimerDoor()
    reply = await door.post(
        {"op": "cancel", "queue": "q", "timerKey": "a", "delayMs": "x", "payload": 5, "partition": 7},
        {"op": "cancel", "queue": "q", "timerKey": "b", "txn": None},
        {"op": "cancel", "queue": "q", "timerKey": "c", "txn": ""})
    assert [result["txn"] for result in reply.document["results"]] == [None, None, ""]
    bad = await refused({"op": "cancel", "queue": "q", "timerKey": "a", "txn": 5})
    assert bad.reason == (400, "timers_bad_request", "timers_bad_op")


@pytest.mark.parametrize("element", [None, 5, "text", [], True])
async def test_an_element_that_is_no_object(element: object) -> None:
    assert (await refused(op(), element)).reason == (400, "timers_bad_request", "timers_bad_op")


@pytest.mark.parametrize("count", [0, 1, 256])
async def test_up_to_256_operations(count: int) -> None:
    """TM-13, TM-16: as many results as operations."""
    reply = await TimerDoor().post(*(op(f"{index}") for index in range(count)))
    assert len(reply.document["results"]) == count


async def test_257_operations() -> None:
    """TM-13."""
    reply = await refused(*(op(f"{index}") for index in range(257)))
    assert reply.reason == (400, "timers_bad_request", "timers_too_many_ops") and "256" in reply.detail


@pytest.mark.parametrize("second", ["schedule", "reschedule", "cancel"])
async def test_one_operation_per_queue_and_key(second: str) -> None:
    """TM-14, G-M11: schedules and cancels counted alike; another queue is another timer."""
    reply = await refused(op("a"), op("k"), op("k", op=second))
    assert reply.reason == (400, "timers_bad_request", "timers_duplicate_key_in_call")
    assert reply.detail.startswith("op at index 2: ")
    assert (await TimerDoor().post(op("k"), op("k", queue="other", op=second))).status == 200


async def test_a_call_holds_eight_mebibytes_of_payload_and_not_one_more() -> None:
    """README 21, TM-22."""
    full = [op(f"{index}", payload=text_of(b"1" * PAYLOAD_MAX)) for index in range(8)]
    assert (await TimerDoor().post(*full)).status == 200
    reply = await refused(*full, op("more", payload=text_of(b"1")))
    assert reply.reason == (413, "payload_too_large", "timers_call_too_large")


async def test_a_command_larger_than_an_entry_may_be() -> None:
    """TM-22."""
    door = TimerDoor(limits=TimerLimits(command_max_bytes=2000))
    reply = await door.post(op(payload=text_of(b"1" * 2000)))
    assert reply.reason == (413, "payload_too_large", "timers_call_too_large") and door.broker.writes == []


async def test_a_body_larger_than_any_call() -> None:
    reply = await TimerDoor().call("POST", "/api/v1/timers", b" " * (16 << 20) + b"[]")
    assert reply.reason == (413, "payload_too_large", "timers_call_too_large")


async def test_what_stands_behind_too_many_operations_is_not_looked_at() -> None:
    """TM-13, M-51: 16 MiB of little ones held the loop for 15 s before they were refused for their number."""
    many = [op(str(number)) for number in range(256)]
    for behind, reason in (
        ([], ""), ([op("k" * 513)], "timers_too_many_ops"), ([0] * 1000, "timers_too_many_ops"),
    ):
        reply = await TimerDoor().post(*many, *behind)
        assert reply.status == 200 if not reason else reply.reason == (400, "timers_bad_request", reason)


@pytest.mark.parametrize("payload", [
    b'{"a":1}', b" 1 ", b'"\xc3\xbc"', b"null", b"[1e400]", b"-0", b"[" * 400 + b"]" * 400, b'"\\ud83d\\ude00"',
    b'"\\ud800"', b'{"\\uDFFF":"\\\\ud800"}', b'"\\udc00\\ud800\xc3\xbc"',
])
def test_payloads_that_are_json(payload: bytes) -> None:
    """TM-51, PU-12: a lone surrogate's escape too, as in a push."""
    assert is_json(payload)


@pytest.mark.parametrize("payload", [
    b"", b" ", b"{", b"NaN", b"'a'", b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud8"', b'"\\ud8zz"', b"1 2", b"\xef\xbb\xbf1",
    b"\x00", b"[" * 50_000 + b"]" * 50_000, b'{"a":1,}', b'"\x01"',
])
def test_payloads_that_would_break_an_answer_they_are_put_into(payload: bytes) -> None:
    """timers.md 10: they are accepted and marked."""
    assert not is_json(payload)


async def test_the_mark_travels_in_the_command() -> None:
    door = TimerDoor()
    await door.post(op("a"), op("b", payload=text_of(b"{")))
    assert [operation[7] for operation in door.broker.writes[0][2]] == [  # type: ignore[attr-defined]
        PayloadFlag.JSON, PayloadFlag.RAW]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_whole_delays(delay_ms: float) -> None:
    """TM-20: never less than what was asked for, by less than a millisecond more."""
    whole = whole_delay_ms(delay_ms, HORIZON_MS)
    if delay_ms > HORIZON_MS:
        assert whole is None
    else:
        assert whole is not None and 0 <= whole <= HORIZON_MS and whole == max(0, math.ceil(delay_ms))


field_names = st.sampled_from(
    ("op", "queue", "timerKey", "delayMs", "txn", "payload", "partition", "payloadZstd", "x", "_y"))
values: st.SearchStrategy[object] = st.sampled_from(
    (None, True, 0, -1, 0.5, 1e18, 5, "", "a", "schedule", "cancel", "YQ==", "YQ", "a\0", "k" * 600, []))
overrides = st.lists(
    st.tuples(st.sampled_from("abc"), st.dictionaries(field_names, values, max_size=2)), max_size=4)


def outcome_exactly(body: bytes) -> tuple[list[object], str]:
    """What the exact reader makes of a body: the operations without their ids, or why not."""
    call = Call(TimerLimits(), IdMint(), None)
    try:
        exact = ExactCall(body, TimerLimits().operations_max)
        exact.check_names()
        for _ in exact.take_into(call):
            pass
    except Refused as refusal:
        return [], refusal.refusal.reason
    return without_ids(call), ""


def without_ids(call: Call) -> list[object]:
    return [operation[:5] + operation[6:] for operation in call.operations]


@settings(max_examples=400)
@given(overrides)
def test_the_quick_reader_and_the_exact_one_agree(changes: list[tuple[str, dict[str, object]]]) -> None:
    """Whatever the quick reader takes, the exact one takes alike; what that one refuses, the quick one never takes."""
    body = msgspec.json.encode({"operations": [{**op(key), **change} for key, change in changes]})
    operations, reason = outcome_exactly(body)
    quick = Call(TimerLimits(), IdMint(), None)
    if read_quickly(body, quick):
        assert not reason and without_ids(quick) == operations
    sliced = Call(TimerLimits(), IdMint(), None)
    slices = read_in_slices(body, sliced)
    try:
        while True:
            next(slices)
    except StopIteration as end:
        if end.value:
            assert not reason and without_ids(sliced) == operations


async def test_a_large_body_gives_the_loop_turns() -> None:
    """M-51."""
    body = msgspec.json.encode([op(f"{index}", payload=text_of(b"1" * 100_000)) for index in range(50)])
    assert len(body) > 20 * SLICE_BYTES
    call = Call(TimerLimits(), IdMint(), None)
    turns = 0
    slices = read_in_slices(body, call)
    try:
        while True:
            next(slices)
            turns += 1
    except StopIteration as end:
        assert end.value is True
    assert turns >= 20 and len(call.operations) == 50
    exact = ExactCall(body, TimerLimits().operations_max)
    assert sum(1 for _ in exact.take_into(Call(TimerLimits(), IdMint(), None))) == turns
    reply = await TimerDoor().call("POST", "/api/v1/timers", body)
    assert reply.status == 200 and len(reply.document["results"]) == 50
