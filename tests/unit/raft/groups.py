"""Three members of one group, each a `RaftGroup` with its own machine's clocks; messages move when they are told to.

What a member's disk keeps of the clock is what the log keeps (M-22): the last record, and the clocks when it was
written. An entry's data is its stamp in decimal.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from raft.clock import NOTHING_KNOWN, ClockReading, Estimate, GroupClock, estimate_after_restart, read_clocks
from raft.core import Core
from raft.group import LogWrite, RaftGroup
from raft.log import Log
from raft.messages import Entry, EntryKind, HardState, Message
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.fake_machine import EPOCH, FakeMachine

VOTERS = (1, 2, 3)
ELECTION_TICKS = 10
TURNS_MAX = 1000


def stamp_of(data: bytes) -> int:
    return int(data) if data.isdigit() else 0


class PatientRandom(Random):
    """Draws the longest timeout there is."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return (stop or start) - 1


class Member:
    """One group on one machine."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.machine = FakeMachine(boot=node_id, boottime_us=(100 + node_id) * 1_000_000)
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self.applied_index = 0
        self.last_stamp_us = 0
        self.offset = (0, 0)
        self.recorded: tuple[int, int, ClockReading] | None = None
        self._start(Estimate(EPOCH, is_weak=False))

    def restart(self) -> None:
        """The process ends and begins again, from the disk."""
        estimate = NOTHING_KNOWN
        if self.recorded is not None:
            estimate = estimate_after_restart(*self.recorded, read_clocks(self.machine))
        self._start(estimate)

    def _start(self, estimate: Estimate) -> None:
        core = Core(
            node_id=self.node_id, configuration=Configuration(VOTERS), log=Log.restore((0, 0), self.entries),
            hard_state=self.hard_state, applied_index=self.applied_index,
            settings=Settings(election_ticks=ELECTION_TICKS, pre_vote=False), random=PatientRandom(),
        )  # fmt: skip
        log_term = self.entries[-1].term if self.entries else 0
        clock = GroupClock(self.machine, estimate, self.last_stamp_us, log_term)
        self.raft = RaftGroup(life=1, core=core, clock=clock, stamp_of=stamp_of, offset=self.offset)

    def written(self, write: LogWrite) -> None:
        group_write = write.group_write
        self.hard_state = group_write.hard_state
        if group_write.entries:
            self.entries[group_write.entries[0].index - 1 :] = group_write.entries
        if group_write.clock_us:
            self.recorded = group_write.clock_us, group_write.clock_offset_us, read_clocks(self.machine)
        self.raft.written(write)


class Groups:
    """The three, and what is on its way between them."""

    def __init__(self) -> None:
        self.members = {node_id: Member(node_id) for node_id in VOTERS}
        self.network: list[Message] = []
        self.silent: set[int] = set()

    def __getitem__(self, node_id: int) -> Member:
        return self.members[node_id]

    def pass_time(self, us: int, *, asleep: Collection[int] = ()) -> None:
        """On all machines but those that are `asleep` and do not notice."""
        for member in self.members.values():
            if member.node_id not in asleep:
                member.machine.pass_time(us)

    def frames(self) -> None:
        """Each node tells the others its BOOTTIME (M-21)."""
        for sender in self.members.values():
            for receiver in self.members.values():
                if sender is not receiver and not self.silent & {sender.node_id, receiver.node_id}:
                    receiver.raft.hear_boottime(sender.node_id, sender.machine.boottime_us())

    def elect(self, node_id: int) -> None:
        """Let it stand, after an election timeout without a leader in which nobody else stood."""
        for member in self.members.values():
            for _ in range(ELECTION_TICKS if member.node_id not in self.silent else 0):
                member.raft.core.tick()
        self[node_id].raft.core.campaign()
        self.settle()

    def stamp(self, node_id: int) -> int:
        """The leader's stamp for an entry that it proposes now."""
        raft = self[node_id].raft
        stamp_us = raft.clock.stamp()
        raft.propose(b"%d" % stamp_us)
        return stamp_us

    def settle(self) -> None:
        """Until nothing moves. What a silent node sends or should hear is lost."""
        for _ in range(TURNS_MAX):
            moved = [self._turn(member) for member in self.members.values() if member.node_id not in self.silent]
            messages, self.network = self.network, []
            for message in messages:
                if message.receiver not in self.silent:
                    self[message.receiver].raft.step(message)
            if not messages and not any(moved):
                return
        raise AssertionError(f"still moving after {TURNS_MAX} turns")

    def reach_only(self, sender: int, receiver: int) -> None:
        """One turn of each: what the sender sends now reaches this receiver's disk; nothing else arrives anywhere."""
        self._turn(self[sender])
        for message in self.network:
            if message.receiver == receiver:
                self[receiver].raft.step(message)
        self._turn(self[receiver])
        self.network.clear()

    def _turn(self, member: Member) -> bool:
        pumped = member.raft.pump()
        if pumped is None:
            return False
        self.network += pumped.send
        for write in pumped.writes:
            member.written(write)
        for entry in pumped.to_apply:
            if entry.kind is EntryKind.COMMANDS:
                member.last_stamp_us = max(member.last_stamp_us, stamp_of(entry.data))
            member.applied_index = entry.index
            member.raft.applied(entry.index)
        return True
