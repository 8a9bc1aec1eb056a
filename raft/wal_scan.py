"""Reading one segment from its beginning, and the steps that begin, end and remove one. What its records mean does not
belong here.
"""

from __future__ import annotations

from collections.abc import Iterator

from raft.disk import Create, Disk, Reached, Rename, Step, Sync, SyncDirectory, Unlink, WriteAt
from raft.wal_format import (
    CHECKPOINT,
    CHECKPOINT_POSITION,
    CRC,
    FORMAT_VERSION,
    IDENTITY_BYTES,
    MAGIC,
    MARK,
    MARK_LENGTH,
    PREFIX,
    RECORD_BYTES_MAX,
    SECTOR_BYTES,
    Checkpoint,
    Damaged,
    Mark,
    RecordKind,
    is_sound,
    next_sector,
    seal_body,
    sealed_up,
    segment_name,
    segment_seed,
)  # fmt: skip

CHUNK_BYTES = 1 << 20
NEW_NAME = "new-segment"
RETIRED_PREFIX = "retired-"
_CHECKPOINT_IDENTITY = bytes(IDENTITY_BYTES)  # a checkpoint must be readable before its identity can be compared


class Scan:
    """Reads one segment record by record, a chunk at a time.

    When the records end, `position` is where and `flaw` why; no flaw means room that was never written, or the end of
    the file.
    """

    def __init__(self, disk: Disk, path: str, seed: int, position: int) -> None:
        self.position = position
        self.flaw = ""
        self.path = path
        self.buffer = b""
        self._disk = disk
        self._seed = seed
        self._buffer_position = position

    def records(self) -> Iterator[tuple[int, int, int]]:
        """Kind, offset in `buffer` and length of each sound record; `position` is the record's while it is being looked
        at.
        """
        while True:
            offset = self._fill(SECTOR_BYTES)
            if offset >= len(self.buffer):
                return
            if not self.buffer[offset]:
                room = next_sector(self.position) - self.position
                if not room:
                    return
                if self.buffer[offset : offset + room].strip(b"\0"):
                    self.flaw = "bytes that belong to no record"
                    return
                self.position += room
                continue
            length = self._length_at(offset)
            if self.flaw:
                return
            offset = self._fill(length)
            if offset + length > len(self.buffer):
                self.flaw = f"the file ends within a record of {length} bytes"
                return
            if not is_sound(self.buffer, offset, length, self.position, self._seed):
                self.flaw = "a record fails its checksum"
                return
            yield self.buffer[offset + 1], offset, length
            self.position += length

    def highest_synced(self) -> tuple[int, bool]:
        """The highest position that any mark behind `position` names as synced, and whether anything at all stands
        there.
        """
        named, anything = 0, False
        at = next_sector(self.position)
        anything = bool(self._disk.read(self.path, self.position, at - self.position).strip(b"\0"))
        while chunk := self._disk.read(self.path, at, CHUNK_BYTES):
            if chunk.count(0) != len(chunk):
                anything = True
                for offset in range(0, len(chunk) - MARK_LENGTH + 1, SECTOR_BYTES):
                    if chunk[offset] == FORMAT_VERSION and chunk[offset + 1] == RecordKind.MARK and is_sound(
                        chunk, offset, MARK_LENGTH, at + offset, self._seed
                    ):  # fmt: skip
                        named = max(named, Mark._make(MARK.unpack_from(chunk, offset)).synced_position)
            at += len(chunk)
        return named, anything

    def _fill(self, size_bytes: int) -> int:
        """Offset of `position` in the buffer, after which `size_bytes` follow unless the file is shorter."""
        offset = self.position - self._buffer_position
        if offset + size_bytes > len(self.buffer):
            self.buffer = self._disk.read(self.path, self.position, max(CHUNK_BYTES, size_bytes))
            self._buffer_position, offset = self.position, 0
        return offset

    def _length_at(self, offset: int) -> int:
        if offset + PREFIX.size > len(self.buffer):
            self.flaw = "the file ends within a record"
            return 0
        version, kind, zero, length = PREFIX.unpack_from(self.buffer, offset)
        if version != FORMAT_VERSION or zero:
            self.flaw = f"a record of an unknown version ({version})"
        elif not PREFIX.size + CRC.size <= length <= RECORD_BYTES_MAX:
            self.flaw = f"a record of kind {kind} claims {length} bytes"
        return int(length)


def read_checkpoint(disk: Disk, path: str, segment: int, identity: bytes) -> tuple[Checkpoint, bytes]:
    """The checkpoint at the beginning of a segment, as fields and as bytes. Raises Damaged: it was synced before the
    file got its name.
    """
    magic = disk.read(path, 0, len(MAGIC))
    if magic != MAGIC:
        raise Damaged(path, 0, f"this is no segment of the log: it begins with {magic!r}")
    scan = Scan(disk, path, segment_seed(_CHECKPOINT_IDENTITY, segment), CHECKPOINT_POSITION)
    for kind, offset, length in scan.records():
        if kind != RecordKind.CHECKPOINT:
            break
        head = Checkpoint._make(CHECKPOINT.unpack_from(scan.buffer, offset))
        if head.identity != identity:
            what = f"this segment belongs to another directory ({head.identity.hex()})"
            raise Damaged(path, CHECKPOINT_POSITION, what)
        return head, scan.buffer[offset : offset + length]
    raise Damaged(path, scan.position, f"the segment's checkpoint does not parse: {scan.flaw or 'it is missing'}")


def begin_steps(directory: str, segment: int, checkpoint: bytes, size_bytes: int) -> tuple[list[Step], int]:
    """Make a segment that either is there with its checkpoint synced or, after a crash, is not there; and where its
    first batch goes.
    """
    path, new = f"{directory}/{segment_name(segment)}", f"{directory}/{NEW_NAME}"
    record = sealed_up(checkpoint, CHECKPOINT_POSITION, segment_seed(_CHECKPOINT_IDENTITY, segment))
    end = next_sector(CHECKPOINT_POSITION + len(record))
    steps: list[Step] = [
        Create(new, end + size_bytes),
        WriteAt(new, 0, (MAGIC + record).ljust(end, b"\0")),
        Sync(new),
        Rename(new, path),
        SyncDirectory(directory),
        Reached("wal.segment_created"),
    ]
    return steps, end


def seal_steps(directory: str, segment: int, position: int, identity: bytes) -> list[Step]:
    """Say at the end of a segment that it has a successor, so that the successor cannot be lost unnoticed."""
    path = f"{directory}/{segment_name(segment)}"
    seal = sealed_up(seal_body(segment + 1), position, segment_seed(identity, segment))
    return [WriteAt(path, position, seal.ljust(SECTOR_BYTES, b"\0")), Sync(path)]


def removal_steps(directory: str, segment: int) -> list[Step]:
    """Remove a segment so that a crash at any step leaves either the segment, or a name that the next start sweeps
    (CL-114).
    """
    name = segment_name(segment)
    retired = f"{directory}/{RETIRED_PREFIX}{name}"
    return [
        Rename(f"{directory}/{name}", retired),
        SyncDirectory(directory),
        Reached("wal.before_unlink"),
        Unlink(retired),
    ]
