"""The part of the state machine that lets messages out, driven by hand: pushes, pops, acks, extensions, hand-backs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from queen_node import commands
from queen_node.commands import AckStatus
from queen_node.state import consume
from queen_node.state.consume import Popped
from queen_node.state.groups import QUEUE_MODE, cursor_key
from queen_node.state.machine import Application, Machine
from queen_node.state.messages import transaction_id_of
from queen_node.state.queues import find_partition, find_queue
from queen_node.state.rows import CursorRow, PartitionRow
from queen_node.state.store import Store
from tests.support.memory_engine import MemoryEngine

SECOND = 1_000_000
START_US = 1_700_000_000_000_000
QM = QUEUE_MODE.decode()
PROPOSALS_MAX = 50  # of one pop that is worth proposing again


class Got(NamedTuple):
    """What a pop claimed of one partition."""

    partition: str
    first: int
    ids: list[str]
    attempt: int


class Acked(NamedTuple):
    """What is answered for one item of an ack, with names: `acks.Acked`."""

    transaction_id: bytes
    verdict: int
    released: bool


class Outward:
    """A state machine over the memory twin; each call is an entry of its own, at `now_us`."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.machine = Machine(Store(MemoryEngine(), life=1))
        self._numbers = count(1)
        self.wakes: dict[bytes, int] = {}  # of the last entry

    @property
    def store(self) -> Store:
        return self.machine.store

    def apply(self, *raw: bytes) -> list[Any]:
        """One entry with these commands; their answers."""
        application = self.begin(*raw)
        answers = []
        while not application.finished:
            answers.append(application.apply_next()[2])
        self.machine.commit(application)
        self.wakes = application.step.wakes
        return answers

    def begin(self, *raw: bytes) -> Application:
        """The same entry, not applied yet."""
        return self.machine.begin(
            index=self.machine.applied_index + 1, term=1, data=commands.entry(self.now_us, raw))

    def wait(self, seconds: float) -> None:
        """Let the group clock go on."""
        self.now_us += int(seconds * SECOND)

    # --- commands

    def push_command(
        self, *ids: str, queue: str = "orders", partition: str = "Default", payload: bytes = b"1", flags: int = 0,
    ) -> bytes:
        return commands.push(b"r", [
            (queue.encode(), partition.encode(), txn.encode(), next(self._numbers).to_bytes(16, "big"), payload, flags,
             None, None)
            for txn in ids
        ])

    def push(self, *ids: str, queue: str = "orders", partition: str = "Default", payload: bytes = b"1") -> None:
        self.apply(self.push_command(*ids, queue=queue, partition=partition, payload=payload))

    def configure(self, queue: str = "orders", **options: object) -> None:
        self.apply(commands.configure(b"r", queue.encode(), b"u" * 16, (None, None), "merge", list(options.items())))

    def new_lease(self) -> bytes:
        return b"lease" + next(self._numbers).to_bytes(11, "big")

    def pop_command(
        self, *, queue: str = "orders", partition: str | None = None, group: str = QM, mode: str = "new",
        from_us: int = 0, batch: int = 200, partitions: int = 1, lease_s: int | None = None, commit: bool = False,
        max_bytes: int = 8 << 20, lease_id: bytes | None = None,
    ) -> bytes:
        return commands.pop(
            b"r", lease_id=lease_id or self.new_lease(), queue=queue.encode(),
            partition=None if partition is None else partition.encode(), group=group.encode(), mode=mode,
            from_us=from_us, batch=batch, partitions=partitions, lease_ms=None if lease_s is None else lease_s * 1000,
            commit_on_delivery=commit, max_bytes=max_bytes)

    def chance(self, *, queue: str = "orders", group: str = QM, partition: str | None = None) -> bool | int | None:
        """The leader's look."""
        return consume.can_serve(
            self.store, queue=queue.encode(), group=group.encode(),
            partition=None if partition is None else partition.encode(), now_us=self.now_us)

    def pop(
        self, *, queue: str = "orders", group: str = QM, partition: str | None = None, **asked: Any,
    ) -> Popped | None:
        """Propose a pop as a leader does: only if it is worth it, and again while it is."""
        command = self.pop_command(queue=queue, group=group, partition=partition, **asked)
        for _ in range(PROPOSALS_MAX):
            if self.chance(queue=queue, group=group, partition=partition) is not True:
                return None
            popped: Popped | None = self.apply(command)[0]
            if popped is not None:
                return popped
        raise AssertionError("a pop is worth proposing for ever and never delivers")

    def got(self, **asked: Any) -> list[Got]:
        """What a pop delivers; empty when nothing."""
        return got(self.pop(**asked))

    def ids(self, **asked: Any) -> list[str]:
        """The ids alone of what a pop delivers."""
        return [txn for claim in self.got(**asked) for txn in claim.ids]

    def ack(
        self, *items: tuple[str, str] | str, lease: Popped | bytes | None, group: str = QM, partition: str = "Default",
        queue: str = "orders", error: bytes | None = None,
    ) -> list[Acked]:
        """Ack (id, status) pairs, or ids alone as completed, in one partition."""
        partition_id = self.partition(queue, partition).partition_id
        lease_id = lease if isinstance(lease, bytes) else lease.lease_id if lease is not None else b""
        return self.ack_raw([
            (txn.encode(), partition_id, int(AckStatus[status.upper()]), lease_id, error)
            for txn, status in ((item, "completed") if isinstance(item, str) else item for item in items)
        ], group=group)

    def ack_raw(self, items: Sequence[commands.AckItem], *, group: str = QM) -> list[Acked]:
        return [Acked(*answer) for answer in self.apply(commands.ack(b"r", group.encode(), items))[0]]

    def extend(self, lease_id: bytes, seconds: int = 60) -> tuple[int, int | None]:
        """(partitions renewed, earliest new expiry)."""
        _, renewed, until_us = self.apply(commands.extend(b"r", lease_id, seconds))[0]
        return renewed, until_us

    def hand_back(self, lease_id: bytes) -> None:
        self.apply(commands.hand_back(lease_id))

    # --- looking

    def partition(self, queue: str = "orders", partition: str = "Default") -> PartitionRow:
        queue_row = find_queue(self.store, queue.encode())
        assert queue_row is not None
        row = find_partition(self.store, queue_row, partition.encode())
        assert row is not None
        return row

    def cursor(self, *, group: str = QM, queue: str = "orders", partition: str = "Default") -> CursorRow | None:
        return self.store.row(cursor_key(self.partition(queue, partition).partition_id, group.encode()), CursorRow)

    def committed(self, *, group: str = QM, queue: str = "orders", partition: str = "Default") -> int:
        row = self.cursor(group=group, queue=queue, partition=partition)
        assert row is not None
        return row.committed

    def rows(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Rows of a kind."""
        return self.store.scan(kind, bytes((kind[0] + 1,)), 1 << 30)


def got(popped: Popped | None) -> list[Got]:
    """What a pop's answer delivers, to be read by people."""
    return [] if popped is None else [
        Got(
            claim.partition.decode(), claim.first_offset,
            [transaction_id_of(stored).decode() for stored in claim.messages], claim.attempt)
        for claim in popped.claims
    ]
