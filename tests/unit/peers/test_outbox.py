"""Queues to a peer: bounded, in order, one frame for what gathered, turns on bulk (M-60, CL-7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.peer_frames import (
    FRAME_MAX_BYTES,
    ITEMS_MAX,
    Call,
    CallFrame,
    Frame,
    FrameKind,
    NodeFrame,
    PartFrame,
    Parts,
    RaftFrame,
    SnapshotFrame,
    decode,
    encode,
    kind_of,
)
from raft.peer_outbox import (
    CONTROL_BOUNDS,
    CONTROL_MESSAGE_MAX_BYTES,
    PORTION_BYTES,
    SNAPSHOT_BOUNDS,
    Bounds,
    BulkOutbox,
    ControlOutbox,
)

NODE = NodeFrame(1, b"b" * 16, 1, 0, 0, 0, None)
LARGEST = 2**63 - 1


def call(number: int, data: bytes = b"") -> Call:
    return Call(number, data)


def drain(outbox: ControlOutbox | BulkOutbox) -> list[Frame]:
    sent: list[Frame] = []
    while frames := outbox.next_frames():
        assert all(len(encode(frame)) <= FRAME_MAX_BYTES for frame in frames)
        sent += frames
    return sent


def test_what_gathered_on_control_is_one_frame() -> None:
    outbox = ControlOutbox()
    for life in range(100):
        assert outbox.put_message(life, b"heartbeat")
    assert drain(outbox) == [RaftFrame(tuple((life, b"heartbeat") for life in range(100)))]


def test_the_newest_node_frame_goes_first() -> None:
    """M-30: an older one tells nothing more. What waits beside it goes with it."""
    outbox = ControlOutbox()
    outbox.put_message(1, b"x")
    outbox.put_node_frame(NODE)
    newer = NodeFrame(2, b"b" * 16, 1, 0, 0, 0, None)
    outbox.put_node_frame(newer)
    assert outbox.waiting() == {FrameKind.NODE: 1, FrameKind.RAFT: 1}
    assert outbox.next_frames() == [newer, RaftFrame(((1, b"x"),))]
    assert outbox.waiting() == {FrameKind.NODE: 0, FrameKind.RAFT: 0}


def test_control_holds_a_heartbeat_of_ten_thousand_groups_and_no_more_than_its_bounds() -> None:
    outbox = ControlOutbox()
    assert all(outbox.put_message(LARGEST - life, bytes(30)) for life in range(10_000))
    frames = drain(outbox)
    assert sum(len(frame.messages) for frame in frames if isinstance(frame, RaftFrame)) == 10_000
    assert len(frames) <= 4
    puts = [outbox.put_message(1, b"") for _ in range(CONTROL_BOUNDS.item_count + 2)]
    assert puts.count(False) == 2
    assert not puts[-1]


def test_control_is_bounded_in_bytes() -> None:
    outbox = ControlOutbox(Bounds(100, 1000))
    assert outbox.put_message(1, bytes(900))
    assert not outbox.put_message(1, bytes(100))
    assert outbox.put_message(1, bytes(60))
    assert len(drain(outbox)) == 1
    assert outbox.put_message(1, bytes(900))
    assert outbox.put_message(1, bytes(60)), "what was sent counts no more"
    drain(outbox)
    assert outbox.put_message(1, bytes(2000)), "one above the bound is let into an empty queue"
    assert not outbox.put_message(1, b"")


def test_the_largest_frame_of_control_is_a_frame() -> None:
    outbox = ControlOutbox()
    for size_bytes in (PORTION_BYTES, PORTION_BYTES - 100, CONTROL_MESSAGE_MAX_BYTES, PORTION_BYTES):
        assert outbox.put_message(LARGEST, bytes(size_bytes))
    for _ in range(CONTROL_BOUNDS.item_count - 4):
        assert outbox.put_message(LARGEST, b"")
    drain(outbox)


def test_the_largest_frames_of_bulk_are_frames() -> None:
    outbox = BulkOutbox()
    for number in range(ITEMS_MAX // 2):
        assert outbox.put_message(LARGEST - number, b"")
        assert outbox.put_call(call(LARGEST - number))
    for _ in range(3):
        assert outbox.put_call(call(LARGEST, bytes(1 << 20)))
        assert outbox.put_call(call(LARGEST, bytes(PORTION_BYTES)))
        assert outbox.put_call(call(LARGEST, bytes(PORTION_BYTES - 200)))
    drain(outbox)


@pytest.mark.parametrize(
    "put",
    [
        lambda outbox, data: outbox.put_message(7, data),
        lambda outbox, data: outbox.put_call(call(7, data)),
        lambda outbox, data: outbox.put_snapshot(7, data),
    ],
)
def test_every_kind_of_bulk_is_cut_bounded_and_comes_out_whole(put: Callable[[BulkOutbox, bytes], bool]) -> None:
    outbox, parts = BulkOutbox(), Parts(1 << 20)
    data = bytes(range(256)) * 1000
    assert put(outbox, data)
    assert put(outbox, b"after")
    sent = drain(outbox)
    assert [type(frame) for frame in sent[:3]] == [PartFrame] * 3
    whole = [frame for frame in map(parts.take, sent) if frame is not None]
    assert [payload for frame in whole for payload in payloads_of(frame)] == [data, b"after"]
    assert put(outbox, bytes(256 << 20)), "one above the bound is let into an empty queue"
    assert not put(outbox, b"after")


def payloads_of(frame: Frame) -> list[bytes]:
    match frame:
        case RaftFrame(messages):
            return [data for _, data in messages]
        case CallFrame(calls):
            return [each.data for each in calls]
        case SnapshotFrame(_, data):
            return [data]
        case _:
            raise AssertionError(frame)


def test_a_snapshot_is_bounded_by_count() -> None:
    outbox = BulkOutbox()
    puts = [outbox.put_snapshot(1, b"chunk") for _ in range(SNAPSHOT_BOUNDS.item_count + 1)]
    assert puts == [True] * SNAPSHOT_BOUNDS.item_count + [False]
    assert outbox.waiting()[FrameKind.SNAPSHOT] == SNAPSHOT_BOUNDS.item_count


def test_a_call_waits_for_one_portion_of_what_is_large() -> None:
    """CL-7, M-60: a snapshot and a command of megabytes go in turns with calls."""
    outbox = BulkOutbox()
    outbox.put_snapshot(1, bytes(1 << 20))
    outbox.put_message(1, bytes(1 << 20))
    drained = [frame for _ in range(4) for frame in outbox.next_frames()]
    assert [type(frame) for frame in drained] == [PartFrame] * 4
    outbox.put_call(call(1))
    assert FrameKind.CALL in [kind_of(frame) for _ in range(3) for frame in outbox.next_frames()]


SIZES = st.sampled_from([0, 1, 1000, PORTION_BYTES - 1, PORTION_BYTES, PORTION_BYTES + 1, 3 * PORTION_BYTES])
puts = st.lists(st.tuples(st.sampled_from(["message", "call", "snapshot", "send"]), SIZES), max_size=40)


@given(puts)
def test_each_kind_arrives_whole_and_in_order(steps: list[tuple[str, int]]) -> None:
    """The twin: a list a kind."""
    outbox, parts = BulkOutbox(), Parts(1 << 20)
    put: dict[FrameKind, list[bytes]] = {kind: [] for kind in FrameKind}
    arrived: dict[FrameKind, list[bytes]] = {kind: [] for kind in FrameKind}

    def send() -> bool:
        frames = outbox.next_frames()
        for frame in frames:
            whole = parts.take(decode(encode(frame)))
            if whole is not None:
                arrived[kind_of(whole)] += payloads_of(whole)
        return bool(frames)

    for number, (what, size_bytes) in enumerate(steps):
        data = number.to_bytes(4, "big") + bytes(size_bytes)
        match what:
            case "message":
                put[FrameKind.RAFT] += [data] if outbox.put_message(number, data) else []
            case "call":
                put[FrameKind.CALL] += [data] if outbox.put_call(call(number, data)) else []
            case "snapshot":
                put[FrameKind.SNAPSHOT] += [data] if outbox.put_snapshot(number, data) else []
            case "send":
                send()
    while send():
        pass
    assert arrived == put
    assert set(outbox.waiting().values()) == {0}
