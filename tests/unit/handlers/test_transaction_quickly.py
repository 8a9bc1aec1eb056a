"""A body that is read in one typed pass comes to what the careful reader makes of it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from queen_node.commands import AckItem, KvOperation, PushItem
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.transaction_body import RefusedAt, Transaction
from tests.support.inward import counting_mint

LEASE = "0199a7c2-1111-7222-8333-444455556666"
NAMES = st.sampled_from(["q", "q", "q", "caf\u00e9", "", "a\0b", None, 7])
TEXTS = st.sampled_from(["x", "y", "z", "", "\ud83d\ude00", None, 7])


def some(fields: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[dict[str, object]]:
    """Objects with some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


ITEMS = some({
    "queue": NAMES, "partition": NAMES, "transactionId": TEXTS, "payload": st.sampled_from([1, None, {"a": "é"}]),
    "traceId": st.sampled_from([None, LEASE, 5]), "unknown": st.just(1)})
ACKS = st.fixed_dictionaries({"type": st.sampled_from(["ack", "ack", "ack", "other"])}, optional={
    "transactionId": TEXTS, "partitionId": st.sampled_from(["1", 2, "x", None]), "consumerGroup": NAMES,
    "status": st.sampled_from(["completed", "failed", True, "nonsense", None]), "leaseId": st.sampled_from([LEASE, ""]),
    "error": TEXTS})
PUSHES = st.one_of(
    st.builds(lambda items: {"type": "push", "items": items}, st.lists(ITEMS, max_size=3)),
    ITEMS.map(lambda item: {"type": "push", **item}))
KV = st.fixed_dictionaries({"op": st.sampled_from(["put", "put", "get", "delete", "incr", "check", "getPrefix", "no"])},
    optional={
        "ns": st.sampled_from(["n", "n", "N!", 5]), "key": TEXTS, "value": st.sampled_from([1, {"a": [1, 2]}]),
        "ttlSeconds": st.sampled_from([60, 0]), "forever": st.just(True), "expect": st.sampled_from([0, 3, -1]),
        "delta": st.just(1), "prefix": TEXTS, "required": st.booleans(), "unknown": st.just(1)})
TIMERS = st.fixed_dictionaries({"op": st.sampled_from(["schedule", "schedule", "cancel", "no"])}, optional={
    "queue": NAMES, "timerKey": TEXTS, "delayMs": st.sampled_from([0, 5.5, -1, 1e12]), "txn": TEXTS,
    "payload": st.sampled_from(["MQ==", "", "not base64"]), "partition": NAMES, "unknown": st.just(1)})
BODIES = some({
    "operations": st.lists(st.one_of(ACKS, PUSHES), max_size=3), "kv": st.lists(KV, max_size=3),
    "timers": st.lists(TIMERS, max_size=3), "requiredLeases": st.sampled_from([[], [LEASE], None, [1]]),
    "positions": st.sampled_from([None, None, [], [{"queue": "q", "consumerGroup": "g", "offset": 1}]])})

Taken = tuple[
    list[tuple[bytes, AckItem]], list[PushItem], list[KvOperation], list[object], list[bool],
    tuple[bytes, ...], bool]


def transaction() -> Transaction:
    limits = TimerLimits(operations_max=2)
    return Transaction(limits, KvLimits(operations_max=2, keys_max=5, value_max_bytes=10), counting_mint(), None)


def taken(one: Transaction) -> Taken:
    return (
        one.acks, one.pushes, one.kv.operations, list(one.timers.operations), one.layout, one.places, one.grows)


@given(BODIES, st.booleans())
def test_what_is_read_quickly_is_what_the_careful_reader_takes(body: dict[str, object], ascii_only: bool) -> None:
    """transactions.md 2; whatever that one refuses, the quick one leaves to it."""
    raw = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    quick, careful = transaction(), transaction()
    read = quick.read_quickly(raw)
    try:
        for _ in careful.read(raw):
            pass
    except RefusedAt:
        assert not read
        return
    if read:
        assert taken(quick) == taken(careful)


def test_what_nearly_every_body_looks_like_is_read_quickly() -> None:
    timer = {"op": "schedule", "queue": "later", "timerKey": "k", "delayMs": 5, "txn": "t", "payload": "MQ=="}
    body: dict[str, object] = {
        "operations": [
            {"type": "ack", "transactionId": "a", "partitionId": "1", "leaseId": LEASE, "consumerGroup": "g",
             "status": "completed"},
            {"type": "push", "items": [{"queue": "out", "partition": "p", "transactionId": "b", "payload": {"n": 1}}]}],
        "requiredLeases": [], "kv": [{"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 60}],
        "timers": [timer]}
    one = transaction()
    assert one.read_quickly(json.dumps(body).encode())
    assert (len(one.acks), len(one.pushes), len(one.kv.operations), len(one.timers.operations)) == (1, 1, 1, 1)
    assert not transaction().read_quickly(json.dumps({**body, "timers": [timer] * 3}).encode())
