"""Messages survive the wire, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any, get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.configurations import encode_configuration
from raft.messages import (
    MESSAGE_VERSION,
    NUMBER_MAX,
    Append,
    Denial,
    Entry,
    EntryKind,
    Heartbeat,
    MalformedMessage,
    Message,
    VoteGranted,
    decode,
    encode,
)
from raft.quorum import Configuration

KINDS: tuple[type, ...] = get_args(Message)
numbers = st.integers(0, NUMBER_MAX)
node_ids = st.integers(1, NUMBER_MAX)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "sender": node_ids,
    "receiver": node_ids,
    "reason": st.sampled_from(Denial),
    "transfer": st.booleans(),
    "is_weak": st.booleans(),
}


@st.composite
def entries(draw: st.DrawFn, term: int, index: int) -> Entry:
    kind = draw(st.sampled_from(EntryKind))
    data = encode_configuration(Configuration((1, 2, 3))) if kind is EntryKind.CONFIGURATION else None
    return Entry(term, index, kind, data or draw(st.binary(max_size=40)))


@st.composite
def appends(draw: st.DrawFn) -> Append:
    index = draw(st.integers(0, 2**40))
    terms = sorted(draw(st.lists(st.integers(1, 2**40), min_size=2, max_size=6)))
    chosen = tuple(
        draw(entries(term, index + 1 + place))
        for place, term in enumerate(terms[1:-1])
    )
    return Append(
        draw(node_ids), draw(node_ids), terms[-1], index, terms[0], draw(numbers), draw(numbers), chosen
    )


def other_messages(kind: type) -> st.SearchStrategy[Message]:
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    return st.builds(kind, *[FIELDS.get(name, numbers) for name in names])


@given(st.one_of(appends(), *[other_messages(kind) for kind in KINDS if kind is not Append]))
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_bytes_of_version_1_stay_what_they_are() -> None:
    """Peers of another release read them: a change here is a new version."""
    assert MESSAGE_VERSION == 1
    append = Append(1, 2, 7, 4, 6, 3, 9, (Entry(7, 5, EntryKind.COMMANDS, b"x"),))
    assert encode(append) == cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[7, 5, 0, b"x"]]]])
    assert encode(Heartbeat(1, 2, 7, 3, 9)) == cbor2.dumps([1, [4, 1, 2, 7, 3, 9]])
    assert encode(VoteGranted(1, 2, 7, 9, True)) == cbor2.dumps([1, [11, 1, 2, 7, 9, True]])


HEARTBEAT = [4, 1, 2, 7, 3, 9]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not CBOR"),
        (b"\xff", "not CBOR"),
        (encode(Heartbeat(1, 2, 7, 3, 9))[:-1], "not CBOR"),
        (encode(Heartbeat(1, 2, 7, 3, 9)) + b"\x00", "1 bytes follow"),
        (b"\x81" * 100_000, "not CBOR"),
        (cbor2.dumps("hello"), "not a pair"),
        (cbor2.dumps([1]), "not a pair"),
        (cbor2.dumps([2, HEARTBEAT]), "version 2"),
        (cbor2.dumps([True, HEARTBEAT]), "version True"),
        (cbor2.dumps([1, [99, 1, 2, 7]]), "99"),
        (cbor2.dumps([1, {"kind": 4}]), "array"),
        (cbor2.dumps([1, HEARTBEAT[:-1]]), "at least length"),
        (cbor2.dumps([1, [*HEARTBEAT, 0]]), "at most length"),
        (cbor2.dumps([1, [4, 1, 2, -7, 3, 9]]), ">= 0"),
        (cbor2.dumps([1, [4, 0, 2, 7, 3, 9]]), ">= 1"),
        (cbor2.dumps([1, [4, 1, 2, 2**63, 3, 9]]), "9223372036854775807"),
        (cbor2.dumps([1, [4, 1, 2, "7", 3, 9]]), "Expected `int`"),
        (cbor2.dumps([1, [4, 1, 2, 7.5, 3, 9]]), "Expected `int`"),
        (cbor2.dumps([1, [9, 1, 2, 7, 77]]), "77"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[7, 5, 0, "text"]]]]), "Expected `bytes`"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[7, 5, 8, b""]]]]), "8"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[7, 6, 0, b""]]]]), "entry 7:6 after 6:4"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[5, 5, 0, b""]]]]), "entry 5:5 after 6:4"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[8, 5, 0, b""]]]]), "in term 7"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 8, 3, 9, []]]), "previous entry of term 8"),
        (cbor2.dumps([1, [1, 1, 2, 7, 4, 6, 3, 9, [[7, 5, 2, b"?"]]]]), "the configuration in entry 7:5"),
    ],
)
def test_what_is_no_message_is_refused_and_named(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        decode(data)
    assert complaint in str(refusal.value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    assert decode(encode(message)) == message


@given(appends(), st.data())
def test_a_damaged_message_is_a_message_or_refused(append: Append, data: st.DataObject) -> None:
    encoded = bytearray(encode(append))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        message = decode(bytes(encoded))
    except MalformedMessage:
        return
    assert decode(encode(message)) == message
