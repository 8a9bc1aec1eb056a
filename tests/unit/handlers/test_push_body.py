"""Slices of a large body mean what the whole means (M-51)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.errors import Refused
from queen_node.http.handlers.push_body import SLICE_BYTES, Item, decode, decode_in_slices

# What looks like the end of one item and the beginning of another, inside strings and inside payloads.
MISLEADING = ['}, {"queue": "x", "payload": 1}', '},{"queue":', '"}],"items":[{"queue"', "\\", '"', "\ud800", "é"]

texts = st.one_of(st.sampled_from(MISLEADING), st.text(max_size=8))
payloads: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3),
        st.lists(st.fixed_dictionaries({"queue": texts, "payload": inner}), max_size=3)),
    max_leaves=6)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
items = st.fixed_dictionaries(
    {"queue": names, "payload": payloads}, optional={"partition": names, "transactionId": names, "more": payloads})
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


def fields(decoded: list[Item]) -> list[tuple[object, ...]]:
    return [
        (item.queue, item.partition, item.transactionId, bytes(item.payload), bytes(item.traceId)) for item in decoded]


def in_slices(body: bytes, slice_bytes: int) -> list[Item]:
    return [item for some in decode_in_slices(body, slice_bytes) for item in some]


@given(st.lists(items, max_size=12), separators, st.booleans(), st.integers(8, 200))
def test_slices_hold_the_items_of_the_whole(
    sent: list[dict[str, Any]], separator: tuple[str, str], ascii_only: bool, slice_bytes: int,
) -> None:
    """M-51, PU-12: wherever a slice is tried, whatever stands in strings and payloads."""
    more = [{"queue": "not an item", "payload": number} for number in range(8)]
    text = json.dumps({"items": sent, "more": more}, separators=separator, ensure_ascii=ascii_only)
    body = text.encode("utf-8", "replace")  # written raw, a lone surrogate becomes a question mark
    whole = fields(decode(body))
    assert fields(in_slices(body, slice_bytes)) == whole
    payloads_read = [json.loads(bytes(item.payload)) for item in decode(body)]
    assert payloads_read == [one["payload"] for one in json.loads(body)["items"]]


@given(st.lists(items, min_size=4, max_size=12), st.data(), st.integers(8, 60))
def test_slices_refuse_what_the_whole_refuses(
    sent: list[Any], data: st.DataObject, slice_bytes: int,
) -> None:
    """PU-22: an error anywhere refuses the call, and names the same item."""
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] = data.draw(st.sampled_from([{"queue": "q"}, {"payload": 1}, 5, {"queue": 1, "payload": 1}]))
    body = json.dumps({"items": sent}).encode()
    with pytest.raises(Refused) as whole:
        decode(body)
    with pytest.raises(Refused) as sliced:
        in_slices(body, slice_bytes)
    assert sliced.value.text == whole.value.text
    assert sliced.value.operation == place


@given(st.lists(items, min_size=2, max_size=8), st.data(), st.integers(8, 60))
def test_a_damaged_body_is_refused_in_slices_too(
    sent: list[dict[str, Any]], data: st.DataObject, slice_bytes: int,
) -> None:
    """PU-12: a body cut anywhere is no JSON."""
    body = json.dumps({"items": sent}).encode()
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(Refused):
        in_slices(body[:cut], slice_bytes)


def test_a_large_body_really_comes_in_slices() -> None:
    """M-51: no slice of ordinary items is much larger than SLICE_BYTES."""
    payload = {"lines": [{"a": 1}, {"b": 2}]}
    sent = [{"queue": "orders", "payload": payload, "transactionId": str(number)} for number in range(20_000)]
    body = json.dumps({"items": sent}).encode()
    sizes = [len(some) for some in decode_in_slices(body)]
    assert sum(sizes) == len(sent)
    assert max(sizes) <= len(sent) * SLICE_BYTES / len(body) * 1.1


def test_a_body_that_starts_otherwise_is_read_as_a_whole() -> None:
    body = json.dumps({"more": 1, "items": [{"queue": "q", "payload": n} for n in range(100)]}).encode()
    assert [len(some) for some in decode_in_slices(body, 64)] == [100]


def test_escapes_are_masked_only_by_what_does_not_occur() -> None:
    """PU-12: a payload keeps its lone surrogates also beside every other escape."""
    others = "".join(f"\\u{digit}000" for digit in "123456789abcefABC")
    payload = f'"{others}\\ud800\\uDFFF\\\\ud800"'
    body = f'{{"items":[{{"queue":"q\\ud83d\\ude00","payload":{payload}}}]}}'.encode()
    assert fields(decode(body)) == [("q😀", None, None, payload.encode(), b"null")]
