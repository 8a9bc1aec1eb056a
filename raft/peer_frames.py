"""What two nodes say to each other over a connection, and its CBOR form: one frame a websocket message.

No behaviour belongs here. What a group's members say to each other (`messages`) travels inside as bytes, many of them
in one frame: a frame costs 140 µs on both sides together, another message in it 1 (figures in `transport`).

A frame is small. A payload that may be large (a call's command, an append with a large entry, a chunk) is cut:
its beginning goes ahead as parts, and the frame that it belongs to brings the end. So nobody decodes, or makes room
for, more than FRAME_MAX_BYTES at once, and what is urgent passes between the parts (M-50, M-60).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, TypeAlias, get_args

import msgspec

from raft import versioned
from raft.invariants import broken
from raft.messages import NodeId, Number

FRAME_VERSION: Final = 3
FRAME_MAX_BYTES: Final = 256 * 1024
ITEMS_MAX: Final = 4096
"""Messages or calls in one frame."""
CLUSTER_ID_MAX_BYTES: Final = 64
UNKNOWN_CLUSTER: Final = b"\xff"
"""The cluster id of a node that waits to be added and does not know of which cluster it will be (CL-106)."""


class MalformedFrame(Exception):
    """Bytes from a peer that are no frame of a version and kind known here. The peer is wrong, not this node."""


class FrameKind(IntEnum):
    """What a frame says; on the wire."""

    HELLO = 1
    NODE = 2
    RAFT = 3
    CALL = 4
    SNAPSHOT = 5
    PART = 6


CUT_KINDS: Final = (FrameKind.RAFT, FrameKind.CALL, FrameKind.SNAPSHOT)
"""Kinds whose first payload may be cut."""

Identity: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
ClusterId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=CLUSTER_ID_MAX_BYTES)]
Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]
Some = msgspec.Meta(min_length=1, max_length=ITEMS_MAX)


class Shape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """How everything here is laid out: an array of its fields."""


class Hello(Shape, frozen=True, tag=int(FrameKind.HELLO)):
    """The first frame of either side: who speaks.

    directory_id: of its data directory; another one under the same node id is another node (CL-105). boot_id: of its
    machine. process_number: drawn at its start, so that a restart is seen. The formats, lowest and highest, are those
    that its release reads (CL-132). log_place: how far its log reached when it started (`Wal.synced_place`).
    """

    cluster_id: ClusterId
    node_id: NodeId
    directory_id: Identity
    boot_id: Identity
    process_number: Number
    lowest_format: Number
    highest_format: Number
    log_place: Number = 0


class NodeFrame(Shape, frozen=True, tag=int(FrameKind.NODE)):
    """How the sender is; every 100 ms (M-30). quiet_count, quiet_hash: of the (life, term) pairs that it leads asleep
    with the receiver. boottime_us: its clock, from which a follower estimates the group's (M-21). quorum_silent_ms: for
    how long no majority has answered it as the leader of the first group, of life 0; None: it does not lead that.
    log_place: how far its log reaches, synced."""

    boottime_us: Number
    boot_id: Identity
    process_number: Number
    quiet_count: Number
    quiet_hash: Number
    disk_used_percent: Percent
    quorum_silent_ms: Number | None
    log_place: Number = 0


class RaftFrame(Shape, frozen=True, tag=int(FrameKind.RAFT)):
    """Messages of many groups to one peer: (life, bytes of `messages.encode`) each, in order."""

    messages: Annotated[tuple[tuple[Number, bytes], ...], Some]


class Call(Shape, frozen=True):
    """What that group says on this node to itself on the peer, beside Raft: a prepared command on its way to the leader
    (CL-35), or a word about one. What the bytes mean is not known here."""

    life: Number
    data: bytes


class CallFrame(Shape, frozen=True, tag=int(FrameKind.CALL)):
    calls: Annotated[tuple[Call, ...], Some]


class SnapshotFrame(Shape, frozen=True, tag=int(FrameKind.SNAPSHOT)):
    """A chunk of a group's snapshot, or a word about one; `snapshot` knows what the bytes mean."""

    life: Number
    data: bytes


class PartFrame(Shape, frozen=True, tag=int(FrameKind.PART)):
    """The beginning of the first payload of the next frame of that kind."""

    kind: FrameKind
    data: Annotated[bytes, msgspec.Meta(min_length=1)]


Frame: TypeAlias = Hello | NodeFrame | RaftFrame | CallFrame | SnapshotFrame | PartFrame


_KIND_OF: Final[dict[type, FrameKind]] = {
    each: FrameKind(each.__struct_config__.tag) for each in get_args(Frame)
}


def kind_of(frame: Frame) -> FrameKind:
    """The frame's kind."""
    return _KIND_OF[type(frame)]


def encode(frame: Frame) -> bytes:
    """The frame as CBOR: `[version, [kind, field, ...]]`."""
    return versioned.encode(FRAME_VERSION, frame)


def decode(data: bytes) -> Frame:
    """The frame that `encode` made `data` from.

    Raises MalformedFrame, which says what and where, for anything else: other versions and kinds, missing, extra or
    ill-typed fields, more than FRAME_MAX_BYTES, bytes after the end.
    """
    if len(data) > FRAME_MAX_BYTES:
        raise MalformedFrame(f"{len(data)} bytes, more than {FRAME_MAX_BYTES}")
    frame: Frame = versioned.decode(data, FRAME_VERSION, Frame, MalformedFrame)
    if type(frame) is PartFrame and frame.kind not in CUT_KINDS:
        raise MalformedFrame(f"a part of a frame of kind {frame.kind.name}, which is never cut")
    return frame


class Parts:
    """Puts the parts of cut payloads before the frames that they belong to. One a connection.

    payload_max_bytes: of one payload; so much may be kept for each kind that is cut.
    """

    __slots__ = ("_beginnings", "_payload_max_bytes", "_sizes")

    def __init__(self, payload_max_bytes: int) -> None:
        self._payload_max_bytes = payload_max_bytes
        self._beginnings: dict[FrameKind, list[bytes]] = {}
        self._sizes: dict[FrameKind, int] = {}

    def take(self, frame: Frame) -> Frame | None:
        """The frame, whole; None for a part. Raises MalformedFrame for a payload that is too large."""
        if type(frame) is PartFrame:
            size_bytes = self._sizes.get(frame.kind, 0) + len(frame.data)
            if size_bytes > self._payload_max_bytes:
                raise MalformedFrame(f"a payload of kind {frame.kind.name} above {self._payload_max_bytes} bytes")
            self._sizes[frame.kind] = size_bytes
            self._beginnings.setdefault(frame.kind, []).append(frame.data)
            return None
        if not self._beginnings:
            return frame
        return self._completed(frame)

    def _completed(self, frame: Frame) -> Frame:
        kind = kind_of(frame)
        beginning = self._beginnings.pop(kind, None)
        if beginning is None:
            return frame
        del self._sizes[kind]
        if isinstance(frame, SnapshotFrame):
            return SnapshotFrame(frame.life, self._joined(beginning, frame.data))
        if isinstance(frame, RaftFrame):
            (life, data), *rest = frame.messages
            return RaftFrame(((life, self._joined(beginning, data)), *rest))
        if not isinstance(frame, CallFrame):
            broken("parts were kept of a kind that is never cut", kind=kind)
        call, *calls = frame.calls
        return CallFrame((Call(call.life, self._joined(beginning, call.data)), *calls))

    def _joined(self, beginning: list[bytes], end: bytes) -> bytes:
        data = b"".join((*beginning, end))
        if len(data) > self._payload_max_bytes:
            raise MalformedFrame(f"a payload of {len(data)} bytes, more than {self._payload_max_bytes}")
        return data
