"""What a log must hold, kept in the slowest and most obvious way; and short ways to write to a log in tests."""

from __future__ import annotations

from pathlib import Path

from raft.messages import Entry, EntryKind, HardState
from raft.wal import ClockReading, GroupWrite, Recovered, Wal
from tests.support.fake_disk import FakeDisk

DIRECTORY = Path("/log")
IDENTITY = b"identity of test"
BOOT = b"the one boot id "
READ_ALL = 1 << 40


def clock(at_us: int = 0) -> ClockReading:
    return ClockReading(BOOT, 1_000_000 + at_us, 1_700_000_000_000_000 + at_us)


def entries(first_index: int, *datas: bytes, term: int = 1) -> list[Entry]:
    return [Entry(term, first_index + place, EntryKind.COMMANDS, data) for place, data in enumerate(datas)]


def write(life: int, first_index: int, *datas: bytes, term: int = 1, previous_term: int | None = None) -> GroupWrite:
    """Entries of one term behind entries of the same term, unless said otherwise."""
    if previous_term is None:
        previous_term = term if first_index > 1 else 0
    return GroupWrite(life, HardState(term, 1, 0), previous_term, entries(first_index, *datas, term=term))


def open_wal(disk: FakeDisk, segment_bytes: int = 1 << 16, *, must_exist: bool = False) -> tuple[Wal, Recovered]:
    return Wal.open(DIRECTORY, disk, segment_bytes=segment_bytes, identity=IDENTITY, must_exist=must_exist)


def held(wal: Wal, recovered: Recovered, life: int) -> list[Entry]:
    """All that the log holds of a group."""
    group = recovered.groups[life]
    if group.first_index > group.last_index:
        return []
    return wal.read(life, group.first_index, group.last_index, READ_ALL)


class Model:
    """hard state and entries of each group, after the writes that were reported durable."""

    def __init__(self) -> None:
        self.hard_states: dict[int, HardState] = {}
        self.entries: dict[int, list[Entry]] = {}
        self.released: dict[int, int] = {}
        self.place = 0  # where the log ended after the last write that was reported

    def write(self, writes: list[GroupWrite]) -> None:
        for one in writes:
            log = self.entries.setdefault(one.life, [])
            self.hard_states[one.life] = one.hard_state
            if one.restart_after is not None:
                log.clear()
                self.released[one.life] = one.restart_after
            if one.entries:
                log[:] = [entry for entry in log if entry.index < one.entries[0].index] + list(one.entries)

    def release(self, life: int, through_index: int) -> None:
        self.released[life] = max(self.released.get(life, 0), through_index)

    def must_be_in(self, wal: Wal, recovered: Recovered) -> None:
        """Nothing durable and unreleased is missing, nothing is there that was never written."""
        assert set(recovered.groups) == set(self.hard_states)
        for life, hard_state in self.hard_states.items():
            group = recovered.groups[life]
            assert group.hard_state == hard_state
            released = self.released.get(life, 0)
            known = {entry.index: entry for entry in self.entries[life]}
            assert group.last_index == max([*known, released])
            assert group.previous_index <= released
            found = held(wal, recovered, life)
            assert [entry for entry in found if entry.index > released] == [
                entry for entry in self.entries[life] if entry.index > released
            ]
            assert all(known[entry.index] == entry for entry in found if entry.index in known)
            before = known.get(group.previous_index)
            if before is not None:
                assert group.previous_term == before.term
            for entry in found:
                assert [term for index, term in group.terms if index <= entry.index][-1] == entry.term
