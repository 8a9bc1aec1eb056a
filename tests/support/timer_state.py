"""Timers over the memory twin of the store, without consensus, consumers or HTTP: one command an entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queen_node import commands, packed
from queen_node.commands import RulesOfFire, TimerOp
from queen_node.state import timers
from queen_node.state.deadletters import TIMER_GROUP
from queen_node.state.keys import DEAD_LETTER, MESSAGE, after, u64
from queen_node.state.messages import Message, unpack
from queen_node.state.queues import find_partition, find_queue
from queen_node.state.rows import DeadLetterRow
from queen_node.state.step import Step, Tally
from queen_node.state.store import Engine, Store
from queen_node.state.timer_rows import Timer
from queen_node.state.timers import OperationResult, Verdict
from tests.support.memory_engine import MemoryEngine

START_US = 1_700_000_000_000_000
FIRE_MANY = 256
FIRE_BYTES = 4 << 20
RULES = timers.CONTRACT_RULES


def schedule(
    key: str, delay_ms: int, *, queue: str = "q", txn: str | None = None, payload: bytes = b"{}",
    partition: str = "Default", producer: bytes | None = None, message_id: bytes = b"", flags: int = 0,
) -> tuple[Any, ...]:
    """A schedule as the door builds it. The txn defaults to one that names the key."""
    return (TimerOp.SCHEDULE, queue.encode(), key.encode(), delay_ms, (txn or f"txn-{key}").encode(),
            message_id or (txn or key).encode().ljust(16, b".")[:16], payload, flags, partition.encode(), producer)


def cancel(key: str, *, queue: str = "q", txn: str | None = None) -> tuple[Any, ...]:
    """A cancel as the door builds it."""
    return (TimerOp.CANCEL, queue.encode(), key.encode(), None if txn is None else txn.encode())


class TimerState:
    """A group's state with a clock that the test moves."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine: Engine = engine or MemoryEngine()
        self.store = Store(self.engine, life=1)
        self.now_us = START_US
        self.tally = Tally()
        self.wakes: dict[bytes, int] = {}

    def restart(self) -> None:
        """A new process over the same rows: nothing that lived in memory is left."""
        self.store = Store(self.engine, life=1)

    def advance(self, ms: int) -> None:
        """Let the group clock go on."""
        self.now_us += ms * 1000

    def apply(
        self, *operations: Sequence[Any], firing: bool = True, rules: RulesOfFire | None = None,
    ) -> list[OperationResult]:
        """A TIMERS command in an entry of its own."""
        command = packed.fields_of(commands.timers(b"r" * 16, operations, firing=firing))  # type: ignore[arg-type]
        step = self.begin()
        _one, results = timers.apply_timers(step, [*command, list(rules)] if rules is not None else command)
        assert isinstance(results, list)
        self.commit(step)
        return results

    def verdict(self, *operations: Sequence[Any]) -> list[Verdict]:
        """The verdicts alone."""
        return [result[0] for result in self.apply(*operations)]

    def fire(self, *, at_most: int = FIRE_MANY, max_bytes: int = FIRE_BYTES, rules: RulesOfFire = RULES) -> bool:
        """One FIRE command in an entry of its own; whether more is due."""
        raw = commands.fire(at_most=at_most, max_bytes=max_bytes, rules=rules)
        step = self.begin()
        (more,) = timers.apply_fire(step, packed.fields_of(raw))
        self.commit(step)
        return more

    def peek(self, key: str, queue: str = "q") -> Timer | None:
        """A pending timer."""
        found = timers.find(self.store, queue.encode(), key.encode())
        return None if found is None else found[0]

    def created_at_us(self, key: str, queue: str = "q") -> int | None:
        """Since when a key has been pending."""
        found = timers.find(self.store, queue.encode(), key.encode())
        return None if found is None else found[1]

    @property
    def pending(self) -> int:
        """The group's count of pending timers."""
        return self.store.counters().timers_pending

    def messages(self, queue: str = "q", partition: str = "Default") -> list[Message]:
        """What stands in a partition, by offset."""
        queue_row = find_queue(self.store, queue.encode())
        row = None if queue_row is None else find_partition(self.store, queue_row, partition.encode())
        if row is None:
            return []
        prefix = MESSAGE + u64(row.partition_id)
        return [unpack(value) for _key, value in self.store.scan(prefix, after(prefix), 1 << 30)]

    def txns(self, queue: str = "q", partition: str = "Default") -> list[str]:
        """The transaction ids that stand in a partition, by offset."""
        return [message.transaction_id.decode() for message in self.messages(queue, partition)]

    def dead_letters(self) -> list[DeadLetterRow]:
        """All dead letters of timers."""
        found = []
        for key, _value in self.store.scan(DEAD_LETTER, after(DEAD_LETTER), 1 << 30):
            row = self.store.row(key, DeadLetterRow)
            assert row is not None and row.group == TIMER_GROUP
            found.append(row)
        return found

    def begin(self) -> Step:
        """An entry to apply to by hand; then `commit` it."""
        return Step(self.store, now_us=self.now_us, index=self.store.meta.applied_index + 1)

    def commit(self, step: Step) -> None:
        """Write the entry."""
        self.tally, self.wakes = step.tally, step.wakes
        self.store.commit(index=step.index, term=1, stamp_us=step.now_us)
