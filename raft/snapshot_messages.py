"""What two members say to each other about a snapshot, and its CBOR form (M-61).

A codec of its own, inside `peer_frames.SnapshotFrame`, and no kind of `messages.Message`: from whom a chunk comes and
in which term decides nothing (it stands for what is committed, whoever leads by now), so it must not pass through the
core's rule of terms; and it goes by bulk, where it would overtake or be overtaken by what decides. Every word names its
transfer: one that is late, or of another process, matches none and is answered with a refusal. No behaviour belongs
here.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from raft import versioned
from raft.configurations import MalformedConfiguration, decode_configuration
from raft.messages import Index, Number

SNAPSHOT_VERSION: Final = 1
TRANSFER_ID_BYTES: Final = 16
CONFIGURATION_MAX_BYTES: Final = 1024
DIGEST_MAX_BYTES: Final = 64

TransferId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=TRANSFER_ID_BYTES, max_length=TRANSFER_ID_BYTES)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=DIGEST_MAX_BYTES)]
Checksum: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]


class MalformedSnapshot(Exception):
    """Bytes from a peer that are no word about a snapshot of a version and kind known here."""


class Refusal(IntEnum):
    """Why a member does not go on with a transfer; on the wire."""

    BUSY = 0
    """It takes as many as it can, or still removes what an earlier one left. Later."""
    NOT_NEEDED = 1
    """It leads, or its log has got that far by itself."""
    UNKNOWN = 2
    """It knows no such transfer: it has restarted, or has turned to another one."""
    DAMAGED = 3
    """What came is not what was sent."""


class Shape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """How everything here is laid out: an array of its fields."""


class Head(Shape, frozen=True):
    """What the state is that is sent: everything up to the entry at (index, term).

    stamp_us: of the last entry (M-20). offset: of the group clock, from the entry that opened offset_term. digest: of
    the state, as the members compare it (M-81).
    """

    index: Index
    term: Index
    stamp_us: Number
    offset_term: Number
    offset_us: Offset
    configuration: Annotated[bytes, msgspec.Meta(max_length=CONFIGURATION_MAX_BYTES)]
    digest: Digest


class Offer(Shape, frozen=True, tag=1):
    """A leader offers its state, or asks how far the receiver is. leader_term: in which it leads.

    first: the lowest chunk that it can still send; above 1 only somebody who has those before it can go on.
    """

    transfer: TransferId
    leader_term: Index
    head: Head
    first: Index


class Chunk(Shape, frozen=True, tag=2):
    """Part `number` of the state, from 1. checksum: over the bytes and their place (`checksum`)."""

    transfer: TransferId
    number: Index
    checksum: Checksum
    data: bytes


class End(Shape, frozen=True, tag=3):
    """There are so many chunks. digest: over the data of all of them, in order."""

    transfer: TransferId
    chunk_count: Number
    digest: Digest


class Wanted(Shape, frozen=True, tag=4):
    """All chunks below `number` are here. again: those from it on are not, and are to be sent (once more)."""

    transfer: TransferId
    number: Index
    again: bool


class Installed(Shape, frozen=True, tag=5):
    """The receiver's state is that of the snapshot, durably, and its log starts behind `index`."""

    transfer: TransferId
    index: Index


class Refused(Shape, frozen=True, tag=6):
    """The receiver does not go on with this transfer."""

    transfer: TransferId
    reason: Refusal


SnapshotMessage: TypeAlias = Offer | Chunk | End | Wanted | Installed | Refused


def checksum(transfer: bytes, number: int, data: bytes) -> int:
    """CRC-32 of a chunk's bytes and of which chunk of which transfer they are."""
    return zlib.crc32(data, zlib.crc32(transfer + number.to_bytes(8, "big")))


def encode(message: SnapshotMessage) -> bytes:
    """The message as CBOR: `[version, [kind, transfer, ...]]`."""
    return versioned.encode(SNAPSHOT_VERSION, message)


def decode(data: bytes) -> SnapshotMessage:
    """The message that `encode` made `data` from. Raises MalformedSnapshot, which says what and where."""
    message: SnapshotMessage = versioned.decode(data, SNAPSHOT_VERSION, SnapshotMessage, MalformedSnapshot)
    if isinstance(message, Offer):
        try:
            decode_configuration(message.head.configuration)
        except MalformedConfiguration as error:
            raise MalformedSnapshot(f"the configuration in an offer: {error}") from error
        if message.head.term > message.leader_term:
            raise MalformedSnapshot(f"state of term {message.head.term}, offered in term {message.leader_term}")
    return message
