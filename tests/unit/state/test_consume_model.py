"""Random histories of pushes, pops, acks, extensions, hand-backs and changed options against the plain model.

Proves G-Q1 to G-Q9 as far as one state machine can: PA-10 to PA-24, PA-30, PA-31, PA-35 to PA-40, PA-47 to PA-59.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from queen_node import commands
from queen_node.commands import AckStatus
from queen_node.state.keys import DEAD_LETTER, LEASE, READY
from queen_node.state.verdicts import DLQ, DONE, NOOP, REDELIVERS
from tests.support.consume_model import Model, Verdict
from tests.support.outward import QM, SECOND, Outward, got

QUEUE = "orders"
PARTITIONS = ["a", "b", "c"]
GROUPS = [QM, "new", "all", "time"]
MODES = {QM: "all", "new": "new", "all": "all", "time": "time"}
STATUSES = ["completed", "failed", "retry", "dlq"]
ERRORS = {0x10: "lease", 0x20: "unresolv", 0x30: "already committed", 0x40: "consumer not found"}

partitions = st.sampled_from(PARTITIONS)
groups = st.sampled_from(GROUPS)
Taken = tuple[bytes, str, str, list[str]]  # lease id, group, partition, ids


def verdict_of(raw: int, released: bool) -> Verdict:
    """A verdict in the model's words."""
    if not raw & DONE:
        return False, ERRORS[raw], released, False, False, False
    return True, "", released, bool(raw & DLQ), bool(raw & NOOP), bool(raw & REDELIVERS)


class MessagesOutAgreeWithTheModel(RuleBasedStateMachine):
    """Three partitions, four groups that start differently, every option that decides a delivery."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.node, self.model = Outward(), Model()
        self.node.configure(QUEUE, lease_time=60, dedup_window_seconds=0)
        self.from_us = self.node.now_us + 20 * SECOND
        self.serial = 0
        self.done: set[tuple[str, str, int]] = set()  # (group, partition, offset) that no pop may deliver again

    @rule(partition=partitions, count=st.integers(1, 4), again=st.booleans())
    def push(self, partition: str, count: int, again: bool) -> None:
        self.node.now_us += 1  # so that "existed" and "appended later" are never one stamp
        ids = []
        for _ in range(count):
            if not again:
                self.serial += 1
            ids.append(f"m{self.serial}")
        # One command each: inside a command an id is never stored twice (PU-52).
        self.node.apply(*[self.node.push_command(txn, queue=QUEUE, partition=partition) for txn in ids])
        self.model.push(partition, ids, self.node.now_us)
        self.node.now_us += 1

    @rule(micros=st.one_of(st.integers(0, 3), st.integers(0, 15 * SECOND), st.just(60 * SECOND), st.just(61 * SECOND)))
    def wait(self, micros: int) -> None:
        self.node.now_us += micros

    @rule(
        delay=st.sampled_from([0, 0, 3, 10]), window=st.sampled_from([0, 0, 1, 4]), limit=st.integers(0, 3),
        flags=st.tuples(st.booleans(), st.booleans()), lease_time=st.sampled_from([5, 60]))
    def configure(self, delay: int, window: int, limit: int, flags: tuple[bool, bool], lease_time: int) -> None:
        changes: dict[str, object] = {
            "delayed_processing": delay, "window_buffer": window, "retry_limit": limit, "lease_time": lease_time,
            "dead_letter_queue": flags[0], "dlq_after_max_retries": flags[1]}
        self.node.configure(QUEUE, **changes)
        for name, value in changes.items():
            setattr(self.model.options, name, value)

    @rule(at_most=st.integers(1, 20))
    def forget_ids(self, at_most: int) -> None:
        """Ids end, claims and lease-less acks must find their messages all the same (PA-54)."""
        self.node.apply(commands.forget_ids(at_most=at_most, keep_at_least_s=0))

    @rule(
        target=taken, group=groups, partition=st.one_of(st.none(), st.none(), partitions), batch=st.integers(1, 6),
        most=st.integers(1, 3), lease_s=st.one_of(st.none(), st.sampled_from([1, 30])), commit=st.sampled_from(
            [False, False, False, True]))
    def pop(
        self, group: str, partition: str | None, batch: int, most: int, lease_s: int | None, commit: bool,
    ) -> object:
        node, model, now_us = self.node, self.model, self.node.now_us
        if group != QM or model.log:
            model.register(group, MODES[group], self.from_us)
        ready = model.ready(group, now_us) if group in model.groups else []
        if partition is not None:
            ready, most = [name for name in ready if name == partition], 1
        lease_id = node.new_lease()
        claims = got(node.pop(
            queue=QUEUE, group=group, partition=partition, mode=MODES[group], from_us=self.from_us, batch=batch,
            partitions=most, lease_s=lease_s, commit=commit, lease_id=lease_id))
        taken: list[Taken] = []
        budget = batch
        for claim in claims:
            expected = model.claim(group, claim.partition, budget, now_us, lease_id, lease_s, commit)
            assert (claim.first, claim.ids, claim.attempt) == expected
            assert claim.partition in ready
            budget -= len(claim.ids)
            offsets = range(claim.first, claim.first + len(claim.ids))
            places = {(group, claim.partition, offset) for offset in offsets}
            assert not places & self.done, "delivered again after an ack (G-Q2)"
            if commit:
                self.done |= places
            taken.append((lease_id, group, claim.partition, claim.ids))
        assert len({claim.partition for claim in claims}) == len(claims)
        # Nothing that was ready is left out while there was budget for it.
        assert budget == 0 or len(claims) == min(most, len(ready))
        assert claims or not ready
        return multiple() if commit else multiple(*taken)

    @rule(taken=taken, data=st.data(), fenced=st.sampled_from([True, True, True, False]))
    def ack(self, taken: Taken, data: st.DataObject, fenced: bool) -> None:
        lease_id, group, partition, ids = taken
        self._ack(lease_id if fenced else b"", group, partition, data.draw(st.lists(
            st.tuples(st.sampled_from([*ids, *ids, "never pushed", "m1"]), st.sampled_from(STATUSES)),
            min_size=1, max_size=6)))

    @rule(taken=consumes(taken), twice=st.booleans())
    def ack_all(self, taken: Taken, twice: bool) -> None:
        """The usual way to end a claim, and the usual repeat of an ack whose answer was lost (G-Q7)."""
        lease_id, group, partition, ids = taken
        items = [(txn, "completed") for txn in ids]
        first = self._ack(lease_id, group, partition, items)
        if twice:
            again = self._ack(lease_id, group, partition, items)
            assert [verdict[0] for verdict in again] == [verdict[0] for verdict in first]

    @rule(partition=partitions, group=st.sampled_from([*GROUPS, "unheard of"]), lease_id=st.sampled_from([b"", b"?"]))
    def ack_of_a_stranger(self, partition: str, group: str, lease_id: bytes) -> None:
        """Nobody gave it anything; `consumer not found` and the fence have their order (PA-47)."""
        if partition in self.model.log:
            self._ack(lease_id, group, partition, [("m1", "completed")])

    def _ack(self, lease_id: bytes, group: str, partition: str, items: list[tuple[str, str]]) -> list[Verdict]:
        node, model = self.node, self.model
        partition_id = node.partition(QUEUE, partition).partition_id
        answers = node.ack_raw([
            (txn.encode(), partition_id, int(AckStatus[status.upper()]), lease_id, None) for txn, status in items
        ], group=group)
        verdicts = [verdict_of(answer.verdict, answer.released) for answer in answers]
        assert verdicts == model.ack(group, partition, lease_id, items, node.now_us)
        if (group, partition) in model.cursors:
            committed = model.cursors[group, partition].committed
            self.done |= {(group, partition, offset) for offset in range(committed + 1)}
        return verdicts

    @rule(taken=taken, seconds=st.sampled_from([1, 60]))
    def extend(self, taken: Taken, seconds: int) -> None:
        assert self.node.extend(taken[0], seconds) == self.model.extend(taken[0], seconds, self.node.now_us)

    @rule(taken=consumes(taken))
    def hand_back(self, taken: Taken) -> None:
        self.node.hand_back(taken[0])
        self.model.hand_back(taken[0])

    @invariant()
    def the_leaders_look_is_right(self) -> None:
        """CL-26: True only for what changes something; a time that is not late; None only when there is nothing."""
        for group in self.model.groups:
            chance = self.node.chance(queue=QUEUE, group=group)
            expected = self.model.next_ready_at(group)
            if chance is None:
                assert expected is None
            elif chance is not True:
                assert self.node.now_us < chance
                assert expected is None or chance <= expected
            elif expected is not None and expected <= self.node.now_us:
                assert chance is True

    @invariant()
    def counts_are_exact(self) -> None:
        held = [cursor for cursor in self.model.cursors.values() if cursor.lease is not None]
        counters = self.node.store.counters()
        assert counters.leases_live == len(held)
        assert counters.dead_letters == len(self.model.dead_letters) == len(self.node.rows(DEAD_LETTER))
        leases = {cursor.lease.lease_id for cursor in held if cursor.lease is not None}
        assert {key[1:] for key, _ in self.node.rows(LEASE)} == leases

    @invariant()
    def cursors_agree(self) -> None:
        for (group, partition), expected in self.model.cursors.items():
            cursor = self.node.cursor(group=group, queue=QUEUE, partition=partition)
            assert cursor is not None
            assert (cursor.committed, cursor.retries) == (expected.committed, expected.retries)

    @invariant()
    def nothing_waits_outside_its_list(self) -> None:
        """At most one row that counts per (partition, group), and one wherever something is to be delivered."""
        assert len(self.node.rows(READY)) <= 2 * len(GROUPS) * (len(PARTITIONS) + 1)
        for group in self.model.groups:
            for partition in self.model.log:
                cursor = self.node.cursor(group=group, queue=QUEUE, partition=partition)
                if cursor is not None and self.model.ready_at(group, partition) is not None:
                    assert cursor.ready_at_us >= 0


TestMessagesOut = MessagesOutAgreeWithTheModel.TestCase
TestMessagesOut.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))
