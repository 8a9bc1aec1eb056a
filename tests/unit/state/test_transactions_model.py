"""Random histories with transactions in them against the plain model (TX-2, TX-20 to TX-23, TX-30 to TX-36, TM-61)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from queen_node import commands
from queen_node.commands import AckStatus, KvOp, TimerOp
from queen_node.state import kv
from queen_node.state.keys import MESSAGE, after, u64
from queen_node.state.kv_rows import find as find_row
from queen_node.state.messages import unpack
from queen_node.state.queues import find_partition, find_queue
from queen_node.state.transactions import Cause, Committed, RolledBack
from queen_node.state.verdicts import DLQ, NOOP, REDELIVERS
from tests.support.outward import QM, Outward, got
from tests.support.transaction_model import WINDOW_S, Ack, Model, Outcome

PARTITIONS = ["a", "b"]
GROUPS = [QM, "g"]
STATUSES = ["completed", "completed", "completed", "failed", "retry", "dlq"]
KEYS = ["k", "l"]
IDS = [f"p{number}" for number in range(30)]
WORDS = {
    Cause.REJECTED_ACK: "ack", Cause.NAMED_TOO_OFTEN: "ack", Cause.DUPLICATE: "duplicate",
    Cause.KV_PRECONDITION: "precondition",
}
Taken = tuple[bytes, str, str, list[str]]  # lease id, group, partition, ids


class TransactionsAgreeWithTheModel(RuleBasedStateMachine):
    """Two partitions, two groups, ids that come again, keys with versions, timers that never fire here."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.node, self.model = Outward(), Model()
        self.node.configure("orders", lease_time=60, dedup_window_seconds=0, retry_limit=1)
        self.model.state.messages.options.retry_limit = 1
        self.node.configure("out", dedup_window_seconds=WINDOW_S)
        self.serial = 0

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 4), again=st.booleans())
    def push(self, partition: str, count: int, again: bool) -> None:
        for _ in range(count):
            self.serial += not again or not self.serial
            self.node.push(f"m{self.serial}", partition=partition)
            self.model.state.messages.push(partition, [f"m{self.serial}"], self.node.now_us)

    @rule(seconds=st.sampled_from([0.000001, 1, WINDOW_S, 60]))
    def wait(self, seconds: float) -> None:
        self.node.wait(seconds)

    @rule(target=taken, group=st.sampled_from(GROUPS), batch=st.integers(1, 4))
    def pop(self, group: str, batch: int) -> object:
        messages = self.model.state.messages
        if messages.log or group != QM:
            messages.register(group, "all", 0)
        lease_id = self.node.new_lease()
        taken: list[Taken] = []
        for claim in got(self.node.pop(group=group, mode="all", batch=batch, partitions=2, lease_id=lease_id)):
            messages.claim(group, claim.partition, len(claim.ids), self.node.now_us, lease_id, None, False)
            taken.append((lease_id, group, claim.partition, claim.ids))
        return multiple(*taken)

    @rule(claims=st.lists(taken, max_size=2, unique_by=lambda claim: claim[1:3]), data=st.data())
    def transact(self, claims: list[Taken], data: st.DataObject) -> None:
        acks: list[Ack] = []
        for lease_id, group, partition, ids in claims:
            fence = data.draw(st.sampled_from([lease_id, lease_id, b""]))
            count = data.draw(st.integers(1, 3))
            acks += [
                (group, partition, data.draw(st.sampled_from([*ids, *ids, *ids, "never"])), fence,
                 data.draw(st.sampled_from(STATUSES)))
                for _ in range(count)]
        acks = data.draw(st.permutations(acks))
        pushes = data.draw(st.lists(st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(IDS)), max_size=3))
        puts = data.draw(st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from([None, None, 0, 1, 2]), st.booleans()), max_size=2,
            unique_by=lambda put: put[0]))
        timers = data.draw(st.lists(
            st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=2, unique_by=lambda timer: timer[0]))
        answer = self.node.apply(commands.transaction(
            b"r" * 16, acks=[self._ack(*ack) for ack in acks],
            pushes=[(b"out", partition.encode(), txn.encode(), b"i" * 16, b"1", 0, None, None)
                    for partition, txn in pushes],
            kv=[(KvOp.PUT, b"n", key.encode(), b"1", 0, expect, required) for key, expect, required in puts],
            timers=[(TimerOp.SCHEDULE, b"q", key.encode(), 1 << 40, b"t", b"i" * 16, b"1", 0, b"p", None) if schedules
                    else (TimerOp.CANCEL, b"q", key.encode(), None) for key, schedules in timers],
            firing=True))[0]
        assert outcome(answer) == self.model.transact(acks, pushes, puts, timers, self.node.now_us)

    def _ack(
        self, group: str, partition: str, txn: str, lease_id: bytes, status: str,
    ) -> tuple[bytes, commands.AckItem]:
        partition_id = self.node.partition("orders", partition).partition_id
        return group.encode(), (txn.encode(), partition_id, int(AckStatus[status.upper()]), lease_id, None)

    @invariant()
    def cursors_and_leases_agree(self) -> None:
        held = 0
        for (group, partition), expected in self.model.state.messages.cursors.items():
            cursor = self.node.cursor(group=group, partition=partition)
            assert cursor is not None
            assert (cursor.committed, cursor.retries) == (expected.committed, expected.retries)
            assert cursor.lease_id == (b"" if expected.lease is None else expected.lease.lease_id)
            held += expected.lease is not None
        counters = self.node.store.counters()
        assert (counters.leases_live, counters.dead_letters) == (held, len(self.model.state.messages.dead_letters))

    @invariant()
    def everything_else_agrees(self) -> None:
        store, state = self.node.store, self.model.state
        queue = find_queue(store, b"out")
        assert queue is not None
        for partition in PARTITIONS:
            row = find_partition(store, queue, partition.encode())
            stem = b"" if row is None else MESSAGE + u64(row.partition_id)
            stored = [] if row is None else store.scan(stem, after(stem), 1 << 20)
            ids = [unpack(message).transaction_id.decode() for _key, message in stored]
            assert ids == [txn for txn, _ in state.out.get(partition, [])]
            assert (row is None) == (not ids), "a partition was made that nothing is in"
        for key in KEYS:
            kept = find_row(store, b"n", key.encode())
            assert (0 if kept is None else kept.version) == state.versions.get(key, 0)
        assert store.counters().timers_pending == len(state.timers)


def outcome(answer: Committed | RolledBack) -> Outcome:
    """An answer in the model's words."""
    if isinstance(answer, RolledBack):
        return WORDS[answer.cause], answer.index
    assert all(isinstance(element, kv.Single) for element in answer.elements)
    return "committed", (
        [(bool(verdict & DLQ), bool(verdict & NOOP), bool(verdict & REDELIVERS)) for verdict in answer.verdicts],
        [(placed[4], placed[3]) for placed in answer.placed],
        [isinstance(element, kv.Single) and element.done for element in answer.elements],
        [result[0].name.lower() for result in answer.timer_results])


TestTransactions = TransactionsAgreeWithTheModel.TestCase
TestTransactions.settings = settings(
    max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck))
