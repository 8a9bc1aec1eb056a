"""A faulty network between nodes, in user space: a way for each directed pair, which can be cut, stalled, slowed, or
made to lose what it is given.

Each node has a front: the address that its peers know. Behind it is the port where it listens (QUEEN_RAFT_LISTEN). So
all nodes have one and the same peer list, also after they have read it from their log. Who dials a front stands in the
head of the request, so one front knows one peer from the other. Whoever says nothing there is node 0.

Faults are of bytes, in the middle of frames as well, on connections that stand and on new ones:

    cut      both ways: connections are reset, new ones too
    stall    one way: nothing passes, nothing is lost; both ends see a connection that is silent (half open)
    drop     one way: what is sent is lost; when the way heals, connections that lost something are reset
    delay    one way: everything arrives later, in order
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

HEAD_MAX_BYTES = 16 * 1024
CHUNK_BYTES = 64 * 1024
CHUNKS_UNDER_WAY_MAX = 64  # of one direction of a connection that is delayed
DIALLER = re.compile(rb"\r\nx-queen-raft-node: *([0-9]{1,18})\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Front:
    """port: where peers knock, 0 takes a free one; target_port: where the node listens. Both on 127.0.0.1."""

    port: int
    target_port: int


@dataclass
class Way:
    """From one node to another. changed: set when a field is set anew."""

    is_cut: bool = False
    is_stalled: bool = False
    loses: bool = False
    delay_s: float = 0.0
    passed_bytes: int = 0
    lost_bytes: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until_passable(self) -> None:
        while self.is_stalled:
            await self.changed.wait()


@dataclass
class Link:
    """One connection through a front."""

    dialler: int
    target: int
    scope: trio.CancelScope
    has_lost: bool = False


class Network:
    """The fronts of all nodes and the ways between them."""

    def __init__(self, fronts: Mapping[int, Front]) -> None:
        self._fronts = fronts
        self._ways: defaultdict[tuple[int, int], Way] = defaultdict(Way)
        self._links: list[Link] = []

    async def run(self, task_status: trio.TaskStatus[dict[int, int]] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Starts with the ports of the fronts."""
        ports = {}
        async with trio.open_nursery() as nursery:
            for node, front in self._fronts.items():
                listeners = await trio.open_tcp_listeners(front.port, host="127.0.0.1")
                ports[node] = listeners[0].socket.getsockname()[1]
                nursery.start_soon(partial(trio.serve_listeners, partial(self._relay, node), listeners))
            task_status.started(ports)

    # --- faults

    def cut(self, one: int, other: int) -> None:
        """Both ways."""
        for pair in ((one, other), (other, one)):
            self._set(pair, is_cut=True)
        self._reset(one, other, lambda _: True)

    def stall(self, sender: int, receiver: int) -> None:
        """That way only."""
        self._set((sender, receiver), is_stalled=True)

    def drop(self, sender: int, receiver: int) -> None:
        """That way only."""
        self._set((sender, receiver), loses=True)

    def delay(self, sender: int, receiver: int, delay_ms: int) -> None:
        """That way only; 0 ends it for what is sent from now on."""
        self._set((sender, receiver), delay_s=delay_ms / 1000)

    def heal(self, one: int, other: int) -> None:
        """Both ways, of everything."""
        for pair in ((one, other), (other, one)):
            self._set(pair, is_cut=False, is_stalled=False, loses=False, delay_s=0.0)
        self._reset(one, other, lambda link: link.has_lost)

    def heal_all(self) -> None:
        """Every way."""
        for one, other in list(self._ways):
            self.heal(one, other)

    # --- looking

    def link_count(self, one: int, other: int) -> int:
        """Connections that stand between two nodes, whoever dialled."""
        return sum({link.dialler, link.target} == {one, other} for link in self._links)

    def passed_bytes(self, sender: int, receiver: int) -> int:
        """What has gone that way so far."""
        return self._ways[sender, receiver].passed_bytes

    def lost_bytes(self, sender: int, receiver: int) -> int:
        """What was lost that way so far."""
        return self._ways[sender, receiver].lost_bytes

    async def until_lost(self, sender: int, receiver: int, least_bytes: int) -> None:
        """Until so much was lost that way."""
        way = self._ways[sender, receiver]
        while way.lost_bytes < least_bytes:
            await way.changed.wait()

    # --- one connection

    def _set(self, pair: tuple[int, int], **fields: bool | float) -> None:
        way = self._ways[pair]
        for name, value in fields.items():
            setattr(way, name, value)
        way.tell()

    def _reset(self, one: int, other: int, which: Callable[[Link], bool]) -> None:
        for link in self._links:
            if {link.dialler, link.target} == {one, other} and which(link):
                link.scope.cancel()

    async def _relay(self, target: int, near: trio.SocketStream) -> None:
        link = Link(0, target, trio.CancelScope())
        self._links.append(link)
        try:
            with link.scope:
                head = await _read_head(near)
                if found := DIALLER.search(head):
                    link.dialler = int(found[1])
                there = self._ways[link.dialler, target]
                back = self._ways[target, link.dialler]
                if not there.is_cut:
                    far = await trio.open_tcp_stream("127.0.0.1", self._fronts[target].target_port)
                    async with far, trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, near, far, there, link, head)
                        nursery.start_soon(self._pump, far, near, back, link, b"")
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the end of a connection at one end is its end at the other
        finally:
            self._links.remove(link)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(near)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, way: Way, link: Link, data: bytes
    ) -> None:
        """One direction, until it ends; then the whole connection does."""
        late, due = trio.open_memory_channel[tuple[float, bytes]](CHUNKS_UNDER_WAY_MAX)

        async def deliver() -> None:
            async for due_at_s, chunk in due:
                await trio.sleep_until(due_at_s)
                await way.until_passable()
                if way.loses:
                    link.has_lost = True
                    way.lost_bytes += len(chunk)
                    way.tell()
                    continue
                await sink.send_all(chunk)
                way.passed_bytes += len(chunk)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            async with late:
                if data:
                    await late.send((trio.current_time() + way.delay_s, data))
                while data := await source.receive_some(CHUNK_BYTES):
                    await late.send((trio.current_time() + way.delay_s, data))
        link.scope.cancel()


async def _read_head(stream: trio.SocketStream) -> bytes:
    """The head of a request, with what came behind it; what there is, when the stream ends before."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_MAX_BYTES:
        data = await stream.receive_some(HEAD_MAX_BYTES - len(head))
        if not data:
            break
        head += data
    return head
