"""This node's connections to its peers: one port, two websockets a peer, control and bulk (M-60, CL-6, CL-7).

Here: who dials, accepts and knocks, which connection counts, and what is sent to whom. One connection's frames are
`peer_connection`'s.

Sending never waits. What a full queue or a missing connection does not take is counted and refused: Raft repeats its
messages, a call's sender answers its client.

Measured over loopback, both sides together, median of three on 2 cores: a small message (30 bytes) on control costs
140 µs of CPU when it goes alone, 15 when 10 share a frame, 2.6 when 100 do; bulk carries 238 MB a CPU second from the
node that dials, whose frames are masked, 431 towards it. The websocket library costs what it costs a frame; many
messages in one, not another library, is what makes small ones cheap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar

import trio

from raft.invariants import broken, must
from raft.messages import NodeId
from raft.peer_connection import (
    BulkConnection,
    ControlConnection,
    PeerConnection,
    PeerFigures,
    Surroundings,
    TransportSettings,
)
from raft.peer_frames import Call, Frame, FrameKind, Hello, NodeFrame
from raft.peer_handshake import (
    KNOCK_HEARD,
    Address,
    Asked,
    Purpose,
    Refused,
    is_token,
    judge_peer,
    judge_request,
    request_headers,
)
from raft.peer_outbox import CONTROL_MESSAGE_MAX_BYTES
from raft.peer_socket import CONNECTION_ENDS, Asking, PeerSocket, asked, dialled, reason_of, set_options
from raft.waiting import Backoff, Bell

HANDSHAKES_MAX: Final = 64
"""Connections that have not shown the token yet; further ones are closed unread."""
RESTARTED: Final = "the peer has restarted"
MEMBERS_CHANGED: Final = "the membership has changed"

Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the membership names it. directory_id: of the data directory that it must have (CL-105); None: not
    known, and whoever is connected under that id first keeps others out."""

    address: Address
    directory_id: bytes | None = None


class TransportObserver(Protocol):
    """Hears what happens to connections; a line of the log each. Must neither block nor raise."""

    def connected(self, peer: NodeId, purpose: Purpose, hello: Hello) -> None:
        """Frames may come and go. For control: the peer is there; a new process_number is a restart."""

    def ended(self, peer: NodeId, purpose: Purpose, reason: str) -> None:
        """A connection that was there is not. What waited in it is lost, calls under way among it."""

    def failed(self, peer: NodeId | None, reason: str) -> None:
        """One did not come about: a peer that cannot be reached (told once until it changes), or one that was refused.
        None: the caller did not say who it is, or is not believed."""


@dataclass(slots=True)
class _PeerState:
    """What is known of one peer."""

    peer: Peer
    figures: PeerFigures
    control: ControlConnection | None = None
    bulk: BulkConnection | None = None
    bells: Mapping[Purpose, Bell] = field(default_factory=lambda: {purpose: Bell() for purpose in Purpose})
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    told: dict[Purpose, str] = field(default_factory=dict)  # the failure that was told last
    shown: tuple[Hello, int] | None = None  # who it was last, and how far its log reached then

    def connections(self) -> list[PeerConnection]:
        return [each for each in (self.control, self.bulk) if each is not None]


class Transport:
    """All connections of a node. mine: what it says of itself; take: hears each frame of a peer, whole, in the order of
    its connection, and what the peer said of itself there; it must not block, and raises nothing but PeerFault, which
    ends that connection: the frame was sound, what it carried was not; random: for the pauses between attempts."""

    def __init__(
        self, mine: Hello, token: bytes, *, take: Callable[[Hello, Frame], None], observer: TransportObserver,
        random: Random, settings: TransportSettings | None = None,
    ) -> None:
        must(is_token(token), "a token that no request can carry")
        self._mine, self._token, self._observer, self._random = mine, token, observer, random
        self._settings = settings or TransportSettings()
        self._surroundings = Surroundings(mine, self._settings, self._admit, take)
        self._peers: dict[NodeId, _PeerState] = {}
        self._nursery: trio.Nursery | None = None  # while it runs
        self._handshakes: set[trio.SocketStream] = set()  # of those who have not shown the token yet
        self.turned_away_count = 0  # closed unread: too many had not
        self._closing = trio.Event()
        self._one_ended = Bell()

    # --- life

    async def run(self, listen: Address, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`, or cancelled. Starts with the port in use. listen: port 0 takes a free one. Raises OSError
        when it cannot listen there."""
        listeners = await trio.open_tcp_listeners(listen.port, host=listen.host)
        port: int = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for node_id, state in self._peers.items():
                nursery.start_soon(self._keep_connected, node_id, state)
            nursery.start_soon(partial(trio.serve_listeners, self._serve, listeners, handler_nursery=nursery))
            task_status.started(port)
            await self._closing.wait()
            with trio.move_on_after(2 * self._settings.close_s):
                while connections := self._connections():
                    for connection in connections:
                        connection.end("this node stops")
                    await self._one_ended.wait()
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """End all connections in order; `run` returns."""
        self._closing.set()

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """The other members from now on. Whoever is none any more, has moved or must have another directory, is cut."""
        must(self._mine.node_id not in peers, "a node is its own peer", node_id=self._mine.node_id)
        for node_id, state in self._peers.items():
            peer = peers.get(node_id)
            if peer is not None and _is_same_so_far(state, peer):
                state.peer = peer
        for node_id in [each for each, state in self._peers.items() if peers.get(each) != state.peer]:
            state = self._peers.pop(node_id)
            for connection in state.connections():
                self._drop(connection, state, MEMBERS_CHANGED)
            state.scope.cancel()
        for node_id, peer in peers.items():
            if node_id not in self._peers:
                state = self._peers[node_id] = _PeerState(peer, PeerFigures())
                if self._nursery is not None:
                    self._nursery.start_soon(self._keep_connected, node_id, state)

    # --- sending: False when it was not taken

    def send_node_frame(self, peer: NodeId, frame: NodeFrame) -> bool:
        """By control, before all that waits; one that was not sent yet is replaced."""
        state = self._peers.get(peer)
        if state is None or state.control is None:
            return self._refused(state, FrameKind.NODE)
        state.control.outbox.put_node_frame(frame)
        state.control.ring()
        return True

    def send_message(self, peer: NodeId, life: int, message: bytes, *, by_bulk: bool = False) -> bool:
        """A message of a group's Raft. by_bulk: so that an append does not overtake a larger one of its group; what is
        larger than CONTROL_MESSAGE_MAX_BYTES goes by bulk in any case."""
        state = self._peers.get(peer)
        connection: ControlConnection | BulkConnection | None = None
        if state is not None:
            connection = state.bulk if by_bulk or len(message) > CONTROL_MESSAGE_MAX_BYTES else state.control
        if connection is None or not connection.outbox.put_message(life, message):
            return self._refused(state, FrameKind.RAFT)
        connection.ring()
        return True

    def send_call(self, peer: NodeId, call: Call) -> bool:
        """A call, or a word about one. Refused, it surely never left this node (CL-140)."""
        return self._by_bulk(peer, FrameKind.CALL, lambda bulk: bulk.outbox.put_call(call))

    def send_snapshot(self, peer: NodeId, life: int, data: bytes) -> bool:
        """A chunk of a snapshot, or a word about one."""
        return self._by_bulk(peer, FrameKind.SNAPSHOT, lambda bulk: bulk.outbox.put_snapshot(life, data))

    def _by_bulk(self, peer: NodeId, kind: FrameKind, put: Callable[[BulkConnection], bool]) -> bool:
        state = self._peers.get(peer)
        if state is None or state.bulk is None or not put(state.bulk):
            return self._refused(state, kind)
        state.bulk.ring()
        return True

    def _refused(self, state: _PeerState | None, kind: FrameKind) -> bool:
        if state is not None:
            state.figures.refused[kind] += 1
        return False

    def step(self) -> None:
        """The moment at which this node says how it is, and so should its peers: control on which none did so in
        `silent_steps` of them ends."""
        for state in self._peers.values():
            if state.control is not None:
                state.control.step()

    def note_place(self, peer: NodeId, log_place: int) -> None:
        """A connected peer's log reaches so far: if it comes back with less, it is another one."""
        state = self._peers.get(peer)
        if state is not None and state.shown is not None:
            hello, shown_place = state.shown
            state.shown = hello, max(shown_place, log_place)

    # --- looking

    def hello_of(self, peer: NodeId) -> Hello | None:
        """What the peer said of itself on control; None while it is not connected."""
        state = self._peers.get(peer)
        return state.control.hello if state is not None and state.control is not None else None

    def figures(self) -> dict[NodeId, PeerFigures]:
        """Of each peer, since it became one."""
        for state in self._peers.values():
            state.figures.standing = frozenset(connection.purpose for connection in state.connections())
        return {node_id: state.figures for node_id, state in self._peers.items()}

    def _connections(self) -> list[PeerConnection]:
        return [connection for state in self._peers.values() for connection in state.connections()]

    # --- dialling and knocking

    async def _keep_connected(self, node_id: NodeId, state: _PeerState) -> None:
        """Until the peer is none any more."""
        with state.scope:
            async with trio.open_nursery() as nursery:
                if self._mine.node_id < node_id:
                    nursery.start_soon(self._keep_dialled, node_id, state, Purpose.CONTROL)
                    nursery.start_soon(self._keep_dialled, node_id, state, Purpose.BULK)
                else:
                    nursery.start_soon(self._knock, node_id, state)

    def _backoff(self) -> Backoff:
        settings = self._settings
        return Backoff(self._random, first_s=settings.backoff_first_s, last_s=settings.backoff_last_s)

    async def _keep_dialled(self, node_id: NodeId, state: _PeerState, purpose: Purpose) -> None:
        """One connection after the other. The pauses between them grow until one lasts; a knock ends a pause."""
        backoff, bell = self._backoff(), state.bells[purpose]
        while not self._closing.is_set():
            began_at_s = trio.current_time()
            await self._dial(node_id, state, purpose)
            if trio.current_time() - began_at_s > self._settings.backoff_last_s:
                backoff.reset()
            with trio.move_on_after(backoff.take_s()):
                await bell.wait()

    async def _knock(self, node_id: NodeId, state: _PeerState) -> None:
        """Ask to be dialled, at once at the start, and while there is no control: pauses as when dialling."""
        backoff, bell = self._backoff(), state.bells[Purpose.KNOCK]
        while not self._closing.is_set():
            if state.control is None:
                await self._dial(node_id, state, Purpose.KNOCK)
            else:
                began_at_s = trio.current_time()
                while state.control is not None:
                    await bell.wait()  # rung when one has ended
                if trio.current_time() - began_at_s > self._settings.backoff_last_s:
                    backoff.reset()
            await trio.sleep(backoff.take_s())

    async def _dial(self, node_id: NodeId, state: _PeerState, purpose: Purpose) -> None:
        """Dial, and serve the connection to its end. A failure is told when it differs from the one before."""
        opening = dialled(
            state.peer.address, request_headers(self._mine, self._token, purpose), purpose,
            within_s=self._settings.handshake_s)

        async def grant(peer_socket: PeerSocket) -> PeerConnection:
            return self._connection(peer_socket, node_id, state, purpose)

        failure = await self._serve_peer(opening, grant)
        if failure is None or (purpose is Purpose.KNOCK and failure.startswith(f"refused with {KNOCK_HEARD}")):
            state.told.pop(purpose, None)
        elif state.told.get(purpose) != failure:
            state.told[purpose] = failure
            self._observer.failed(node_id, f"{purpose} to {state.peer.address}: {failure}")

    # --- accepting

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One who has connected to our port, to the end. Never raises for what a network or a peer can do."""
        if len(self._handshakes) >= HANDSHAKES_MAX or self._closing.is_set():
            self.turned_away_count += 1
            await trio.aclose_forcefully(stream)
            return
        asker: NodeId | None = None

        async def grant(asking: Asking) -> PeerConnection | None:
            nonlocal asker
            request = asking.request
            verdict = self._judge(request.headers, request.path)
            if isinstance(verdict, Refused):
                await request.reject(verdict.status, body=verdict.reason.encode())
                return None
            asker = verdict.node_id
            set_options(stream, verdict.purpose)
            peer_socket = await asking.accept()
            self._handshakes.discard(stream)
            state = self._peers.get(asker)
            return self._connection(peer_socket, asker, state, verdict.purpose) if state is not None else None

        self._handshakes.add(stream)
        try:
            failure = await self._serve_peer(asked(stream, within_s=self._settings.handshake_s), grant)
        finally:
            self._handshakes.discard(stream)
        if failure is not None:
            self._observer.failed(asker, failure)

    def _judge(self, headers: list[tuple[bytes, bytes]], path: str) -> Asked | Refused:
        """What is granted; a refusal is told. A knock wakes the dialler, and tells it what it holds of a process that
        is no more."""
        request = judge_request(headers, path, self._token)
        if isinstance(request, Refused):
            self._observer.failed(None, request.reason)
            return request
        state = self._peers.get(request.node_id)
        refusal = judge_peer(request, self._mine.node_id, state is not None)
        if refusal is None:
            return request
        if refusal.status == KNOCK_HEARD and state is not None:
            for connection in state.connections():
                if connection.hello is not None and connection.hello.process_number != request.process_number:
                    self._drop(connection, state, RESTARTED)
            for bell in state.bells.values():
                bell.ring()
        else:
            self._observer.failed(request.node_id, refusal.reason)
        return refusal

    # --- connections

    def _connection(
        self, peer_socket: PeerSocket, node_id: NodeId, state: _PeerState, purpose: Purpose
    ) -> PeerConnection:
        kind = ControlConnection if purpose is Purpose.CONTROL else BulkConnection
        return kind(peer_socket, node_id, state.figures, self._surroundings)

    async def _serve_peer(
        self, opening: AbstractAsyncContextManager[Opened], grant: Callable[[Opened], Awaitable[PeerConnection | None]],
    ) -> str | None:
        """Open a connection, let `grant` make one of ours of it, run that to its end. Why none came about, if so."""
        connection: PeerConnection | None = None
        failure: str | None = None
        try:
            async with opening as opened:
                connection = await grant(opened)
                if connection is not None:
                    await connection.run()
        except* CONNECTION_ENDS as ends:
            failure = reason_of(ends)
        finally:
            if connection is not None and connection.was_admitted:
                self._forget(connection, failure)
        if connection is None:
            return failure
        return None if connection.was_admitted else connection.reason or failure

    def _admit(self, connection: PeerConnection, hello: Hello) -> str | None:
        """Let this connection count, in the place of those that it shows to be over; or why not."""
        state = self._peers.get(connection.peer)
        if state is None:
            return MEMBERS_CHANGED
        if state.peer.directory_id not in (None, hello.directory_id):
            return f"node {connection.peer} has another data directory than the membership says (CL-105)"
        for other in state.connections():
            if other.hello is None:
                broken("a connection counts that never said hello", peer=other.peer)
            if other.hello.directory_id != hello.directory_id:
                return f"a second node says it is node {connection.peer}: another data directory (CL-105)"
            if other.hello.process_number != hello.process_number:
                self._drop(other, state, RESTARTED)
            elif other.purpose is connection.purpose:
                self._drop(other, state, "replaced by a newer connection")
        if state.shown is not None and _is_older_copy(hello, *state.shown):
            return (
                f"node {connection.peer} has shown more of its log than it holds: an older copy of its data directory, "
                "which may have voted and acknowledged since (CL-105): replace it")
        if state.shown is None or state.shown[0] != hello:
            state.shown = hello, hello.log_place
        if isinstance(connection, ControlConnection):
            state.control = connection
        if isinstance(connection, BulkConnection):
            state.bulk = connection
        state.figures.connects[connection.purpose] += 1
        self._observer.connected(connection.peer, connection.purpose, hello)
        return None

    def _forget(self, connection: PeerConnection, failure: str | None) -> None:
        """It has ended by itself. Silence on control says the same of bulk, which has no way to notice."""
        state = self._peers.get(connection.peer)
        if state is None or connection not in state.connections():
            return  # it was dropped before, and that was told
        reason = connection.reason or failure or "cancelled"
        self._drop(connection, state, reason)
        if connection.was_silent and state.bulk is not None:
            state.bulk.end(reason)

    def _drop(self, connection: PeerConnection, state: _PeerState, reason: str) -> None:
        """It counts no more; it ends by itself."""
        connection.end(reason)
        if state.control is connection:
            state.control = None
            state.bells[Purpose.KNOCK].ring()
        if state.bulk is connection:
            state.bulk = None
        self._one_ended.ring()
        self._observer.ended(connection.peer, connection.purpose, reason)


def _is_same_so_far(state: _PeerState, peer: Peer) -> bool:
    """Whether no more is said of the peer than was known, or than its connections have shown."""
    if peer.address != state.peer.address:
        return False
    hellos = [connection.hello for connection in state.connections() if connection.hello is not None]
    return peer.directory_id is None or all(hello.directory_id == peer.directory_id for hello in hellos)


def _is_older_copy(hello: Hello, shown: Hello, shown_place: int) -> bool:
    """Whether a later run of a node holds less of its log than an earlier one has shown. Nothing that was synced goes,
    so its directory was put back from a copy.
    """
    is_later_run = hello.directory_id == shown.directory_id and hello.process_number != shown.process_number
    return is_later_run and hello.log_place < shown_place
