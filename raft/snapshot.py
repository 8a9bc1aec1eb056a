"""A group's state on its way from a leader to a member whose entries are gone from the leader's log (M-61, CL-112).

Two halves, `Sending` and `Receiving`, one of each a transfer. They decide what is said next; what a chunk holds, where
it is read and written, and when a state may be swapped are the business of who drives them. No IO, no clock, no await.

A transfer: the leader offers; the receiver says which chunk it wants; chunks follow within a window, each acknowledged
once it is written; the end says how many they were. Nothing is sent twice unless the receiver asks `again`, which it
does after a gap, and when a leader that hears nothing repeats its offer: so a lost connection costs what was in flight.
What has arrived is in the receiver's memory and store only: a receiver that restarts takes a new transfer.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from typing import Final

from raft.snapshot_messages import (
    Chunk,
    End,
    Head,
    Offer,
    Refusal,
    SnapshotMessage,
    Wanted,
    checksum,
)

CHUNK_BYTES: Final = 64 * 1024
"""Of a chunk, unless one row is larger: one portion of the bulk connection."""
WINDOW_CHUNKS: Final = 16
WINDOW_BYTES: Final = 2 << 20
"""Sent and not acknowledged, kept to be sent again."""
RESEND_S: Final = 0.5
"""So long after the receiver's last word the leader asks how far it is."""
VIEW_LIVES_S: Final = 60.0
"""So long after the last chunk arrived the transfer starts anew: a pinned view makes ticks slow (M-61)."""
PACE_BYTES_PER_S: Final = 8 << 20
"""Of all transfers of a node: 1 GB in about two minutes; each chunk is a step of a millisecond on the loop."""
BURST_BYTES: Final = 2 * CHUNK_BYTES


class Flawed(Exception):
    """What came of a transfer is not what was sent: it is given up, and starts anew."""


class Pace:
    """Bounds bytes a second. A debt is paid before the next bytes go."""

    __slots__ = ("_at_s", "_burst_bytes", "_bytes_per_s", "_room_bytes")

    def __init__(self, now_s: float, bytes_per_s: int = PACE_BYTES_PER_S, burst_bytes: int = BURST_BYTES) -> None:
        self._bytes_per_s, self._burst_bytes = bytes_per_s, burst_bytes
        self._at_s, self._room_bytes = now_s, float(burst_bytes)

    def wait_s(self, now_s: float) -> float:
        """How long until something may go; 0: now."""
        self._room_bytes = min(
            self._burst_bytes, self._room_bytes + max(0.0, now_s - self._at_s) * self._bytes_per_s)
        self._at_s = now_s
        return max(0.0, -self._room_bytes / self._bytes_per_s)

    def spend(self, size_bytes: int) -> None:
        """So many bytes go."""
        self._room_bytes -= size_bytes


class Sending:
    """The leader's half. chunks: the parts of one view of the state, read as they are sent."""

    def __init__(self, transfer: bytes, leader_term: int, head: Head, chunks: Iterator[bytes], now_s: float) -> None:
        self.transfer, self.leader_term, self.head = transfer, leader_term, head
        self._chunks = chunks
        self._window: deque[bytes] = deque()  # sent, or about to be sent again, from chunk `_first` on
        self._window_bytes = 0
        self._first = self._next = 1
        self._count: int | None = None  # of all chunks, once the last was read
        self._digest = hashlib.blake2b(digest_size=16)
        self._accepted = self._end_sent = False
        self._asked_at_s: float | None = None
        self._heard_at_s = self._progress_at_s = now_s

    def is_late(self, now_s: float) -> bool:
        """Whether the receiver has taken nothing for so long that the view is to be given up."""
        return now_s - self._progress_at_s >= VIEW_LIVES_S

    @property
    def may_read(self) -> bool:
        """Whether the next word may be a chunk: the pace is to be asked first."""
        if not self._accepted:
            return False
        return self._next < self._first + len(self._window) or (self._count is None and self._has_room)

    def next_word(self, now_s: float, *, chunks: bool) -> SnapshotMessage | None:
        """What to say next; None: nothing now. chunks: whether a chunk may go; it may have to be read."""
        if self._must_ask(now_s):
            self._asked_at_s = now_s
            return Offer(self.transfer, self.leader_term, self.head, self._first)
        if not self._accepted:
            return None
        if chunks and (chunk := self._next_chunk()) is not None:
            return chunk
        if self._next - 1 == self._count and not self._end_sent:
            self._end_sent = True
            return End(self.transfer, self._count, self._digest.digest())
        return None

    def wait_s(self, now_s: float) -> float:
        """How long until it asks again, if nothing is heard."""
        return max(0.0, self._ask_at_s() - now_s)

    def take(self, word: Wanted, now_s: float) -> None:
        """The receiver says what it wants. What is late, or of chunks that never were, tells nothing."""
        if word.number > self._first + len(self._window):
            return
        if not self._accepted or word.number > self._first:
            self._progress_at_s = now_s
        self._accepted = True
        self._heard_at_s = now_s
        while self._first < word.number:
            self._window_bytes -= len(self._window.popleft())
            self._first += 1
        self._next = max(self._next, self._first)
        if word.again and word.number == self._first:
            self._next, self._end_sent = self._first, False

    def _ask_at_s(self) -> float:
        if self._asked_at_s is None:
            return self._heard_at_s
        return max(self._asked_at_s, self._heard_at_s) + RESEND_S

    def _must_ask(self, now_s: float) -> bool:
        if self._asked_at_s is None:
            return True
        waits = not self._accepted or self._end_sent or self._next > self._first
        return waits and now_s >= self._ask_at_s()

    @property
    def _has_room(self) -> bool:
        return not self._window or (len(self._window) < WINDOW_CHUNKS and self._window_bytes < WINDOW_BYTES)

    def _next_chunk(self) -> Chunk | None:
        number = self._next
        place = number - self._first
        if place < len(self._window):
            data = self._window[place]
        else:
            if self._count is not None or not self._has_room:
                return None
            following = next(self._chunks, None)
            if following is None:
                self._count = number - 1
                return None
            data = following
            self._digest.update(data)
            self._window.append(data)
            self._window_bytes += len(data)
        self._next = number + 1
        return Chunk(self.transfer, number, checksum(self.transfer, number, data), data)


class Receiving:
    """The receiver's half. sender: the node that sends; head: of what."""

    def __init__(self, sender: int, offer: Offer, now_s: float) -> None:
        self.sender, self.transfer, self.head = sender, offer.transfer, offer.head
        self._arrived: deque[bytes] = deque()  # and not written yet
        self._received_count = self._written_count = 0
        self._count: int | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._asked_again = False
        self._came_at_s = now_s

    def is_late(self, now_s: float) -> bool:
        """Whether so long nothing came that its sender has surely given it up."""
        return now_s - self._came_at_s >= 2 * VIEW_LIVES_S

    @property
    def is_whole(self) -> bool:
        """Everything is here, checked, and written."""
        return self._count is not None and self._written_count == self._count

    def take_offer(self, now_s: float) -> Wanted:
        """The sender asks how far it is."""
        self._came_at_s = now_s
        self._asked_again = False
        return Wanted(self.transfer, self._received_count + 1, True)

    def take_chunk(self, chunk: Chunk, now_s: float) -> Wanted | None:
        """The answer, if one is due at once; the chunk itself is acknowledged by `written`. Raises Flawed."""
        wanted = self._received_count + 1
        if chunk.number > wanted:
            return self._ask_again()
        if chunk.number < wanted:
            return Wanted(self.transfer, self._written_count + 1, False)  # what said so before may be lost
        if len(self._arrived) >= WINDOW_CHUNKS:
            return None  # more than was asked for; it will come again
        if chunk.checksum != checksum(self.transfer, chunk.number, chunk.data):
            raise Flawed(f"chunk {chunk.number} of a snapshot fails its checksum")
        self._came_at_s = now_s
        self._asked_again = False
        self._received_count = chunk.number
        self._digest.update(chunk.data)
        self._arrived.append(chunk.data)
        return None

    def take_end(self, end: End, now_s: float) -> Wanted | None:
        """The answer, if one is due. Raises Flawed."""
        if end.chunk_count > self._received_count:
            return self._ask_again()
        if end.chunk_count < self._received_count or end.digest != self._digest.digest():
            raise Flawed(f"a snapshot of {end.chunk_count} chunks is not what its sender read")
        self._came_at_s = now_s
        self._count = end.chunk_count
        return None

    def next_write(self) -> bytes | None:
        """The chunk to write next, which stays until it is `written`."""
        return self._arrived[0] if self._arrived else None

    def written(self) -> Wanted:
        """That chunk is in the store, if not flushed yet: what tells the sender."""
        self._arrived.popleft()
        self._written_count += 1
        return Wanted(self.transfer, self._written_count + 1, False)

    def _ask_again(self) -> Wanted | None:
        """Once a gap; if that is lost, the sender's next offer is answered."""
        if self._asked_again:
            return None
        self._asked_again = True
        return Wanted(self.transfer, self._received_count + 1, True)


def judge_offer(offer: Offer, *, sender: int, leader: int, term: int, leads: bool, commit_index: int) -> Refusal | None:
    """Why a member refuses an offer that begins a transfer; None: it takes it.

    sender, leader: who offers, and whom the member follows. Only the leader it follows is believed to know that it
    lags; a leader that it has not heard of offers again.
    """
    if leads or offer.head.index <= commit_index:
        return Refusal.NOT_NEEDED
    if offer.first > 1:
        return Refusal.UNKNOWN
    if sender != leader or offer.leader_term != term:
        return Refusal.BUSY
    return None
