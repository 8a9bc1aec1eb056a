"""From bytes to requests: whatever comes, and however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queen_node.http.reader import FRAMING_MAX_BYTES, HEAD_MAX_BYTES, READ_MAX_BYTES, RequestReader

BODY_MAX_BYTES = 100
Seen = tuple[str, bytes, bytes, bytes]

GET = b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\nX-Queen-Tenant: t\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Queen-Tenant: evil\r\n\r\n"
)
UPGRADE = b"GET /u HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
# As a client library sends its first call of a connection that may become HTTP/2; and what an attacker makes of it.
UPGRADE_POST = (
    b"POST /v HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 27\r\n\r\n"
    b"GET /evil HTTP/1.1\r\nX: y\r\n\r")
UPGRADE_CHUNKED = (
    b"POST /w HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
SEEN = {
    GET: ("GET", b"/a", b"b=1", b""),
    POST: ("POST", b"/p", b"", b"abc"),
    CHUNKED: ("POST", b"/c", b"", b"abcde"),
    UPGRADE: ("GET", b"/u", b"", b""),
    UPGRADE_POST: ("POST", b"/v", b"", b"GET /evil HTTP/1.1\r\nX: y\r\n\r"),
    UPGRADE_CHUNKED: ("POST", b"/w", b"", b"abc"),
}


def read(*pieces: bytes) -> RequestReader:
    reader = RequestReader(BODY_MAX_BYTES)
    for piece in pieces:
        reader.feed(piece)
    return reader


def seen(reader: RequestReader) -> list[Seen]:
    return [(each.method, each.raw_path, each.raw_query, each.body) for each in reader.ready]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(st.sampled_from(sorted(SEEN)), max_size=5), st.lists(st.integers(0, 5000), max_size=30))
def test_requests_come_out_the_same_however_they_are_cut(messages: list[bytes], places: list[int]) -> None:
    """M-52: in order, each complete; RFC 9110, 7.8: a wish for another protocol is passed over, its body is a body."""
    reader = read(*cut(b"".join(messages), places))
    assert reader.failure is None
    assert seen(reader) == [SEEN[message] for message in messages]
    assert reader.current is None
    assert not reader.in_head


@given(st.sampled_from(sorted(SEEN)), st.integers(0, 200))
def test_an_unfinished_request_does_not_come_out(message: bytes, length: int) -> None:
    reader = read(message[: min(length, len(message) - 1)])
    assert not reader.ready
    assert reader.failure is None


GRAMMAR = st.lists(
    st.sampled_from([
        b"GET ", b"POST ", b"/", b"* ", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b"\r\n\r\n",
        b": ", b"-1", b"a: b",
        b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Expect: 100-continue",
        b"Connection: close", b"Connection: upgrade", b"Upgrade: x", b"CONNECT a:1", b"PRI * HTTP/2.0",
        b"0\r\n\r\n", b"5\r\nabcde\r\n", b"FFFFFFFF\r\n", b"\x00", b"%", b"\xff\xfe",
    ]) | st.binary(max_size=8),
    max_size=30,
).map(b"".join)


@given(
    st.sampled_from([b"", GET, POST + GET]),
    GRAMMAR | st.binary(max_size=300),
    st.lists(st.integers(0, 5000), max_size=10),
)
@example(b"", b"CONNECT a:1 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", [])
@example(b"", UPGRADE + b"\x00\x01", [])
def test_no_bytes_raise_and_what_was_complete_before_stands(good: bytes, bad: bytes, places: list[int]) -> None:
    expected = seen(read(good))
    reader = read(good, *cut(bad, places))
    assert seen(reader)[: len(expected)] == expected
    if reader.failure is not None:
        assert 400 <= reader.failure.refusal.status < 500
        before = seen(reader)
        reader.feed(GET)
        assert seen(reader) == before  # a failure is final


def test_header_names_are_lower_case_and_trailers_are_no_headers() -> None:
    reader = read(GET, CHUNKED, POST)
    assert reader.ready[0].header(b"x-queen-tenant") == b"t"
    assert reader.ready[1].header(b"x-queen-tenant") is None
    assert reader.ready[2].header(b"x-queen-tenant") is None


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", False),
    ],
)
def test_when_a_connection_lives_on(head: bytes, keep_alive: bool) -> None:
    assert read(head).ready[0].keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://host:1/a/b?c=d", b"/a/b", b"c=d"),
        (b"http://host", b"/", b""),
        (b"*", b"*", b""),
        (b"/a//b?x?y", b"/a//b", b"x?y"),
    ],
)
def test_the_forms_of_a_target(target: bytes, path: bytes, query: bytes) -> None:
    """RFC 9112, 3.2."""
    reader = read(b"OPTIONS " + target + b" HTTP/1.1\r\n\r\n")
    assert (reader.ready[0].raw_path, reader.ready[0].raw_query) == (path, query)


def test_a_target_may_hold_names_as_they_are() -> None:
    """PU-20, TM-3: whoever writes a call by hand does not escape them; what is no UTF-8 is the route's to refuse."""
    body = "é".encode()
    reader = read(
        "GET /pop/été?g=ñ HTTP/1.1\r\nX: é\r\n\r\n".encode(), b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /p HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + body, b"POST /q HTTP/1.1\r\nContent-Length: 2\r\n\r\n", body)
    assert seen(reader) == [
        ("GET", b"/pop/%C3%A9t%C3%A9", b"g=%C3%B1", b""), ("GET", b"/%FF", b"", b""),
        ("POST", b"/p", b"", body), ("POST", b"/q", b"", body)]
    assert reader.ready[0].header(b"x") == body


def test_what_follows_a_last_request_is_nobodys() -> None:
    reader = read(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
    assert len(reader.ready) == 1
    assert reader.failure is None


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", 413, "(limit 100, got 101)"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 413, "got 99999999999999"),
        (UPGRADE_POST.replace(b": 27", b": 101"), 413, "(limit 100, got 101)"),
        (UPGRADE_POST.replace(b"Upgrade: h2c", b"Upgrade: h2c\r\nContent-Encoding: gzip"), 415, "Content-Encoding"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101, 413, "got more than 100"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\n", 415, "Content-Encoding"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Encoding: zstd\r\n\r\n", 415, "Content-Encoding"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400, "well-formed"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "well-formed"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "well-formed"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "well-formed"),
    ],
)
def test_refused_by_the_head_or_the_size(head: bytes, status: int, told: str) -> None:
    """PU-63, admin.md 8; AD-34: the limit and what was sent are named."""
    reader = read(head)
    assert reader.failure is not None
    assert reader.failure.refusal.status == status
    assert told in reader.failure.text
    assert not reader.ready


@pytest.mark.parametrize("head", [b"Content-Length: 101", b"Content-Length: 3\r\nContent-Encoding: gzip"])
def test_each_request_of_a_connection_is_judged_by_its_own_head(head: bytes) -> None:
    reader = read(POST, POST, b"POST / HTTP/1.1\r\n" + head + b"\r\n\r\nabc")
    assert reader.failure is not None
    assert seen(reader) == [SEEN[POST], SEEN[POST]]


def test_identity_and_an_empty_body_are_no_encoding() -> None:
    """PU-63."""
    reader = read(
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Encoding: Identity\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Encoding: gzip\r\n\r\n",
    )
    assert reader.failure is None
    assert [each.body for each in reader.ready] == [b"{}", b""]


def test_blanks_behind_a_value_are_none_of_it() -> None:
    """RFC 9110, 5.5: they made an Expect unheard, a client wait and `identity` an encoding (PU-63)."""
    reader = read(b"POST / HTTP/1.1\r\nContent-Encoding: identity \r\nX: a b \t\r\nContent-Length: 2\r\n\r\n{}")
    assert reader.failure is None and reader.ready[0].header(b"x") == b"a b"
    assert read(b"POST / HTTP/1.1\r\nExpect: 100-continue \r\nContent-Length: 2\r\n\r\n").expects_continue


@pytest.mark.parametrize(("version", "expects"), [(b"1.1", True), (b"1.0", False)])
def test_only_who_knows_an_interim_answer_is_given_one(version: bytes, expects: bool) -> None:
    """RFC 9110, 10.1.1."""
    reader = read(b"POST / HTTP/" + version + b"\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.expects_continue is expects


def test_who_asks_for_another_protocol_may_wait_for_the_word_to_send() -> None:
    reader = read(UPGRADE_POST.replace(b"Upgrade: h2c", b"Upgrade: h2c\r\nExpect: 100-continue")[:-27])
    assert reader.current is not None and reader.current.raw_path == b"/v" and reader.expects_continue
    reader.feed(UPGRADE_POST[-27:] + GET)
    assert seen(reader) == [SEEN[UPGRADE_POST], SEEN[GET]]


def test_the_largest_body_passes() -> None:
    body = b"x" * BODY_MAX_BYTES
    assert read(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n", body).ready[0].body == body
    chunked = read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n", body, b"\r\n0\r\n\r\n")
    assert chunked.ready[0].body == body


def test_a_head_without_end_is_refused() -> None:
    reader = read(b"GET / HTTP/1.1\r\n")
    fed_bytes = 0
    while reader.failure is None:
        reader.feed(b"X-A: 1\r\n" * 128)
        fed_bytes += 1024
        assert fed_bytes <= HEAD_MAX_BYTES + READ_MAX_BYTES
    assert reader.failure.refusal.status == 431


def test_trailers_and_framing_without_end_are_refused() -> None:
    reader = read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    fed_bytes = 0
    while reader.failure is None:
        reader.feed(b"X-A: 1\r\n" * 512)
        fed_bytes += 4096
        assert fed_bytes <= BODY_MAX_BYTES + FRAMING_MAX_BYTES + READ_MAX_BYTES
    assert reader.failure.refusal.status == 413


def test_expect_is_noted_while_the_body_is_awaited() -> None:
    reader = read(b"POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n")
    assert reader.current is not None
    assert reader.expects_continue
