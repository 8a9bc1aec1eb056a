"""Reading sealed segments again while the log is in use: what was synced long ago must still be what was written
(CL-125).

Plain code: whoever drives it decides on the pace, and in which thread. It needs a disk of its own, as another thread
may hold the log's.
"""

from __future__ import annotations

from collections.abc import Iterator

from raft.disk import Disk
from raft.wal_format import CHECKPOINT_POSITION, Damaged, RecordKind, next_sector, segment_name, segment_seed
from raft.wal_scan import Scan, read_checkpoint


def check_segment(disk: Disk, directory: str, segment: int, identity: bytes) -> Iterator[int]:
    """Read a sealed segment from its checkpoint to its seal; yields the size of each record, once it is found sound.

    Raises Damaged; OSError, among it FileNotFoundError for a segment that is gone. Whether it may be gone knows
    `Wal.sealed_segments`.
    """
    path = f"{directory}/{segment_name(segment)}"
    _, checkpoint = read_checkpoint(disk, path, segment, identity)
    yield len(checkpoint)
    begin = next_sector(CHECKPOINT_POSITION + len(checkpoint))
    scan = Scan(disk, path, segment_seed(identity, segment), begin)
    for kind, _, length in scan.records():
        yield length
        if kind == RecordKind.SEAL:
            return
    raise Damaged(path, scan.position, scan.flaw or "the seal is missing")
