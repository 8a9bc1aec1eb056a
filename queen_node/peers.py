"""What the settings say of this node's peers (CL-3 to CL-6): the list, the node's own id, where it listens; and the log
lines about connections to them.

The list is read for membership once, at the first start with an empty directory; from then on the membership in the log
rules, and only the own listen address is taken from here (CL-4).
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Final, NamedTuple

import structlog

from raft.messages import NodeId
from raft.peer_frames import CLUSTER_ID_MAX_BYTES, Hello
from raft.peer_handshake import Address, Purpose, is_token

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MEMBERS_MAX: Final = 5  # M-71
NODE_ID_MAX: Final = 65_535
LISTEN_HOST: Final = "0.0.0.0"
HOST_MAX_CHARS: Final = 253  # of a name in DNS, as of its labels: a resolver fails on more, whoever runs it
_LABEL: Final = "[A-Za-z0-9_-]{1,63}"
SHOWN_MAX: Final = 60  # characters of a wrong address in a refusal
_FORM: Final = "id=raft_host:port/http_host:port, separated by commas"


class Member(NamedTuple):
    """A node of the list: where it listens for its peers, where for clients."""

    node_id: NodeId
    raft: Address
    http: Address


class PeerLog:
    """One line an event. Implements `transport.TransportObserver`."""

    def connected(self, peer: NodeId, purpose: Purpose, hello: Hello) -> None:
        log.info("peer connected", peer=peer, connection=purpose.value, process=hello.process_number)

    def ended(self, peer: NodeId, purpose: Purpose, reason: str) -> None:
        log.warning("peer connection ended", peer=peer, connection=purpose.value, reason=reason)

    def failed(self, peer: NodeId | None, reason: str) -> None:
        log.warning("peer connection failed", peer=peer, reason=reason)


def parse_peers(text: str) -> tuple[Member, ...]:
    """The list, in order of ids. Raises ValueError that says what is wrong with which part of it."""
    members = [_parse_member(part.strip()) for part in text.split(",")]
    if len(members) > MEMBERS_MAX:
        raise ValueError(f"names {len(members)} nodes, more than {MEMBERS_MAX}")
    named: set[str] = set()
    for member in members:
        for name in (f"id {member.node_id}", f"raft address {member.raft}", f"http address {member.http}"):
            if name in named:
                raise ValueError(f"names the {name} twice")
            named.add(name)
    return tuple(sorted(members))


def _parse_member(part: str) -> Member:
    id_text, equals, addresses = part.partition("=")
    raft, slash, http = addresses.partition("/")
    if not equals or not slash:
        raise ValueError(f"must be {_FORM}; {part!r} is not")
    return Member(parse_id(id_text.strip()), parse_address(raft.strip()), parse_address(http.strip()))


def parse_id(text: str) -> NodeId:
    """A node's id. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= NODE_ID_MAX:
        raise ValueError(f"a node's id is a whole number from 1 to {NODE_ID_MAX}, not {text!r}")
    return int(text)


def parse_node_id(text: str, host_name: str) -> NodeId:
    """This node's id; `ordinal`: the number at the end of the host name, plus one (CL-3). Raises ValueError."""
    if text.lower() != "ordinal":
        return parse_id(text)
    ending = re.search(r"[0-9]+\Z", host_name)
    if ending is None:
        raise ValueError(f"ordinal, but the host name {host_name!r} does not end in a number")
    return parse_id(str(int(ending[0]) + 1))


def parse_force_recover(text: str) -> tuple[int, int]:
    """`<node id>` or `<node id>@<index>`: the id, and the index or 0. Raises ValueError."""
    named = re.fullmatch(r"([0-9]{1,5})(?:@([0-9]{1,18}))?", text)
    if named is None:
        raise ValueError("must be the id of this node, or <id>@<index> as a refused boot has printed it")
    return int(named[1]), int(named[2] or 0)


def parse_address(text: str) -> Address:
    """`host:port`, `[v6]:port`. Raises ValueError."""
    found = re.fullmatch(rf"(?:\[([0-9a-fA-F:.]+)\]|({_LABEL}(?:\.{_LABEL})*\.?)):([0-9]{{1,5}})", text)
    if found is None or not 1 <= int(found[3]) <= 65_535 or len(found[2] or "") > HOST_MAX_CHARS:
        shown = text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
        raise ValueError(f"an address is host:port, not {shown!r}")
    return Address(found[1] or found[2], int(found[3]))


def listen_address(listen: str, members: tuple[Member, ...], node_id: NodeId) -> Address:
    """Where this node listens for its peers: QUEEN_RAFT_LISTEN, else every interface on its own raft port (CL-3).
    Raises ValueError when the list does not name it."""
    if listen:
        return parse_address(listen)
    return Address(LISTEN_HOST, own(members, node_id).raft.port)


def own(members: tuple[Member, ...], node_id: NodeId) -> Member:
    """This node's own line. Raises ValueError when there is none."""
    for member in members:
        if member.node_id == node_id:
            return member
    raise ValueError(f"does not name this node, {node_id}")


def parse_cell_id(text: str) -> bytes:
    """The cluster's name as peers compare it. Raises ValueError when it is too long."""
    if len(text.encode()) > CLUSTER_ID_MAX_BYTES:
        raise ValueError(f"must be at most {CLUSTER_ID_MAX_BYTES} bytes")
    return text.encode()


def cluster_id(cell_id: str, members: tuple[Member, ...]) -> bytes:
    """What peers compare at their hello: QUEEN_CELL_ID, else a hash of the founding membership; both are the same on
    all nodes of a new cluster (CL-106)."""
    if cell_id:
        return parse_cell_id(cell_id)
    described = ",".join(f"{member.node_id}={member.raft}/{member.http}" for member in members)
    return hashlib.sha256(described.encode()).hexdigest()[:32].encode()


def check_token(text: str) -> None:
    """Raises ValueError, which does not show it, for a token that no request can carry."""
    if not is_token(text.encode()):
        raise ValueError("must be visible ASCII without spaces, at most 1024 characters")


def open_port_warning(address: Address, token: str) -> str | None:
    """What an operator must hear when anybody who reaches the port may speak as a node (CL-6)."""
    if token or _is_loopback(address.host):
        return None
    return f"QUEEN_RAFT_TOKEN: not set, and the raft port is bound to {address}: whoever reaches it can act as a node"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
