"""POST /api/v1/transaction: bodies, the flat results, refusals byte for byte (transactions.md 2, 5, 6)."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import count
from typing import Any

import pytest
import trio

from queen_node import commands, errors
from queen_node.errors import Refused
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.transaction_body import BODY_MAX_BYTES, PARTS_MAX
from queen_node.http.messages import Request
from queen_node.ids import uuid_text
from tests.support.transaction_door import LEASE, OTHER, ROLLED_BACK, Door, ack, item, push, put, timer


@pytest.fixture
def door() -> Door:
    return Door()


class TestAnswer:
    async def test_the_body_of_a_success(self, door: Door) -> None:
        """TX-40, TX-41: one flat list, in the order of operations, then timers; every field."""
        status, answer = await door.post({
            "operations": [push(item("r1"), item("r1")), ack("a"), {"type": "push", **item("r2", partition="x")}],
            "requiredLeases": [uuid_text(LEASE)],
            "timers": [timer(), {"op": "cancel", "queue": "later", "timerKey": "none"}]})
        assert status == 200
        results = answer.pop("results")
        assert answer == {"success": True}
        first = results[0]["messageId"]
        scheduled = results[4]
        assert results == [
            {"index": 0, "type": "push", "success": True, "transactionId": "r1", "messageId": first,
             "queueName": "out", "partition": "Default", "offset": 0},
            {"index": 1, "type": "push", "success": True, "transactionId": "r1", "messageId": first,
             "queueName": "out", "partition": "Default", "offset": 0, "duplicate": True},
            {"index": 2, "type": "ack", "success": True, "transactionId": "a", "error": None, "dlq": False},
            {"index": 3, "type": "push", "success": True, "transactionId": "r2", "messageId": results[3]["messageId"],
             "queueName": "out", "partition": "x", "offset": 0},
            {"index": 4, "type": "timer", "opIndex": 0, "ok": True, "status": "scheduled", "queue": "later",
             "timerKey": "k", "txn": "t-k", "messageId": scheduled["messageId"],
             "deliverAt": "2023-11-14T22:13:21.000000Z"},
            {"index": 5, "type": "timer", "opIndex": 1, "ok": False, "status": "absent", "queue": "later",
             "timerKey": "none", "txn": None}]
        assert door.broker.timeouts_ms == [1234]

    async def test_acks_say_what_became_of_them(self, door: Door) -> None:
        """TX-40, TX-30: dlq, noop, redelivers."""
        results = await door.results(operations=[
            ack("a", status="dlq"), ack("b", status=False), ack("c")])
        assert [(one["dlq"], one.get("noop"), one.get("redelivers")) for one in results] == [
            (True, None, None), (False, None, None), (False, None, True)]
        (result,) = await door.results(operations=[ack("a", leaseId=...)])
        assert result["noop"] is True

    @pytest.mark.parametrize("acks", range(4))
    @pytest.mark.parametrize("items", [0, 1, 3])
    @pytest.mark.parametrize("kvs", range(2))
    @pytest.mark.parametrize("timers", range(2))
    async def test_the_flat_index(self, acks: int, items: int, kvs: int, timers: int) -> None:
        """TX-40, transactions.md 9.3: in every arrangement `index` is the place, and a failure is named in it."""
        door, number = Door(), count()
        operations = [ack(txn) for txn in "abc"[:acks]]
        operations.insert(acks // 2, push(*[item(f"m{next(number)}") for _ in range(items)]))
        if not (acks or items or timers or kvs):
            return
        whole: dict[str, Any] = {
            "operations": operations, "kv": [put(f"k{n}") for n in range(kvs)],
            "timers": [timer(f"k{n}") for n in range(timers)]}
        status, refused = await door.post({**whole, "timers": [*whole["timers"], timer("bad", delayMs=60_001)]})
        assert (status, refused["failedIndex"]) == (403, acks + items + kvs + timers)
        guard = {"op": "check", "ns": "locks", "key": "l", "expect": 7, "required": True}
        status, refused = await door.post({**whole, "kv": [*whole["kv"], guard]})
        assert (refused["reason"], refused["failedIndex"]) == ("kv_precondition", acks + items + kvs)
        results = await door.results(**whole)
        assert [result["index"] for result in results] == list(range(acks + items + kvs + timers))
        types = ["ack"] * (acks // 2) + ["push"] * items + ["ack"] * (acks - acks // 2)
        assert [result["type"] for result in results] == [*types, *["kv"] * kvs, *["timer"] * timers]
        for kind, number_of in (("kv", kvs), ("timer", timers)):
            assert [result["opIndex"] for result in results if result["type"] == kind] == list(range(number_of))


class TestBody:
    @pytest.mark.parametrize("body", [
        b"", b"[]", b"{", b"\xff", b'{"operations":{}}', b'{"operations":[1]}', b'{"operations":[{"type":"kv"}]}',
        b'{"operations":[{"type":"timer"}]}', b'{"operations":[{}]}', b'{"operations":[{"type":null}]}',
        b'{"operations":[{"type":"push","items":5}]}', b'{"operations":[{"type":"push","queue":5,"payload":1}]}',
        b'{"operations":[{"type":"ack","transactionId":"a","partitionId":"1","status":5}]}',
        b'{"operations":[{"type":"ack","transactionId":7,"partitionId":"1"}]}',
        b'{"timers":{}}', b'{"kv":"x"}', b'{"positions":1}', b'{"requiredLeases":"x"}', b"QTB1\x00\x01",
        b'{"operations":[{"type":"push","items":[{"queue":"q","payload":"\xff"}]}]}',
        b'{"operations":[{"type":"push","items":[{"queue":"\\ud800","payload":1}]}]}',
    ])
    async def test_wrong_shapes(self, door: Door, body: bytes) -> None:
        """TX-3, TX-54, TX-58: 400 in the transaction's body, nothing proposed."""
        status, answer = await door.post(body)
        error = answer.pop("error")
        answer.pop("failedIndex", None)
        assert status == 400
        assert answer == {"success": False, "reason": "bad_request", "code": "bad_request", "results": []}
        assert error.endswith(ROLLED_BACK)
        assert door.broker.writes == []

    @pytest.mark.parametrize(("body", "failed_index"), [
        ({}, None), ({"operations": []}, None), ({"operations": None, "kv": None, "timers": None}, None),
        ({"operations": [push()]}, None),
        ({"operations": [push(item(queue=...))]}, 0), ({"operations": [push(item(), item(payload=...))]}, 1),
        ({"operations": [push(item(queue=""))]}, 0), ({"operations": [push(item(partition=""))]}, 0),
        ({"operations": [push(item(queue="a\0b"))]}, 0),
        ({"operations": [push(), push(item()), ack(partitionId="x")]}, 1),
        ({"operations": [ack(partitionId=...)]}, 0), ({"operations": [ack(transactionId=...)]}, 0),
        ({"operations": [ack(), ack(status="done")]}, 1), ({"operations": [ack(status="")]}, 0),
        ({"operations": [ack(status="Failed")]}, 0),
    ])
    async def test_fields_that_are_missing_or_wrong(
        self, door: Door, body: dict[str, Any], failed_index: int | None,
    ) -> None:
        """TX-4, TX-53: 200 with `bad_request`; the element is named."""
        status, answer = await door.post(body)
        assert answer.pop("error").endswith(ROLLED_BACK)
        expected = {"success": False, "reason": "bad_request", "results": []}
        assert (status, answer) == (
            200, expected if failed_index is None else {**expected, "failedIndex": failed_index})
        assert door.broker.writes == []

    @pytest.mark.parametrize(("status", "word"), [
        (..., 0), (None, 0), (True, 0), ("completed", 0), ("success", 0), ("acked", 0), ("ok", 0), (False, 2),
        ("failed", 2), ("retry", 1), ("dlq", 3),
    ])
    async def test_statuses(self, door: Door, status: Any, word: int) -> None:
        """transactions.md 2.2."""
        await door.results(operations=[ack(status=status)])
        assert door.said[2][0][1][2] == word

    async def test_payloads_are_kept_byte_for_byte(self, door: Door) -> None:
        """PU-12: spelling, blanks, and what msgspec takes for no string."""
        payloads = [b"1.0", b"1e400", b'{"a":1,"a": 2}', b'"\\ud800x"', b'{"b":"\\uDfff"}', b"null", '"ü😀"'.encode()]
        items = b",".join(b'{"queue":"out","payload":%b}' % payload for payload in payloads)
        inline = b'{"type":"push","queue":"out","payload":"\\ud801"}'
        status, answer = await door.post(b'{"operations":[{"type":"push","items":[%b]},%b]}' % (items, inline))
        assert (status, answer["success"]) == (200, True)
        assert [each[4] for each in door.said[3]] == [*payloads, b'"\\ud801"']

    async def test_ids_groups_and_unknown_fields(self, door: Door) -> None:
        """TX-3, 2.1, 2.2: an absent id is the message's; unknown fields are ignored; the group's default."""
        trace = "0198-x"
        results = await door.results(
            operations=[push(item(extra=1, traceId=trace)), ack(group="x", error="why"), ack("b", consumerGroup=None)],
            other={"x": 1})
        assert results[0]["transactionId"] == results[0]["messageId"]
        _kind, _id, acks, pushes, *_ = door.said
        assert [group for group, _item in acks] == [b"__QUEUE_MODE__"] * 2
        assert acks[0][1][4] == b"why"
        assert pushes[0][6] is None

    async def test_pops_may_ride_where_it_appends(self) -> None:
        """M-41: places of items and of timers that are due at once."""
        door = Door()
        seen: list[tuple[bytes, ...]] = []
        write = door.broker.write

        async def watched(tenant: bytes, command: bytes, **how: Any) -> bytes:
            seen.append(how["places"])
            return await write(tenant, command, **how)

        door.broker.write = watched  # type: ignore[method-assign]
        await door.results(operations=[push(item(partition="x"), item())], timers=[timer(delayMs=0), timer("l")])
        assert seen == [(b"\0\3outx", b"\0\3outDefault", b"\0\5laterDefault")]


class TestPositions:
    @pytest.mark.parametrize("position", [{"queue": "orders", "consumerGroup": "g", "offset": 1}, {}, 5, None])
    async def test_none_is_ignored_while_no_route_reads_them(self, door: Door, position: Any) -> None:
        """transactions.md 7: a list that is not empty is 400 `bad_request`, whatever stands in it."""
        proposed = len(door.broker.writes)
        status, answer = await door.post({"operations": [push(item())], "timers": [timer()], "positions": [position]})
        assert (status, answer["reason"], answer["code"]) == (400, "bad_request", "bad_request")
        assert "positions" in answer["error"] and "failedIndex" not in answer
        assert len(door.broker.writes) == proposed, "nothing was proposed"

    async def test_an_empty_list_is_none(self, door: Door) -> None:
        """TX-3, TX-4."""
        nothing: list[Any] | None
        for nothing in ([], None):
            assert len(await door.results(operations=[push(item())], positions=nothing)) == 1
        assert (await door.post({"positions": []}))[1]["reason"] == "bad_request"


class TestLeases:
    @pytest.mark.parametrize(("own", "required", "fenced"), [
        ((..., ...), [], (b"", b"")),
        ((..., ""), [LEASE], (LEASE, LEASE)),
        ((LEASE, ...), [], (LEASE, LEASE)),
        ((LEASE, ...), [LEASE, LEASE], (LEASE, LEASE)),
        ((LEASE, ...), [OTHER], (LEASE, b"")),
        ((LEASE, OTHER), [], (LEASE, OTHER)),
        ((..., ...), [LEASE, OTHER], (b"", b"")),
        ((None, ...), ["", "nonsense"], (b"?", b"?")),
        ((..., ...), ["nonsense", "other nonsense"], (b"", b"")),
    ])
    async def test_which_lease_fences_an_ack(
        self, door: Door, own: tuple[Any, ...], required: list[Any], fenced: tuple[bytes, ...],
    ) -> None:
        """TX-31: its own; else the only one there is; else none."""
        def text(lease: Any) -> Any:
            return uuid_text(lease).upper() if isinstance(lease, bytes) else lease

        await door.post({
            "operations": [ack(txn, leaseId=text(lease)) for txn, lease in zip("ab", own, strict=True)],
            "requiredLeases": [text(lease).lower() for lease in required]})
        assert tuple(item[3] for _group, item in door.said[2]) == fenced

    async def test_a_lease_that_no_ack_uses_is_not_checked(self, door: Door) -> None:
        """TX-31."""
        assert len(await door.results(operations=[push(item())], requiredLeases=["gone", uuid_text(OTHER)])) == 1


class TestRefusals:
    async def test_rejected_ack(self, door: Door) -> None:
        """TX-50 to TX-53."""
        status, answer = await door.post({"operations": [push(item()), ack("a"), ack("z")]})
        assert status == 200
        assert answer == {
            "success": False, "reason": "rejected_ack", "results": [], "failedIndex": 2,
            "error": "QTXN an ack was rejected: unresolvable: transaction not in the ack window (hash purged or never "
                     "pushed); if leased, the message redelivers (transactionId z in partition 1)" + ROLLED_BACK}

    async def test_duplicate(self, door: Door) -> None:
        """TX-51, TX-53: queue, partition and offset in the text, offset and messageId beside."""
        (first,) = await door.results(operations=[push(item("x"))])
        status, answer = await door.post({"operations": [ack("a"), push(item("y"), item("x"))]})
        assert status == 200
        assert answer == {
            "success": False, "reason": "duplicate", "results": [], "failedIndex": 2, "offset": 0,
            "messageId": first["messageId"],
            "error": "QDUP a pushed message is stored already: transactionId x in queue out, partition Default, at "
                     "offset 0" + ROLLED_BACK}

    async def test_named_too_often(self, door: Door) -> None:
        """TX-36."""
        status, answer = await door.post({"operations": [ack("a"), ack("a", status="retry")]})
        assert (status, answer["reason"], answer["failedIndex"]) == (200, "bad_request", 1)

    async def test_clear_text_for_a_queue_that_encrypts(self, door: Door) -> None:
        """PU-71, TX-53, TX-54."""
        door.broker.apply(commands.configure(
            b"r", b"out", b"u" * 16, (None, None), "merge", [("encryption_enabled", True)]))
        status, answer = await door.post({"operations": [ack("a"), push(item())]})
        assert (status, answer["reason"], answer["code"], answer["failedIndex"]) == (
            400, "encryption_key_missing", "encryption_key_missing", 1)

    @pytest.mark.parametrize(("fields", "status", "reason"), [
        ({"delayMs": 60_001}, 403, "timer_horizon_exceeded"),
        ({"payload": b64encode(b"x" * 65).decode()}, 413, "payload_too_large"),
        ({"payload": "%"}, 400, "timers_payload_not_base64"),
        ({"messageId": "x"}, 400, "timers_server_owned_field"),
        ({"op": "check"}, 400, "timers_bad_op"),
        ({"queue": ""}, 400, "timers_queue_required"),
        ({"delayMs": ...}, 400, "timers_delay_required"),
        ({"payload": ...}, 400, "timers_payload_required"),
        ({"timerKey": "k"}, 400, "timers_duplicate_key_in_call"),
        ({"payloadZstd": True}, 400, "timers_zstd_unsupported"),
    ])
    async def test_what_the_timers_route_refuses(
        self, door: Door, fields: dict[str, Any], status: int, reason: str,
    ) -> None:
        """TM-60, TM-63: the route's status in the transaction's body; the finer code for 400."""
        got, answer = await door.post({"operations": [ack()], "timers": [timer("k"), timer("other", **fields)]})
        assert answer.pop("error").endswith(ROLLED_BACK)
        assert (got, answer) == (status, {
            "success": False, "reason": reason, "code": reason, "results": [], "failedIndex": 2})
        assert door.broker.writes == []

    async def test_too_many_timers(self) -> None:
        """transactions.md 2.4: the route's limit."""
        door = Door(limits=TimerLimits(operations_max=2))
        assert len(await door.results(timers=[timer("1"), timer("2", unknown=1)])) == 2
        status, answer = await door.post({"timers": [timer(str(n)) for n in range(3)]})
        assert (status, answer["reason"]) == (400, "timers_too_many_ops")

    async def test_too_large(self) -> None:
        """TX-53, M-51: parts, the command, the body; exactly the limit passes."""
        door = Door()
        assert len(await door.results(operations=[push(*[item()] * (PARTS_MAX - 1)), ack()])) == PARTS_MAX
        bodies: list[dict[str, Any]] = [
            {"operations": [push(*[item()] * PARTS_MAX), ack()]}, {"timers": [{}] * (PARTS_MAX + 1)}]
        for body in bodies:
            assert await door.post(body) == (200, {
                "success": False, "reason": "too_large", "results": [],
                "error": "parts (limit 10000, got 10001)" + ROLLED_BACK})
        status, answer = await door.post(b" " * (BODY_MAX_BYTES + 1))
        assert (status, answer["reason"]) == (200, "too_large")
        small = Door(command_max_bytes=1000)
        status, answer = await small.post({"operations": [push(item(payload="x" * 1000))]})
        assert (status, answer["reason"]) == (200, "too_large")

    @pytest.mark.parametrize(("operations", "timers", "refusal"), [
        ([push(item(queue="q" * 412))], [], errors.NAME_TOO_LONG),
        ([ack(consumerGroup="g" * 412)], [], errors.NAME_TOO_LONG),
        ([], [timer(queue="q" * 412)], errors.NAME_TOO_LONG),
        ([push(item("t" * 65_536))], [], errors.BAD_REQUEST),
        ([ack("t" * 65_536)], [], errors.BAD_REQUEST),
    ])
    async def test_engine_bodies(
        self, door: Door, operations: list[Any], timers: list[Any], refusal: errors.Refusal,
    ) -> None:
        """TX-55."""
        with pytest.raises(Refused) as caught:
            await door.post({"operations": operations, "timers": timers})
        assert caught.value.refusal is refusal
        assert json.loads(caught.value.body()).keys() == {"error", "code"}
        assert door.broker.writes == []

    @pytest.mark.parametrize("code", ["timeout", "retry", "no_leader"])
    async def test_undecided(self, door: Door, code: str) -> None:
        """TX-55: a 503 is no rollback."""
        door.broker.unavailable = code
        with pytest.raises(Refused) as caught:
            await door.post({"operations": [ack()]})
        assert (caught.value.refusal.status, caught.value.refusal.code) == (503, code)

    async def test_a_full_disk(self, door: Door) -> None:
        """TX-56: what grows is refused, and what does not passes."""
        door.broker.lets_grow = False
        for body in ({"operations": [push(item())]}, {"timers": [timer()]}):
            with pytest.raises(Refused) as caught:
                await door.post(body)
            assert caught.value.refusal is errors.STORAGE_FULL
        assert await door.results(
            operations=[ack()], timers=[{"op": "cancel", "queue": "later", "timerKey": "k"}])

    async def test_admission_by_content_length(self, door: Door) -> None:
        """TX-56: every transaction, before its body is read."""
        head = Request("POST", b"/", headers={b"Content-Length": b"77"})
        assert door.handlers.before_commit(head) is None
        assert door.broker.admitted_bytes == [77]
        door.broker.refuse_admission = Refused(errors.OVERLOADED)
        waiting = door.handlers.before_commit(head)
        with pytest.raises(Refused):
            await waiting  # type: ignore[misc]

    async def test_binary_bodies(self, door: Door) -> None:
        """TX-58, PU-60: by the head alone when that says so."""
        response = door.handlers.before_commit(
            Request("POST", b"/", headers={b"Content-Type": b"application/x-queen-push"}))
        answer = json.loads(response.body)  # type: ignore[union-attr]
        assert (answer["reason"], answer["success"], answer["results"]) == ("bad_request", False, [])
        assert (await door.post(b"QTB1..."))[0] == 400
        assert door.handlers.declined.count == 2

    def test_reasons_that_are_never_given(self) -> None:
        """TX-37, transactions.md 6: other brokers', which clients know as a call to repeat."""
        table = [each for each in vars(errors).values() if isinstance(each, errors.Refusal)]
        assert len(table) > 50
        words = {each.code for each in table} | {each.reason for each in table}
        assert not words & {"reserved", "unavailable", "kv_check_needs_cluster_version_5"}

    async def test_every_call_has_an_id_of_its_own(self, door: Door) -> None:
        """TX-41."""
        bodies = [await door.handlers.commit(Request("POST", b"/", body=b"{}")) for _ in range(2)]
        assert len({json.loads(body.body)["transactionId"] for body in bodies}) == 2


async def test_a_large_body_is_read_in_slices(door: Door) -> None:
    """M-51: the loop gets turns, in reading and in answering, and nothing is read differently."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    operations = [push(*[item(f"a{n}", payload="x" * 900) for n in range(1000)]), *[
        {"type": "push", **item(f"b{n}", payload="y" * 900)} for n in range(1000)]]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        results = await door.results(operations=operations)
        nursery.cancel_scope.cancel()
    assert [result["transactionId"] for result in results] == [
        *[f"a{n}" for n in range(1000)], *[f"b{n}" for n in range(1000)]]
    assert [result["index"] for result in results] == list(range(2000))
    assert turns > 20, "7 slices of the body, 8 of its items, 8 of the answer"
