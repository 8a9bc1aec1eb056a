"""Transports in one loop over loopback, what they told, and a peer of which the test sends every byte itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from bench.ports import free_port
from raft.peer_connection import TransportSettings
from raft.peer_frames import Frame, FrameKind, Hello, NodeFrame, RaftFrame, decode, encode, kind_of
from raft.peer_handshake import Address, Purpose, request_headers
from raft.peer_socket import PeerFault, dialled
from raft.transport import Peer, Transport

LOCALHOST = "127.0.0.1"
PATIENCE_S = 30.0  # never waited for in full: a test that would hang says where
TOKEN = b"secret"
BOOT_ID = b"b" * 16
QUICK = TransportSettings(
    ping_every_s=3600.0, backoff_first_s=0.001, backoff_last_s=0.02, close_s=2.0)


class Told(NamedTuple):
    """What an observer heard: "connected", "ended" or "failed"."""

    what: str
    peer: int | None
    purpose: Purpose | None
    reason: str


def hello_of(
    node_id: int, *, process_number: int = 1, directory: bytes | None = None, cluster: bytes = b"cell"
) -> Hello:
    return Hello(cluster, node_id, directory or b"%016d" % node_id, BOOT_ID, process_number, 1, 1)


def node_frame(process_number: int = 1, boottime_us: int = 0) -> NodeFrame:
    return NodeFrame(boottime_us, BOOT_ID, process_number, 0, 0, 0, None)


class Side:
    """A transport and all that it told. Implements TransportObserver."""

    def __init__(self, mine: Hello, *, token: bytes = TOKEN, settings: TransportSettings = QUICK) -> None:
        self.mine = mine
        self.frames: list[tuple[int, Frame]] = []
        self.told: list[Told] = []
        self.complaint: str | None = None  # what this node says of whatever a frame carries, if it says anything
        self.address = Address(LOCALHOST, free_port())  # not of the kernel's choice: others knock while it is down
        self.transport = Transport(
            mine, token, take=self._take, observer=self, random=Random(mine.node_id), settings=settings)
        self._changed = trio.Event()
        self._ended = trio.Event()

    async def start(self, nursery: trio.Nursery) -> None:
        """On the address."""
        await nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[int]) -> None:
        try:
            await self.transport.run(self.address, task_status)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """In order, until its address is free again: it listens longer than its last connection lives."""
        self.transport.close()
        with trio.fail_after(PATIENCE_S):
            await self._ended.wait()

    def know(self, *others: Side, through: Mapping[int, int] | None = None) -> None:
        """Have them as peers; through: ports of fronts instead of their own."""
        self.transport.set_peers({
            other.mine.node_id: Peer(
                Address(LOCALHOST, through[other.mine.node_id]) if through else other.address)
            for other in others
        })

    async def until(self, condition: Callable[[], object]) -> None:
        """Until it holds; looked at whenever something was heard."""
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._changed.wait()

    async def until_taken(self, frame_count: int) -> None:
        """So many frames came since the start."""
        await self.until(lambda: len(self.frames) >= frame_count)

    async def until_connected(self, *peers: int, process_number: int | None = None) -> None:
        """Both connections to each of them are up."""
        def both_are_up() -> bool:
            for peer in peers:
                hello = self.transport.hello_of(peer)
                up = {each.purpose for each in self.standing() if each.peer == peer}
                if hello is None or up != {Purpose.CONTROL, Purpose.BULK}:
                    return False
                if process_number not in (None, hello.process_number):
                    return False
            return True

        await self.until(both_are_up)

    def standing(self) -> list[Told]:
        """The connections that were told as up and not as ended."""
        up: list[Told] = []
        for told in self.told:
            if told.what == "connected":
                up.append(told)
            if told.what == "ended":
                up.remove(next(each for each in up if each[1:3] == told[1:3]))
        return up

    def reasons(self, what: str) -> list[str]:
        return [told.reason for told in self.told if told.what == what]

    def messages(self, peer: int) -> list[tuple[int, bytes]]:
        """Raft messages from a peer, in order of arrival."""
        return [
            message for sender, frame in self.frames if sender == peer and isinstance(frame, RaftFrame)
            for message in frame.messages
        ]

    def connected(self, peer: int, purpose: Purpose, hello: Hello) -> None:
        self._tell(Told("connected", peer, purpose, f"process {hello.process_number}"))

    def ended(self, peer: int, purpose: Purpose, reason: str) -> None:
        self._tell(Told("ended", peer, purpose, reason))

    def failed(self, peer: int | None, reason: str) -> None:
        self._tell(Told("failed", peer, None, reason))

    def _tell(self, told: Told) -> None:
        self.told.append(told)
        self.wake()

    def _take(self, hello: Hello, frame: Frame) -> None:
        if self.complaint is not None:
            raise PeerFault(self.complaint)
        self.frames.append((hello.node_id, frame))
        self.wake()

    def wake(self) -> None:
        """Have conditions looked at again."""
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def cluster(count: int, settings: TransportSettings = QUICK) -> AsyncIterator[tuple[trio.Nursery, list[Side]]]:
    """Nodes 1 to `count`, all connected."""
    async with trio.open_nursery() as nursery:
        sides = [Side(hello_of(node_id), settings=settings) for node_id in range(1, count + 1)]
        for side in sides:
            await side.start(nursery)
        for side in sides:
            side.know(*(other for other in sides if other is not side))
        for side in sides:
            await side.until_connected(*(other.mine.node_id for other in sides if other is not side))
        yield nursery, sides
        nursery.cancel_scope.cancel()


class RawPeer:
    """One end of a connection to a transport, of which the test sends every frame."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self.websocket = websocket

    async def say(self, *frames: Frame) -> None:
        for frame in frames:
            await self.websocket.send_message(encode(frame))

    async def hear(self) -> Frame:
        """The next frame. Raises trio_websocket.ConnectionClosed at the end."""
        with trio.fail_after(PATIENCE_S):
            data = await self.websocket.get_message()
        assert isinstance(data, bytes)
        return decode(data)

    async def hear_until(self, kind: FrameKind) -> Frame:
        while kind_of(frame := await self.hear()) is not kind:
            pass
        return frame

    async def reason_of_end(self) -> str:
        """The reason in the close frame that the transport sends."""
        with trio.fail_after(PATIENCE_S), pytest.raises(ConnectionClosed) as closed:
            while True:
                await self.websocket.get_message()
        return (closed.value.reason.reason or "") if closed.value.reason else ""


@asynccontextmanager
async def raw_peer(
    side: Side, purpose: Purpose = Purpose.CONTROL, mine: Hello | None = None, *, token: bytes = TOKEN,
    says_hello: bool = True,
) -> AsyncIterator[RawPeer]:
    """Dial a transport as node 1, or as `mine` says, and say hello."""
    mine = mine or hello_of(1)
    async with dialled(
        side.address, request_headers(mine, token, purpose), purpose, within_s=PATIENCE_S
    ) as peer_socket:
        peer = RawPeer(peer_socket.websocket)
        if says_hello:
            await peer.say(mine)
            assert await peer.hear() == side.mine
        yield peer


@asynccontextmanager
async def lone_side(settings: TransportSettings = QUICK) -> AsyncIterator[Side]:
    """Node 2, to which a node 1 is known that does not listen."""
    async with trio.open_nursery() as nursery:
        side = Side(hello_of(2), settings=settings)
        await side.start(nursery)
        side.transport.set_peers({1: Peer(Address(LOCALHOST, 1))})
        yield side
        nursery.cancel_scope.cancel()

