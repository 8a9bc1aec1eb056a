"""What a tenant may hold goes from the door into the command, and is judged where the entry applies (README 12)."""

from __future__ import annotations

import pytest

from queen_node.commands import KvCaps
from queen_node.tenants import DEFAULT_TENANT
from tests.support.kv_door import KvDoor, op
from tests.support.transaction_door import Door, put

QUOTA = (403, "kv_quota_exceeded", "kv_quota_exceeded")


class Row:
    """The caps in force, as the node knows them at the moment."""

    def __init__(self) -> None:
        self.caps, self.asked = KvCaps(), [b""]

    def __call__(self, tenant: bytes) -> KvCaps:
        self.asked.append(tenant)
        return self.caps


@pytest.fixture
def row() -> Row:
    return Row()


async def test_a_call_and_a_path_are_judged_by_the_caps_in_force(row: Row) -> None:
    """KV-62, TA-55: what adds nothing is never refused; a cap that is raised lets the same call through."""
    door = KvDoor(caps_of=row)
    row.caps = KvCaps(rows=1)
    await door.all(op("put", "a"))
    assert (await door.post(op("put", "a", value=2), op("put", "b"))).reason == QUOTA
    assert (await door.path("PUT", "orders/b", {"value": 1, "forever": True})).reason == QUOTA
    assert door.broker.writes[-1][-1] == [1, 0]
    assert (await door.one(op("get", "a")))["value"] == 1, "nothing of a refused call is applied"
    assert (await door.one(op("put", "a", value=3)))["applied"]
    row.caps = KvCaps(rows=2)
    assert (await door.one(op("put", "b")))["applied"]
    row.caps = KvCaps(bytes=1)
    assert (await door.one(op("delete", "b")))["applied"]
    assert (await door.post(op("put", "b"))).reason == QUOTA
    assert set(row.asked[1:]) == {DEFAULT_TENANT}


async def test_a_lock_that_would_be_a_row_too_many_is_refused(row: Row) -> None:
    """LK-1, KV-62: an acquire adds a row; who holds one renews and releases it."""
    door = KvDoor(caps_of=row)
    row.caps = KvCaps(rows=1)
    held = await door.lock("acquire", "a")
    assert (await door.locks({"op": "acquire", "name": "b", "ttlSeconds": 30})).reason == QUOTA
    held = await door.lock("renew", "a", token=held["token"])
    assert held["renewed"]
    assert (await door.lock("release", "a", token=held["token"]))["released"]
    assert (await door.lock("acquire", "b"))["acquired"]


async def test_a_transaction_is_judged_by_the_caps_in_force(row: Row) -> None:
    """TX-6, TX-54: the whole is refused, with the words of a transaction."""
    door = Door(caps_of=row)
    row.caps = KvCaps(rows=1)
    await door.results(kv=[put("a")])
    status, answer = await door.post({"operations": [], "kv": [put("a"), put("b")]})
    assert (status, answer["reason"], answer["code"]) == (403, "kv_quota_exceeded", "kv_quota_exceeded")
    row.caps = KvCaps(rows=2)
    await door.results(kv=[put("b")])
