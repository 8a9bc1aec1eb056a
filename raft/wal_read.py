"""Reading entries back from where the index says that they stand. What is held, and how long, does not belong here."""

from __future__ import annotations

from raft.disk import Disk
from raft.messages import Entry
from raft.wal_format import GROUP, Damaged, GroupRecord, entries_of, is_sound, segment_name, segment_seed
from raft.wal_index import Run

READ_AHEAD_BYTES = 256 << 10


class Window:
    """Reads records through a buffer: small ones that stand side by side cost one read."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._segment = 0
        self._position = 0
        self._buffer = b""

    def entries(self, run: Run, life: int, first_index: int, last_index: int) -> list[Entry]:
        """Entries first_index to last_index, which must lie within the run. Raises Damaged when its record is not what
        was written.
        """
        path = f"{self._directory}/{segment_name(run.segment)}"
        offset = run.position - self._position
        if run.segment != self._segment or offset < 0 or offset + run.size_bytes > len(self._buffer):
            self._buffer = self._disk.read(path, run.position, max(run.size_bytes, READ_AHEAD_BYTES))
            self._segment, self._position, offset = run.segment, run.position, 0
        if len(self._buffer) - offset < run.size_bytes:
            raise Damaged(path, run.position, "the file ends before a record that was written")
        if not is_sound(self._buffer, offset, run.size_bytes, run.position, segment_seed(self._identity, run.segment)):
            raise Damaged(path, run.position, "a record fails its checksum")
        head = GroupRecord._make(GROUP.unpack_from(self._buffer, offset))
        entries = entries_of(self._buffer[offset : offset + run.size_bytes], head)
        begin, end = first_index - head.first_index, last_index - head.first_index + 1
        if entries is None or head.life != life or not 0 <= begin < end <= head.entry_count:
            what = f"the record does not hold entries {first_index} to {last_index} of group {life}"
            raise Damaged(path, run.position, what)
        return entries[begin:end]
