"""Drives a group's decisions without trio: a lone voter, a disk that writes when told, a clock that a test moves."""

from __future__ import annotations

import random
from collections import deque

import msgspec

from queen_node import commands
from queen_node.answers.consume import render_pop
from queen_node.applier import begin
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.commands import PayloadFlag, TimerOp
from queen_node.group import Group, GroupSettings
from queen_node.ids import IdMint
from queen_node.parked_pops import WaitingPop
from queen_node.places import place
from queen_node.slots import ResultSlot, Slot
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from raft.clock import GroupClock
from raft.core import Core
from raft.group import LogWrite, RaftGroup
from raft.log import Log
from raft.messages import Entry, HardState, Message
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.memory_engine import MemoryEngine

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US


def fire_of(at_most: int) -> bytes:
    """A fire step of at most so many timers, with the contract's backoff."""
    return commands.fire(at_most=at_most, max_bytes=4 << 20, rules=commands.RulesOfFire())


SETTINGS = GroupSettings(
    batch_max_commands=8, batch_max_bytes=4096, firing=True, fire=fire_of(256),
    forget_ids=commands.forget_ids(at_most=10, keep_at_least_s=900),
    sweep_kv=commands.sweep_kv(at_most=3), sweep_every_us=SECOND_US, sweep_pause_us=5000)


class HandClock:
    """A machine's clocks, moved by hand."""

    boot_id = bytes(16)

    def __init__(self) -> None:
        self.since_boot_us = 5 * SECOND_US

    def boottime_us(self) -> int:
        return self.since_boot_us

    def wall_us(self) -> int:
        return START_US


class Rig:
    """A group between a disk that writes when it is told and a network that is a list of messages.

    entries: how many commands each applied entry had, oldest first; copies: how often each request stood in one.
    left_behind: members that need what is not in memory; restarts: behind which entries the log was begun anew.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.writes: deque[LogWrite] = deque()
        self.entries: list[int] = []
        self.copies: dict[bytes, int] = {}
        self.disk_works = True
        self.left_behind: list[int] = []
        self.restarts: list[int] = []

    def work(self) -> list[Message]:
        """Until nothing more follows, as the actor does; writes reach the disk while `disk_works`. What is to be sent.
        """
        group, raft, sent = self.group, self.group.raft, list[Message]()
        while True:
            for read in group.take_servable_reads(raft.clock.now_us()):
                read.slot.answer(b"served")
            group.propose(raft.clock.now_us())
            group.ask_for_read_indexes()
            pumped = raft.pump()
            if pumped is None:
                return sent
            sent += pumped.send
            self.writes.extend(pumped.writes)
            for request, index in pumped.reads:
                group.read_confirmed(request, index)
            self.left_behind += [peer for peer, _ in pumped.left_behind]
            while self.writes and self.disk_works:
                write = self.writes.popleft()
                raft.written(write)
                if write.group_write.restart_after is not None:
                    self.restarts.append(write.group_write.restart_after)
            for entry in pumped.to_apply:
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        group = self.group
        application = begin(group.machine, entry)
        results = []
        while not application.finished:
            results.append(application.apply_next())
        group.machine.commit(application)
        group.raft.applied(entry.index)
        if results:
            self.entries.append(len(results))
        for request_id, _, _ in results:
            self.copies[request_id] = self.copies.get(request_id, 0) + 1
        group.applied(application, results, group.raft.clock.now_us())


class Driver(Rig):
    """One group, a lone voter."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.clock = HandClock()
        machine = Machine(Store(MemoryEngine(), life=1))
        core = Core(
            node_id=1, configuration=Configuration((1,)), log=Log(), hard_state=HardState(0, 0, 0), applied_index=0,
            settings=Settings(), random=random.Random(1))
        raft_group = RaftGroup(
            life=1, core=core, clock=GroupClock.first_ever(self.clock), stamp_of=commands.stamp_of)
        super().__init__(Group(raft_group, machine, settings))
        self.ids = IdMint(wall_ns=lambda: START_US * 1000, random_bytes=random.Random(2).randbytes)
        core.campaign()
        self.turn()

    @property
    def now_s(self) -> float:
        return self.clock.since_boot_us / SECOND_US

    def turn(self) -> None:
        """What follows from all that happened, at this moment."""
        self.group.tell_the_time(self.now_s, self.group.raft.clock.now_us())
        assert not self.work(), "a lone voter speaks"

    def write_out(self) -> None:
        """The disk catches up with all that was handed to it."""
        while self.writes:
            self.group.raft.written(self.writes.popleft())
        self.turn()

    def pass_time(self, seconds: float) -> None:
        self.clock.since_boot_us += round(seconds * SECOND_US)
        self.group.due()
        self.turn()

    # --- calls

    def push(self, queue: bytes, *bodies: bytes) -> Slot:
        items = [
            (queue, b"Default", body, self.ids.uuid7(), b'"%b"' % body, PayloadFlag.JSON, None, None)
            for body in bodies
        ]
        return self.submit(
            commands.push(self.ids.uuid7(), items), (place(queue, b"Default"),) * len(items), Lane.PUSHES)

    def schedule(self, queue: bytes, key: bytes, delay_ms: int) -> Slot:
        operation = (
            TimerOp.SCHEDULE, queue, key, delay_ms, b"txn-" + key, self.ids.uuid7(), b"1", PayloadFlag.JSON, b"Default",
            None)
        return self.submit(commands.timers(self.ids.uuid7(), [operation], firing=True))

    def submit(self, command: bytes, places: tuple[bytes, ...] = (), lane: Lane = Lane.DRAINING) -> Slot:
        slot = Slot()
        self.group.submit(Pending(command, slot, give_up_at_s=self.now_s + 30, places=places), lane)
        return slot

    def pop(
        self, queue: bytes, *, wait_s: float | None = 30, group: bytes = b"__QUEUE_MODE__",
        partition: bytes | None = None, lease_ms: int = 60_000, batch: int = 10,
    ) -> WaitingPop:
        lease_id = self.ids.uuid7()
        command = commands.pop(
            self.ids.uuid7(), lease_id=lease_id, queue=queue, partition=partition, group=group, mode="all", from_us=0,
            batch=batch, partitions=1, lease_ms=lease_ms, commit_on_delivery=False, max_bytes=8 << 20)
        pop = WaitingPop(
            command, lease_id=lease_id, queue=queue, reader=(group, partition), slot=Slot(), waits=wait_s is not None,
            answer_by_s=self.now_s + (20 if wait_s is None else wait_s))
        self.group.pop(pop, self.group.raft.clock.now_us())
        return pop

    def read(self) -> Slot:
        slot = Slot()
        self.group.read(PendingRead(b"", slot, give_up_at_s=self.now_s + 30))
        return slot


def outcome(slot: ResultSlot) -> bytes | str | None:
    """None while it waits; else its packed answer, or the code of an Unavailable."""
    assert isinstance(slot, Slot)
    result = slot._result
    return result.code if isinstance(result, Unavailable) else result


def messages(pop: WaitingPop) -> list[dict[str, object]] | None:
    """What a pop was given, as its client reads it; None while it waits, [] when it was answered empty."""
    answer = outcome(pop.slot)
    if answer is None:
        return None
    assert isinstance(answer, bytes), answer
    status, body = render_pop(answer)
    found: list[dict[str, object]] = msgspec.json.decode(body)["messages"] if status == 200 else []
    return found


def delivered(pop: WaitingPop) -> list[str] | None:
    """The transaction ids of that."""
    found = messages(pop)
    return None if found is None else [str(message["transactionId"]) for message in found]
