"""The part of the state machine that takes messages in, alone: pushes, configuring, forgetting ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queen_node import commands, packed
from queen_node.commands import Kind, PushItem
from queen_node.ids import IdMint
from queen_node.state import push, queues
from queen_node.state.messages import Message, message_key, unpack
from queen_node.state.rows import PartitionRow
from queen_node.state.step import Step
from queen_node.state.store import Store
from tests.support.memory_engine import MemoryEngine

SECOND = 1_000_000
START_US = 1_700_000_000_000_000

HANDLERS: dict[int, Callable[[Step, list[Any]], Any]] = {
    Kind.PUSH: push.apply_push,
    Kind.CONFIGURE: queues.apply_configure,
    Kind.FORGET_IDS: push.apply_forget_ids,
}


def counting_mint() -> IdMint:
    """Ids that differ and are the same in every run."""
    serial = iter(range(1, 1 << 30))
    return IdMint(wall_ns=lambda: 0, random_bytes=lambda size: b"".join(
        next(serial).to_bytes(10, "big") for _ in range(size // 10)))


class Inward:
    """One group's state, the group clock in the test's hand. Every call is an entry of its own."""

    def __init__(self) -> None:
        self.store = Store(MemoryEngine(), life=1)
        self.now_us = START_US
        self.step: Step | None = None  # of the last entry
        self._mint = counting_mint()

    def wait(self, seconds: float) -> None:
        """Let the group clock go on."""
        self.now_us += int(seconds * SECOND)

    def apply(self, *raw_commands: bytes) -> list[Any]:
        """The answers of one entry."""
        self.step = Step(self.store, now_us=self.now_us, index=self.store.meta.applied_index + 1)
        answers = []
        for raw in raw_commands:
            command = packed.fields_of(raw)
            answers.append(HANDLERS[command[0]](self.step, command))
        self.store.commit(index=self.step.index, term=1, stamp_us=self.now_us)
        return answers

    def item(
        self, transaction_id: str, *, queue: str = "orders", partition: str = "Default", payload: bytes = b"1",
    ) -> PushItem:
        """An item of a push; its message id is new."""
        return (queue.encode(), partition.encode(), transaction_id.encode(), self._mint.uuid7(), payload, 0, None, None)

    def push(self, *items: PushItem) -> list[tuple[str, int]]:
        """Push one call: ("queued" or "duplicate", offset) for each item."""
        placed = self.apply(commands.push(b"r", items))[0]
        assert isinstance(placed, list)
        return [("duplicate" if duplicate else "queued", offset) for _, _, _, duplicate, offset in placed]

    def push_ids(self, *transaction_ids: str) -> list[tuple[str, int]]:
        """The same with the ids alone, to orders/Default."""
        return self.push(*(self.item(transaction_id) for transaction_id in transaction_ids))

    def configure(
        self, queue: str = "orders", *, labels: tuple[bytes | None, bytes | None] = (None, None), mode: str = "merge",
        options: Mapping[str, object] | None = None, **named: object,
    ) -> Any:
        """Configure; options by their fields' names, in either way."""
        return self.apply(commands.configure(
            b"r", queue.encode(), self._mint.uuid7(), labels, mode, list({**(options or {}), **named}.items())))[0]

    def forget(self, *, at_most: int = 1000, keep_at_least_s: int = 0) -> tuple[int, bool]:
        """One command that forgets."""
        answer: tuple[int, bool] = self.apply(
            commands.forget_ids(at_most=at_most, keep_at_least_s=keep_at_least_s))[0]
        return answer

    def partition(self, queue: str = "orders", partition: str = "Default") -> PartitionRow:
        """The row of a partition that exists."""
        queue_row = queues.find_queue(self.store, queue.encode())
        assert queue_row is not None
        row = queues.find_partition(self.store, queue_row, partition.encode())
        assert row is not None
        return row

    def messages(self, queue: str = "orders", partition: str = "Default") -> list[Message]:
        """The retained messages of a partition."""
        row = self.partition(queue, partition)
        found = []
        for offset in range(row.log_start, row.next_offset):
            stored = self.store.get(message_key(row.partition_id, offset))
            assert stored is not None
            found.append(unpack(stored))
        return found

    def rows(self, *kinds: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Rows of these kinds."""
        found: list[tuple[bytes, bytes]] = []
        for kind in kinds:
            found += self.store.scan(kind, bytes((kind[0] + 1,)), 1 << 30)
        return found
