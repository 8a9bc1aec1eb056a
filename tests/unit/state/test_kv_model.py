"""Any sequence of calls gives the answers of the contract's model (tests/support/kv_model.py)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from queen_node.commands import KvOp
from queen_node.state.kv import Element, Page, PageRow, Reason
from tests.support.kv_model import KvModel, Op, RolledBack
from tests.support.kv_state import KvState

NAMES = {
    "get": KvOp.GET, "getMany": KvOp.GET_MANY, "getPrefix": KvOp.GET_PREFIX, "put": KvOp.PUT,
    "putIfAbsent": KvOp.PUT_IF_ABSENT, "delete": KvOp.DELETE, "incr": KvOp.INCR, "check": KvOp.CHECK,
}
WORDS = {number: name for name, number in NAMES.items()}

namespaces = st.sampled_from(["n", "nn"])
keys = st.sampled_from(["a", "ab", "b", "é", "a%"])
values = st.sampled_from([0, 3, -1, 2**53 - 1, 0.5, "text"])
lifetimes = st.sampled_from([None, None, 1, 5])
expectations = st.integers(0, 12)  # versions are small: some of these are what a row has
required = st.sampled_from([False, False, False, True])


def operation(word: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    return st.fixed_dictionaries({"op": st.just(word), "ns": namespaces, **fields})


single_writes = st.one_of(
    operation("put", key=keys, value=values, ttlSeconds=lifetimes, expect=st.none() | expectations, required=required),
    operation("putIfAbsent", key=keys, value=values, ttlSeconds=lifetimes, required=required),
    operation("delete", key=keys, expect=st.none() | expectations, required=required),
    operation(
        "incr", key=keys, delta=st.sampled_from([1, -2, 0.25, 2**52]), ttlSeconds=lifetimes, required=required,
        min=st.sampled_from([None, 0]), max=st.sampled_from([None, 4])))
others = st.one_of(
    operation("check", key=keys, expect=expectations, required=required),
    operation("get", key=keys),
    operation("getMany", keys=st.lists(keys, min_size=1, max_size=4)),
    operation("getPrefix", prefix=st.sampled_from(["a", "b", "é"]), after=st.sampled_from(["", "a", "ab", "zz"]),
              limit=st.integers(1, 3)))


def writes_a_key_once(operations: list[Op]) -> bool:
    """KV-15: the door refuses other calls."""
    written = [(op["ns"], op["key"]) for op in operations if op["op"] in ("put", "putIfAbsent", "delete", "incr")]
    return len(written) == len(set(written))


calls = st.lists(single_writes | others, min_size=1, max_size=5).filter(writes_a_key_once)
steps = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 4.0]), st.sampled_from(["", "", "sweep", "restart"]), calls)


def command_of(op: Op) -> tuple[Any, ...]:
    """The operation as the door writes it into a command."""
    word, ns = op["op"], op["ns"].encode()
    if word == "getMany":
        return NAMES[word], ns, [key.encode() for key in op["keys"]]
    if word == "getPrefix":
        return NAMES[word], ns, op["prefix"].encode(), op["after"].encode(), op["limit"], False
    key = op["key"].encode()
    if word == "get":
        return NAMES[word], ns, key
    if word in ("put", "putIfAbsent"):
        expect = 0 if word == "putIfAbsent" else op["expect"]
        return NAMES[word], ns, key, json.dumps(op["value"]).encode(), op["ttlSeconds"] or 0, expect, op["required"]
    if word == "incr":
        return NAMES[word], ns, key, op["delta"], op["min"], op["max"], op["ttlSeconds"] or 0, op["required"]
    return NAMES[word], ns, key, op["expect"], op["required"]


def row_of(row: PageRow) -> dict[str, Any]:
    assert row.value is not None
    return {
        "key": row.key.decode(), "value": json.loads(row.value), "version": row.version,
        "expiresAt": row.expires_us or None, "updatedAt": row.updated_us}


def element_of(element: Element) -> dict[str, Any]:
    """The element in the words of the model."""
    word = WORDS[KvOp(element.op)]
    if isinstance(element, Page):
        rows = {"op": word, "rows": [row_of(row) for row in element.rows], "truncated": element.truncated}
        if word == "getMany":
            return {**rows, "missing": [key.decode() for key in element.missing]}
        return {**rows, "nextAfter": element.next_after and element.next_after.decode()}
    key, value = element.key.decode(), None if element.value is None else json.loads(element.value)
    if word == "get":
        if not element.done:
            return {"op": word, "found": False, "key": key}
        return {
            "op": word, "found": True, "key": key, "value": value, "version": element.version,
            "expiresAt": element.expires_us or None, "updatedAt": element.updated_us}
    shown = {"op": word, "applied": element.done, "key": key, "value": value, "version": element.version}
    if not element.done:
        shown["reason"] = Reason(element.reason).name.lower()
    elif word == "check":
        del shown["value"]
    return shown


def _sum_of(value: float, *deltas: float) -> list[tuple[float, str, list[Op]]]:
    """A number is put, then each of these is added in a call of its own."""
    common: Op = {"ns": "n", "key": "a", "ttlSeconds": None, "required": False}
    put: Op = {"op": "put", "value": value, "expect": None, **common}
    incrs: list[Op] = [{"op": "incr", "delta": delta, "min": None, "max": None, **common} for delta in deltas]
    return [(0.0, "", [op]) for op in (put, *incrs)]


@settings(max_examples=150)
@given(st.lists(steps, max_size=8))
@example(_sum_of(0.5, 2**52, 2**52))  # whole once the half is lost: the next sum is held to whole numbers
def test_any_sequence_of_calls_is_answered_as_the_contract_says(history: list[tuple[float, str, list[Op]]]) -> None:
    """KV-14 to KV-52, KV-71, whatever was swept or restarted in between: that only frees space."""
    state, model = KvState(), KvModel()
    for seconds, between, operations in history:
        state.advance(seconds)
        if between == "sweep":
            state.sweep()
        elif between == "restart":
            state.restart()
        lost, elements = state.try_call(*map(command_of, operations))
        try:
            expected = model.call(operations, state.now_us)
        except RolledBack as rolled_back:
            assert lost is not None
            assert rolled_back.body == {
                "failedIndex": lost.failed_index, "kvReason": Reason(lost.reason).name.lower(),
                "version": lost.version, "value": None if lost.value is None else json.loads(lost.value)}
        else:
            assert lost is None and [element_of(element) for element in elements] == expected
        assert state.counters.kv_version == model.version
        stored = len(model.rows)
        assert state.counters.kv_rows <= stored, "the model never sweeps"
