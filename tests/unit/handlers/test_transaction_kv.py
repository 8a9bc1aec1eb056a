"""Key/value operations in a transaction: bodies, results, refusals (kv.md 7)."""

from __future__ import annotations

from typing import Any

import pytest

from queen_node import errors
from queen_node.errors import Refused
from tests.support.transaction_door import ROLLED_BACK, Door, ack, item, push, put


@pytest.fixture
def door() -> Door:
    return Door()


class TestKeyValue:
    async def test_elements_of_every_kind(self, door: Door) -> None:
        """TX-40, TX-21, KV-91: as on the route, with `type` and `opIndex`; a check that held has no value."""
        results = await door.results(kv=[
            {"op": "get", "ns": "n", "key": "k"}, put("k", value={"a": 1}),
            {"op": "getMany", "ns": "n", "keys": ["k", "x"]},
            {"op": "check", "ns": "n", "key": "k", "expect": 1}, {"op": "delete", "ns": "n", "key": "x"},
            {"op": "incr", "ns": "n", "key": "c", "delta": 2, "forever": True}])
        at = "2023-11-14T22:13:20.000000Z"
        row = {"key": "k", "value": {"a": 1}, "version": 1, "expiresAt": None, "updatedAt": at}
        assert results == [
            {"index": 0, "type": "kv", "opIndex": 0, "op": "get", "found": True, **row},
            {"index": 1, "type": "kv", "opIndex": 1, "op": "put", "applied": True, "key": "k", "value": {"a": 1},
             "version": 1},
            {"index": 2, "type": "kv", "opIndex": 2, "op": "getMany", "rows": [row], "missing": ["x"],
             "truncated": False},
            {"index": 3, "type": "kv", "opIndex": 3, "op": "check", "applied": True, "key": "k", "version": 1},
            {"index": 4, "type": "kv", "opIndex": 4, "op": "delete", "applied": False, "reason": "absent", "key": "x",
             "value": None, "version": 0},
            {"index": 5, "type": "kv", "opIndex": 5, "op": "incr", "applied": True, "key": "c", "value": 2,
             "version": 2}]

    async def test_a_lost_precondition(self, door: Door) -> None:
        """TX-51, TX-52: 200, the current version and value, the index flat."""
        await door.results(kv=[put("k", value={"owner": "me"})])
        status, answer = await door.post({
            "operations": [push(item(), item()), ack()], "kv": [put("j"), put("k", expect=0, required=True)]})
        assert status == 200
        assert answer == {
            "success": False, "reason": "kv_precondition", "results": [], "failedIndex": 4, "ok": False,
            "kvReason": "exists", "version": 1, "value": {"owner": "me"},
            "error": "QKV a required operation lost: the key is not as it must be (exists, version 1)" + ROLLED_BACK}
        guard = {"op": "check", "ns": "n", "key": "x", "expect": 3, "required": True}
        status, answer = await door.post({"kv": [guard]})
        assert (answer["kvReason"], answer["version"], answer["value"]) == ("absent", 0, None)

    @pytest.mark.parametrize(("operations", "status", "reason", "index"), [
        ([{"op": "getPrefix", "ns": "n", "prefix": "a"}], 400, "kv_get_prefix_not_allowed_in_transaction", 0),
        ([{"op": "frob", "ns": "n", "key": "a"}], 400, "kv_unknown_op", 0),
        ([5], 400, "kv_bad_body", 0),
        ([{"op": "put", "ns": "n", "key": "a", "value": 1}], 400, "kv_expiry_not_specified", 0),
        ([{"op": "put", "ns": "N", "key": "a", "value": 1, "forever": True}], 400, "kv_bad_namespace", 0),
        ([{"op": "check", "ns": "n", "key": "a"}], 400, "kv_bad_expect", 0),
        ([{"op": "get", "ns": "n", "key": "k" * 513}], 413, "kv_key_too_large", 0),
        ([{"op": "put", "ns": "n", "key": "a", "value": "v" * 63, "forever": True}], 413, "kv_value_too_large", 0),
        ([{"op": "delete", "ns": "n", "key": "a"}] * 2, 400, "kv_duplicate_key_in_call", 1),
        ([{"op": "get", "ns": "n", "key": "a"}] * 65, 400, "kv_too_many_ops", None),
        ([{"op": "getMany", "ns": "n", "keys": ["a"] * 256}, {"op": "get", "ns": "n", "key": "a"}], 400,
         "kv_too_many_keys", 1),
    ])
    async def test_what_the_route_refuses(
        self, door: Door, operations: list[Any], status: int, reason: str, index: int | None,
    ) -> None:
        """TX-53, KV-90, transactions.md 2.3: the finer code, with the route's status and the flat index."""
        got, answer = await door.post({"operations": [ack()], "kv": operations})
        assert answer.pop("error").endswith(ROLLED_BACK)
        expected = {"success": False, "reason": reason, "code": reason, "results": []}
        assert (got, answer) == (status, expected if index is None else {**expected, "failedIndex": 1 + index})
        assert door.broker.writes == []

    async def test_limits_of_their_own(self, door: Door) -> None:
        """transactions.md 2.3: exactly 64 operations and 256 keys pass."""
        reads = [{"op": "getMany", "ns": "n", "keys": [f"a{n}" for n in range(193)]}]
        assert len(await door.results(kv=[*reads, *[{"op": "get", "ns": "n", "key": "a"}] * 63])) == 64

    async def test_a_full_disk_lets_through_what_does_not_grow(self, door: Door) -> None:
        """TX-56: checks, deletes and reads pass."""
        door.broker.lets_grow = False
        assert await door.results(kv=[
            {"op": "delete", "ns": "n", "key": "a"}, {"op": "check", "ns": "n", "key": "a", "expect": 0}])
        for operation in (put("a"), {"op": "incr", "ns": "n", "key": "a", "delta": 1, "forever": True}):
            with pytest.raises(Refused) as caught:
                await door.post({"kv": [operation]})
            assert caught.value.refusal is errors.STORAGE_FULL

    async def test_a_read_is_no_condition(self, door: Door) -> None:
        """KV-92, TX-1, TX-21: neither `required` nor `expect` on it stops the writes beside it; `check` does."""
        found, written = await door.results(kv=[
            {"op": "get", "ns": "n", "key": "absent", "required": True, "expect": 7}, put("k")])
        assert not found["found"] and written["applied"]
        check = {"op": "check", "ns": "n", "key": "absent", "expect": 7, "required": True}
        status, answer = await door.post({"kv": [check, put("j")]})
        assert (status, answer["success"], answer["kvReason"]) == (200, False, "absent")
        assert not (await door.results(kv=[{"op": "get", "ns": "n", "key": "j"}]))[0]["found"]
