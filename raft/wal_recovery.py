"""From the files of the log to what they say (M-12, CL-122 to CL-125): either all that was synced is found, or Damaged
says where it is not.

Recovery changes nothing on disk. It returns the steps that make the log fit to be written on: the torn tail cut,
leftovers removed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from raft.clock import ClockReading
from raft.disk import Cut, Disk, Step, Sync, Unlink
from raft.invariants import broken
from raft.messages import HardState
from raft.wal_format import (
    CHECKPOINT_POSITION,
    GROUP,
    MARK,
    POSITION_BITS,
    SECTOR_BYTES,
    Checkpoint,
    Damaged,
    GroupRecord,
    Mark,
    RecordKind,
    entries_of,
    next_sector,
    rows_of,
    segment_name,
    segment_number,
    segment_seed,
)  # fmt: skip
from raft.wal_index import GroupLog, Groups
from raft.wal_scan import NEW_NAME, RETIRED_PREFIX, Scan, read_checkpoint, removal_steps, seal_steps


class TornTail(NamedTuple):
    """What a power cut left of writes that nobody was told of; it is cut off."""

    path: str
    position: int
    flaw: str


class RecoveredLog(NamedTuple):
    """What the log's files say, and what has to be done before the log can be written on."""

    groups: Groups
    active_segment: int
    end_position: int  # where the next batch goes
    begin_position: int  # where the active segment's first batch went
    floor: int
    segment_bytes: dict[int, int]  # size of each segment from the floor on
    reading: ClockReading
    torn: TornTail | None
    steps: list[Step]


class Recovered(NamedTuple):
    """What the node must know after a start."""

    groups: dict[int, RecoveredGroup]
    reading: ClockReading | None  # the clocks when the log was last written; None on the first start
    torn: TornTail | None
    is_new: bool  # there was no log


class RecoveredGroup(NamedTuple):
    """One group as the log has it. Entries are read in slices with `Wal.read`: they may be more than memory should hold
    twice.
    """

    life: int
    hard_state: HardState
    previous_index: int
    previous_term: int
    last_index: int
    terms: list[tuple[int, int]]  # (first index, term) of each stretch of equal terms, from previous_index on
    clock_us: int  # the group's clock at `reading`; 0: never known
    clock_offset_us: int
    reading: ClockReading

    @property
    def first_index(self) -> int:
        """Index of the first entry held, or that the next one will have."""
        return self.previous_index + 1


def recover(disk: Disk, directory: str, identity: bytes) -> RecoveredLog | None:
    """Read the whole log; None when there is none. Raises Damaged, OSError."""
    names = disk.names(directory)
    numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
    if not numbers:
        return None
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise Damaged(f"{directory}/{segment_name(before + 1)}", 0, "the segment is missing")
    recovery = _Recovery(disk, directory, identity, last_segment=numbers[-1])
    for number in numbers:
        recovery.read_segment(number)
    return recovery.finish(numbers, [name for name in names if name.startswith((RETIRED_PREFIX, NEW_NAME))])


class _Recovery:
    """Takes in one segment after another, oldest first."""

    def __init__(self, disk: Disk, directory: str, identity: bytes, last_segment: int) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._last_segment = last_segment
        self._groups = Groups()
        self._floor = 0
        self._reading = ClockReading(bytes(16), 0, 0)
        self._sizes: dict[int, int] = {}
        self._scan: Scan | None = None  # of the segment read last
        self._begin_position = 0
        self._is_sealed = False
        self._unsealed: Scan | None = None  # the last segment but one, when it does not say that it has a successor

    def read_segment(self, number: int) -> None:
        path = f"{self._directory}/{segment_name(number)}"
        checkpoint, record = read_checkpoint(self._disk, path, number, self._identity)
        self._floor = max(self._floor, checkpoint.floor)
        self._reading = ClockReading(checkpoint.boot_id, checkpoint.boottime_us, checkpoint.wall_us)
        if self._scan is None:
            for row in rows_of(record):
                self._groups.get_or_add(row.life).restore(row)
        else:
            self._join(self._scan, number, checkpoint)
            self._compare(path, record)
        self._begin_position = next_sector(CHECKPOINT_POSITION + len(record))
        scan = self._scan = Scan(self._disk, path, segment_seed(self._identity, number), self._begin_position)
        self._is_sealed = False
        for kind, offset, length in scan.records():
            if kind == RecordKind.SEAL:
                self._is_sealed = True
                break
            self._take(kind, scan, number, offset, length)
        self._sizes[number] = next_sector(scan.position) + (SECTOR_BYTES if self._is_sealed else 0)

    def finish(self, numbers: list[int], leftovers: list[str]) -> RecoveredLog:
        scan, last = self._scan, self._last_segment
        if scan is None:
            broken("recovery ended before a segment was read")
        if self._is_sealed:
            missing = f"{self._directory}/{segment_name(last + 1)}"
            raise Damaged(missing, 0, f"the segment is missing: {segment_name(last)} says that it has a successor")
        if self._floor < numbers[0]:
            raise Damaged(f"{self._directory}/{segment_name(self._floor)}", 0, "the segment is missing")
        steps, torn = self._tail_steps(scan)
        if self._unsealed is not None:
            steps += seal_steps(self._directory, last - 1, self._unsealed.position, self._identity)
        for number in range(numbers[0], self._floor):
            steps += removal_steps(self._directory, number)
            del self._sizes[number]
        steps += [Unlink(f"{self._directory}/{name}") for name in leftovers]
        for group in self._groups:
            group.keep_gapless(self._floor)
            group.pack_row(self._groups.rows)
        return RecoveredLog(
            self._groups, last, next_sector(scan.position), self._begin_position, self._floor, self._sizes,
            self._reading, torn, steps,
        )  # fmt: skip

    def _join(self, before: Scan, number: int, checkpoint: Checkpoint) -> None:
        """The segment before this one must end where this one says, and say that it has a successor."""
        if before.position != checkpoint.previous_end:
            what = f"{before.flaw or 'the records end'}, though all before byte {checkpoint.previous_end} was synced"
            raise Damaged(before.path, before.position, what)
        if self._is_sealed:
            return
        if number != self._last_segment:
            raise Damaged(before.path, before.position, before.flaw or "the seal is missing")
        self._unsealed = before  # a crash just before it was sealed; then the new segment holds nothing yet

    def _compare(self, path: str, record: bytes) -> None:
        """A checkpoint and the records before it say the same, or records are lost."""
        count = 0
        for row in rows_of(record):
            group = self._groups.get(row.life)
            count += 1
            if group is None or (row.term, row.vote, row.commit_index, row.last_index) != (
                group.hard_state.term, group.hard_state.voted_for, group.hard_state.commit_index, group.last_index
            ):  # fmt: skip
                raise Damaged(path, 0, f"the checkpoint of group {row.life} is not what the segments before it say")
        if count != len(self._groups):
            raise Damaged(path, 0, f"the checkpoint names {count} groups, the segments before it {len(self._groups)}")

    def _tail_steps(self, scan: Scan) -> tuple[list[Step], TornTail | None]:
        """Torn or damaged? (M-12)"""
        synced_position, anything = scan.highest_synced()
        if synced_position > scan.position:
            what = scan.flaw or "a record is missing"
            raise Damaged(scan.path, scan.position, f"{what}, though all before byte {synced_position} was synced")
        if not anything:
            return [Sync(scan.path)], None
        size_bytes = self._disk.size_bytes(scan.path)
        torn = TornTail(scan.path, scan.position, scan.flaw or "a gap")
        return [Cut(scan.path, scan.position, size_bytes), Sync(scan.path)], torn

    def _take(self, kind: int, scan: Scan, segment: int, offset: int, length: int) -> None:
        if kind == RecordKind.MARK:
            before = self._unsealed
            if before is not None:
                raise Damaged(before.path, before.position, before.flaw or "the seal is missing")
            mark = Mark._make(MARK.unpack_from(scan.buffer, offset))
            self._floor = max(self._floor, mark.floor)
            self._reading = ClockReading(mark.boot_id, mark.boottime_us, mark.wall_us)
            return
        head = GroupRecord._make(GROUP.unpack_from(scan.buffer, offset))
        if kind == RecordKind.FORGET:
            self._groups.forget(head.life)
            return
        group = self._groups.get_or_add(head.life)
        if kind == RecordKind.RESTART:
            group.restart(head.first_index - 1, head.previous_term)
        if head.entry_count:
            self._take_entries(kind, group, head, scan, segment << POSITION_BITS | scan.position, offset)
        if kind != RecordKind.COPY:
            group.hard_state = HardState(head.term, head.vote, head.commit_index)
            if head.clock_us:
                group.clock_us, group.clock_offset_us, group.clock = head.clock_us, head.clock_offset_us, self._reading

    def _take_entries(self, kind: int, group: GroupLog, head: GroupRecord, scan: Scan, place: int, offset: int) -> None:
        first, last = head.first_index, head.first_index + head.entry_count - 1
        if kind == RecordKind.COPY:
            if last > group.last_index:
                what = f"a copy of entry {last} of group {group.life}, which ends at {group.last_index}"
                raise Damaged(scan.path, scan.position, what)
            group.move(first, last, place, head.length)
        else:
            if first > group.last_index + 1:
                what = f"entry {first} of group {group.life} follows {group.last_index}"
                raise Damaged(scan.path, scan.position, what)
            group.append(first, last, place, head.length)
        group.note_term(first - 1, head.previous_term)
        if head.first_term == head.last_term:
            group.note_term(first, head.first_term)
            return
        entries = entries_of(scan.buffer[offset : offset + head.length], head)
        if entries is None:
            raise Damaged(scan.path, scan.position, f"the lengths of the entries of group {group.life} do not add up")
        group.note_terms(entries)
