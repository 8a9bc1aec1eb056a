"""POST /api/v1/locks from request to answer (locks.md)."""

from __future__ import annotations

import msgspec
import pytest

from queen_node.commands import KvCaps, LockOp, locks
from queen_node.errors import OVERLOADED, STORAGE_FULL, Refused
from queen_node.http.handlers.lock_calls import LockCall
from queen_node.quotas import Rate
from queen_node.state import locks as lock_rooms
from tests.support.kv_door import KvDoor, op

NOW, LATER = "2023-11-14T22:13:20.000000Z", "2023-11-14T22:13:30.000000Z"  # of the fake broker's clock, and 10 s on
LOCKS = "queen-locks"


def guard(token: int, key: str = "job#0") -> dict[str, object]:
    """locks.md 3."""
    return {"op": "check", "ns": LOCKS, "key": key, "expect": token, "required": True}


async def test_the_life_of_a_lock() -> None:
    """LK-1, LK-2, LK-22, LK-24, LK-25, LK-34; locks.md 3: each element's fields and no others; the row is KV's."""
    door = KvDoor()
    assert await door.lock("get") == {"index": 0, "op": "get", "name": "job", "held": False, "holders": []}
    assert await door.lock("acquire", owner="ann") == {
        "index": 0, "op": "acquire", "name": "job", "acquired": True, "slot": 0, "token": 1, "owner": "ann",
        "expiresAt": "2023-11-14T22:13:50.000000Z", "guard": guard(1)}
    row = await door.one(op("get", "job#0", ns=LOCKS))
    assert (row["value"], row["version"]) == ({"owner": "ann", "since": NOW}, 1)
    door.advance(10)
    assert await door.lock("renew", token=1, ttlSeconds=5) == {
        "index": 0, "op": "renew", "name": "job", "renewed": True, "slot": 0, "token": 2,
        "expiresAt": "2023-11-14T22:13:35.000000Z", "guard": guard(2)}
    holder = {"slot": 0, "owner": "ann", "token": 2, "since": NOW, "renewedAt": LATER,
              "expiresAt": "2023-11-14T22:13:35.000000Z"}
    assert (await door.lock("get"))["holders"] == [holder]
    assert await door.lock("acquire", owner="bob") == {
        "index": 0, "op": "acquire", "name": "job", "acquired": False, "reason": "held", "holders": [holder]}
    assert await door.lock("release", token=1) == {
        "index": 0, "op": "release", "name": "job", "released": False, "reason": "lost", "slot": 0,
        "holders": [holder]}
    assert await door.lock("release", token=2) == {
        "index": 0, "op": "release", "name": "job", "released": True, "slot": 0}
    assert (await door.lock("release", token=2))["reason"] == "lost", "LK-24: a repeat says lost"
    assert (await door.lock("acquire"))["token"] == 3, "LK-30: higher than every earlier one"
    assert (await door.lock("get"))["holders"][0]["owner"] is None


async def test_two_callers_with_one_owner_are_one_holder() -> None:
    """LK-21: the same permit and token, nothing written, the lifetime not extended; without owner all are strangers."""
    door = KvDoor()
    first = await door.lock("acquire", owner="ann")
    door.advance(10)
    assert await door.lock("acquire", owner="ann", ttlSeconds=600) == {**first, "already": True}
    assert not (await door.lock("acquire"))["acquired"]
    assert (await door.lock("acquire", name="other"))["acquired"]
    assert not (await door.lock("acquire", name="other"))["acquired"]


async def test_a_renewal_with_a_stale_token() -> None:
    """LK-23: carried through for the row's owner, above the current token; lost for others and after the end."""
    door = KvDoor()
    token = (await door.lock("acquire", owner="ann"))["token"]
    second = (await door.lock("renew", token=token, owner="eve"))["token"]
    third = await door.lock("renew", token=token, owner="ann")
    assert third["token"] > second > token
    for fields in ({}, {"owner": "eve"}):
        lost = await door.lock("renew", token=token, **fields)
        assert (lost["renewed"], lost["reason"]) == (False, "lost")
        assert [holder["token"] for holder in lost["holders"]] == [third["token"]]
    door.advance(30)
    assert (await door.lock("renew", token=third["token"], owner="ann"))["holders"] == []


async def test_a_lock_ends_at_its_time_and_not_before() -> None:
    """LK-3, LK-20, LK-34: at the very instant, swept or not."""
    door = KvDoor()
    await door.lock("acquire", ttlSeconds=1)
    door.advance(0.999999)
    assert not (await door.lock("acquire"))["acquired"]
    door.advance(0.000001)
    assert not (await door.lock("get"))["held"]
    taken = await door.lock("acquire")
    assert (taken["slot"], taken["token"]) == (0, 2)


@pytest.mark.parametrize("limit", [3, 12])
async def test_a_semaphore_hands_out_the_lowest_free_slot(limit: int) -> None:
    """LK-20, LK-26, LK-27, LK-30: the limit is the caller's; slots are sorted by number; tokens rise across slots."""
    door = KvDoor()
    taken = [await door.lock("acquire", limit=limit) for _ in range(limit)]
    assert [each["slot"] for each in taken] == list(range(limit))
    assert [each["token"] for each in taken] == list(range(1, limit + 1))
    refused = await door.lock("acquire", limit=limit)
    assert refused["reason"] == "held"
    assert [holder["slot"] for holder in refused["holders"]] == list(range(limit))
    await door.lock("release", token=taken[1]["token"], slot=1)
    assert not (await door.lock("acquire", limit=1))["acquired"]
    again = await door.lock("acquire", limit=limit)
    assert (again["slot"], again["guard"]) == (1, guard(limit + 1, "job#1"))
    assert (await door.lock("acquire", limit=limit + 1))["slot"] == limit
    assert (await door.lock("renew", token=again["token"], slot=1))["slot"] == 1
    assert [each["slot"] for each in (await door.lock("get"))["holders"]] == list(range(limit + 1))


async def test_at_most_a_hundred_holders_are_told_to_who_was_refused() -> None:
    """locks.md 3: `get` shows all."""
    door = KvDoor()
    for begin in range(0, 120, 60):
        await door.all(*(op("put", f"job#{slot}", ns=LOCKS) for slot in range(begin, begin + 60)))
    refused = await door.lock("acquire", limit=120)
    assert [holder["slot"] for holder in refused["holders"]] == list(range(100))
    assert len((await door.lock("get"))["holders"]) == 120


async def test_rows_written_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """LK-28, LK-50: a holder without an owner; a key that names no slot is ignored; KV frees a permit."""
    door = KvDoor()
    values: tuple[object, ...] = ([], "x", 7, {"owner": 5, "since": []}, {"owner": "eve"}, None)
    await door.all(*(op("put", f"job#{slot}", ns=LOCKS, value=value) for slot, value in enumerate(values)),
                   *(op("put", f"job#{end}", ns=LOCKS) for end in ("", "x", "01", "1024", "-1", "99999", "1#2")))
    holders = (await door.lock("get"))["holders"]
    assert [holder["owner"] for holder in holders] == [None, None, None, None, "eve", None]
    assert {(holder["since"], holder["renewedAt"], holder["expiresAt"]) for holder in holders} == {(NOW, NOW, None)}
    monkeypatch.setattr(lock_rooms, "ROWS_LOOKED_AT_MAX", 3)
    assert (await door.lock("get"))["holders"] == holders, "M-50: many such rows are not walked over"
    gone = await door.path("DELETE", f"{LOCKS}/job%234")
    assert gone.document["applied"]
    assert (await door.lock("acquire", limit=6))["slot"] == 4


async def test_operations_are_independent() -> None:
    """LK-10, LK-11: one that loses stops none; 200 whatever they came to."""
    door = KvDoor()
    await door.lock("acquire", name="a")
    reply = await door.locks(
        {"op": "renew", "name": "a", "token": 9, "ttlSeconds": 5}, {"op": "acquire", "name": "b", "ttlSeconds": 5},
        {"op": "release", "name": "c", "token": 1}, {"op": "get", "name": "d"})
    elements = reply.document["results"]
    assert reply.status == 200 and [element["index"] for element in elements] == [0, 1, 2, 3]
    assert (elements[0]["renewed"], elements[1]["acquired"], elements[2]["released"], elements[3]["held"]) == (
        False, True, False, False)


async def test_a_guard_is_a_plain_check_of_key_value() -> None:
    """LK-32, KV-95: in a KV batch too; it writes nothing and passes again."""
    door = KvDoor()
    held = await door.lock("acquire", owner="ann")
    for number in range(2):
        assert (await door.all(held["guard"], op("put", "state", value=number)))[0]["applied"]
    new = await door.lock("renew", token=held["token"])
    lost = await door.post(op("put", "state"), held["guard"])
    assert lost.document == {
        "ok": False, "reason": "kv_precondition", "failedIndex": 1, "kvReason": "version", "version": new["token"],
        "value": {"owner": "ann", "since": NOW}}
    await door.lock("release", token=new["token"])
    lost = await door.post(op("put", "state"), held["guard"])
    assert (lost.document["kvReason"], lost.document["value"], lost.document["version"]) == ("absent", None, 0)


async def test_polling_for_a_held_lock_does_not_fill_the_log() -> None:
    """locks.md 5: answered from state while every slot is held for another second and none is the caller's."""
    door = KvDoor()
    await door.lock("acquire", owner="ann", limit=2)
    await door.lock("acquire", owner="bob", limit=2, ttlSeconds=20)
    written = len(door.broker.writes)
    assert not (await door.lock("acquire", limit=2))["acquired"]
    await door.lock("get")
    assert len(door.broker.writes) == written
    assert (await door.lock("acquire", limit=2, owner="bob"))["already"]
    assert len(door.broker.writes) == written + 1
    door.advance(19.000001)
    assert not (await door.lock("acquire", limit=2))["acquired"]
    assert len(door.broker.writes) == written + 2


# --- refusals

GOOD = {"acquire": {"ttlSeconds": 5}, "renew": {"ttlSeconds": 5, "token": 1}, "release": {"token": 1}, "get": {}}


def bad(word: str, reason: str, **fields: object) -> tuple[object, str]:
    """A good operation with fields put over it (`...` leaves one out), and why it is refused."""
    whole = {"op": word, "name": "job", **GOOD.get(word, {}), **fields}
    return {name: value for name, value in whole.items() if value is not ...}, reason


NAMES: list[object] = [..., "", 7, None, "a#0", "a\x00", "a\x1f", "a\x7f", "a\x9f", "é" * 129]
OPERATIONS = [
    ([], "locks_bad_request"), bad("frob", "locks_unknown_op"), bad("get", "locks_unknown_op", op=1),
    *(bad("get", "locks_bad_name", name=name) for name in NAMES),
    *(bad("acquire", "locks_bad_owner", owner=owner) for owner in ("", 7, "a\n", "é" * 129)),
    *(bad("acquire", "locks_bad_limit", limit=limit) for limit in (0, 1025, "1", 1.5, True, None)),
    *(bad(word, "locks_ttl_required", ttlSeconds=...) for word in ("acquire", "renew")),
    *(bad(word, "locks_bad_ttl", ttlSeconds=ttl) for word in ("acquire", "renew")
      for ttl in (0, -1, 1.5, True, "5", 3_155_760_001)),
    bad("acquire", "locks_bad_ttl", forever=False), bad("renew", "locks_bad_ttl", forever=True),
    *(bad(word, "locks_token_required", token=...) for word in ("renew", "release")),
    *(bad(word, "locks_bad_token", token=token) for word in ("renew", "release") for token in (0, -1, "1", 1.5, True)),
    *(bad(word, "locks_bad_slot", slot=slot) for word in ("renew", "release") for slot in (-1, 1024, "0", None)),
    *(bad("get", "locks_tenant_not_an_input", **{name: "t"})
      for name in ("tenant", "tenantId", "tenant_id", "_tenant")),
]


async def test_a_whole_number_is_one_however_it_is_written() -> None:
    """locks.md 2, as KV-20 and KV-31."""
    door = KvDoor()
    held = await door.lock("acquire", ttlSeconds=5.0, limit=2.0)
    renewed = await door.lock("renew", token=float(held["token"]), slot=0.0, ttlSeconds=1e1)
    assert (await door.lock("release", token=float(renewed["token"])))["released"]


@pytest.mark.parametrize(("operation", "reason"), OPERATIONS)
async def test_malformed_input_refuses_the_call_whole(operation: object, reason: str) -> None:
    """LK-12: nothing is applied."""
    door = KvDoor()
    reply = await door.locks({"op": "acquire", "name": "first", "ttlSeconds": 5}, operation)
    assert reply.reason == (400, "locks_bad_request", reason)
    assert door.broker.writes == []


@pytest.mark.parametrize(("body", "reason"), [
    *((body, "locks_bad_body") for body in (b"", b"[]", b"{}", b'{"operations":{}}', b'{"operations":null}', b"\xff")),
    (b'{"operations":[]}', "locks_bad_request"),
    (b'{"operations":[{"op":"get","name":"a"}],"tenant":"t"}', "locks_tenant_not_an_input"),
])
async def test_bodies(body: bytes, reason: str) -> None:
    """LK-12."""
    assert (await KvDoor().call("POST", "/api/v1/locks", body)).reason == (400, "locks_bad_request", reason)


async def test_a_body_longer_than_any_call_is_not_read() -> None:
    """M-51, AD-34; the longest call passes, whatever its writer escapes."""
    names = [{"name": f"{number:0>256}", "owner": "o" * 256} for number in range(64)]
    whole = msgspec.json.encode({"operations": [{"op": "acquire", "ttlSeconds": 1, **name} for name in names]})
    longest = whole.replace(b"0", b"\\u0030").replace(b"o", b"\\u006f")
    assert (await KvDoor().call("POST", "/api/v1/locks", longest)).status == 200
    reply = await KvDoor().call("POST", "/api/v1/locks", b'{"operations":[]}'.ljust((1 << 20) + 1))
    assert reply.reason == (400, "locks_bad_request", "locks_bad_body")
    assert "(limit 1048576, got 1048577)" in reply.document["detail"]


async def test_limits_of_a_call() -> None:
    """LK-12: 64 operations, each another name; 4,096 slots, of which a get counts 1,000 and an acquire its limit."""
    door = KvDoor()
    many = [{"op": "release", "name": f"n{number}", "token": 1} for number in range(65)]
    assert (await door.locks(*many[:64])).status == 200
    assert (await door.locks(*many)).document["reason"] == "locks_too_many_ops"
    assert len(LockCall(b'{"operations":[%b0]}' % (b"0," * 1000)).words) == 64  # M-51: what is refused is not read
    assert (await door.locks(many[0], many[0])).document["reason"] == "locks_duplicate_in_call"
    gets = [{"op": "get", "name": f"n{number}"} for number in range(5)]
    assert (await door.locks(*gets[:4])).status == 200
    assert (await door.locks(*gets)).document["reason"] == "locks_too_many_keys"
    acquires = [{"op": "acquire", "name": f"a{number}", "ttlSeconds": 1, "limit": 1024} for number in range(5)]
    assert (await door.locks(*acquires[:4])).status == 200
    assert (await door.locks(*acquires)).document["reason"] == "locks_too_many_keys"
    assert (await door.lock("get", name="é" * 128, owner="ignored\n"))["held"] is False


async def test_rates_and_gates() -> None:
    """locks.md 5, LK-42: one token a call, read bucket for gets alone; only an acquire needs room on the disk."""
    for first, rates in (("get", (Rate(0.25, 1), Rate(1, 9))), ("acquire", (Rate(1, 9), Rate(0.25, 1)))):
        door = KvDoor(reads=rates[0], writes=rates[1])
        await door.lock(first)
        refused = await door.locks({"op": first, "name": "job", **GOOD[first]})
        assert refused.reason == (429, "rate_limited", "rate_limited") and refused.headers == {"Retry-After": "4"}
    door = KvDoor(writes=Rate(1, 1))
    assert (await door.call("POST", "/api/v1/locks", b"nonsense")).status == 400, "README 28: that cost nothing"
    held = await door.lock("acquire")
    door.now_ns += 10**9
    for refusal, status in ((STORAGE_FULL, 507), (OVERLOADED, 429)):
        door.broker.refuse_admission = Refused(refusal)
        reply = await door.locks({"op": "acquire", "name": "more", "ttlSeconds": 5})
        assert reply.reason == (status, refusal.code, refusal.code) and reply.document["code"] == refusal.code
        door.now_ns += 10**9
    assert (await door.lock("renew", token=held["token"]))["renewed"]


@pytest.mark.parametrize("code", ["timeout", "retry", "no_leader"])
async def test_what_no_group_decided(code: str) -> None:
    """locks.md 5."""
    door = KvDoor()
    door.broker.unavailable = code
    for operation in ({"op": "get", "name": "a"}, {"op": "release", "name": "a", "token": 1}):
        reply = await door.locks(operation)
        assert reply.reason == (503, "kv_unavailable", f"kv_{code}") and reply.headers == {"Retry-After": "1"}


async def test_an_answer_that_was_lost_converges_when_the_call_is_sent_again() -> None:
    """LK-40: acquires answer `already`, renewals are carried through; one permit."""
    door = KvDoor()
    door.broker.unavailable_after = "timeout"
    assert (await door.locks({"op": "acquire", "name": "job", "ttlSeconds": 30, "owner": "ann"})).status == 503
    door.broker.unavailable_after = None
    again = await door.lock("acquire", owner="ann")
    assert again["already"] and again["token"] == 1
    assert len((await door.lock("get"))["holders"]) == 1


def test_only_an_acquire_that_adds_a_row_is_refused_by_the_quota() -> None:
    """locks.md 5, KV-62: for the whole call; renew, release and get never, nor an acquire of a row that is there."""
    door = KvDoor()
    apply = door.broker.apply
    caps = KvCaps(rows=1)
    acquire = (LockOp.ACQUIRE, b"a", 1, None, 1)
    exceeds, _ = apply(locks(b"r" * 16, [acquire], caps=caps))[0]
    assert not exceeds
    more = (LockOp.ACQUIRE, b"b", 1, None, 1)
    refused, results = apply(locks(b"r" * 16, [(LockOp.RENEW, b"a", 1, 1, 0, None), more], caps=caps))[0]
    assert refused and results == []
    assert not apply(locks(b"r" * 16, [(LockOp.RENEW, b"a", 1, 1, 0, None)], caps=KvCaps(bytes=1)))[0][0]
    door.advance(1)
    exceeds, (taken,) = apply(locks(b"r" * 16, [acquire], caps=caps))[0]
    assert not exceeds and taken.done


async def test_a_refused_quota_has_the_words_of_key_value() -> None:
    """locks.md 5; kv.md 4."""
    door = KvDoor()
    real = door.broker.write

    async def over_quota(*_args: object, **_more: object) -> bytes:
        return msgspec.msgpack.encode((True, []))

    door.broker.write = over_quota  # type: ignore[method-assign]
    reply = await door.locks({"op": "acquire", "name": "job", "ttlSeconds": 5})
    assert reply.reason == (403, "kv_quota_exceeded", "kv_quota_exceeded") and reply.headers == {}
    door.broker.write = real  # type: ignore[method-assign]
    assert (await door.lock("acquire"))["acquired"]


class Fenced:
    """A resource outside of the broker: takes work under a token, unless it has seen a higher one."""

    def __init__(self) -> None:
        self.highest, self.done = 0, list[str]()

    def take(self, token: int, work: str) -> bool:
        """Whether it was done."""
        if token < self.highest:
            return False
        self.highest = token
        self.done.append(work)
        return True


@pytest.mark.parametrize("end", ["released", "expired", "deleted", "renewed"])
async def test_a_resource_outside_can_be_fenced_by_the_token(end: str) -> None:
    """LK-33, LK-30: it remembers the highest that it accepted, refuses lower ones and accepts an equal one."""
    door, resource = KvDoor(), Fenced()
    first = (await door.lock("acquire", owner="ann"))["token"]
    assert resource.take(first, "ann's first") and resource.take(first, "ann's second")
    if end == "released":
        await door.lock("release", token=first)
    elif end == "expired":
        door.advance(30)
    elif end == "deleted":
        await door.one(op("delete", "job#0", ns=LOCKS))
    word, fields = ("renew", {"token": first}) if end == "renewed" else ("acquire", {"owner": "bob"})
    second = (await door.lock(word, **fields))["token"]
    assert resource.take(second, "the next holder's")
    assert not resource.take(first, "ann's, late")
    assert resource.done == ["ann's first", "ann's second", "the next holder's"]


async def test_nobody_waits_and_nobody_is_woken() -> None:
    """LK-35: a held lock is told at once, in the call's one step; who came first has no right to the permit."""
    door = KvDoor()
    token = (await door.lock("acquire", owner="ann"))["token"]
    for owner in ("bob", "eve"):
        steps = door.broker.machine.applied_index
        refused = await door.lock("acquire", owner=owner, wait=True, timeoutMs=60_000)
        assert refused["reason"] == "held"
        assert door.broker.machine.applied_index - steps <= 1
    await door.lock("release", token=token)
    assert not (await door.lock("get"))["held"], "nobody waited for it in here"
    assert (await door.lock("acquire", owner="eve"))["acquired"], "bob asked before her"
