"""What door and node say to each other, byte by byte.

A frame is a head, `[bytes of the body: u32][kind: u8][call: u64]`, and its body; all numbers little-endian. `call`
names the question that an answer belongs to, 0 where there is none. Both ends are of one release; the first frame says
which form that release speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

import msgspec

from queen_node.broker import Lane
from queen_node.disk_gate import Gates
from raft.invariants import must

VERSION: Final = 4
FRAME_MAX_BYTES: Final = 1 << 30  # above any command (QUEEN_RAFT_ENTRY_MAX_BYTES) and any answer
NO_WAIT: Final = 0xFFFF_FFFF  # in the place of a pop's wait: it tries once
NOT_GIVEN: Final = 0xFFFF  # in the place of a name's length: there is no name

HEAD: Final = Struct("<IBQ")
# tenant, lane, timeout in ms, how often the one place stands there or 0 before a list of places, bytes of it
_WRITE: Final = Struct("<16sBIII")
_HEAD_AND_WRITE: Final = Struct(HEAD.format + _WRITE.format.removeprefix("<"))
_READ: Final = Struct("<16sI")  # tenant, timeout in ms
_POP: Final = Struct("<16sIHHHH")  # tenant, wait in ms, bytes of lease id, queue, group and partition
_HAND_BACK: Final = Struct("<16s")  # tenant
_GATES: Final = Struct("<???")

Frame = tuple[int, int, bytes]  # kind, call, body


class Kind(IntEnum):
    """What a frame says. Up to REPORT a door speaks, from ANSWER on the node."""

    HELLO = 1  # the form that the door speaks
    WRITE = 2
    WRITE_MORE = 3  # a write whose successor must stand right behind it in the log (PU-43)
    READ = 4
    POP = 5
    WITHDRAW = 6  # the client of the pop `call` has gone
    HAND_BACK = 7
    ASK = 8  # a question after the node itself (`report.pack_question`)
    REPORT = 9  # what was counted at the door since the last one
    ANSWER = 16
    UNAVAILABLE = 17  # the answer to a call that could not be decided
    SERVE = 18  # the port is bound: accept
    GATES = 19  # what is refused now
    DRAIN = 20  # stop accepting, finish what is in hand, end


def frame(kind: Kind, call: int = 0, body: bytes = b"") -> bytes:
    """A frame with a body as it is."""
    must(len(body) <= FRAME_MAX_BYTES, "a frame larger than any command", kind=kind, size=len(body))
    return HEAD.pack(len(body), kind, call) + body


class Splitter:
    """Frames out of a stream that may be cut anywhere."""

    __slots__ = ("_have_bytes", "_need_bytes", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of one frame that is not complete
        self._have_bytes = 0
        self._need_bytes = HEAD.size

    def take(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises InvariantBroken for what no release of ours sends."""
        if self._pieces:
            self._pieces.append(data)
            self._have_bytes += len(data)
            if self._have_bytes < self._need_bytes:
                return []
            data = b"".join(self._pieces)
        frames: list[Frame] = []
        at, size, head_bytes = 0, len(data), HEAD.size
        need = head_bytes
        while size - at >= head_bytes:
            length, kind, call = HEAD.unpack_from(data, at)
            must(length <= FRAME_MAX_BYTES, "a frame larger than any command", kind=kind, size=length)
            begin = at + head_bytes
            if begin + length > size:
                need = head_bytes + length
                break
            at = begin + length
            frames.append((kind, call, data[begin:at]))
        rest = data[at:]
        self._pieces = [rest] if rest else []
        self._have_bytes, self._need_bytes = len(rest), need
        return frames


def write(
    kind: Kind, call: int, tenant: bytes, command: bytes, lane: Lane, timeout_ms: int, places: Sequence[bytes],
) -> bytes:
    """WRITE or WRITE_MORE. `places`: what the command may append to, a queue as often as it gets messages."""
    if not places:
        listed, times = b"", 0
    elif places.count(places[0]) == len(places):
        listed, times = places[0], len(places)
    else:
        listed, times = _pack_places(places), 0
    length = _WRITE.size + len(listed) + len(command)
    return _HEAD_AND_WRITE.pack(length, kind, call, tenant, lane, timeout_ms, times, len(listed)) + listed + command


def read_write(body: bytes) -> tuple[bytes, bytes, Lane, int, tuple[bytes, ...]]:
    """(tenant, command, lane, timeout_ms, places) of WRITE and WRITE_MORE."""
    tenant, lane, timeout_ms, times, size = _WRITE.unpack_from(body)
    at = _WRITE.size + size
    listed = body[_WRITE.size : at]
    places = (listed,) * times if times else _unpack_places(listed) if listed else ()
    return tenant, body[at:], _LANES[lane], timeout_ms, places


def read(call: int, tenant: bytes, query: bytes, timeout_ms: int) -> bytes:
    """READ."""
    return frame(Kind.READ, call, _READ.pack(tenant, timeout_ms) + query)


def read_read(body: bytes) -> tuple[bytes, bytes, int]:
    """(tenant, query, timeout_ms) of READ."""
    tenant, timeout_ms = _READ.unpack_from(body)
    return tenant, body[_READ.size :], timeout_ms


def hand_back(tenant: bytes, lease_id: bytes) -> bytes:
    """HAND_BACK."""
    return frame(Kind.HAND_BACK, 0, _HAND_BACK.pack(tenant) + lease_id)


def read_hand_back(body: bytes) -> tuple[bytes, bytes]:
    """(tenant, lease_id) of HAND_BACK."""
    return _HAND_BACK.unpack_from(body)[0], body[_HAND_BACK.size :]


def pop(
    call: int, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
    wait_ms: int | None,
) -> bytes:
    """POP; wait_ms None: try once."""
    head = _POP.pack(
        tenant, NO_WAIT if wait_ms is None else wait_ms, len(lease_id), len(queue), len(group),
        NOT_GIVEN if partition is None else len(partition))
    return frame(Kind.POP, call, b"".join((head, lease_id, queue, group, partition or b"", command)))


def read_pop(body: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes | None, int | None]:
    """(tenant, command, lease_id, queue, group, partition, wait_ms) of POP."""
    tenant, wait_ms, *lengths = _POP.unpack_from(body)
    at = _POP.size
    names: list[bytes | None] = []
    for length in lengths:
        if length == NOT_GIVEN:
            names.append(None)
            continue
        names.append(body[at : at + length])
        at += length
    lease_id, queue, group, partition = names
    must(lease_id is not None and queue is not None and group is not None, "a pop without a name")
    wait = None if wait_ms == NO_WAIT else wait_ms
    return tenant, body[at:], lease_id or b"", queue or b"", group or b"", partition, wait


def gates(closed: Gates) -> bytes:
    """GATES."""
    return frame(Kind.GATES, 0, _GATES.pack(*closed))


def read_gates(body: bytes) -> Gates:
    """What GATES says."""
    return Gates(*_GATES.unpack(body))


_LANES = tuple(Lane)
_pack_places = msgspec.msgpack.Encoder().encode
_unpack_places = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode
