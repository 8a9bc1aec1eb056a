"""What a group says to itself on another node about calls: its bytes, and that nothing else is taken for it."""

from __future__ import annotations

from typing import get_args

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.peer_calls import (
    PEER_CALLS_VERSION,
    AskOperator,
    AskRead,
    Forward,
    ForwardPop,
    Known,
    Malformed,
    Members,
    Nothing,
    NotQuiet,
    NotTaken,
    OperatorTold,
    PeerCall,
    QuietHeld,
    ReadAt,
    Removed,
    Withdraw,
    decode,
    encode,
)

IDS = st.binary(min_size=16, max_size=16)
NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.binary(max_size=40)
CALLS: dict[type, st.SearchStrategy[PeerCall]] = {
    Forward: st.builds(
        Forward, IDS, st.integers(0, 1), st.booleans(), st.lists(NAMES, max_size=3).map(tuple), st.binary(max_size=99)),
    ForwardPop: st.builds(
        ForwardPop, IDS, IDS, st.booleans(), NUMBERS, st.booleans(), NAMES, NAMES, st.none() | NAMES,
        st.binary(max_size=99)),
    Withdraw: st.builds(Withdraw, IDS),
    AskRead: st.builds(AskRead, NUMBERS),
    NotTaken: st.builds(NotTaken, IDS),
    Nothing: st.builds(Nothing, IDS),
    ReadAt: st.builds(ReadAt, NUMBERS, NUMBERS, NUMBERS),
    AskOperator: st.builds(AskOperator, NUMBERS, st.binary(max_size=99)),
    OperatorTold: st.builds(OperatorTold, NUMBERS, NUMBERS, st.binary(max_size=99)),
    Members: st.builds(Members, st.binary(max_size=99)),
    Removed: st.builds(Removed, NUMBERS),
    QuietHeld: st.builds(
        QuietHeld, NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)),
    NotQuiet: st.builds(NotQuiet, st.lists(NUMBERS, max_size=3).map(tuple)),
    Known: st.builds(Known, st.lists(st.tuples(NUMBERS, IDS), max_size=3).map(tuple)),
}
SAID = st.one_of(*CALLS.values())


def test_every_kind_is_among_those_that_are_tried() -> None:
    assert set(CALLS) == set(get_args(PeerCall))


@given(SAID)
def test_what_is_said_is_heard(call: PeerCall) -> None:
    assert decode(encode(call)) == call


@given(SAID, st.data())
def test_what_was_damaged_is_refused_or_something_else_that_may_be_said(call: PeerCall, data: st.DataObject) -> None:
    """A peer can be wrong in any way; nothing but Malformed may come of it."""
    raw = bytearray(encode(call))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(raw))
    except Malformed:
        return


@pytest.mark.parametrize(("raw", "why"), [
    (b"", "not CBOR"),
    (encode(AskRead(1)) + b"\x00", "1 bytes follow"),
    (cbor2.dumps([PEER_CALLS_VERSION + 1, [4, 1]]), "version 2"),
    (cbor2.dumps([PEER_CALLS_VERSION, [99, 1]]), "99"),
    (cbor2.dumps([PEER_CALLS_VERSION, [4, -1]]), ">= 0"),
    (cbor2.dumps([PEER_CALLS_VERSION, [3, b"short"]]), "length"),
    (cbor2.dumps([PEER_CALLS_VERSION, [4]]), "length"),
    (cbor2.dumps(7), "not a pair"),
])
def test_what_is_none_of_these_is_refused_and_says_why(raw: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        decode(raw)
