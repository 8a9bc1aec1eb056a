"""One websocket to a peer: its frames out, its frames in, and how it ends.

Control carries what must never wait: node frames, votes, heartbeats, small appends. Bulk carries the rest (M-60).
Which frames wait is `peer_outbox`'s, who may connect is `peer_handshake`'s, how many connections there are is
`transport`'s.

What a peer does wrong ends its connection, with the reason; it never ends the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, Protocol

import trio

from raft.peer_frames import Frame, FrameKind, Hello, NodeFrame, Parts, decode, encode, kind_of
from raft.peer_handshake import Purpose, judge_hello
from raft.peer_outbox import BulkOutbox, ControlOutbox
from raft.peer_socket import CONNECTION_ENDS, PeerFault, PeerSocket, reason_of
from raft.waiting import Bell

CLOSE_REASON_MAX_BYTES: Final = 120  # a websocket's close frame has 123
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Times in seconds. silent_steps: so many of the node's steps (`Transport.step`) without a node frame end control;
    steps are counted, not read from a clock, so that a stall of our own loop is one step and no peer's fault.
    ping_every_s: a ping wakes both loops, which costs an idle node as much as a node frame. payload_max_bytes: one
    command, append or chunk; above QUEEN_RAFT_ENTRY_MAX_BYTES."""

    silent_steps: int = 10
    ping_every_s: float = 5.0
    handshake_s: float = 5.0
    close_s: float = 0.5
    backoff_first_s: float = 0.05
    backoff_last_s: float = 2.0
    payload_max_bytes: int = 128 << 20


@dataclass(slots=True)
class PeerFigures:
    """What is counted of one peer since the start, by the kind of frame. refused: messages, calls and chunks that a
    full queue or a missing connection did not take; lost: those that waited when their connection ended. connects: by
    purpose. round_trip_s: the last ping's. standing: connections that are up, as of the last look at the figures."""

    frames_sent: Counter[FrameKind] = field(default_factory=Counter)
    bytes_sent: Counter[FrameKind] = field(default_factory=Counter)
    frames_taken: Counter[FrameKind] = field(default_factory=Counter)
    bytes_taken: Counter[FrameKind] = field(default_factory=Counter)
    refused: Counter[FrameKind] = field(default_factory=Counter)
    lost: Counter[FrameKind] = field(default_factory=Counter)
    connects: Counter[Purpose] = field(default_factory=Counter)
    round_trip_s: float | None = None
    standing: frozenset[Purpose] = frozenset()


class Outbox(Protocol):
    """What PeerConnection needs of its queues."""

    def next_frames(self) -> Sequence[Frame]: ...

    def waiting(self) -> dict[FrameKind, int]: ...


class Surroundings(NamedTuple):
    """What the connections of a node share. mine: what it says of itself; admit: whether a peer that said that hello
    may stay, or why not; take: hears each frame, and what its sender said of itself on that connection; it must not
    block, and raises nothing but PeerFault."""

    mine: Hello
    settings: TransportSettings
    admit: Callable[[PeerConnection, Hello], str | None]
    take: Callable[[Hello, Frame], None]


class PeerConnection:
    """One websocket, its handshake done. hello: the peer's, once it came; reason: why it ended, once it has."""

    purpose: ClassVar[Purpose]
    may_come: ClassVar[frozenset[FrameKind]]

    def __init__(
        self, peer_socket: PeerSocket, peer: int, figures: PeerFigures, surroundings: Surroundings,
        outbox: Outbox,
    ) -> None:
        self.peer = peer
        self.hello: Hello | None = None
        self.reason: str | None = None
        self.was_admitted = self.was_silent = False
        self._socket, self._figures, self._outbox = peer_socket, figures, outbox
        self._websocket = peer_socket.websocket
        self._mine, self._settings, self._admit, self._take = surroundings
        self._parts = Parts(self._settings.payload_max_bytes)
        self._bell = Bell()
        self._scope = trio.CancelScope()
        self._is_sending = False

    def ring(self) -> None:
        """Something waits to be sent."""
        self._bell.ring()

    def end(self, reason: str) -> None:
        """End it: a close frame, and a moment for the peer's. `run` returns."""
        if self.reason is None:
            self.reason = reason
            self._scope.cancel()

    async def run(self) -> None:
        """Until either side ends it."""
        code = GOING_AWAY
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    for watch in self._watches():
                        nursery.start_soon(watch)
                    await self._read()
        except* CONNECTION_ENDS as ends:
            code = POLICY_VIOLATION
            self.reason = self.reason or reason_of(ends)
        for kind, count in self._outbox.waiting().items():
            self._figures.lost[kind] += count
        if not self._is_sending:  # in the middle of a frame, a close frame would be read as a piece of it
            await self._say_goodbye(code)

    async def _say_goodbye(self, code: int) -> None:
        """The reason stands in the close frame, for the peer's log."""
        reason = (self.reason or "").encode("ascii", "replace")[:CLOSE_REASON_MAX_BYTES].decode()
        with trio.move_on_after(self._settings.close_s):
            try:
                await self._websocket.aclose(code, reason)
            except CONNECTION_ENDS as end:
                self.reason = self.reason or reason_of(end)

    def _watches(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return ()

    async def _write(self) -> None:
        """Send what waits. All that gathers during a pass of the loop, and while it is being sent, goes as one."""
        await self._send([self._mine])
        while True:
            frames = self._outbox.next_frames()
            if frames:
                await self._send(frames)
            else:
                await self._bell.wait()

    async def _send(self, frames: Sequence[Frame]) -> None:
        encoded = [encode(frame) for frame in frames]
        self._is_sending = True
        await self._socket.send(encoded)
        self._is_sending = False
        for frame, data in zip(frames, encoded, strict=True):
            kind = kind_of(frame)
            self._figures.frames_sent[kind] += 1
            self._figures.bytes_sent[kind] += len(data)

    async def _read(self) -> None:
        with trio.move_on_after(self._settings.handshake_s) as patience:
            hello = await self._receive()
        if patience.cancelled_caught:
            raise PeerFault(f"no hello within {self._settings.handshake_s} s")
        if not isinstance(hello, Hello):
            raise PeerFault(f"began with a frame of kind {kind_of(hello).name}")
        self.hello = hello
        if refusal := judge_hello(self._mine, hello, self.peer) or self._admit(self, hello):
            raise PeerFault(refusal)
        self.was_admitted = True
        while self.reason is None:
            frame = await self._receive()
            kind = kind_of(frame)
            if kind not in self.may_come:
                raise PeerFault(f"a frame of kind {kind.name} on {self.purpose}")
            whole = self._parts.take(frame)
            if whole is not None:
                self._hear(whole)
                self._take(hello, whole)

    def _hear(self, frame: Frame) -> None:
        """What a frame tells about the connection itself."""

    async def _receive(self) -> Frame:
        data = await self._websocket.get_message()
        if not isinstance(data, bytes):
            raise PeerFault("a frame of text")
        frame = decode(data)
        kind = kind_of(frame)
        self._figures.frames_taken[kind] += 1
        self._figures.bytes_taken[kind] += len(data)
        return frame


class ControlConnection(PeerConnection):
    """Control: also finds out that nobody is there any more."""

    purpose = Purpose.CONTROL
    may_come = frozenset({FrameKind.NODE, FrameKind.RAFT})

    def __init__(
        self, peer_socket: PeerSocket, peer: int, figures: PeerFigures, surroundings: Surroundings
    ) -> None:
        self.outbox = ControlOutbox()
        super().__init__(peer_socket, peer, figures, surroundings, self.outbox)
        self._silent_steps = 0

    def _watches(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._measure_round_trips,)

    def _hear(self, frame: Frame) -> None:
        if isinstance(frame, NodeFrame):
            if self.hello is not None and frame.process_number != self.hello.process_number:
                raise PeerFault("a node frame of another process")
            self._silent_steps = 0

    def step(self) -> None:
        """A step has passed in which the peer should have said how it is. After so many without a word the connection
        is half open, or the peer's loop stands."""
        self._silent_steps += 1
        if self._silent_steps >= self._settings.silent_steps and not self.was_silent:
            self.was_silent = True
            self.end(f"no node frame in {self._settings.silent_steps} steps")

    async def _measure_round_trips(self) -> None:
        while True:
            await trio.sleep(self._settings.ping_every_s)
            sent_at_s = trio.current_time()
            await self._websocket.ping()
            self._figures.round_trip_s = trio.current_time() - sent_at_s


class BulkConnection(PeerConnection):
    """Bulk."""

    purpose = Purpose.BULK
    may_come = frozenset(FrameKind) - {FrameKind.HELLO, FrameKind.NODE}

    def __init__(
        self, peer_socket: PeerSocket, peer: int, figures: PeerFigures, surroundings: Surroundings
    ) -> None:
        self.outbox = BulkOutbox()
        super().__init__(peer_socket, peer, figures, surroundings, self.outbox)
