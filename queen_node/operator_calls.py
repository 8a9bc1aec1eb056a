"""What an operator may ask of the cell's members, and how it is answered or refused (contract/cluster.md, section 10).

What is asked travels from the node that was asked to the leader as msgpack. No behaviour belongs here.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

NODE_ID_MAX: Final = 65_535
IDS_MAX: Final = 16

NodeId: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=NODE_ID_MAX)]
Ids: TypeAlias = Annotated[tuple[NodeId, ...], msgspec.Meta(min_length=1, max_length=IDS_MAX)]


class _Question(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class AddLearner(_Question, frozen=True, tag=1):
    """Let a node that runs receive the logs (CL-104). Addresses as host:port."""

    node_id: NodeId
    raft: str
    http: str


class Promote(_Question, frozen=True, tag=2):
    """Learners become voters. force: also those that are far behind."""

    ids: Ids
    force: bool


class SetVoters(_Question, frozen=True, tag=3):
    """These vote and no others."""

    voters: Ids
    force: bool


class Remove(_Question, frozen=True, tag=4):
    """A member is none any more (CL-103)."""

    node_id: NodeId


class Transfer(_Question, frozen=True, tag=5):
    """Let another node lead that group. to: 0 for whoever is best."""

    group: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    to: Annotated[int, msgspec.Meta(ge=0, le=NODE_ID_MAX)]


Change: TypeAlias = AddLearner | Promote | SetVoters | Remove
Question: TypeAlias = Change | Transfer


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """The leader has begun it. number: of the change, 0 when there is nothing to do; leader: who leads after it."""

    number: int = 0
    leader: int = 0


class Told(NamedTuple):
    """What the leader says: status 200 and `Begun`, or a refusal's status and document."""

    status: int
    document: bytes


STATUS_OF: Final = {
    "bad_request": 400, "not_a_learner": 400, "not_a_member": 400,
    "in_flight": 409, "no_quorum": 409, "last_voter": 409, "learner_behind": 409, "already_voter": 409,
    "address_mismatch": 409, "membership_changed": 409, "leader_changed": 409, "too_many_nodes": 409,
    "leader_unreachable": 503, "retry": 503, "no_leader": 503,
    "timeout": 504,
}
"""Each code that refuses a change, and the status it is sent with."""


class OperatorRefused(Exception):
    """It is refused. code: of `STATUS_OF`; nothing was begun, except with `timeout` and `retry`, where that is open."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code: Final = code
        self.text: Final = text


def encode(question: Question) -> bytes:
    """As it travels."""
    return msgspec.msgpack.encode(question)


def decode(data: bytes) -> Question:
    """What `encode` made `data` from. Raises msgspec.MsgspecError."""
    question: Question = _decode(data)
    return question


_decode = msgspec.msgpack.Decoder(Question).decode
