"""The timer routes from request to answer (timers.md 1 to 4, 9)."""

from __future__ import annotations

import msgspec
import pytest

from queen_node.errors import OVERLOADED, STORAGE_FULL, Refused
from queen_node.places import place
from queen_node.quotas import Rate
from tests.support.timer_door import TimerDoor, op, text_of

NOW = "2023-11-14T22:13:20.000000Z"  # of the fake broker's clock


async def test_the_example_of_the_page() -> None:
    """timers.md 9, TM-5, TM-16, TM-40."""
    door = TimerDoor()
    reply = await door.post(
        {"op": "schedule", "queue": "reminders", "timerKey": "order-9137", "delayMs": 86400000, "txn": "remind-9137",
         "payload": "eyJvcmRlcklkIjo5MTM3fQ=="},
        {"op": "cancel", "queue": "reminders", "timerKey": "order-9000", "txn": "remind-9000"})
    assert reply.status == 200
    scheduled, absent = reply.document["results"]
    message_id = scheduled.pop("messageId")
    assert len(message_id) == 36 and message_id[14] == "7"
    assert scheduled == {
        "ok": True, "status": "scheduled", "queue": "reminders", "timerKey": "order-9137", "txn": "remind-9137",
        "deliverAt": "2023-11-15T22:13:20.000000Z"}
    assert absent == {
        "ok": False, "status": "absent", "queue": "reminders", "timerKey": "order-9000", "txn": "remind-9000"}
    peeked = await door.get("reminders/order-9137")
    assert peeked.document == {
        "found": True, "queue": "reminders", "timerKey": "order-9137", "partition": "Default",
        "deliverAt": "2023-11-15T22:13:20.000000Z", "txn": "remind-9137", "messageId": message_id,
        "payload": "eyJvcmRlcklkIjo5MTM3fQ==", "payloadZstd": False, "encrypted": False, "producerSub": None,
        "attempts": 0, "lastError": None, "claimed": False, "createdAt": NOW, "updatedAt": NOW}
    listed = await door.get("reminders?limit=1")
    row = {name: value for name, value in peeked.document.items() if name not in ("found", "payload")}
    assert listed.document == {"rows": [row], "truncated": False, "nextAfter": None}
    assert (await door.get("reminders?mode=count&prefix=order-")).document == {"count": 1}
    cancelled = await door.delete("reminders/order-9137?txn=remind-9137")
    assert cancelled.document == {
        "ok": True, "status": "cancelled", "queue": "reminders", "timerKey": "order-9137", "txn": "remind-9137"}
    assert (await door.get("reminders/order-9137")).document == {"found": False}


async def test_the_bare_array_is_the_same_call() -> None:
    """TM-10."""
    door = TimerDoor()
    reply = await door.call("POST", "/api/v1/timers", msgspec.json.encode([op("a"), op("b")]))
    assert [result["timerKey"] for result in reply.document["results"]] == ["a", "b"]


@pytest.mark.parametrize("body", [b'{"operations":[]}', b"[]"])
async def test_an_empty_call_answers_an_empty_list_and_proposes_nothing(body: bytes) -> None:
    """timers.md 10."""
    door = TimerDoor()
    reply = await door.call("POST", "/api/v1/timers", body)
    assert (reply.status, reply.document) == (200, {"results": []})
    assert door.broker.writes == []


async def test_reschedule_is_another_word_for_schedule() -> None:
    """TM-12."""
    door = TimerDoor()
    first = await door.post(op(op="reschedule"))
    second = await door.post(op(op="schedule"))
    assert [reply.document["results"][0]["status"] for reply in (first, second)] == ["scheduled", "rescheduled"]


@pytest.mark.parametrize(("path", "key"), [
    ("a/b", "a/b"), ("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a//b", "a//b"), ("a/", "a/"), ("./..", "./.."),
    ("a+b", "a+b"), ("a%20b", "a b"), ("%C3%BC", "ü"), ("ü", "ü"), ("%2e%2E", ".."),
])
async def test_both_spellings_of_a_key_and_no_normalising(path: str, key: str) -> None:
    """TM-3."""
    door = TimerDoor()
    await door.post(op(key))
    assert (await door.get(f"q/{path}")).document["timerKey"] == key
    assert (await door.delete(f"q/{path}")).document["status"] == "cancelled"


async def test_a_queue_with_a_slash_arrives_escaped() -> None:
    """TM-3."""
    door = TimerDoor()
    await door.post(op("k", queue="a/b"))
    assert (await door.get("a%2Fb/k")).document["found"]
    assert len((await door.get("a%2Fb")).document["rows"]) == 1
    assert not (await door.get("a/b/k")).document["found"]


@pytest.mark.parametrize("path", ["q/a%2", "q/%zz", "q/%ff", "%ff/k", "q/a%00b", "%00/k"])
async def test_a_path_that_is_no_name(path: str) -> None:
    """TM-3."""
    door = TimerDoor()
    for reply in (await door.get(path), await door.delete(path)):
        assert reply.reason == (400, "timers_bad_request", "timers_bad_op")


async def test_no_key_is_no_route() -> None:
    """TM-3."""
    reply = await TimerDoor().get("q/")
    assert (reply.status, reply.document["code"]) == (404, "no_such_route")


async def test_names_that_are_too_long_on_the_other_routes() -> None:
    """TA-50."""
    door = TimerDoor()
    for path in ("q/" + "k" * 513, "q" * 412 + "/k"):
        for reply in (await door.get(path), await door.delete(path)):
            assert reply.reason == (413, "name_too_long", "name_too_long") and reply.document["code"] == "name_too_long"
    assert (await door.get("q/" + "k" * 512)).status == 200 and (await door.get("q" * 411 + "/k")).status == 200


async def test_delete_echoes_the_txn_of_what_is_absent_and_ignores_a_body() -> None:
    """TM-30: it is no condition."""
    door = TimerDoor()
    reply = await door.call("DELETE", "/api/v1/timers/q/k?txn=a%2Bb+c", b"not json")
    assert reply.document == {"ok": False, "status": "absent", "queue": "q", "timerKey": "k", "txn": "a+b c"}
    assert (await door.delete("q/k")).document["txn"] is None
    await door.post(op("k", txn="own"))
    assert (await door.delete("q/k?txn=other")).document["txn"] == "own"


async def test_the_due_schedule_and_the_switch() -> None:
    """TM-21, TA-74."""
    door = TimerDoor()
    reply = await door.post(op("k", delayMs=0))
    assert reply.document["results"][0]["status"] == "scheduled" and reply.document["results"][0]["deliverAt"] == NOW
    assert (await door.get("q/k")).document == {"found": False}
    door.firing = False
    await door.post(op("l", delayMs=-5))
    assert (await door.get("q/l")).document["deliverAt"] == NOW
    door.broker.fire()
    assert (await door.get("q/l")).document == {"found": False}


async def test_the_producer_is_whoever_the_token_says() -> None:
    """TA-35, TM-40."""
    door = TimerDoor()
    door.subject = b"svc-billing"
    await door.post(op())
    assert (await door.get("q/k")).document["producerSub"] == "svc-billing"


async def test_peek_shows_the_bytes_as_sent_also_when_they_are_no_json() -> None:
    """timers.md 10, TM-40."""
    door = TimerDoor()
    for key, payload in (("raw", b"\x00\xff"), ("json", b' {"a": 1.0} ')):
        await door.post(op(key, payload=text_of(payload), partition="p"))
        reply = await door.get(f"q/{key}")
        assert reply.document["payload"] == text_of(payload) and reply.document["partition"] == "p"


async def test_a_list_by_pages_while_keys_fire() -> None:
    """TM-41: 2,500 keys; no key that stays pending is missed or seen twice."""
    door = TimerDoor()
    for batch in range(10):
        await door.post(*(op(f"{index:04}", delayMs=1 if index % 5 == 0 else 100_000)
                          for index in range(batch * 250, batch * 250 + 250)))
    seen: list[str] = []
    after = ""
    for page in range(100):
        reply = await door.get(f"q?limit=200&after={after}")
        rows = [row["timerKey"] for row in reply.document["rows"]]
        seen += rows
        if page == 3:
            door.broker.now_us += 1000
            door.broker.fire()
        if not reply.document["truncated"]:
            assert reply.document["nextAfter"] is None
            break
        after = reply.document["nextAfter"]
        assert after == rows[-1] and len(rows) == 200
    assert seen == sorted(set(seen))
    assert {f"{index:04}" for index in range(2500) if index % 5} <= set(seen)


@pytest.mark.parametrize(("limit", "count"), [
    ("", 100), ("0", 1), ("-7", 1), ("1", 1), ("5000", 300), ("9" * 30, 300), ("-" + "9" * 30, 1),
])
async def test_the_limit_of_a_list_is_clamped_never_refused(limit: str, count: int) -> None:
    """TM-41."""
    door = TimerDoor()
    await door.post(*(op(f"{index}") for index in range(150)))
    await door.post(*(op(f"{index}") for index in range(150, 300)))
    assert len((await door.get(f"q?limit={limit}")).document["rows"]) == count


@pytest.mark.parametrize("limit", ["x", "1.5", "1e3", "-", "+1", "1_0", "%20", "٣"])
async def test_a_limit_that_is_no_whole_number(limit: str) -> None:
    """TM-41."""
    assert (await TimerDoor().get(f"q?limit={limit}")).reason == (400, "timers_bad_request", "timers_bad_query")


async def test_after_is_any_text_and_need_not_exist() -> None:
    """TM-41: exclusive; byte order."""
    door = TimerDoor()
    await door.post(op("a"), op("a\x01"), op("b"), op("ü"), op("z"))
    async def keys(after: str) -> list[str]:
        return [row["timerKey"] for row in (await door.get(f"q?after={after}&mode=list&colour=red")).document["rows"]]
    assert await keys("") == ["a", "a\x01", "b", "z", "ü"]
    assert await keys("a") == ["a\x01", "b", "z", "ü"]
    assert await keys("aa") == ["b", "z", "ü"]
    assert await keys("%F4%8F%BF%BF") == []
    assert (await door.get("unknown")).document == {"rows": [], "truncated": False, "nextAfter": None}


@pytest.mark.parametrize(("prefix", "count"), [("a", 3), ("a%2F", 1), ("a*", 0), ("%C3", None), ("ü", 1), ("x", 0)])
async def test_count_takes_the_prefix_literally(prefix: str, count: int | None) -> None:
    """TM-42."""
    door = TimerDoor()
    await door.post(op("a"), op("ab"), op("a/c"), op("ü"), op("a", queue="other"))
    reply = await door.get(f"q?mode=count&prefix={prefix}")
    if count is None:
        assert reply.reason == (400, "timers_bad_request", "timers_bad_query")
    else:
        assert reply.document == {"count": count}


@pytest.mark.parametrize(("query", "reason"), [
    ("mode=count", "timers_count_prefix_required"),
    ("mode=count&prefix=", "timers_count_prefix_required"),
    ("mode=count&prefix=" + "p" * 129, "timers_count_prefix_invalid"),
    ("mode=count&prefix=a%00", "timers_count_prefix_invalid"),
    ("mode=count&prefix=a&after=b", "timers_count_no_paging"),
    ("mode=count&prefix=a&limit=1", "timers_count_no_paging"),
    ("mode=tree", "timers_read_mode_unknown"),
    ("mode=", "timers_read_mode_unknown"),
    ("after=%zz", "timers_bad_query"),
])
async def test_queries_that_make_no_sense(query: str, reason: str) -> None:
    """TM-42."""
    assert (await TimerDoor().get(f"q?{query}")).reason == (400, "timers_bad_request", reason)


async def test_a_prefix_too_long_is_told_by_how_much() -> None:
    """AD-34."""
    assert "(limit 128, got 129)" in (await TimerDoor().get("q?mode=count&prefix=" + "p" * 129)).detail


async def test_the_longest_prefix_is_accepted() -> None:
    assert (await TimerDoor().get("q?mode=count&prefix=" + "p" * 128)).document == {"count": 0}


async def test_a_spent_rate_refuses_the_post_and_never_the_delete() -> None:
    """TM-26, TA-51, TA-53, TM-31, G-M10, W15."""
    door = TimerDoor(writes=Rate(0.5, 2))
    await door.post(*(op(f"{index}") for index in range(256)))
    await door.post(op("k"))
    reply = await door.post(op("more"))
    assert reply.reason == (429, "rate_limited", "rate_limited") and reply.headers == {"Retry-After": "2"}
    assert door.rejected == ["rate_limited"] and len(door.broker.writes) == 2
    for _ in range(5):
        assert (await door.delete("q/k")).status == 200
        assert (await door.get("q/k")).status == 200
    door.now_ns = 2_000_000_000
    assert (await door.post(op("more"))).status == 200


async def test_a_rate_limited_call_with_a_cancel_is_told_of_the_delete() -> None:
    """TM-27."""
    door = TimerDoor(writes=Rate(1, 1))
    cancel = {"op": "cancel", "queue": "q", "timerKey": "k"}
    await door.post(cancel)
    for operations in ([op("a"), cancel], [op("a"), {**cancel, "unknown": 1}]):
        reply = await door.post(*operations)
        assert reply.headers["x-queen-timers-hint"] == "DELETE /api/v1/timers/:queue/:timerKey"
    assert "x-queen-timers-hint" not in (await door.post(op("a"))).headers


async def test_what_a_refused_call_costs() -> None:
    """TM-26, README 28: a body that cannot be parsed and a name too long cost nothing, a wrong field one token."""
    door = TimerDoor(writes=Rate(1, 1))
    assert (await door.call("POST", "/api/v1/timers", b"{")).status == 400
    assert (await door.post(op("k" * 513))).status == 413
    assert (await door.post(op(delayMs="soon"))).status == 400
    assert (await door.post(op())).status == 429


async def test_the_order_of_checks_names_before_the_rate_before_the_rest() -> None:
    """TM-26, tenancy-auth.md 2."""
    door = TimerDoor(writes=Rate(1, 1))
    await door.post(op())
    wrong = op(delayMs="soon")
    assert (await door.post(wrong)).status == 429
    assert (await door.post(wrong, op("k" * 513))).status == 413
    assert (await door.call("POST", "/api/v1/timers", b"[1,")).status == 400


@pytest.mark.parametrize(("refusal", "status", "error"), [(OVERLOADED, 429, "overloaded"),
                                                          (STORAGE_FULL, 507, "storage_full")])
async def test_admission_refuses_schedules_but_no_call_that_only_cancels(
    refusal: object, status: int, error: str,
) -> None:
    """TM-31, timers.md 7: in this family's words."""
    door = TimerDoor()
    await door.post(op("k"), op("l"))
    door.broker.refuse_admission = Refused(refusal)  # type: ignore[arg-type]
    reply = await door.post(op("m"))
    assert reply.reason == (status, error, error) and reply.document["code"] == error
    assert ("Retry-After" in reply.headers) == (status == 429)
    cancelled = await door.post({"op": "cancel", "queue": "q", "timerKey": "k"})
    assert cancelled.document["results"][0]["status"] == "cancelled"
    assert (await door.delete("q/l")).document["status"] == "cancelled"


async def test_admission_comes_before_what_is_wrong_in_an_operation() -> None:
    """TM-26, tenancy-auth.md 2: names, rate, disk gate and admission, then validation; a cancel needs none of them."""
    door = TimerDoor()
    door.broker.refuse_admission = Refused(STORAGE_FULL)
    wrong = op(delayMs="soon")
    assert (await door.post(op("m", op="cancel"), wrong)).status == 507
    assert (await door.post(op(delayMs=1e15))).status == 507
    assert (await door.post(op("k" * 513), wrong)).status == 413
    assert (await door.post({"op": "cancel", "queue": "q", "timerKey": "k", "txn": 5})).status == 400
    assert (await door.post(op(op="sleep"))).status == 400
    door.broker.refuse_admission = None
    assert (await door.post(wrong)).status == 400


@pytest.mark.parametrize(("code", "reason"), [("timeout", "timers_timeout"), ("retry", "timers_retry"),
                                              ("no_leader", "no_leader")])
async def test_a_group_that_cannot_decide(code: str, reason: str) -> None:
    """timers.md 7."""
    door = TimerDoor()
    door.broker.unavailable = code
    replies = [await door.post(op()), await door.delete("q/k"), await door.get("q/k"), await door.get("q"),
               await door.get("q?mode=count&prefix=a")]
    for reply in replies:
        assert reply.reason == (503, "timers_unavailable", reason) and reply.headers == {"Retry-After": "1"}


async def test_a_cancel_whose_answer_was_lost_may_be_sent_again() -> None:
    """TM-33."""
    door = TimerDoor()
    await door.post(op())
    door.broker.unavailable_after = "timeout"
    assert (await door.delete("q/k")).status == 503
    door.broker.unavailable_after = None
    assert (await door.delete("q/k")).document["status"] == "absent"


async def test_places_that_the_entry_may_append_to_are_told_to_the_broker() -> None:
    """M-41: so that pops waiting there ride in the same entry."""
    door = TimerDoor()
    told: list[tuple[bytes, ...]] = []
    write = door.broker.write
    async def spy(
        tenant: bytes, command: bytes, *, timeout_ms: int, places: tuple[bytes, ...] = (), **more: object,
    ) -> bytes:
        told.append(places)
        return await write(tenant, command, timeout_ms=timeout_ms, places=places)
    door.broker.write = spy  # type: ignore[method-assign]
    await door.post(op("a", delayMs=0, queue="y"), op("b", queue="z"), op("c", delayMs=0, queue="x"),
                    op("d", delayMs=-1, queue="x"))
    y, x = place(b"y", b"Default"), place(b"x", b"Default")
    assert told == [(y, x, x)]
