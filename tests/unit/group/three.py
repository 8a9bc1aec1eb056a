"""One group on three nodes, its messages in the test's hand: who is cut off, whose disk works, what time it is."""

from __future__ import annotations

import random
from collections import deque

from queen_node import commands
from queen_node.broker import Lane
from queen_node.calls import Pending, PendingRead
from queen_node.commands import PayloadFlag, TimerOp
from queen_node.group import Group
from queen_node.ids import IdMint
from queen_node.parked_pops import WaitingPop
from queen_node.peer_calls import PeerCall, decode, encode
from queen_node.places import place
from queen_node.slots import Slot
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from raft.clock import GroupClock
from raft.core import Core, Role
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import HardState, Message
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.memory_engine import MemoryEngine
from tests.unit.group.driver import SETTINGS, START_US, HandClock, Rig

SECOND_US = 1_000_000
NODES = (1, 2, 3)
DIRECTORIES = {node_id: b"%d" % node_id * 16 for node_id in NODES}
TICK_S = 0.1
TURNS_MAX = 10_000  # of messages that answer each other


class Member(Rig):
    """The group on one node. disk: the log and the hard state that it starts with."""

    def __init__(
        self, node_id: int, clock: HandClock, seed: int = 0, disk: tuple[Log, HardState] | None = None,
    ) -> None:
        log, hard_state = disk or (Log(), HardState())
        core = Core(
            node_id=node_id, configuration=Configuration(NODES).named(DIRECTORIES), log=log, hard_state=hard_state,
            applied_index=0, settings=Settings(), random=random.Random(node_id + 10 * seed),
            directory_id=DIRECTORIES[node_id])
        raft_group = RaftGroup(life=1, core=core, clock=GroupClock.first_ever(clock), stamp_of=commands.stamp_of)
        super().__init__(Group(raft_group, Machine(Store(MemoryEngine(), life=1)), SETTINGS))
        self.ids = IdMint(wall_ns=lambda: START_US * 1000, random_bytes=random.Random(10 + node_id).randbytes)

    @property
    def leads(self) -> bool:
        return self.group.raft.core.role is Role.LEADER


class Three:
    """All of them. cut: nodes that nobody hears and that hear nobody. lost: said, and never to arrive."""

    def __init__(self, seed: int = 0, clock: HandClock | None = None) -> None:
        self.clock = clock or HandClock()
        self.members = {node: Member(node, self.clock, seed) for node in NODES}
        self.cut: set[int] = set()
        self._mail: deque[tuple[int, int, Message | bytes]] = deque()  # from, to, what
        self.lose_calls = False

    @property
    def now_s(self) -> float:
        return self.clock.since_boot_us / SECOND_US

    # --- time and messages

    def elect(self, node: int) -> Member:
        """Let a node lead."""
        self.members[node].group.raft.core.campaign()
        self.settle()
        assert self.members[node].leads
        return self.members[node]

    def hand_over(self, node: int, to: int) -> None:
        """Let a leader give its place to another node."""
        self.members[node].group.raft.core.transfer_leadership(to)
        self.settle()
        assert self.members[to].leads

    def restart(self, node: int) -> Member:
        """The process ends and another begins, whose store is empty: it has all its log to apply again."""
        core = self.members[node].group.raft.core
        log = Log.restore((0, 0), core.log.after(0))
        self._mail = deque(mail for mail in self._mail if node not in mail[:2])
        self.members[node] = Member(node, self.clock, disk=(log, HardState(core.term, core.voted_for)))
        return self.members[node]

    def settle(self) -> None:
        """Until nobody has anything to say."""
        for node in NODES:
            self._turn(node)
        for _ in range(TURNS_MAX):
            if not self._mail:
                return
            sender, receiver, said = self._mail.popleft()
            if self.cut & {sender, receiver}:
                continue
            group = self.members[receiver].group
            group.now_s = self.now_s
            if isinstance(said, bytes):
                group.hear(sender, decode(said), group.raft.clock.now_us())
            else:
                group.raft.step(said)
            self._turn(receiver)
        raise AssertionError("they talk for ever")

    def pass_time(self, seconds: float) -> None:
        """Ticks, alarms and wheels, as the actors ring them."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.since_boot_us += round(TICK_S * SECOND_US)
            for member in self.members.values():
                group = member.group
                group.raft.core.tick()
                group.due()
                group.give_up_late_calls(self.now_s, group.raft.clock.now_us())
            self.settle()

    def _turn(self, node: int) -> None:
        member = self.members[node]
        member.group.tell_the_time(self.now_s, member.group.raft.clock.now_us())
        self._mail.extend((node, message.receiver, message) for message in member.work())
        self._post(node, member.group.outgoing)

    def _post(self, node: int, outgoing: list[tuple[int, PeerCall]]) -> None:
        if not self.lose_calls:
            self._mail.extend((node, receiver, encode(call)) for receiver, call in outgoing)
        outgoing.clear()

    # --- calls

    def push(self, node: int, queue: bytes, *bodies: bytes, partition: bytes = b"Default") -> Slot:
        member = self.members[node]
        items = [
            (queue, partition, body, member.ids.uuid7(), b'"%b"' % body, PayloadFlag.JSON, None, None)
            for body in bodies
        ]
        command = commands.push(member.ids.request_id(), items)
        return self._submit(node, command, (place(queue, partition),) * len(items), Lane.PUSHES)

    def pushed(self, node: int, queue: bytes, *bodies: bytes) -> Slot:
        """The same, and what follows."""
        slot = self.push(node, queue, *bodies)
        self.settle()
        return slot

    def configure(self, node: int, queue: bytes, **options: object) -> None:
        """Give a queue options, by the names of their fields."""
        member = self.members[node]
        uuid = member.ids.uuid7()
        self._submit(node, commands.configure(
            member.ids.request_id(), queue, uuid, (None, None), "merge", list(options.items())))
        self.settle()

    def schedule(self, node: int, queue: bytes, key: bytes, delay_ms: int) -> Slot:
        member = self.members[node]
        operation = (
            TimerOp.SCHEDULE, queue, key, delay_ms, b"txn-" + key, member.ids.uuid7(), b"1", PayloadFlag.JSON,
            b"Default", None)
        return self._submit(node, commands.timers(member.ids.request_id(), [operation], firing=True))

    def kv(self, node: int, *operations: commands.KvOperation) -> Slot:
        return self._submit(node, commands.kv(self.members[node].ids.request_id(), operations, one=False))

    def cancel(self, node: int, queue: bytes, key: bytes) -> Slot:
        member = self.members[node]
        operation = (TimerOp.CANCEL, queue, key, None)
        return self._submit(node, commands.timers(member.ids.request_id(), [operation], firing=True))

    def pop(self, node: int, queue: bytes, *, wait_s: float | None = 30, lease_ms: int = 60_000) -> WaitingPop:
        member = self.members[node]
        lease_id = member.ids.uuid7()
        command = commands.pop(
            member.ids.request_id(), lease_id=lease_id, queue=queue, partition=None, group=b"__QUEUE_MODE__",
            mode="all", from_us=0, batch=10, partitions=1, lease_ms=lease_ms, commit_on_delivery=False,
            max_bytes=8 << 20)
        pop = WaitingPop(
            command, lease_id=lease_id, queue=queue, reader=(b"__QUEUE_MODE__", None), slot=Slot(),
            waits=wait_s is not None, answer_by_s=self.now_s + (20 if wait_s is None else wait_s))
        member.group.pop(pop, member.group.raft.clock.now_us())
        return pop

    def popped(self, node: int, queue: bytes) -> WaitingPop:
        """The same, and what follows."""
        pop = self.pop(node, queue)
        self.settle()
        return pop

    def read(self, node: int) -> Slot:
        slot = Slot()
        self.members[node].group.read(PendingRead(b"", slot, give_up_at_s=self.now_s + 30))
        return slot

    def _submit(self, node: int, command: bytes, places: tuple[bytes, ...] = (), lane: Lane = Lane.DRAINING) -> Slot:
        slot = Slot()
        pending = Pending(command, slot, give_up_at_s=self.now_s + 30, places=places)
        self.members[node].group.now_s = self.now_s
        self.members[node].group.submit(pending, lane)
        return slot

    # --- what came of it

    def digests(self) -> set[tuple[int, bytes]]:
        """(applied index, digest) of the members that are not cut off."""
        return {
            (meta.applied_index, meta.digest)
            for node, member in self.members.items() if node not in self.cut
            for meta in (member.group.machine.store.meta,)
        }
