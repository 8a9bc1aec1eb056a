"""The bytes of the log (M-11, M-12): what a segment and its records look like. Which record is written when does not
belong here.

A segment is a file `segment-<number>.log`:

    magic, 8 bytes
    CHECKPOINT          the state of every group at the beginning of this segment
    batch, batch, ...   each begins at a sector, so that no unsynced write touches a sector with synced bytes in it
    SEAL                in a segment that has a successor

A batch is a MARK (what was synced before it, when it was written) and the records of the groups. Each record is

    version u8, kind u8, zero u16, length u32, fields and payload, crc u32

with the CRC over all before it and over the directory's identity, the segment's number and the position: a record that
stands where it was not written is as bad as one whose bits changed. All integers are little endian; a zero where a
version should stand is room not yet written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from raft.clock import ClockReading
from raft.messages import Entry, EntryKind

FORMAT_VERSION: Final = 1
MAGIC: Final = b"raftlog\n"
IDENTITY_BYTES: Final = 16
SECTOR_BYTES: Final = 512
RECORD_BYTES_MAX: Final = 1 << 30  # a length above it is not one that we wrote
POSITION_BITS: Final = 40  # a place is segment number << POSITION_BITS | position


class Damaged(Exception):
    """The log on disk is not what was written: the node must not start, or not use it further (CL-124, CL-125)."""

    ADVICE = (
        "Nothing was changed. Keep a copy of the directory; then replace this node from its peers: "
        "remove the member, empty its data directory, let it join again"
    )

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(f"{path}: byte {position}: {what}. {self.ADVICE}")
        self.path = path
        self.position = position
        self.what = what


class LogFailed(Exception):
    """A write or fsync of the log failed. What the disk holds is unknown, so nothing is tried again (CL-126)."""


class RecordKind(IntEnum):
    CHECKPOINT = 1
    MARK = 2
    WRITE = 3  # hard state, and entries that replace all from the first of them on
    RESTART = 4  # as WRITE, but all that was held before is forgotten: a snapshot took its place
    COPY = 5  # entries that stand in an older segment too
    FORGET = 6  # the group has ended
    SEAL = 7


class GroupRecord(NamedTuple):
    """The fields of WRITE, RESTART, COPY and FORGET, in the order in which they stand."""

    version: int
    kind: int
    zero: int
    length: int
    life: int
    term: int
    vote: int  # 0: none
    commit_index: int
    previous_term: int
    first_index: int
    first_term: int  # of the first and the last entry: when they are equal, so are all between
    last_term: int
    entry_count: int
    clock_us: int  # 0: unknown; below zero: of an older term's clock than the last entry's
    clock_offset_us: int


class Mark(NamedTuple):
    """The first record of a batch."""

    version: int
    kind: int
    zero: int
    length: int
    synced_position: int  # all of this segment before it, and every older segment, was synced
    floor: int  # number of the oldest segment that anything needs
    boot_id: bytes
    boottime_us: int
    wall_us: int


class Checkpoint(NamedTuple):
    """The first record of a segment, without its rows."""

    version: int
    kind: int
    zero: int
    length: int
    segment: int
    identity: bytes
    floor: int
    previous_end: int  # where the segment before this one ends; 0 for the first
    boot_id: bytes
    boottime_us: int
    wall_us: int
    row_count: int


class Row(NamedTuple):
    """A group in a checkpoint."""

    life: int
    term: int
    vote: int
    commit_index: int
    previous_index: int  # just before the first entry held
    previous_term: int
    last_index: int
    last_term: int
    clock_us: int  # what the group's clock was at the moment of the reading that follows; 0: unknown
    clock_offset_us: int
    boot_id: bytes
    boottime_us: int
    wall_us: int


PREFIX = struct.Struct("<BBHI")
CRC = struct.Struct("<I")
GROUP = struct.Struct("<BBHIQQQQQQQQIqq")
ENTRY = struct.Struct("<QBI")
MARK = struct.Struct("<BBHIQQ16sqq")
CHECKPOINT = struct.Struct("<BBHIQ16sQQ16sqqI")
SEAL = struct.Struct("<BBHIQ")
ROW = struct.Struct("<QQQQQQQQqq16sqq")
_PLACE = struct.Struct("<Q")
_KINDS: Final = {int(kind): kind for kind in EntryKind}

MARK_LENGTH: Final = MARK.size + CRC.size
SEAL_LENGTH: Final = SEAL.size + CRC.size
CHECKPOINT_POSITION: Final = len(MAGIC)


def segment_seed(identity: bytes, segment: int) -> int:
    """What the CRC of each record of a segment starts from. The identity is no secret, but no client knows it."""
    return zlib.crc32(_PLACE.pack(segment), zlib.crc32(identity))


def record_crc(body: bytes | bytearray | memoryview, position: int, seed: int) -> int:
    return zlib.crc32(body, zlib.crc32(_PLACE.pack(position), seed))


def sealed_up(body: bytes, position: int, seed: int) -> bytes:
    """The body with its CRC behind it."""
    return body + CRC.pack(record_crc(body, position, seed))


def is_sound(buffer: bytes, offset: int, length: int, position: int, seed: int) -> bool:
    """Whether the `length` bytes from `offset` on are a record that was written at `position` of this segment."""
    end = offset + length - CRC.size
    expected: int = CRC.unpack_from(buffer, end)[0]
    return record_crc(memoryview(buffer)[offset:end], position, seed) == expected


def next_sector(position: int) -> int:
    return -(-position // SECTOR_BYTES) * SECTOR_BYTES


def segment_name(number: int) -> str:
    return f"segment-{number:012d}.log"


def segment_number(name: str) -> int | None:
    """The number in a segment's name; None for any other file."""
    if name.startswith("segment-") and name.endswith(".log") and name[8:-4].isdecimal():
        return int(name[8:-4])
    return None


def mark_body(synced_position: int, floor: int, clock: ClockReading) -> bytes:
    return MARK.pack(
        FORMAT_VERSION, RecordKind.MARK, 0, MARK_LENGTH, synced_position, floor,
        clock.boot_id, clock.boottime_us, clock.wall_us,
    )  # fmt: skip


def seal_body(next_segment: int) -> bytes:
    return SEAL.pack(FORMAT_VERSION, RecordKind.SEAL, 0, SEAL_LENGTH, next_segment)


def checkpoint_body(
    segment: int, identity: bytes, floor: int, previous_end: int, clock: ClockReading, rows: bytes
) -> bytes:
    length = CHECKPOINT.size + len(rows) + CRC.size
    head = CHECKPOINT.pack(
        FORMAT_VERSION, RecordKind.CHECKPOINT, 0, length, segment, identity, floor, previous_end,
        clock.boot_id, clock.boottime_us, clock.wall_us, len(rows) // ROW.size,
    )  # fmt: skip
    return head + rows


def group_body(
    kind: RecordKind, life: int, hard_state: tuple[int, int, int], previous_term: int, first_index: int,
    entries: Sequence[Entry], clock_us: int, clock_offset_us: int,
) -> bytes:  # fmt: skip
    """A record of a group. hard_state: term, vote (0: none), commit index."""
    parts = [b""]
    length = GROUP.size + CRC.size
    pack_entry = ENTRY.pack
    for entry in entries:
        data = entry.data
        parts += (pack_entry(entry.term, entry.kind, len(data)), data)
        length += ENTRY.size + len(data)
    first_term, last_term = (entries[0].term, entries[-1].term) if entries else (0, 0)
    parts[0] = GROUP.pack(
        FORMAT_VERSION, kind, 0, length, life, *hard_state, previous_term, first_index,
        first_term, last_term, len(entries), clock_us, clock_offset_us,
    )  # fmt: skip
    return b"".join(parts)


def entries_of(record: bytes, head: GroupRecord) -> list[Entry] | None:
    """The entries in the payload of a sound record; None when its lengths or kinds make no sense."""
    entries = []
    offset, end = GROUP.size, len(record) - CRC.size
    for index in range(head.first_index, head.first_index + head.entry_count):
        if offset + ENTRY.size > end:
            return None
        term, kind_number, length = ENTRY.unpack_from(record, offset)
        kind = _KINDS.get(kind_number)
        offset += ENTRY.size
        if kind is None or offset + length > end:
            return None
        entries.append(Entry(term, index, kind, record[offset : offset + length]))
        offset += length
    return entries if offset == end else None


def rows_of(record: bytes) -> Iterable[Row]:
    return (Row._make(fields) for fields in ROW.iter_unpack(record[CHECKPOINT.size : -CRC.size]))
