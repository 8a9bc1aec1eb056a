"""A random history of entries with every kind of command, and what a node makes of it.

Run as a program it applies the history of a seed and prints the digests: `python -m tests.unit.state.history 7`.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random
from typing import Any

from queen_node import commands
from queen_node.commands import (
    AckItem,
    AckStatus,
    CancelOp,
    Kind,
    KvOp,
    KvOperation,
    LockOp,
    LockOperation,
    PushItem,
    ScheduleOp,
    TimerOp,
)
from queen_node.state.groups import QUEUE_MODE
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from tests.support.memory_engine import MemoryEngine

QUEUES = (b"orders", b"bills.open.x", b"caf\xc3\xa9")
PARTITIONS = (b"Default", b"p", b"q")
GROUPS = (b"g", b"h", QUEUE_MODE)
MODES = ("all", "new", "time")
WEIGHTS = {Kind.PUSH: 6, Kind.TIMERS: 4, Kind.FIRE: 3, Kind.POP: 6, Kind.ACK: 5, Kind.TRANSACTION: 5}  # of the others 1
OPTIONS: dict[str, tuple[object, ...]] = {
    "dedup_window_seconds": (0, 1, 60, None), "lease_time": (1, 60), "retry_limit": (0, 1, 3),
    "delayed_processing": (0, 1), "window_buffer": (0, 1), "dead_letter_queue": (True, False),
    "encryption_enabled": (True, False, False, False),
}


class History:
    """Draws entries from a seed. It looks at no state: what it asks for may be there or not."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._leases: list[bytes] = []
        self._now_us = 1_700_000_000_000_000
        self._draw = {
            Kind.PUSH: self._push, Kind.TIMERS: self._timers, Kind.FIRE: self._fire, Kind.POP: self._pop,
            Kind.ACK: self._ack, Kind.EXTEND: self._extend, Kind.HAND_BACK: self._hand_back,
            Kind.CONFIGURE: self._configure, Kind.FORGET_IDS: self._forget_ids,
            Kind.TRANSACTION: self._transaction, Kind.KV: self._kv, Kind.SWEEP_KV: self._sweep_kv,
            Kind.LOCKS: self._locks,
            Kind.CREATE_TENANT: self._create_tenant, Kind.KNOW_MEMBERS: self._know_members,
            Kind.CHANGE_MEMBERS: self._change_members, Kind.MEMBERS_CHANGED: self._members_changed,
            Kind.RAISE_VERSION: self._raise_version,
        }
        self._weights = [WEIGHTS.get(kind, 1) for kind in self._draw]

    def entry(self) -> tuple[list[Kind], bytes]:
        """The next entry, and the kinds of its commands."""
        self._now_us += self._random.choice((0, 1, 1000, 500_000, 3_000_000, 70_000_000))
        kinds = self._random.choices(list(self._draw), weights=self._weights, k=self._random.randint(1, 5))
        return kinds, commands.entry(self._now_us, [self._draw[kind]() for kind in kinds])

    def _id(self) -> bytes:
        return self._random.randbytes(16)

    def _one(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _push(self) -> bytes:
        return commands.push(self._id(), self._items())

    def _items(self) -> list[PushItem]:
        return [
            (self._one(*QUEUES), self._one(*PARTITIONS), self._txn(), self._id(), b'{"n":1}', self._one(0, 1),
             self._one(None, self._id()), self._one(None, b"me"))
            for _ in range(self._random.randint(1, 4))
        ]

    def _txn(self) -> bytes:
        return b"t%d" % self._random.randint(0, 20)

    def _timers(self) -> bytes:
        return commands.timers(self._id(), self._timer_operations(), firing=self._one(True, True, False))

    def _timer_operations(self) -> list[ScheduleOp | CancelOp]:
        operations: list[ScheduleOp | CancelOp] = []
        for key in self._random.sample([b"k%d" % number for number in range(8)], k=self._random.randint(1, 3)):
            queue = self._one(*QUEUES)
            if self._random.random() < 0.3:
                operations.append((TimerOp.CANCEL, queue, key, self._one(None, b"t1")))
            else:
                operations.append((
                    TimerOp.SCHEDULE, queue, key, self._one(0, 1, 1000, 60_000), self._txn(), self._id(), b"2", 0,
                    self._one(*PARTITIONS), None))
        return operations

    def _fire(self) -> bytes:
        return commands.fire(
            at_most=self._one(1, 3, 256), max_bytes=1 << 20, rules=commands.RulesOfFire(
                max_attempts=2, fail_queue=self._one(b"", b"", b"orders"), fail_transient=self._one(True, False)))

    def _pop(self) -> bytes:
        lease_id = self._id()
        self._leases.append(lease_id)
        return commands.pop(
            self._id(), lease_id=lease_id, queue=self._one(*QUEUES), partition=self._one(None, None, *PARTITIONS),
            group=self._one(*GROUPS), mode=self._one(*MODES), from_us=self._now_us - self._one(0, 10_000_000),
            batch=self._one(1, 3, 10), partitions=self._one(1, 2), lease_ms=self._one(None, 500),
            commit_on_delivery=self._one(False, False, True), max_bytes=self._one(40, 1 << 20))

    def _lease(self) -> bytes:
        return self._random.choice(self._leases[-4:]) if self._leases else b""

    def _ack(self) -> bytes:
        return commands.ack(self._id(), self._one(*GROUPS), self._ack_items(self._random.randint(1, 6)))

    def _ack_items(self, count: int) -> list[AckItem]:
        return [
            (self._txn(), self._random.randint(1, 9), self._one(*AckStatus), self._one(b"", self._lease()),
             self._one(None, b"why"))
            for _ in range(count)
        ]

    def _extend(self) -> bytes:
        return commands.extend(self._id(), self._lease(), self._one(1, 30))

    def _hand_back(self) -> bytes:
        return commands.hand_back(self._lease())

    def _configure(self) -> bytes:
        options = [(name, self._one(*OPTIONS[name])) for name in self._random.sample(list(OPTIONS), k=3)]
        return commands.configure(
            self._id(), self._one(*QUEUES), self._id(), (self._one(None, b"ns"), self._one(None, b"")),
            self._one("merge", "replace"), options)

    def _create_tenant(self) -> bytes:
        return commands.create_tenant(self._id(), bytes(15) + bytes((self._random.randint(1, 9),)), at_most=7)

    def _know_members(self) -> bytes:
        node = self._random.randint(1, 4)
        return commands.know_members(self._id(), [(node, f"r{node}:1", f"h{node}:1", self._one(b"", bytes(16)))])

    def _change_members(self) -> bytes:
        voters, learners = self._one([1, 2], [1, 2, 3]), self._one([], [4])
        return commands.change_members(
            self._id(), self._random.randint(1, 9), voters, learners, force=False, before=([1, 2, 3], []))

    def _members_changed(self) -> bytes:
        return commands.members_changed(self._id(), self._random.randint(1, 9))

    def _raise_version(self) -> bytes:
        return commands.raise_version(self._id(), self._random.randint(1, 3))

    def _forget_ids(self) -> bytes:
        return commands.forget_ids(at_most=self._one(1, 5, 100), keep_at_least_s=self._one(0, 30))

    def _kv(self) -> bytes:
        return commands.kv(self._id(), self._kv_operations(self._random.randint(1, 4)))

    def _kv_operations(self, count: int) -> list[KvOperation]:
        return [self._kv_operation(key) for key in self._random.sample((b"a", b"b", b"c/d", b"caf\xc3\xa9"), count)]

    def _transaction(self) -> bytes:
        acks = [(self._one(*GROUPS), item) for item in self._ack_items(self._one(0, 0, 1))]
        return commands.transaction(
            self._id(), acks=acks, pushes=self._one([], self._items()[:2]), positions=self._one([], [
                (self._one(*QUEUES), self._one(*PARTITIONS), self._one(*GROUPS), self._one(None, 0, 2, 1000),
                 self._one(*MODES[:2]))]), kv=self._kv_operations(self._one(0, 1)),
            timers=self._one([], self._timer_operations()), firing=self._one(True, True, False))

    def _kv_operation(self, key: bytes) -> KvOperation:
        ns, ttl_s, expect = self._one(b"n", b"queen-locks"), self._one(0, 1, 60), self._one(None, None, 0, 3)
        required = self._one(False, False, False, True)
        operations: tuple[KvOperation, ...] = (
            (KvOp.GET, ns, key), (KvOp.GET_MANY, ns, (key, b"a")), (KvOp.GET_PREFIX, ns, b"", key, 10, False),
            (KvOp.PUT, ns, key, self._one(b"1", b"{}", b"2.5"), ttl_s, expect, required),
            (KvOp.PUT_IF_ABSENT, ns, key, b"7", ttl_s, 0, required), (KvOp.DELETE, ns, key, expect, required),
            (KvOp.INCR, ns, key, self._one(1, -2, 0.1), self._one(None, 0), self._one(None, 5), ttl_s, required),
            (KvOp.CHECK, ns, key, expect or 0, required))
        return self._random.choice(operations)

    def _locks(self) -> bytes:
        return commands.locks(self._id(), [
            self._lock_operation(name) for name in self._random.sample((b"a", b"b", b"caf\xc3\xa9"), self._one(1, 2))])

    def _lock_operation(self, name: bytes) -> LockOperation:
        owner, limit = self._one(None, "ann", "bob"), self._one(1, 2, 9)
        slot, token = self._one(0, 1), self._random.randint(1, 60)
        operations: tuple[LockOperation, ...] = (
            (LockOp.ACQUIRE, name, self._one(1, 100), owner, limit), (LockOp.RENEW, name, token, 60, slot, owner),
            (LockOp.RELEASE, name, token, slot), (LockOp.GET, name))
        return self._random.choice(operations)

    def _sweep_kv(self) -> bytes:
        return commands.sweep_kv(at_most=self._one(1, 100))


def run(seed: int, entries: int, *, anew_before_each: bool = False) -> tuple[Machine, Counter[Kind], list[str]]:
    """Apply the history of a seed: the machine, how many commands of each kind, the digest after each entry.

    anew_before_each: with nothing left in memory of the entries before, as after a restart."""
    history, machine = History(seed), Machine(Store(MemoryEngine(), life=1))
    applied: Counter[Kind] = Counter()
    digests = []
    for index in range(1, entries + 1):
        kinds, data = history.entry()
        if anew_before_each:
            machine.reopen(1)
        machine.apply_entry(index=index, term=1, data=data)
        applied.update(kinds)
        digests.append(machine.store.meta.digest.hex())
    return machine, applied, digests


def main() -> None:
    """Print the digest after each entry, a line each."""
    seed, entries = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.write("\n".join(run(seed, entries)[2]))


if __name__ == "__main__":
    main()
