"""A state machine whose transactions are put together by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queen_node import commands
from queen_node.commands import AckStatus
from queen_node.state.consume import Popped
from queen_node.state.keys import META
from queen_node.state.transactions import Cause, Committed, Part, RolledBack
from tests.support.outward import QM, Outward


class Node(Outward):
    """See the module."""

    def ack_of(
        self, txn: str, lease: Popped | bytes | None = None, status: str = "completed", *, group: str = QM,
        queue: str = "orders", partition: str = "Default", error: bytes | None = None,
    ) -> tuple[bytes, commands.AckItem]:
        """One ack of a transaction."""
        lease_id = lease if isinstance(lease, bytes) else lease.lease_id if lease is not None else b""
        partition_id = self.partition(queue, partition).partition_id
        return group.encode(), (txn.encode(), partition_id, int(AckStatus[status.upper()]), lease_id, error)

    def item_of(self, txn: str, queue: str = "out", partition: str = "Default") -> commands.PushItem:
        """One pushed item of a transaction."""
        message_id = next(self._numbers).to_bytes(16, "big")
        return queue.encode(), partition.encode(), txn.encode(), message_id, b"1", 0, None, None

    def transact(
        self, acks: Sequence[tuple[bytes, commands.AckItem]] = (), pushes: Sequence[commands.PushItem] = (),
        operations: Sequence[Any] = (), *, positions: Sequence[commands.PositionItem] = (), kv: Sequence[Any] = (),
        firing: bool = True, caps: commands.KvCaps = commands.NO_CAPS,
    ) -> Committed | RolledBack:
        """One transaction in an entry of its own."""
        answer = self.apply(commands.transaction(
            b"r" * 16, acks=acks, pushes=pushes, positions=positions, kv=kv, timers=operations, firing=firing,
            caps=caps))[0]
        assert isinstance(answer, Committed | RolledBack)
        return answer

    def leased(self, *txns: str, **asked: Any) -> Popped:
        """These messages pushed and popped at once."""
        self.push(*txns)
        popped = self.pop(**asked)
        assert popped is not None
        return popped

    def everything(self) -> list[tuple[bytes, bytes]]:
        """All rows that apply may have written, but for how far it is."""
        return [pair for pair in self.store.committed().iterate(b"", b"\xff") if pair[0] != META]


def committed(answer: Committed | RolledBack) -> Committed:
    assert isinstance(answer, Committed), answer
    return answer


def rejected(index: int, verdict: int) -> RolledBack:
    return RolledBack(Cause.REJECTED_ACK, Part.ACK, index, verdict)


def position(
    offset: int | None, *, group: str = "g", partition: str = "Default", mode: str = "new", queue: str = "orders",
) -> commands.PositionItem:
    return queue.encode(), partition.encode(), group.encode(), offset, mode
