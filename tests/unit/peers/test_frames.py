"""Frames survive the wire, nothing else is taken for one, and cut payloads come out whole (M-60; issue 4, 1)."""

from __future__ import annotations

import tracemalloc
from typing import get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.peer_frames import (
    FRAME_MAX_BYTES,
    FRAME_VERSION,
    ITEMS_MAX,
    Call,
    CallFrame,
    Frame,
    FrameKind,
    Hello,
    MalformedFrame,
    NodeFrame,
    PartFrame,
    Parts,
    RaftFrame,
    SnapshotFrame,
    decode,
    encode,
    kind_of,
)
from tests.unit.peers.strategies import frames

D, B = b"d" * 16, b"b" * 16
HELLO = Hello(b"cell", 1, D, B, 5, 1, 2, 99)
NODE = NodeFrame(9, B, 5, 2, 77, 50, None, 99)
HELLO_FIELDS = [1, b"cell", 1, D, B, 5, 1, 2, 99]
NODE_FIELDS = [2, 9, B, 5, 2, 77, 50, None, 99]


@given(frames)
def test_every_frame_survives_the_wire(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


def test_every_kind_has_one_frame() -> None:
    assert {kind_of(frame) for frame in (
        HELLO, NODE, RaftFrame(((1, b""),)), CallFrame((Call(1, b""),)), SnapshotFrame(1, b""),
        PartFrame(FrameKind.CALL, b"x"),
    )} == set(FrameKind)
    assert len(get_args(Frame)) == len(FrameKind)


def test_the_bytes_of_version_3_stay_what_they_are() -> None:
    """Peers of another release read them: a change here is a new version."""
    assert FRAME_VERSION == 3
    assert encode(HELLO) == cbor2.dumps([3, HELLO_FIELDS])
    assert encode(NODE) == cbor2.dumps([3, NODE_FIELDS])
    assert encode(NodeFrame(9, B, 5, 2, 77, 50, 300, 99)) == cbor2.dumps([3, [*NODE_FIELDS[:-2], 300, 99]])
    assert encode(RaftFrame(((7, b"x"), (8, b"y")))) == cbor2.dumps([3, [3, [[7, b"x"], [8, b"y"]]]])
    assert encode(CallFrame((Call(3, b"z"),))) == cbor2.dumps([3, [4, [[3, b"z"]]]])
    assert encode(SnapshotFrame(7, b"x")) == cbor2.dumps([3, [5, 7, b"x"]])
    assert encode(PartFrame(FrameKind.RAFT, b"x")) == cbor2.dumps([3, [6, 3, b"x"]])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not CBOR"),
        (b"\xff", "not CBOR"),
        (encode(NODE)[:-1], "not CBOR"),
        (encode(NODE) + b"\x00", "1 bytes follow"),
        (b"\x81" * 100_000, "not CBOR"),
        (b"\x00" * (FRAME_MAX_BYTES + 1), "more than"),
        (cbor2.dumps("hello"), "not a pair"),
        (cbor2.dumps([1]), "not a pair"),
        (cbor2.dumps([2, NODE_FIELDS]), "version 2"),
        (cbor2.dumps([True, NODE_FIELDS]), "version True"),
        (cbor2.dumps([10**1000, NODE_FIELDS]), "version 1000"),
        (cbor2.dumps([3, [99, 1]]), "99"),
        (cbor2.dumps([3, {"kind": 2}]), "array"),
        (cbor2.dumps([3, NODE_FIELDS[:-2]]), "at least length"),
        (cbor2.dumps([3, [*NODE_FIELDS, 0]]), "at most length"),
        (cbor2.dumps([3, [2, -9, B, 5, 2, 77, 50, None]]), ">= 0"),
        (cbor2.dumps([3, [2, 2**63, B, 5, 2, 77, 50, None]]), "9223372036854775807"),
        (cbor2.dumps([3, [2, 9, B[1:], 5, 2, 77, 50, None]]), "length >= 16"),
        (cbor2.dumps([3, [2, 9, B, 5, 2, 77, 101, None]]), "<= 100"),
        (cbor2.dumps([3, [2, 9, B, 5, 2, 77, 50, -1]]), ">= 0"),
        (cbor2.dumps([3, [1, b"", 1, D, B, 5, 1, 2]]), "length >= 1"),
        (cbor2.dumps([3, [1, b"c" * 65, 1, D, B, 5, 1, 2]]), "length <= 64"),
        (cbor2.dumps([3, [1, b"c", 0, D, B, 5, 1, 2]]), ">= 1"),
        (cbor2.dumps([3, [3, []]]), "length >= 1"),
        (cbor2.dumps([3, [3, [[1, b""]] * (ITEMS_MAX + 1)]]), "length <= 4096"),
        (cbor2.dumps([3, [3, [[1, "text"]]]]), "Expected `bytes`"),
        (cbor2.dumps([3, [3, [[1, b"x", 0]]]]), "length 2"),
        (cbor2.dumps([3, [4, [[True, b""]]]]), "Expected `int`"),
        (cbor2.dumps([3, [4, [[1, b"", 0]]]]), "at most length 2"),
        (cbor2.dumps([3, [6, 2, b"x"]]), "never cut"),
        (cbor2.dumps([3, [6, 6, b"x"]]), "never cut"),
        (cbor2.dumps([3, [6, 3, b""]]), "length >= 1"),
        (b"\x82\x02\x82\x05\xd8\x23\x61(", "not CBOR"),  # a tag for a regular expression, a bad one
    ],
)
def test_what_is_no_frame_is_refused_and_named(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedFrame) as refusal:
        decode(data)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize("head", [b"\x5b", b"\x9b", b"\xbb", b"\x82\x02\x82\x05\x5b", b"\x82\x02\x9b"])
def test_a_length_that_is_only_claimed_makes_no_room(head: bytes) -> None:
    """The bytes of a frame bound what it costs, not the lengths that stand in it."""
    hostile = head + (2**40).to_bytes(8, "big") + b"xx"
    with pytest.raises(MalformedFrame):
        decode(hostile)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            decode(hostile)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < FRAME_MAX_BYTES


@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    _decode_or_refuse(data)


TAGS = [0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 43000, 55799, 256, 258, 260, 261, 100, 1004]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.binary(max_size=20), st.text(max_size=20))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(cbor2.CBORTag, st.sampled_from(TAGS), inner),
    ),
    max_leaves=12,
)


@given(values, st.booleans())
def test_any_cbor_is_a_frame_or_refused(value: object, as_body: bool) -> None:
    """Tags make a decoder do work of its own: dates, fractions, patterns, references."""
    _decode_or_refuse(cbor2.dumps([3, value] if as_body else value))


@given(frames, st.data())
def test_a_damaged_frame_is_a_frame_or_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _decode_or_refuse(bytes(encoded))


def _decode_or_refuse(data: bytes) -> None:
    try:
        frame = decode(data)
    except MalformedFrame:
        return
    assert decode(encode(frame)) == frame


def test_parts_are_put_before_the_first_payload_of_their_kind() -> None:
    """Other kinds pass between them."""
    parts = Parts(payload_max_bytes=100)
    assert parts.take(PartFrame(FrameKind.CALL, b"ab")) is None
    assert parts.take(PartFrame(FrameKind.SNAPSHOT, b"12")) is None
    assert parts.take(NODE) == NODE
    assert parts.take(PartFrame(FrameKind.CALL, b"cd")) is None
    first, second = Call(3, b"e"), Call(3, b"f")
    assert parts.take(CallFrame((first, second))) == CallFrame((Call(3, b"abcde"), second))
    assert parts.take(CallFrame((second,))) == CallFrame((second,))
    assert parts.take(SnapshotFrame(3, b"3")) == SnapshotFrame(3, b"123")
    assert parts.take(PartFrame(FrameKind.RAFT, b"<")) is None
    assert parts.take(RaftFrame(((1, b"x"), (2, b"y")))) == RaftFrame(((1, b"<x"), (2, b"y")))


def test_the_bound_is_of_one_payload() -> None:
    parts = Parts(payload_max_bytes=5)
    for _ in range(3):
        assert parts.take(PartFrame(FrameKind.SNAPSHOT, b"abc")) is None
        assert parts.take(SnapshotFrame(1, b"de")) == SnapshotFrame(1, b"abcde")


def test_a_payload_above_the_bound_is_refused_before_it_is_kept() -> None:
    parts = Parts(payload_max_bytes=5)
    assert parts.take(PartFrame(FrameKind.CALL, b"abc")) is None
    with pytest.raises(MalformedFrame, match="above 5"):
        parts.take(PartFrame(FrameKind.CALL, b"def"))
    with pytest.raises(MalformedFrame, match="more than 5"):
        parts.take(CallFrame((Call(3, b"def"),)))
