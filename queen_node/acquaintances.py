"""Who the other nodes are, as far as this one knows, and that it keeps connections to them and to nobody else (CL-4,
CL-105, CL-106).

What counts is group 0's state; before there is any, the list of the settings; and while this node is behind, what
another node says of a later change. An empty node founds a cluster here, or learns that it was added to one. Nothing
waits: the desk (`membership`) calls `step` again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
import structlog

from queen_node.founding import Founding
from queen_node.layout import Layout
from queen_node.membership_job import CELL
from queen_node.peer_calls import Known, Members, PeerCall, Removed
from queen_node.peers import Member, parse_address
from queen_node.state.members import next_number
from queen_node.state.rows import MemberRow, MembersRow
from raft.messages import NodeId
from raft.peer_frames import UNKNOWN_CLUSTER, Hello
from raft.quorum import Configuration
from raft.transport import Peer

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

GONE_KEPT_S: Final = 1.0  # a removed node stays connected for so long, to be told
SAID_AGAIN_S: Final = 1.0
FOUNDING_WARNED_S: Final = 2.0


class Others(Protocol):
    """The other nodes: the peering. held: nothing of the groups is said or heard."""

    held: bool

    @property
    def peers(self) -> Mapping[NodeId, Peer]: ...

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None: ...

    def hello_of(self, node: NodeId) -> Hello | None: ...

    def tell(self, life: int, node: int, call: PeerCall) -> None: ...


class Acquaintances:
    """One a node that has peers.

    layout, keep_layout: of the data directory. listed: the nodes of the settings' list. on_founded: the founding
    members have met.
    """

    def __init__(
        self, others: Others, *, layout: Layout, keep_layout: Callable[[Layout], object], listed: tuple[Member, ...],
        on_founded: Callable[[Configuration], None],
    ) -> None:
        self.others, self._layout, self._keep_layout, self._listed = others, layout, keep_layout, listed
        self._on_founded = on_founded
        self._node_id, self._directory_id = layout.node_id, bytes.fromhex(layout.directory_id)
        self._founding = None if layout.founders else Founding(
            self._node_id, self._directory_id, tuple(member.node_id for member in listed))
        self.candidates: dict[NodeId, Peer] = {}  # to be added: they are connected, to see whether they answer
        self._row = MembersRow([])
        self._told: MembersRow | None = None  # by another node, of a later change than the own state knows
        # By node: what it was told in which of its runs, and when it is told again.
        self._said: dict[NodeId, tuple[tuple[int, int, Known], float]] = {}
        self._going: dict[NodeId, float] = {}  # removed, and until when they stay connected
        self._warn_at_s: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether nodes are met or let go, so that `step` is wanted soon."""
        return bool(self._founding is not None or self.candidates or self._going or not self._row.members)

    def step(self, row: MembersRow, now_s: float) -> None:
        """row: as group 0's state has it now."""
        self._row = row
        self.others.set_peers(self._peers(now_s))
        self._say_who_there_is(self.others, now_s)
        if self._founding is not None:
            self._found(self._founding, self.others, now_s)
        if not self._layout.cluster_id and any(map(self._is_me, row.members)):
            self._learn_cluster()

    def removed(self, node: NodeId, number: int, now_s: float) -> None:
        """A change has removed that node; it is told, once more by each that knows."""
        self._going[node] = now_s + GONE_KEPT_S
        self.others.tell(CELL, node, Removed(number))

    def is_going(self, node: NodeId) -> bool:
        """Whether it was removed a moment ago: who is connected under that id is who was removed."""
        return node in self._going

    def directory_of(self, node: NodeId) -> bytes:
        """Its data directory, if it is this node or is connected; empty: unknown."""
        hello = self.others.hello_of(node)
        return self._directory_id if node == self._node_id else b"" if hello is None else hello.directory_id

    def hear_known(self, node: NodeId, call: Known) -> None:
        """Another node says which directory each node has."""
        hello = self.others.hello_of(node)
        if self._founding is not None and hello is not None:
            self._founding.hear(node, hello.process_number, dict(call.directories))

    def hear_members(self, node: NodeId, row: bytes) -> None:
        """Another node says who the members are. This one may be behind, or be empty and among them."""
        try:
            told = msgspec.msgpack.decode(row, type=MembersRow)
            for member in told.members:
                parse_address(member.raft)
        except (msgspec.MsgspecError, ValueError) as error:
            log.warning("a peer says what no release of ours does", peer=node, error=str(error))
            return
        if self._told is None or next_number(told) >= next_number(self._told):
            self._told = told
        if self._founding is not None and any(self._is_me(member) for member in told.members):
            self._decide(self._founding.others, {})  # added, though it was not started to be

    # --- inside

    def _peers(self, now_s: float) -> dict[NodeId, Peer]:
        """Who the others are: as the latest change says, of which this node's state or another node knows."""
        row = self._row
        if self._told is not None and next_number(self._told) > next_number(row):
            row = self._told
        peers: dict[NodeId, Peer] = {}
        if not any(member.node_id == self._node_id for member in row.members):
            peers |= {
                member.node_id: Peer(member.raft, self._pin(member.node_id) or None) for member in self._listed}
        peers |= {
            member.node_id: Peer(parse_address(member.raft), member.directory_id or self._pin(member.node_id) or None)
            for member in row.members}
        for node, peer in self.candidates.items():
            peers.setdefault(node, peer)
        self._going = {node: until for node, until in self._going.items() if until > now_s and node not in peers}
        peers |= {node: self.others.peers[node] for node in self._going if node in self.others.peers}
        peers.pop(self._node_id, None)
        return peers

    def _say_who_there_is(self, others: Others, now_s: float) -> None:
        """Each node that connects, and all when it changes: one that is behind could not find who leads now."""
        known = Known(tuple(sorted(self._known_directories(others).items())))
        for node in others.peers:
            hello = others.hello_of(node)
            if hello is None:
                continue
            said, again_at_s = self._said.get(node, (None, 0.0))
            saying = hello.process_number, next_number(self._row), known
            if saying != said or now_s >= again_at_s:  # a frame is lost with its connection
                self._said[node] = saying, now_s + SAID_AGAIN_S
                others.tell(CELL, node, known)
                if self._row.members:
                    others.tell(CELL, node, Members(msgspec.msgpack.encode(self._row)))

    def _pin(self, node: NodeId) -> bytes:
        """The directory that a founder had; empty: unknown."""
        return bytes.fromhex(self._layout.directories.get(node, ""))

    def _known_directories(self, others: Others) -> dict[int, bytes]:
        """Which directory each node has: as group 0 says, as the founders agreed, or as whoever is here says."""
        if self._row.members:
            known = {member.node_id: member.directory_id or self._pin(member.node_id) for member in self._row.members}
            return {node: directory for node, directory in known.items() if directory}
        if self._founding is None:
            return {node: bytes.fromhex(directory) for node, directory in self._layout.directories.items()}
        hellos = {node: others.hello_of(node) for node in self._founding.others}
        return {node: hello.directory_id for node, hello in hellos.items() if hello is not None}

    def _found(self, founding: Founding, others: Others, now_s: float) -> None:
        """Begin with the others, once all are here and take this node for one of them."""
        directories = founding.founders(others.hello_of)
        if directories is not None:
            founders = tuple(sorted(directories))
            self._decide(founders, directories)
            self._on_founded(Configuration(founders).named(directories))
            log.info("the cluster is founded", nodes=founders)
        elif self._warn_at_s is None:
            self._warn_at_s = now_s + FOUNDING_WARNED_S
        elif now_s >= self._warn_at_s:
            self._warn_at_s = now_s + 12 * FOUNDING_WARNED_S
            log.warning(
                "this node's QUEEN_RAFT_DIR is empty: it waits for all nodes of QUEEN_RAFT_PEERS before it founds "
                "a cluster with them. If they are a cluster already and its data was lost: remove it there first "
                f"(DELETE /api/v1/system/raft/membership/members/{self._node_id}), start it with QUEEN_RAFT_JOIN=1 "
                "and add it (CL-107)", missing=founding.missing(others.hello_of))

    def _decide(self, founders: tuple[int, ...], directories: Mapping[int, bytes]) -> None:
        """This node is no stranger any more: its groups may speak."""
        self._layout = msgspec.structs.replace(
            self._layout, founders=founders, directories={node: each.hex() for node, each in directories.items()})
        self._keep_layout(self._layout)
        self._founding = None
        self.others.held = False

    def _learn_cluster(self) -> None:
        """A node that was added learns of which cluster it is."""
        for node in self.others.peers:
            hello = self.others.hello_of(node)
            if hello is not None and hello.cluster_id != UNKNOWN_CLUSTER:
                self._layout = msgspec.structs.replace(self._layout, cluster_id=hello.cluster_id.decode())
                self._keep_layout(self._layout)
                return

    def _is_me(self, member: MemberRow) -> bool:
        return member.node_id == self._node_id and member.directory_id == self._directory_id

