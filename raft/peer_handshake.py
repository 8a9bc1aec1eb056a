"""How a connection between nodes begins: what is asked for, by whom, and whether it is granted (CL-6, M-60).

Of two nodes the one with the lower id dials, both connections; so there is exactly one pair, and which is which needs
no agreement. The other one can only knock: it asks to be dialled at once, and is refused with KNOCK_HEARD. Without
that, a node that restarts would wait for the end of its peer's pause.

The token is compared before anything else of a request is looked at. Decisions only: `transport` carries them out.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from raft.messages import NUMBER_MAX
from raft.peer_frames import UNKNOWN_CLUSTER, Hello

PATH: Final = "/raft"
TOKEN_HEADER: Final = b"x-queen-raft-token"
NODE_HEADER: Final = b"x-queen-raft-node"
PROCESS_HEADER: Final = b"x-queen-raft-process"
PURPOSE_HEADER: Final = b"x-queen-raft-connection"

TOKEN_MAX_BYTES: Final = 1024  # a request's head has its bounds too

BAD_REQUEST: Final = 400
WRONG_TOKEN: Final = 401
NO_PEER: Final = 403
KNOCK_HEARD: Final = 409


class Purpose(StrEnum):
    """What a connection is for; the header's value."""

    CONTROL = "control"
    BULK = "bulk"
    KNOCK = "knock"


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Asked(NamedTuple):
    """A request by one who knows the token."""

    node_id: int
    process_number: int
    purpose: Purpose


class Refused(NamedTuple):
    """Why a request is not granted; the status of the answer."""

    status: int
    reason: str


def is_token(token: bytes) -> bool:
    """Whether a request can carry it: visible ASCII, no spaces. The empty one stands for none."""
    return all(0x21 <= each <= 0x7E for each in token) and len(token) <= TOKEN_MAX_BYTES


def request_headers(mine: Hello, token: bytes, purpose: Purpose) -> list[tuple[bytes, bytes]]:
    """What a dialling node sends. The token is left out when there is none."""
    headers = [
        (NODE_HEADER, b"%d" % mine.node_id), (PROCESS_HEADER, b"%d" % mine.process_number),
        (PURPOSE_HEADER, purpose.value.encode()),
    ]
    return [(TOKEN_HEADER, token), *headers] if token else headers


def judge_request(headers: Iterable[tuple[bytes, bytes]], path: str, token: bytes) -> Asked | Refused:
    """What is asked for. Without a token of our own the port is open (CL-6)."""
    fields = dict(headers)
    if token and not hmac.compare_digest(fields.get(TOKEN_HEADER, b""), token):
        return Refused(WRONG_TOKEN, "wrong token: QUEEN_RAFT_TOKEN differs between the nodes")
    if path != PATH:
        return Refused(BAD_REQUEST, f"no such path, only {PATH}")
    node_id, process_number = _number(fields.get(NODE_HEADER)), _number(fields.get(PROCESS_HEADER))
    purpose = fields.get(PURPOSE_HEADER, b"").decode("latin-1")
    if not node_id or process_number is None or purpose not in list(Purpose):
        return Refused(BAD_REQUEST, "node, process or purpose missing, or of a form that is not known")
    return Asked(node_id, process_number, Purpose(purpose))


def judge_peer(asked: Asked, my_id: int, is_known: bool) -> Refused | None:
    """Whether that node may ask for that."""
    if asked.node_id == my_id:
        return Refused(NO_PEER, f"node {my_id} is this node")
    if not is_known:
        return Refused(NO_PEER, f"node {asked.node_id} is no member")
    if asked.purpose is Purpose.KNOCK:
        return Refused(KNOCK_HEARD, "heard") if my_id < asked.node_id else Refused(BAD_REQUEST, "you dial")
    if asked.node_id > my_id:
        return Refused(BAD_REQUEST, "the node with the lower id dials")
    return None


def judge_hello(mine: Hello, theirs: Hello, peer: int) -> str | None:
    """Why the node that says this hello is not the peer; None when it may be."""
    if theirs.cluster_id != mine.cluster_id and UNKNOWN_CLUSTER not in (theirs.cluster_id, mine.cluster_id):
        return f"of cluster {theirs.cluster_id!r}, not {mine.cluster_id!r}"
    if theirs.node_id != peer:
        return f"says it is node {theirs.node_id}"
    if theirs.directory_id == mine.directory_id:
        return "has this node's data directory, or a copy of it"
    if theirs.highest_format < mine.lowest_format or mine.highest_format < theirs.lowest_format:
        return (
            f"reads formats {theirs.lowest_format} to {theirs.highest_format}, "
            f"this node {mine.lowest_format} to {mine.highest_format}")
    return None


def _number(text: bytes | None) -> int | None:
    if text is None or not text.isdigit() or len(text) > len(str(NUMBER_MAX)):
        return None
    return int(text)
