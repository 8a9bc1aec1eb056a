"""The node's one write-ahead log, shared by all its groups (M-10 to M-14, cluster page section 12).

`Wal` decides what to write where, and keeps in memory where each entry stands. It awaits nothing and starts no thread.
A batch goes in three moves: `begin` says which steps the disk must do, somebody carries them out, `finish` notes that
they are done; `write` is all three for callers that may block. Between begin and finish nothing else may be written,
but entries can be read and released.

What a batch, a record and a segment look like: `wal_format`. What a restart makes of them: `wal_recovery`. Which
segments can go: `wal_space`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from raft.clock import ClockReading
from raft.disk import Disk, Reached, Step, Sync, WriteAt
from raft.invariants import broken, must
from raft.messages import Entry, HardState
from raft.wal_format import (
    CRC,
    IDENTITY_BYTES,
    POSITION_BITS,
    SECTOR_BYTES,
    Damaged,
    LogFailed,
    RecordKind,
    checkpoint_body,
    group_body,
    mark_body,
    next_sector,
    record_crc,
    segment_name,
    segment_seed,
)  # fmt: skip
from raft.wal_index import GroupLog, Groups, Run
from raft.wal_laggards import LAGGARD_BYTES_DEFAULT, KeptForLaggards
from raft.wal_read import Window
from raft.wal_recovery import Recovered, RecoveredGroup, RecoveredLog, TornTail, recover
from raft.wal_scan import begin_steps, removal_steps, seal_steps
from raft.wal_space import Space

__all__ = [
    "LAGGARD_BYTES_DEFAULT", "ClockReading", "Damaged", "GroupWrite", "LogFailed", "Recovered", "RecoveredGroup",
    "TornTail", "Wal",
]  # fmt: skip

SEGMENT_BYTES_DEFAULT = 64 << 20
SEGMENT_BYTES_MIN = 4096


class GroupWrite(msgspec.Struct, frozen=True, gc=False):
    """What one group wants on disk, in one record: its hard state, and the entries that need it.

    entries replace all that the log holds from the first of them on. previous_term: term of the entry before the first.
    clock_us: the group's clock now; 0 when unknown or only a weak guess, so that what was recorded of it before stays;
    below zero as `GroupClock.to_record` has it.
    restart_after: forget all entries, the log goes on behind this index, which has previous_term: a snapshot was
    installed (M-61).
    """

    life: int
    hard_state: HardState
    previous_term: int = 0
    entries: Sequence[Entry] = ()
    clock_us: int = 0
    clock_offset_us: int = 0
    restart_after: int | None = None


class _Record(NamedTuple):
    """A record of the batch in flight."""

    kind: RecordKind
    life: int
    first_index: int
    last_index: int
    place: int
    size_bytes: int
    write: GroupWrite | None  # None: a copy, or the end of a group


class Wal:
    """See the module. Every method that asks for steps or does IO raises LogFailed once any write or fsync has failed
    (CL-126).
    """

    def __init__(self, directory: str, disk: Disk, identity: bytes, segment_bytes: int, log: RecoveredLog) -> None:
        self._directory = directory
        self._disk = disk
        self._identity = identity
        self._segment_bytes = segment_bytes
        self._groups = log.groups
        self._space = Space(log.groups, log.floor, log.active_segment, log.segment_bytes)
        self._kept = KeptForLaggards(log.groups)
        self._reading = log.reading
        self._failure: OSError | None = None
        self._closed = False
        self._in_flight: list[_Record] | None = None
        self._flight_bytes, self._flight_floor, self._flight_clock = 0, log.floor, log.reading
        self._unnamed = True  # recovery synced the tail, but no mark says so yet
        self._tidying: tuple[int, int] | None = None  # where the next segment's first batch goes (0: none), new floor
        self._forgotten: list[int] = []
        self._use_segment(log.active_segment, log.begin_position, log.end_position)

    @classmethod
    def open(
        cls,
        directory: Path,
        disk: Disk,
        *,
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        identity: bytes = bytes(IDENTITY_BYTES),
        must_exist: bool = False,
    ) -> tuple[Wal, Recovered]:
        """Recover the log in `directory`, or begin one.

        identity: 16 random bytes of the data directory; a segment from any other is refused. must_exist: the data
        directory is not new, so a log that is gone is damage. Blocks for as long as reading the whole log takes. Raises
        Damaged, OSError.
        """
        must(len(identity) == IDENTITY_BYTES, "an identity of the wrong length", identity=identity)
        must(segment_bytes >= SEGMENT_BYTES_MIN, "segments too small", segment_bytes=segment_bytes)
        disk.prepare(str(directory))
        log = recover(disk, str(directory), identity)
        is_new = log is None
        if log is None:
            if must_exist:
                path = f"{directory}/{segment_name(1)}"
                raise Damaged(path, 0, "the log is gone, though the data directory is not new")
            log = _first_segment(str(directory), identity, segment_bytes)
        disk.carry_out(log.steps)
        wal = cls(str(directory), disk, identity, segment_bytes, log)
        groups = {group.life: _recovered(group) for group in log.groups}
        return wal, Recovered(groups, None if is_new else log.reading, log.torn, is_new)

    # -- figures

    @property
    def total_bytes(self) -> int:
        """Size of all segments: what `QUEEN_RAFT_LOG_BUDGET_MB` bounds."""
        return self._space.total_bytes + self._position

    @property
    def segment_count(self) -> int:
        return len(self._space.segment_bytes) + 1

    def sealed_segments(self) -> list[int]:
        """Numbers of the segments that hold nothing new any more and must be on disk until the floor passes them."""
        return [number for number in sorted(self._space.segment_bytes) if number >= self._space.floor]

    @property
    def synced_place(self) -> int:
        """Where the next batch goes, behind all that is on disk: grows with every batch, over restarts too."""
        return self._place(self._position)

    @property
    def is_idle(self) -> bool:
        """Nothing waits for a mark: the last batch is named as synced, and no segment waits to go."""
        return not (self._unnamed or self._forgotten or self._space.is_untidy(self._active))

    # -- writing, in three moves

    def begin(self, writes: Sequence[GroupWrite], clock: ClockReading) -> list[Step]:
        """The steps that put these writes on disk: one write and one sync. Without writes it is a mark (M-12)."""
        self._check_usable()
        must(self._in_flight is None, "a batch was begun while another is being written")
        floor = self._space.oldest_needed(self._active)
        frames: list[bytes] = []
        records: list[_Record] = []
        end = self._add(frames, mark_body(self._position, floor, clock), self._position)
        for group, run in self._space.runs_to_copy(self._active):
            body = self._copy_of(group, run)
            size, place = len(body) + CRC.size, self._place(end)
            records.append(_Record(RecordKind.COPY, group.life, run.first_index, run.last_index, place, size, None))
            end = self._add(frames, body, end)
        last_indexes: dict[int, int] = {}
        for write in writes:
            record, body = self._encode(write, end, last_indexes)
            records.append(record)
            end = self._add(frames, body, end)
        for life in self._forgotten:
            body = group_body(RecordKind.FORGET, life, (0, 0, 0), 0, 0, (), 0, 0)
            records.append(_Record(RecordKind.FORGET, life, 0, 0, self._place(end), len(body) + CRC.size, None))
            end = self._add(frames, body, end)
        frames.append(bytes(next_sector(end) - end))
        data = b"".join(frames)
        self._in_flight, self._flight_bytes, self._flight_floor, self._flight_clock = records, len(data), floor, clock
        return [
            Reached("wal.before_write"),
            WriteAt(self._path, self._position, data),
            Reached("wal.after_write"),
            Sync(self._path),
            Reached("wal.after_fsync"),
        ]

    def finish(self) -> None:
        """The steps of `begin` are done: what they wrote is durable."""
        records, self._in_flight = self._in_flight, None
        must(records is not None, "a batch was finished that was not begun")
        self._reading = self._flight_clock
        self._unnamed = bool(records)
        for record in records or ():
            self._note(record)
        self._position += self._flight_bytes
        self._space.floor = self._flight_floor

    def fail(self, error: OSError) -> LogFailed:
        """A step failed: the log is poisoned for good. Returns what to raise."""
        self._failure = self._failure or error
        return LogFailed(f"{self._path}: {self._failure}: nothing is written before a restart has read what is on disk")

    def tidy(self) -> list[Step]:
        """What may follow a batch: the next segment when this one is full, the removal of those nobody needs. Empty
        most times.
        """
        self._check_usable()
        must(self._in_flight is None and self._tidying is None, "tidied in the middle of a batch")
        space, begin = self._space, 0
        steps: list[Step] = []
        if self._position - self._begin_position >= self._segment_bytes:
            following = self._active + 1
            body = checkpoint_body(
                following, self._identity, space.floor, self._position, self._reading, bytes(self._groups.rows)
            )
            steps, begin = begin_steps(self._directory, following, body, self._segment_bytes)
            steps += seal_steps(self._directory, self._active, self._position, self._identity)
        for segment in range(space.oldest, space.floor):
            steps += removal_steps(self._directory, segment)
        self._tidying = (begin, space.floor)
        return steps

    def tidied(self) -> None:
        """The steps of `tidy` are done."""
        must(self._tidying is not None, "tidied what was not begun")
        begin, floor = self._tidying or (0, 0)
        self._tidying = None
        for segment in range(self._space.oldest, floor):
            self._disk.forget(f"{self._directory}/{segment_name(segment)}")
            self._space.segment_bytes.pop(segment)
            self._groups.use.forget(segment)
        self._space.oldest = floor
        if begin:
            self._space.segment_bytes[self._active] = self._position + SECTOR_BYTES
            self._use_segment(self._active + 1, begin, begin)

    # -- the same for callers that may block

    def write(self, writes: Sequence[GroupWrite], clock: ClockReading) -> None:
        """Make these writes durable: one write, one fdatasync. Raises LogFailed, and then nothing is known of any of
        them.
        """
        self._carry_out(self.begin(writes, clock))
        self.finish()
        steps = self.tidy()
        self._carry_out(steps)
        self.tidied()

    def mark(self, clock: ClockReading) -> None:
        """Name what is synced, and record the clocks: what an idle log writes (M-12, M-22)."""
        self.write((), clock)

    def close(self) -> None:
        """Close the files. Whatever `write` returned from is durable without it."""
        self._closed = True
        self._disk.close()

    # -- what groups ask between batches

    def release(self, life: int, through_index: int) -> None:
        """Entries up to through_index are needed no longer by this group. Their segments go with a later batch, once
        they are not kept for laggards either.

        Not recorded by itself: after a restart the group may have them again. A group whose state came in a snapshot
        before its first record has none.
        """
        group = self._groups.get(life)
        if group is not None:
            self._kept.release(group, through_index)

    def keep_for_laggards(self, budget_bytes: int) -> None:
        """Of what is released keep so much for members elsewhere that lag; nothing unless this was called (M-10)."""
        self._kept.keep(budget_bytes)

    def span(self, life: int) -> tuple[int, int]:
        """What is held of a group: the index just before the first entry, and that of the last."""
        group = self._known(life)
        return group.previous_index, group.last_index

    def term_at(self, life: int, index: int) -> int:
        """Term of an entry held, or of the one just before the first."""
        return self._known(life).term_at(index)

    def forget(self, life: int) -> None:
        """The group has ended: with the next batch the log knows it no more."""
        if self._groups.get(life) is not None and life not in self._forgotten:
            self._forgotten.append(life)

    def read(self, life: int, first_index: int, last_index: int, max_bytes: int) -> list[Entry]:
        """Entries first_index to last_index of a group, fewer when their data would pass max_bytes; the first comes in
        any case.

        Reads files: from the page cache when they are young. Raises Damaged, LogFailed, OSError.
        """
        group = self._groups.get(life)
        must(
            group is not None and group.previous_index < first_index <= last_index <= group.last_index,
            "read entries that the log does not hold", life=life, first=first_index, last=last_index,
        )  # fmt: skip
        entries: list[Entry] = []
        left_bytes, window = max_bytes, Window(self._disk, self._directory, self._identity)
        for run in group.runs(first_index, last_index) if group else ():
            for entry in window.entries(run, life, max(first_index, run.first_index), min(last_index, run.last_index)):
                left_bytes -= len(entry.data)
                if left_bytes < 0 and entries:
                    return entries
                entries.append(entry)
        must(entries[-1].index == last_index, "the log has a gap", life=life, first=first_index, last=last_index)
        return entries

    # -- inside

    def _known(self, life: int) -> GroupLog:
        group = self._groups.get(life)
        return group if group is not None else broken("asked for a group that the log does not know", life=life)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self.fail(self._failure)
        must(not self._closed, "a closed log was used")

    def _carry_out(self, steps: list[Step]) -> None:
        try:
            self._disk.carry_out(steps)
        except OSError as error:
            raise self.fail(error) from error

    def _use_segment(self, segment: int, begin_position: int, position: int) -> None:
        self._active = segment
        self._path = f"{self._directory}/{segment_name(segment)}"
        self._seed = segment_seed(self._identity, segment)
        self._begin_position = begin_position
        self._position = position  # where the next batch goes

    def _place(self, position: int) -> int:
        return self._active << POSITION_BITS | position

    def _add(self, frames: list[bytes], body: bytes, position: int) -> int:
        frames.append(body)
        frames.append(CRC.pack(record_crc(body, position, self._seed)))
        return position + len(body) + CRC.size

    def _encode(self, write: GroupWrite, position: int, last_indexes: dict[int, int]) -> tuple[_Record, bytes]:
        """A group's record. last_indexes: where the groups' logs end after the records before it in this batch."""
        life, entries, kind = write.life, write.entries, RecordKind.WRITE
        group = self._groups.get(life)
        last = last_indexes.get(life, group.last_index if group else 0)
        previous = group.previous_index if group else 0
        if write.restart_after is not None:
            kind, last, previous = RecordKind.RESTART, write.restart_after, write.restart_after
        first = entries[0].index if entries else last + 1
        must(previous < first <= last + 1, "entries that do not continue the log",
             life=life, previous=previous, first=first, last=last)  # fmt: skip
        if entries:
            last = first + len(entries) - 1
            must(entries[-1].index == last, "entries with a gap between them", life=life, first=first, last=last)
        term = write.hard_state.term
        must(group is None or term >= group.hard_state.term, "a term went back", life=life, term=term)
        last_indexes[life] = last
        state = (term, write.hard_state.voted_for, write.hard_state.commit_index)
        body = group_body(kind, life, state, write.previous_term, first, entries, write.clock_us, write.clock_offset_us)
        return _Record(kind, life, first, last, self._place(position), len(body) + CRC.size, write), body

    def _copy_of(self, group: GroupLog, run: Run) -> bytes:
        window = Window(self._disk, self._directory, self._identity)
        entries = window.entries(run, group.life, run.first_index, run.last_index)
        previous_term = group.term_at(run.first_index - 1)
        return group_body(RecordKind.COPY, group.life, (0, 0, 0), previous_term, run.first_index, entries, 0, 0)

    def _note(self, record: _Record) -> None:
        """A record is durable: from now on entries are read from there."""
        write = record.write
        if write is None:
            group = self._groups.get(record.life)
            if record.kind == RecordKind.FORGET:
                self._forgotten.remove(record.life)
                self._groups.forget(record.life)
            elif group is not None and group.previous_index < record.last_index:  # else released while it was copied
                first = max(record.first_index, group.previous_index + 1)
                group.move(first, record.last_index, record.place, record.size_bytes)
            return
        group = self._groups.get_or_add(record.life)
        if write.restart_after is not None:
            group.restart(write.restart_after, write.previous_term)
        if write.entries:
            group.append(record.first_index, record.last_index, record.place, record.size_bytes)
            group.note_terms(write.entries)
        group.hard_state = write.hard_state
        if write.clock_us:
            group.clock_us, group.clock_offset_us, group.clock = write.clock_us, write.clock_offset_us, self._reading
        group.pack_row(self._groups.rows)


def _first_segment(directory: str, identity: bytes, segment_bytes: int) -> RecoveredLog:
    reading = ClockReading(bytes(16), 0, 0)
    body = checkpoint_body(1, identity, 1, 0, reading, b"")
    steps, begin = begin_steps(directory, 1, body, segment_bytes)
    return RecoveredLog(Groups(), 1, begin, begin, 1, {1: begin}, reading, None, steps)


def _recovered(group: GroupLog) -> RecoveredGroup:
    terms = group.terms()
    return RecoveredGroup(
        group.life, group.hard_state, group.previous_index, terms[0][1], group.last_index, terms,
        group.clock_us, group.clock_offset_us, group.clock,
    )  # fmt: skip
