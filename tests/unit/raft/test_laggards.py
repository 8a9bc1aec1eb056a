"""A member that needs more than its leader's memory holds gets it from the log on disk (M-10, CL-112)."""

from __future__ import annotations

from random import Random

from raft import laggards
from raft.clock import GroupClock
from raft.core import Core
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import Append, AppendAccepted, Entry, HardState, HeartbeatAnswered, VoteGranted
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.fake_disk import FakeDisk
from tests.support.fake_machine import FakeMachine
from tests.unit.wal.model import READ_ALL, clock, open_wal

ENTRY_BYTES = 100_000
ENTRY_COUNT = 30


class Leader:
    """Node 1 of three on a real log. 2 accepts whatever it is sent; of 3 a test decides what arrives."""

    def __init__(self, kept_bytes: int = 0) -> None:
        core = Core(
            node_id=1, configuration=Configuration((1, 2, 3)), log=Log(), hard_state=HardState(), applied_index=0,
            settings=Settings(kept_bytes=kept_bytes, kept_for_followers_bytes=kept_bytes), random=Random(1),
        )  # fmt: skip
        self.wal, _ = open_wal(FakeDisk(), 1 << 20)
        self.raft = RaftGroup(life=1, core=core, clock=GroupClock.first_ever(FakeMachine()), stamp_of=lambda data: 0)
        self.to_3: list[Append] = []
        self.left_behind: list[tuple[int, int]] = []
        core.campaign(skip_pre_vote=True)
        self.turn()
        self.raft.step(VoteGranted(2, 1, 1, 0, True))
        self.turn()
        for number in range(ENTRY_COUNT):
            self.raft.propose(b"%02d" % number * (ENTRY_BYTES // 2))
            self.turn()
        self.to_3.clear()

    def turn(self) -> None:
        while (pumped := self.raft.pump()) is not None:
            for write in pumped.writes:
                self.wal.write([write.group_write], clock())
                self.raft.written(write)
            self.left_behind += pumped.left_behind
            for entry in pumped.to_apply:
                self.raft.applied(entry.index)
            for message in pumped.send:
                if isinstance(message, Append) and message.receiver == 3:
                    self.to_3.append(message)
                elif isinstance(message, Append):
                    last_index = message.previous_index + len(message.entries)
                    self.raft.step(AppendAccepted(2, 1, 1, last_index, message.round))

    def arrive(self, received: list[Entry]) -> None:
        """What was sent to 3 arrives, and it says so."""
        messages, self.to_3 = self.to_3, []
        for message in messages:
            assert message.previous_index == len(received)
            assert message.previous_term == (received[-1].term if received else 0)
            received += message.entries
            self.raft.step(AppendAccepted(3, 1, 1, len(received), 0))
        self.turn()


def test_it_is_supplied_from_disk_until_memory_goes_on() -> None:
    """M-10: in parts of a bounded size, each asked for when the one before is accepted."""
    leader = Leader()
    assert leader.raft.core.log.first_index == leader.raft.core.log.last_index + 1
    leader.raft.step(HeartbeatAnswered(3, 1, 1, 0))
    leader.turn()
    received: list[Entry] = []
    parts = 0
    while leader.left_behind:
        assert laggards.supply(leader.raft, leader.wal, *leader.left_behind.pop())
        leader.turn()
        weight = sum(len(entry.data) for message in leader.to_3 for entry in message.entries)
        assert weight <= laggards.SUPPLY_BYTES_MAX
        leader.arrive(received)
        parts += 1
    assert received == leader.wal.read(1, 1, ENTRY_COUNT + 1, READ_ALL)
    assert parts == 3
    leader.raft.propose(b"from memory")
    leader.turn()
    leader.arrive(received)
    assert received[-1].data == b"from memory"


def test_what_the_log_does_not_reach_back_to_takes_a_snapshot() -> None:
    """CL-112."""
    leader = Leader()
    leader.wal.release(1, 10)
    assert not laggards.supply(leader.raft, leader.wal, 3, 10)
    leader.raft.step(HeartbeatAnswered(3, 1, 1, 0))
    leader.turn()
    assert leader.left_behind == [(3, 1)]
    assert leader.raft.core.begin_snapshot(3)
    leader.raft.core.end_snapshot(3, installed_index=10)
    leader.turn()
    assert leader.left_behind[1:] == [(3, 11)]
    assert laggards.supply(leader.raft, leader.wal, 3, 11)
    leader.turn()
    assert (leader.to_3[0].previous_index, leader.to_3[0].previous_term) == (10, 1)


def test_what_is_in_memory_is_not_read_from_disk() -> None:
    leader = Leader(kept_bytes=3 * ENTRY_BYTES)
    first_in_memory = leader.raft.core.log.first_index
    assert ENTRY_COUNT - 2 <= first_in_memory <= ENTRY_COUNT
    leader.raft.step(HeartbeatAnswered(3, 1, 1, 0))
    leader.turn()
    leader.raft.core.begin_snapshot(3)
    leader.raft.core.end_snapshot(3, installed_index=ENTRY_COUNT - 5)
    leader.turn()
    assert laggards.supply(leader.raft, leader.wal, 3, ENTRY_COUNT - 4)
    leader.turn()
    assert leader.to_3[-1].entries[-1].index == first_in_memory - 1


def test_who_needs_only_what_is_in_memory_is_not_read_for() -> None:
    """It was named, and got further since."""
    leader = Leader()
    assert laggards.supply(leader.raft, leader.wal, 3, ENTRY_COUNT + 2)
    assert leader.raft.pump() is None
