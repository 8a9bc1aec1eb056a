"""What waits to be sent over one connection to a peer: bounded queues, and the next frame out of them.

No IO, no await: `peer_connection` sends. Each queue is bounded by count and bytes, so that a peer that reads slowly
costs a known amount of memory; what does not fit is refused to whoever sends it. One payload above the bound is let
into an empty queue.

On control the newest node frame goes first, then all messages that wait, as one frame. On bulk the queues take turns, a
portion each: a snapshot, or a command of 90 MiB, costs a call behind it the time of one portion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from raft.peer_frames import (
    ITEMS_MAX,
    Call,
    CallFrame,
    Frame,
    FrameKind,
    NodeFrame,
    PartFrame,
    RaftFrame,
    SnapshotFrame,
)

PORTION_BYTES: Final = 64 * 1024
"""Of a payload, in one frame; a larger one is cut. On bulk 64 KiB cost 264 µs, 248 MB a CPU second for both sides;
portions of 256 KiB gain 6 % and make a call behind a snapshot wait four times as long."""
GATHER_BYTES: Final = 128 * 1024
"""A frame on control takes no further message past this: 3000 heartbeats. The last one may be as large as below."""
CONTROL_MESSAGE_MAX_BYTES: Final = 80 * 1024
"""A larger message goes by bulk. Above an append of 64 KiB of entries (M-60) with what surrounds them."""
ITEM_OVERHEAD_BYTES: Final = 19  # what a message, a call or a chunk takes in a frame beside its bytes; an upper bound

Item = TypeVar("Item")


class Bounds(NamedTuple):
    """What a queue holds at most."""

    item_count: int
    size_bytes: int


CONTROL_BOUNDS: Final = Bounds(16_384, 4 << 20)  # a heartbeat of each of 10,000 groups fits
RAFT_BOUNDS: Final = Bounds(4096, 32 << 20)
CALL_BOUNDS: Final = Bounds(4096, 64 << 20)  # as many as may be in flight (CL-35)
SNAPSHOT_BOUNDS: Final = Bounds(64, 8 << 20)


class BoundedQueue(Generic[Item]):
    """First in, first out. payload: the bytes of an item that count; overhead_bytes: what it takes in a frame beside
    them, part of the size; frame_items_max: how many one frame can hold."""

    __slots__ = ("_bounds", "_frame_items_max", "_items", "_overhead_bytes", "_payload", "size_bytes")

    def __init__(
        self, bounds: Bounds, payload: Callable[[Item], bytes], overhead_bytes: int, frame_items_max: int = ITEMS_MAX,
    ) -> None:
        self._bounds, self._payload, self._overhead_bytes = bounds, payload, overhead_bytes
        self._frame_items_max = frame_items_max
        self._items: deque[Item] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> bool:
        """Append it; False when it does not fit."""
        size_bytes = len(self._payload(item)) + self._overhead_bytes
        item_count, most_bytes = self._bounds
        if self._items and (len(self._items) >= item_count or self.size_bytes + size_bytes > most_bytes):
            return False
        self._items.append(item)
        self.size_bytes += size_bytes
        return True

    def first(self) -> Item:
        """The next item, which stays."""
        return self._items[0]

    def take(self, until_bytes: int) -> list[Item]:
        """Items from the front, until they are so large. What is larger than a portion comes only first."""
        items, payload, overhead_bytes = self._items, self._payload, self._overhead_bytes
        taken: list[Item] = []
        size_bytes = 0
        while items and len(taken) < self._frame_items_max and size_bytes < until_bytes:
            item_bytes = len(payload(items[0]))
            if taken and item_bytes > PORTION_BYTES:
                break
            size_bytes += item_bytes + overhead_bytes
            taken.append(items.popleft())
        self.size_bytes -= size_bytes
        return taken


class ControlOutbox:
    """What goes by control."""

    __slots__ = ("_messages", "_node_frame")

    def __init__(self, bounds: Bounds = CONTROL_BOUNDS) -> None:
        self._node_frame: NodeFrame | None = None
        self._messages = BoundedQueue[tuple[int, bytes]](bounds, lambda message: message[1], ITEM_OVERHEAD_BYTES)

    def put_node_frame(self, frame: NodeFrame) -> None:
        """In the place of one that was not sent yet: only the newest counts."""
        self._node_frame = frame

    def put_message(self, life: int, message: bytes) -> bool:
        """False when it does not fit."""
        return self._messages.put((life, message))

    def waiting(self) -> dict[FrameKind, int]:
        """Items not sent yet."""
        return {FrameKind.NODE: int(self._node_frame is not None), FrameKind.RAFT: len(self._messages)}

    def next_frames(self) -> list[Frame]:
        """What to send next, at once; nothing when nothing waits."""
        frames: list[Frame] = []
        if self._node_frame is not None:
            frames.append(self._node_frame)
            self._node_frame = None
        if self._messages:
            frames.append(RaftFrame(tuple(self._messages.take(GATHER_BYTES))))
        return frames


class _CutQueue(Generic[Item]):
    """A queue of bulk. build: a frame of items; shorten: an item with only the end of its payload."""

    __slots__ = ("_build", "_cut_at_bytes", "_kind", "_payload", "_shorten", "queue")

    def __init__(
        self, kind: FrameKind, bounds: Bounds, payload: Callable[[Item], bytes],
        build: Callable[[list[Item]], Frame], shorten: Callable[[Item, bytes], Item], frame_items_max: int = ITEMS_MAX,
    ) -> None:
        self._kind, self._payload, self._build, self._shorten = kind, payload, build, shorten
        self.queue = BoundedQueue[Item](bounds, payload, ITEM_OVERHEAD_BYTES, frame_items_max)
        self._cut_at_bytes = 0  # so much of the first payload has gone ahead

    def next_frame(self) -> Frame:
        """One portion."""
        data = self._payload(self.queue.first())
        begin = self._cut_at_bytes
        if len(data) - begin > PORTION_BYTES:
            self._cut_at_bytes += PORTION_BYTES
            return PartFrame(self._kind, data[begin : self._cut_at_bytes])
        items = self.queue.take(PORTION_BYTES)  # one that was cut comes alone
        if begin:
            items[0] = self._shorten(items[0], data[begin:])
            self._cut_at_bytes = 0
        return self._build(items)


class BulkOutbox:
    """What goes by bulk: a queue for each of what must not wait for the others."""

    __slots__ = ("_calls", "_messages", "_snapshots", "_turns")

    def __init__(self) -> None:
        self._messages = _CutQueue[tuple[int, bytes]](
            FrameKind.RAFT, RAFT_BOUNDS, lambda message: message[1],
            lambda messages: RaftFrame(tuple(messages)), lambda message, data: (message[0], data))
        self._calls = _CutQueue[Call](
            FrameKind.CALL, CALL_BOUNDS, lambda call: call.data,
            lambda calls: CallFrame(tuple(calls)), lambda call, data: Call(call.life, data))
        self._snapshots = _CutQueue[tuple[int, bytes]](
            FrameKind.SNAPSHOT, SNAPSHOT_BOUNDS, lambda chunk: chunk[1],
            lambda chunks: SnapshotFrame(*chunks[0]), lambda chunk, data: (chunk[0], data), frame_items_max=1)
        self._turns: deque[_CutQueue[Any]] = deque((self._messages, self._calls, self._snapshots))

    def put_message(self, life: int, message: bytes) -> bool:
        """False when it does not fit; so the others."""
        return self._messages.queue.put((life, message))

    def put_call(self, call: Call) -> bool:
        return self._calls.queue.put(call)

    def put_snapshot(self, life: int, data: bytes) -> bool:
        return self._snapshots.queue.put((life, data))

    def waiting(self) -> dict[FrameKind, int]:
        """Items not sent yet; those of which a part was sent count."""
        return {
            FrameKind.RAFT: len(self._messages.queue), FrameKind.CALL: len(self._calls.queue),
            FrameKind.SNAPSHOT: len(self._snapshots.queue),
        }

    def next_frames(self) -> list[Frame]:
        """What to send next, one portion; nothing when nothing waits."""
        for _ in range(len(self._turns)):
            turn = self._turns[0]
            self._turns.rotate(-1)
            if turn.queue:
                return [turn.next_frame()]
        return []
