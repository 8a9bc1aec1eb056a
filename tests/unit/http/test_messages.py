"""Requests and responses: decoding, and the exact bytes of an answer."""

from __future__ import annotations

import string
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.errors import BODY_TOO_LARGE, NO_LEADER, TIMERS_BAD_OP, Refused
from queen_node.http.messages import (
    TEXT,
    BadPath,
    BadQuery,
    Request,
    Response,
    encode,
    parse_query,
    percent_decoded,
    refused_response,
)


def test_a_path_is_split_before_it_is_decoded() -> None:
    """PA-2, TM-3: %2F belongs to a name."""
    request = Request("GET", b"/api/v1/timers/a%2Fb/k%20/x//")
    assert request.segments == (b"api", b"v1", b"timers", b"a%2Fb", b"k%20", b"x", b"", b"")


def test_a_captured_part_is_decoded_once_and_its_plus_stays() -> None:
    """TM-3: `%2525` becomes `%25`; in the path a plus is a plus."""
    request = Request("GET", b"/")
    request.params = {"key": b"a%2525%2F+b/c%C3%A9"}
    assert request.text("key") == "a%25/+b/cé"


@pytest.mark.parametrize("raw", [b"%", b"%2", b"%zz", b"a%G0", b"%ff", b"\xff", b"%C3", b"%c3%28"])
def test_bad_percent_or_utf8_in_the_path_is_refused(raw: bytes) -> None:
    """TM-3."""
    request = Request("GET", b"/")
    request.params = {"key": raw}
    with pytest.raises(BadPath, match="key"):
        request.text("key")


@given(st.text())
def test_decoding_undoes_encoding(text: str) -> None:
    assert percent_decoded(quote(text, safe="").encode()) == text


@given(st.lists(st.sampled_from(["%", "2", "F", "f", "a", "g", "%41", "%c3%a9", "/"]), max_size=12).map("".join))
def test_decoding_agrees_with_a_slow_twin(text: str) -> None:
    at, well_formed = 0, True
    while (at := text.find("%", at)) >= 0:
        well_formed = well_formed and len(text) >= at + 3 and set(text[at + 1 : at + 3]) <= set(string.hexdigits)
        at += 1
    try:
        expected = unquote_to_bytes(text).decode() if well_formed else None
    except UnicodeDecodeError:
        expected = None
    try:
        got: str | None = percent_decoded(text.encode())
    except ValueError:
        got = None
    assert got == expected


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        (b"", {}),
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=1&a=2", {"a": "2"}),
        (b"a+b=c+d%2B", {"a b": "c d+"}),
        (b"mode", {"mode": ""}),
        (b"&&a=&=x&", {"a": "", "": "x"}),
        (b"a=b=c", {"a": "b=c"}),
        (b"q=%C3%A9", {"q": "é"}),
    ],
)
def test_query_strings(raw: bytes, pairs: dict[str, str]) -> None:
    """TM-3: a plus is a space in the query; the last value of a name wins."""
    assert dict(Request("GET", b"/", raw).query) == pairs


@pytest.mark.parametrize("raw", [b"a=%", b"%zz=1", b"a=%ff"])
def test_a_bad_query_is_refused(raw: bytes) -> None:
    with pytest.raises(BadQuery):
        parse_query(raw)


def test_an_answer_on_the_wire() -> None:
    assert encode(Response(200, b'{"ok":true}')) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n" b'{"ok":true}'
    )


def test_the_common_way_and_the_general_way_write_the_same() -> None:
    body = b'{"n":1}'
    general = encode(Response(201, body, headers=((b"X-A", b"1"),)))
    assert general.replace(b"X-A: 1\r\n", b"") == encode(Response(201, body))


def test_204_has_no_body_type_or_length() -> None:
    """PA-6."""
    assert encode(Response(204, b"")) == b"HTTP/1.1 204 No Content\r\n\r\n"
    assert encode(Response(204, b"dropped"), close=True) == b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


def test_head_keeps_the_length_and_drops_the_body() -> None:
    """AD-33."""
    assert encode(Response(200, b"12345", TEXT), head_only=True) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n\r\n"
    )


def test_refusals_take_the_shape_of_their_family() -> None:
    """AD-30, AD-33."""
    retry = refused_response(Refused(NO_LEADER))
    assert (retry.status, retry.headers) == (503, ((b"Retry-After", b"1"),))
    assert refused_response(Refused(TIMERS_BAD_OP)).headers == ()
    plain = refused_response(Refused(BODY_TOO_LARGE, limit=10, got=11))
    assert (plain.status, plain.content_type) == (413, TEXT)
    assert plain.body == b"request body too large (limit 10, got 11)"
