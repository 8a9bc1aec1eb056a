"""What door and node say to each other: every frame comes out as it went in, wherever the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.broker import Lane
from queen_node.disk_gate import Gates
from queen_node.doorway import frames
from queen_node.doorway.frames import HEAD, NO_WAIT, Frame, Kind, Splitter
from raft.invariants import InvariantBroken

CALLS = st.integers(0, 2**64 - 1)
NAMES = st.binary(max_size=40)
TENANTS = st.binary(min_size=16, max_size=16)
TIMES_MS = st.integers(0, NO_WAIT - 1)


def only(raw: bytes) -> Frame:
    (found,) = Splitter().take(raw)
    return found


@given(
    st.sampled_from((Kind.WRITE, Kind.WRITE_MORE)), CALLS, TENANTS, st.binary(), st.sampled_from(Lane), TIMES_MS,
    st.lists(st.sampled_from((b"", b"q", b"another")), max_size=9))
def test_a_write(
    kind: Kind, call: int, tenant: bytes, command: bytes, lane: Lane, timeout_ms: int, queues: list[bytes],
) -> None:
    found, found_call, body = only(frames.write(kind, call, tenant, command, lane, timeout_ms, tuple(queues)))
    assert (found, found_call) == (kind, call)
    assert frames.read_write(body) == (tenant, command, lane, timeout_ms, tuple(queues))


@given(CALLS, TENANTS, st.binary(), TIMES_MS)
def test_a_read(call: int, tenant: bytes, query: bytes, timeout_ms: int) -> None:
    kind, found_call, body = only(frames.read(call, tenant, query, timeout_ms))
    assert (kind, found_call, frames.read_read(body)) == (Kind.READ, call, (tenant, query, timeout_ms))


@given(TENANTS, st.binary())
def test_a_hand_back(tenant: bytes, lease_id: bytes) -> None:
    kind, _call, body = only(frames.hand_back(tenant, lease_id))
    assert (kind, frames.read_hand_back(body)) == (Kind.HAND_BACK, (tenant, lease_id))


@given(CALLS, TENANTS, st.binary(), NAMES, NAMES, NAMES, st.none() | NAMES, st.none() | TIMES_MS)
def test_a_pop(
    call: int, tenant: bytes, command: bytes, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
    wait_ms: int | None,
) -> None:
    kind, found_call, body = only(frames.pop(
        call, tenant, command, lease_id=lease_id, queue=queue, group=group, partition=partition, wait_ms=wait_ms))
    assert (kind, found_call) == (Kind.POP, call)
    assert frames.read_pop(body) == (tenant, command, lease_id, queue, group, partition, wait_ms)


@given(st.builds(Gates, st.booleans(), st.booleans(), st.booleans()))
def test_gates(gates: Gates) -> None:
    assert frames.read_gates(only(frames.gates(gates))[2]) == gates


@given(st.lists(st.tuples(st.sampled_from(Kind), CALLS, st.binary(max_size=30)), max_size=6), st.data())
def test_a_stream_may_be_cut_anywhere(sent: list[tuple[Kind, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frames.frame(*each) for each in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = Splitter()
    received = [
        each
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for each in splitter.take(stream[begin:end])
    ]
    assert received == sent


def test_a_length_that_nothing_has_is_our_own_fault() -> None:
    with pytest.raises(InvariantBroken):
        Splitter().take(HEAD.pack(frames.FRAME_MAX_BYTES + 1, Kind.ANSWER, 1))
