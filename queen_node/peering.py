"""This node among its peers: what its groups say goes out, what theirs say comes in, and Raft's ticks.

Here: which word travels in which frame, and what becomes of a frame. Not here: connections (`raft.transport`), what the
words mean (`raft.core`, `group`).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import trio

from queen_node import config, peer_calls
from queen_node.events import Heard
from queen_node.layout import Layout
from queen_node.peer_calls import OperatorCall, PeerCall, QuietCall
from queen_node.peers import PeerLog, listen_address, parse_peers
from queen_node.versions import OLDEST_FORMAT
from raft import messages
from raft.clock import TimeSource
from raft.messages import Append, Message, NodeId
from raft.peer_connection import PeerFigures
from raft.peer_cuts import CutTransport, PeerCuts
from raft.peer_frames import (
    UNKNOWN_CLUSTER,
    Call,
    CallFrame,
    Frame,
    Hello,
    NodeFrame,
    RaftFrame,
    SnapshotFrame,
)
from raft.peer_outbox import CONTROL_MESSAGE_MAX_BYTES
from raft.peer_socket import PeerFault
from raft.transport import Peer, Transport
from raft.waiting import next_multiple_s

NODE_FRAME_EVERY_S = 0.1  # M-30
LARGE_APPENDS_LAST_S = 1.0  # after a large append its followers go the same way, or they would overtake it


class Report(NamedTuple):
    """What a node says of itself ten times a second, beside its clock. Fields as of `NodeFrame`."""

    disk_used_percent: int
    quorum_silent_ms: int | None
    log_place: int = 0


class Ears(Protocol):
    """This node's groups, as they hear of other nodes: the host."""

    def hear(self, life: int, heard: Heard) -> None:
        """What a group said to itself on another node."""
        ...

    def hear_quiet(self, node: NodeId, call: QuietCall) -> None:
        """What a node says of groups that sleep."""
        ...

    def hear_frame(self, node: NodeId, frame: NodeFrame) -> None:
        """How a node is."""
        ...

    def quiet_summary(self, node: NodeId) -> tuple[int, int]:
        """Count and hash of the groups that this node leads asleep with that one (M-30)."""
        ...

    def tick(self, late_s: float) -> None:
        """Raft's unit of time has passed; the loop has come to it so late."""
        ...


class GroupPeers:
    """The other nodes as one group sees them. Implements `group_actor.Peers`."""

    def __init__(self, peering: Peering, life: int) -> None:
        self._peering, self._life = peering, life

    def send(self, said: Sequence[Message]) -> None:
        """See `group_actor.Peers`."""
        self._peering.send(self._life, said)

    def tell(self, node: int, call: PeerCall) -> None:
        """See `group_actor.Peers`."""
        self._peering.tell(self._life, node, call)


def _transport(settings: config.Settings, hello: Hello, take: Callable[[Hello, Frame], None]) -> Transport:
    token, observer, dice = settings.raft_token.encode(), PeerLog(), random.Random()
    if not settings.test_net_file:
        return Transport(hello, token, take=take, observer=observer, random=dice)
    cuts = PeerCuts(Path(settings.test_net_file))
    return CutTransport(hello, token, cuts=cuts, take=take, observer=observer, random=dice)


class Peering:
    """The transport, between the host's groups and the other nodes.

    report: of this node, now; hear_report: hears that of each other node.
    """

    def __init__(
        self, settings: config.Settings, layout: Layout, *, source: TimeSource, report: Callable[[], Report],
        hear_report: Callable[[NodeId, Report], None], log_place: int = 0,
    ) -> None:
        """log_place: how far the log reaches at this start."""
        members = parse_peers(settings.raft_peers)
        self.listen = listen_address(settings.raft_listen, members, settings.node_id)
        self._source = source
        self._report, self._hear_report = report, hear_report
        self._tick_s = settings.heartbeat_ms / 1000
        self._process_number = secrets.randbits(62)
        self._peers: dict[NodeId, Peer] = {
            member.node_id: Peer(member.raft) for member in members if member.node_id != settings.node_id}
        hello = Hello(
            layout.cluster_id.encode() or UNKNOWN_CLUSTER, settings.node_id, bytes.fromhex(layout.directory_id),
            source.boot_id, self._process_number, OLDEST_FORMAT, config.reads_format(settings), log_place)
        self._transport = _transport(settings, hello, self._take)
        self._transport.set_peers(self._peers)
        self._large_until_s: dict[NodeId, float] = {}
        self._ended = trio.Event()
        self.held = not layout.founders  # nothing of the groups is said, heard or timed before the founders have met
        self.on_snapshot: Callable[[int, int, bytes], None] | None = None  # (node, life, word); set before `run`
        self.on_operator: Callable[[NodeId, OperatorCall], None] | None = None  # set before `run`

    async def run(self, host: Ears, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`. Starts when it listens. host: who hears what comes. Raises OSError."""
        self._host = host
        async with trio.open_nursery() as nursery:
            port = await nursery.start(self._serve)
            nursery.start_soon(self._beat)
            task_status.started(port)

    def figures(self) -> dict[NodeId, PeerFigures]:
        """What is counted of each peer."""
        return self._transport.figures()

    # --- who the others are

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """The other nodes, as they were set last; at first those of the settings."""
        return self._peers

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """The other nodes from now on; connections to those that stay go on."""
        if peers != self._peers:
            self._peers = dict(peers)
            self._transport.set_peers(self._peers)

    def hello_of(self, node: NodeId) -> Hello | None:
        """What a node said of itself; None while it is not connected, and so does not answer."""
        return self._transport.hello_of(node)

    async def close(self) -> None:
        """End the connections in order."""
        self._transport.close()
        await self._ended.wait()

    # --- what the group says

    def send(self, life: int, said: Sequence[Message]) -> None:
        """Raft's messages of a group, each to its receiver."""
        for message in said:
            data = messages.encode(message)
            self._transport.send_message(
                message.receiver, life, data, by_bulk=type(message) is Append and self._goes_by_bulk(
                    message.receiver, len(data)))

    def tell(self, life: int, node: int, call: PeerCall) -> None:
        """What a group says of a call."""
        self._transport.send_call(node, Call(life, peer_calls.encode(call)))

    def send_snapshot(self, peer: int, life: int, word: bytes) -> None:
        """See `snapshot_actor.SnapshotPeers`."""
        self._transport.send_snapshot(peer, life, word)

    def _goes_by_bulk(self, peer: NodeId, size: int) -> bool:
        now_s = trio.current_time()
        if size > CONTROL_MESSAGE_MAX_BYTES:
            self._large_until_s[peer] = now_s + LARGE_APPENDS_LAST_S
            return True
        return now_s < self._large_until_s.get(peer, 0.0)

    # --- what comes in

    def _take(self, hello: Hello, frame: Frame) -> None:
        peer = hello.node_id
        match frame:
            case RaftFrame() | SnapshotFrame() if self.held:
                return
            case RaftFrame(said):
                for life, data in said:
                    self._hear(hello, life, data, messages.decode)
            case CallFrame(calls):
                for call in calls:
                    self._hear(hello, call.life, call.data, peer_calls.decode)
            case SnapshotFrame(life, word):
                if self.on_snapshot is not None:
                    self.on_snapshot(peer, life, word)
            case NodeFrame():
                self._transport.note_place(peer, frame.log_place)
                self._host.hear_frame(peer, frame)
                self._hear_report(peer, Report(frame.disk_used_percent, frame.quorum_silent_ms, frame.log_place))

    def _hear(self, hello: Hello, life: int, data: bytes, decode: Callable[[bytes], Message | PeerCall]) -> None:
        """Raises PeerFault."""
        peer = hello.node_id
        try:
            said = decode(data)
        except (messages.MalformedMessage, peer_calls.Malformed) as error:
            raise PeerFault(f"says what no release of ours does: {error}") from error
        if isinstance(said, messages.Envelope) and said.sender != peer:
            raise PeerFault(f"speaks for node {said.sender}")
        if isinstance(said, OperatorCall):
            if self.on_operator is not None:
                self.on_operator(peer, said)
        elif isinstance(said, QuietCall):
            self._host.hear_quiet(peer, said)
        elif not self.held:
            self._host.hear(life, Heard(peer, said, hello.directory_id))

    # --- time

    async def _serve(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await self._transport.run(self.listen, task_status)
        finally:
            self._ended.set()

    async def _beat(self) -> None:
        """Ticks, and what this node says of itself. With the usual settings both come at the same moments: an idle node
        wakes once for them, and what it says leaves in one write."""
        while True:
            tick_at_s, say_at_s = next_multiple_s(self._tick_s), next_multiple_s(NODE_FRAME_EVERY_S)
            await trio.sleep_until(min(tick_at_s, say_at_s))
            late_s = trio.current_time() - tick_at_s
            if late_s >= 0 and not self.held:
                self._host.tick(late_s)
            if trio.current_time() >= say_at_s:
                self._say_how_we_are()

    def _say_how_we_are(self) -> None:
        self._transport.step()
        report = self._report()
        for peer in self._peers:
            quiet_count, quiet_hash = self._host.quiet_summary(peer)
            self._transport.send_node_frame(peer, NodeFrame(
                self._source.boottime_us(), self._source.boot_id, self._process_number, quiet_count, quiet_hash,
                report.disk_used_percent, report.quorum_silent_ms, report.log_place))
