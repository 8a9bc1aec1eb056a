"""A few cores with a network and disks in memory, all under the test's hand: nothing moves unless it is told to.

Scenes and random runs drive the same cluster. What a scene means, and what must hold, does not belong here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from raft.configurations import decode_configuration
from raft.core import Core, Ready, Role, Settings
from raft.log import Log
from raft.messages import Entry, EntryKind, HardState, Message
from raft.quorum import Configuration


@dataclass
class Write:
    """One write handed to the disk, and the messages that wait for it."""

    hard_state: HardState
    entries: tuple[Entry, ...]
    promises: tuple[Message, ...]


@dataclass
class Disk:
    """What survives a crash. Writes arrive in order; a report says what the disk held when it was made."""

    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)

    def take(self, write: Write) -> None:
        self.hard_state = write.hard_state
        if write.entries:
            first_index = write.entries[0].index
            if first_index > len(self.entries) + 1:
                raise AssertionError(f"a write at {first_index} leaves a gap after {len(self.entries)}")
            self.entries[first_index - 1 :] = write.entries

    def report(self) -> tuple[int, int, HardState]:
        if not self.entries:
            return 0, 0, self.hard_state
        return self.entries[-1].term, self.entries[-1].index, self.hard_state


class Member:
    """A core, its disk and its state. The state is durable up to what was applied, unless a crash says otherwise."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.disk = Disk()
        self.applied: list[Entry] = []
        self.start()

    def start(self) -> None:
        """Begin, or begin again, from what the disk holds."""
        self.writes: deque[Write] = deque()
        self.reports: deque[tuple[int, int, HardState]] = deque()
        self.holds_writes = self.holds_reports = False
        self.core: Core | None = self.cluster.new_core(
            node_id=self.node_id,
            configuration=self.configuration(),
            log=Log.restore((0, 0), self.disk.entries),
            hard_state=self.disk.hard_state,
            applied_index=len(self.applied),
            settings=self.cluster.settings,
            random=self.cluster.random_of(self.node_id),
        )

    def configuration(self) -> Configuration:
        """As the state has it: of the last change that was applied."""
        changes = [entry for entry in self.applied if entry.kind is EntryKind.CONFIGURATION]
        return decode_configuration(changes[-1].data) if changes else self.cluster.configuration

    def crash(self, *, lucky_writes: int = 0, durable_index: int | None = None) -> None:
        """Lose what is not on disk. lucky_writes got there, though nobody heard; the state falls to durable_index."""
        for _ in range(min(lucky_writes, len(self.writes))):
            self.disk.take(self.writes.popleft())
        if durable_index is not None:
            del self.applied[durable_index:]
        self.core = None
        self.writes.clear()
        self.reports.clear()

    def call(self, what: Callable[[Core], object]) -> None:
        """Let the core do something, and carry out what follows; nothing if the member is down."""
        if self.core is not None:
            what(self.core)
            self.cluster.look(self)
            self.carry_out()

    def carry_out(self) -> None:
        core = self.core
        while core is not None and core.has_ready():
            ready = core.ready()
            self.cluster.handed_out(self, ready)
            self.cluster.send(ready.send_now)
            if ready.must_write:
                if ready.hard_state is None:
                    raise AssertionError("a write without its hard state")
                self.writes.append(Write(ready.hard_state, ready.entries, ready.send_after_write))
            else:
                self.cluster.send(ready.send_after_write)
            for entry in ready.to_apply:
                self.cluster.applies(self, entry)
                self.applied.append(entry)
                core.applied(entry.index)
                core.forget_applied()
            self.cluster.look(self)

    def complete_write(self) -> None:
        """The disk finishes its next write; what waited for it leaves. The core hears of it by `hear_report`."""
        write = self.writes.popleft()
        self.disk.take(write)
        self.cluster.wrote(self, write)
        self.cluster.send(write.promises)
        self.reports.append(self.disk.report())

    def hear_report(self) -> None:
        term, index, hard_state = self.reports.popleft()
        self.call(lambda core: core.written(term, index, hard_state))


class Cluster:
    """Members and what is on its way between them. The methods that do nothing let a subclass watch."""

    def __init__(self, configuration: Configuration, settings: Settings, others: Iterable[int] = ()) -> None:
        """others: nodes that are there and no members yet. All begin with the same configuration."""
        self.configuration, self.settings = configuration, settings
        self.network: list[Message] = []
        self.cut_links: set[tuple[int, int]] = set()
        self.members: dict[int, Member] = {}
        for node_id in (*configuration.members, *others):
            self.members[node_id] = Member(self, node_id)

    new_core: Callable[..., Core] = Core

    def random_of(self, node_id: int) -> Random:
        raise NotImplementedError

    def look(self, member: Member) -> None:
        """The member's core has done something."""

    def handed_out(self, member: Member, ready: Ready) -> None:
        """The member's core has handed this out."""

    def applies(self, member: Member, entry: Entry) -> None:
        """The member is about to apply the entry."""

    def wrote(self, member: Member, write: Write) -> None:
        """The member's disk has finished this write."""

    def send(self, messages: Iterable[Message]) -> None:
        self.network += [m for m in messages if (m.sender, m.receiver) not in self.cut_links]

    def deliver(self, message: Message) -> None:
        """Hand over a message that was taken off the network."""
        self.members[message.receiver].call(lambda core: core.step(message))

    def cut(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """Lose what these send to those, also what is on its way."""
        receivers = tuple(receivers)
        self.cut_links |= {(sender, receiver) for sender in senders for receiver in receivers if sender != receiver}
        self.network = [m for m in self.network if (m.sender, m.receiver) not in self.cut_links]

    def settle(self, *, at_most: int = 10_000) -> None:
        """Deliver and write until nothing moves any more; held disks stay held."""
        for _ in range(at_most):
            if self.network:
                self.deliver(self.network.pop(0))
            elif not self._move_a_disk():
                return
        raise AssertionError(f"still moving after {at_most} steps")

    def settle_disks(self, *, at_most: int = 1_000) -> None:
        """Let the disks that are not held finish their writes; no message moves."""
        for _ in range(at_most):
            if not self._move_a_disk():
                return
        raise AssertionError(f"still writing after {at_most} steps")

    def _move_a_disk(self) -> bool:
        for member in self.members.values():
            if member.writes and not member.holds_writes:
                member.complete_write()
                return True
            if member.reports and not member.holds_reports:
                member.hear_report()
                return True
        return False

    @property
    def leaders(self) -> list[Core]:
        cores = [member.core for member in self.members.values() if member.core is not None]
        return [core for core in cores if core.role is Role.LEADER]
