"""Transactions where they apply: what refuses one, what is left behind then, and what a committed one did."""

from __future__ import annotations

import pytest

from queen_node import commands
from queen_node.commands import KvOp
from queen_node.state import kv, timers
from queen_node.state.timers import Verdict
from queen_node.state.transactions import Cause, Committed, Part, RolledBack
from queen_node.state.verdicts import (
    ALREADY_COMMITTED,
    CONSUMER_NOT_FOUND,
    DLQ,
    DONE,
    INVALID_LEASE,
    NOOP,
    REDELIVERS,
    UNRESOLVABLE,
)
from tests.support.kv_state import check, get, get_many, incr, put
from tests.support.outward import QM, Acked
from tests.support.timer_state import cancel, schedule
from tests.support.transaction_state import Node, committed, position, rejected


@pytest.fixture
def node() -> Node:
    return Node()


class TestWhole:
    def test_all_of_it_happens_in_one_entry(self, node: Node) -> None:
        """TX-2: acked, pushed, scheduled, cancelled; one entry, one batch."""
        lease = node.leased("in")
        node.transact(operations=[schedule("old", 1000)])
        before = node.machine.applied_index
        answer = committed(node.transact(
            [node.ack_of("in", lease)], [node.item_of("out-1"), node.item_of("out-2", partition="p")],
            [schedule("new", 1000), cancel("old"), cancel("never")]))
        assert node.machine.applied_index == before + 1
        assert answer.verdicts == [DONE]
        assert [(placed[1], placed[3], placed[4]) for placed in answer.placed] == [
            (b"out-1", False, 0), (b"out-2", False, 0)]
        assert [result[0] for result in answer.timer_results] == [Verdict.SCHEDULED, Verdict.CANCELLED, Verdict.ABSENT]
        assert node.committed() == 0
        assert node.ids(queue="out", group="g", mode="all", partitions=2) == ["out-1", "out-2"]
        assert timers.find(node.store, b"q", b"new") is not None
        assert timers.find(node.store, b"q", b"old") is None

    def test_waiting_consumers_are_told_of_every_queue(self, node: Node) -> None:
        """PA-21: what was pushed, what fired, and what a released lease makes deliverable."""
        lease = node.leased("a", "b")
        node.transact([node.ack_of("a", lease, "failed")], [node.item_of("x")], [schedule("k", 0)])
        assert node.wakes == {b"orders": 1, b"out": 1, b"q": 1}

    def test_what_one_group_acks_another_reads_on(self, node: Node) -> None:
        """TX-30: partitions, queues and groups in any mixture."""
        node.push("a", partition="p")
        node.push("b", queue="other")
        one, two = node.pop(group="g1", mode="all"), node.pop(queue="other", group="g2", mode="all")
        answer = node.transact([
            node.ack_of("a", one, group="g1", partition="p"), node.ack_of("b", two, group="g2", queue="other")])
        assert committed(answer).verdicts == [DONE, DONE]
        assert (node.committed(group="g1", partition="p"), node.committed(group="g2", queue="other")) == (0, 0)

    def test_an_ack_and_a_push_of_one_partition(self, node: Node) -> None:
        """TX-21: acked first, then appended; the group is given what it just pushed to itself."""
        lease = node.leased("a")
        node.transact([node.ack_of("a", lease)], [node.item_of("b", queue="orders")])
        assert node.ids() == ["b"]

    def test_offsets_follow_the_order_of_the_items(self, node: Node) -> None:
        """TX-21."""
        answer = committed(node.transact(pushes=[
            node.item_of("a"), node.item_of("x", partition="p"), node.item_of("b"), node.item_of("c")]))
        assert [placed[4] for placed in answer.placed] == [0, 0, 1, 2]


class TestPushes:
    def test_a_stored_id_rolls_everything_back(self, node: Node) -> None:
        """TX-22, TX-53: the lowest index, with the original's place."""
        first = committed(node.transact(pushes=[node.item_of("a"), node.item_of("b")]))
        answer = node.transact(pushes=[node.item_of("c"), node.item_of("b"), node.item_of("a")])
        assert answer == RolledBack(
            Cause.DUPLICATE, Part.PUSH, 1, offset=1, message_id=first.placed[1][0])
        assert node.ids(queue="out", group="g", mode="all") == ["a", "b"]

    def test_the_window_decides_and_zero_switches_the_check_off(self, node: Node) -> None:
        """TX-22, PU-51: the edge of the window, its end, and a window of 0."""
        node.configure(queue="out", dedup_window_seconds=10)
        node.transact(pushes=[node.item_of("a")])
        node.wait(10)
        assert isinstance(node.transact(pushes=[node.item_of("a")]), RolledBack)
        node.now_us += 1
        assert committed(node.transact(pushes=[node.item_of("a")])).placed[0][4] == 1
        node.configure(queue="out", dedup_window_seconds=0)
        assert committed(node.transact(pushes=[node.item_of("a")])).placed[0][4] == 2

    def test_an_id_pushed_again_after_its_window_is_found_at_its_later_place(self, node: Node) -> None:
        """PU-55: of the offsets inside the window the lowest is named."""
        node.configure(queue="out", dedup_window_seconds=10)
        for _ in range(2):
            node.transact(pushes=[node.item_of("a")])
            node.wait(11)
        node.wait(-5)
        answer = node.transact(pushes=[node.item_of("a")])
        assert isinstance(answer, RolledBack)
        assert answer.offset == 1

    @pytest.mark.parametrize("window", [3600, 0])
    def test_one_id_twice_in_a_call_is_stored_once(self, node: Node, window: int) -> None:
        """TX-22: the repeat names the first, and the transaction commits."""
        node.configure(queue="out", dedup_window_seconds=window)
        pushes = [node.item_of("a"), node.item_of("a"), node.item_of("a", partition="p")]
        answer = committed(node.transact(pushes=pushes))
        first, again, elsewhere = answer.placed
        assert again == (first[0], b"a", b"out", True, 0)
        assert not elsewhere[3]
        assert node.ids(queue="out", group="g", mode="all", partitions=2) == ["a", "a"]

    def test_a_queue_that_wants_no_clear_text(self, node: Node) -> None:
        """PU-71, TX-20: validation comes before everything else; pushes first, then timers."""
        node.configure(queue="secret", encryption_enabled=True)
        secret = node.item_of("a", queue="secret")
        assert node.transact([(b"g", (b"x", 99, 0, b"", None))], [node.item_of("b"), secret]) == RolledBack(
            Cause.KEY_MISSING, Part.PUSH, 1)
        assert node.transact(operations=[schedule("k", 5, queue="secret")]) == RolledBack(
            Cause.KEY_MISSING, Part.TIMER, 0)
        assert isinstance(node.transact(operations=[cancel("k", queue="secret")]), Committed)


class TestLeases:
    def test_a_lease_must_be_live_and_hold_the_message(self, node: Node) -> None:
        """TX-32, TX-37: expired, foreign, and a message beyond the batch."""
        lease = node.leased("a", "b", batch=1, lease_s=10)
        assert node.transact([node.ack_of("b", lease)]) == rejected(0, UNRESOLVABLE)
        assert node.transact([node.ack_of("a", node.new_lease())]) == rejected(0, INVALID_LEASE)
        node.wait(10)
        assert node.transact([node.ack_of("a", lease)]) == rejected(0, INVALID_LEASE)
        assert node.committed() == -1

    def test_what_a_live_lease_has_acked_is_no_harm(self, node: Node) -> None:
        """TX-32: a completed one is a no-op, any other refuses."""
        lease = node.leased("a", "b", "c")
        node.transact([node.ack_of("b", lease)])
        assert committed(node.transact([node.ack_of("a", lease)])).verdicts == [DONE | NOOP]
        for status in ("failed", "retry", "dlq"):
            assert node.transact([node.ack_of("a", lease, status)]) == rejected(0, ALREADY_COMMITTED)
        assert node.committed() == 1

    def test_a_released_lease_is_refused_although_the_ack_route_repeats_its_answer(self, node: Node) -> None:
        """TX-33, PA-59: two rules, two code paths; and the ack route remembers what a transaction released."""
        lease = node.leased("a")
        step = [node.ack_of("a", lease)]
        assert committed(node.transact(step, [node.item_of("x")])).verdicts == [DONE]
        assert node.transact(step, [node.item_of("x")]) == rejected(0, INVALID_LEASE)
        assert node.ack("a", lease=lease) == [Acked(b"a", DONE, True)]
        lease = node.leased("b")
        assert node.ack("b", lease=lease) == [Acked(b"b", DONE, True)]
        assert node.transact([node.ack_of("b", lease)]) == rejected(0, INVALID_LEASE)

    def test_one_lost_lease_of_two_loses_both(self, node: Node) -> None:
        """TX-30, transactions.md 9.4."""
        short = node.leased("a", lease_s=10)
        node.push("b", queue="other")
        node.wait(10)
        long = node.pop(queue="other")
        answer = node.transact([node.ack_of("b", long, queue="other"), node.ack_of("a", short)])
        assert answer == rejected(1, INVALID_LEASE)
        assert node.committed(queue="other") == -1

    def test_without_a_lease_nothing_is_fenced(self, node: Node) -> None:
        """TX-34: it applies over another worker's lease; unknown or done otherwise, it refuses."""
        node.leased("a", "b")
        assert committed(node.transact([node.ack_of("b")])).verdicts == [DONE]
        assert node.committed() == 1
        assert committed(node.transact([node.ack_of("a")])).verdicts == [DONE | NOOP]
        assert node.transact([node.ack_of("a", status="failed")]) == rejected(0, ALREADY_COMMITTED)
        assert node.transact([node.ack_of("never")]) == rejected(0, UNRESOLVABLE)

    def test_a_forgotten_group_is_queue_mode(self, node: Node) -> None:
        """TX-35: with another group's lease it is refused; so is a partition that nobody knows (TX-30)."""
        lease = node.leased("a", group="g", mode="all")
        assert node.transact([node.ack_of("a", lease)]) == rejected(0, INVALID_LEASE)
        assert node.transact([node.ack_of("a")]) == rejected(0, CONSUMER_NOT_FOUND)
        assert node.transact([(b"g", (b"a", 999, 0, lease.lease_id, None))]) == rejected(0, CONSUMER_NOT_FOUND)
        assert committed(node.transact([node.ack_of("a", lease, group="g")])).verdicts == [DONE]

    def test_the_lowest_index_of_all_parts_is_named(self, node: Node) -> None:
        """TX-20: parts are judged apart, the refusal is the first in the order of the call."""
        lease = node.leased("a", "b")
        node.push("c", queue="other")
        stale = node.new_lease()
        acks = [node.ack_of("a", lease), node.ack_of("c", stale, queue="other"), node.ack_of("zzz", lease)]
        assert node.transact(acks) == rejected(1, INVALID_LEASE)
        assert node.transact([acks[2], acks[1], acks[0]]) == rejected(0, UNRESOLVABLE)


class TestArithmetic:
    def test_failures_dead_letters_and_what_comes_back(self, node: Node) -> None:
        """TX-30: PA-50 to PA-56 in a part of its own."""
        lease = node.leased("a", "b", "c", "d")
        answer = committed(node.transact([
            node.ack_of("a", lease, "dlq", error=b"no use"), node.ack_of("c", lease, "retry"),
            node.ack_of("d", lease)]))
        assert answer.verdicts == [DONE | DLQ, DONE, DONE | REDELIVERS]
        assert node.committed() == 0
        assert node.store.counters().dead_letters == 1
        assert node.ids() == ["b", "c", "d"]

    def test_an_id_means_as_many_occurrences_as_it_is_named(self, node: Node) -> None:
        """TX-36, PA-53."""
        node.configure(dedup_window_seconds=0)
        lease = node.leased("a")
        node.push("a", "b")
        node.ack("a", lease=lease)
        node.push("a", "a")
        lease2 = node.pop()
        assert lease2 is not None
        twice = [node.ack_of("a", lease2), node.ack_of("a", lease2)]
        assert committed(node.transact(twice)).verdicts == [DONE, DONE]
        assert node.committed() == 3

    def test_an_id_named_too_often_repeats_the_last_verdict_or_is_refused(self, node: Node) -> None:
        """TX-36."""
        lease = node.leased("a", "b")
        answer = node.transact([
            node.ack_of("b", lease), node.ack_of("a", lease), node.ack_of("a", lease, "failed")])
        assert isinstance(answer, RolledBack)
        assert (answer.cause, answer.index) == (Cause.NAMED_TOO_OFTEN, 2)
        assert committed(node.transact([node.ack_of("a", lease), node.ack_of("a", lease)])).verdicts == [DONE, DONE]

    def test_a_fenced_and_an_unfenced_part_meet_on_one_cursor(self, node: Node) -> None:
        """TX-30, TX-31: the later part begins where the earlier one ends, as if one came after the other."""
        lease = node.leased("a", "b", "c", batch=2)
        answer = committed(node.transact([node.ack_of("b", lease), node.ack_of("c"), node.ack_of("a", lease)]))
        assert answer.verdicts == [DONE, DONE, DONE]
        assert node.committed() == 2
        lease = node.leased("d", "e")
        answer = committed(node.transact([node.ack_of("e"), node.ack_of("d", lease)]))
        assert answer.verdicts == [DONE, DONE | NOOP]
        lease = node.leased("f", "g")
        assert node.transact([node.ack_of("g"), node.ack_of("f", lease, "retry")]) == rejected(1, ALREADY_COMMITTED)
        assert node.committed() == 4


class TestTimers:
    def test_a_due_timer_fires_behind_the_pushes(self, node: Node) -> None:
        """TX-7, TM-62."""
        node.transact(pushes=[node.item_of("own", queue="q")], operations=[schedule("k", 0), schedule("l", -5)])
        assert node.ids(queue="q", group="g", mode="all") == ["own", "txn-k", "txn-l"]
        assert timers.find(node.store, b"q", b"k") is None
        assert node.store.counters().timers_pending == 0

    @pytest.mark.parametrize("window", [3600, 0])
    def test_a_due_timer_that_repeats_a_push_appends_nothing(self, node: Node, window: int) -> None:
        """TX-7, TM-62: and is no error."""
        node.configure(queue="q", dedup_window_seconds=window)
        answer = committed(node.transact(
            pushes=[node.item_of("same", queue="q")], operations=[schedule("k", 0, txn="same")]))
        assert answer.timer_results[0][0] is Verdict.SCHEDULED
        assert node.ids(queue="q", group="g", mode="all") == ["same"]

    def test_firing_switched_off_keeps_it_pending(self, node: Node) -> None:
        """TM-21, TA-74."""
        node.transact(operations=[schedule("k", 0)], firing=False)
        assert timers.find(node.store, b"q", b"k") is not None

    def test_they_share_the_fate_of_the_rest(self, node: Node) -> None:
        """TX-5, TM-61: nothing scheduled, nothing cancelled, by a transaction that was refused."""
        node.transact(operations=[schedule("old", 1000)])
        refused = [(QM.encode(), (b"x", 99, 0, b"", None))]
        assert isinstance(node.transact(refused, operations=[schedule("new", 1000), cancel("old")]), RolledBack)
        assert timers.find(node.store, b"q", b"new") is None
        assert timers.find(node.store, b"q", b"old") is not None

    def test_a_cancel_that_finds_nothing_rolls_nothing_back(self, node: Node) -> None:
        """TX-5, TM-61."""
        answer = committed(node.transact(pushes=[node.item_of("a")], operations=[cancel("never")]))
        assert answer.timer_results[0][0] is Verdict.ABSENT
        assert node.ids(queue="out", group="g", mode="all") == ["a"]


class TestKeyValue:
    def test_it_is_written_with_the_rest_and_read_behind_all_writes(self, node: Node) -> None:
        """TX-21, KV-71: in array order; a read shows what the call wrote, wherever it stands."""
        answer = committed(node.transact(pushes=[node.item_of("a")], kv=[
            get(b"k"), put(b"k", b"7"), incr(b"n", 2), check(b"k", 1), get_many(b"n", b"never")]))
        read, written, counted, checked, page = answer.elements
        assert isinstance(read, kv.Single)
        assert (read.done, read.value, read.version) == (True, b"7", 1)
        assert isinstance(written, kv.Single)
        assert isinstance(counted, kv.Single)
        assert (written.version, counted.version, counted.value) == (1, 2, b"2")
        assert checked.op == KvOp.CHECK
        assert isinstance(checked, kv.Single)
        assert (checked.done, checked.version) == (True, 1), "a check sees the write before it"
        assert isinstance(page, kv.Page)
        assert ([row.key for row in page.rows], page.missing) == ([b"n"], [b"never"])

    def test_one_that_loses_rolls_back_only_when_it_is_required(self, node: Node) -> None:
        """TX-23, TX-52: the current version and value come along; nothing else was done."""
        node.transact(kv=[put(b"k", b"7")])
        lease = node.leased("a")
        step = [node.ack_of("a", lease)], [node.item_of("x")], [schedule("t", 1000)]
        lost = [put(b"new", b"1"), check(b"k", 5, required=True), put(b"k", b"8", expect=9, required=True)]
        before = node.everything()
        assert node.transact(*step, kv=lost) == RolledBack(
            Cause.KV_PRECONDITION, Part.KV, 1, lost=kv.Lost(1, kv.Reason.VERSION, 1, b"7"))
        absent = node.transact(*step, kv=[check(b"never", 5, required=True)])
        assert absent == RolledBack(Cause.KV_PRECONDITION, Part.KV, 0, lost=kv.Lost(0, kv.Reason.ABSENT, 0, None))
        assert node.everything() == before
        answer = committed(node.transact(*step, kv=[put(b"k", b"8", expect=9)]))
        (element,) = answer.elements
        assert isinstance(element, kv.Single)
        assert (element.done, element.reason, element.value) == (False, kv.Reason.VERSION, b"7")
        assert answer.verdicts == [DONE]

    def test_a_marker_stops_the_second_try(self, node: Node) -> None:
        """TX-62: a required marker makes a repeat harmless; an unconditional incr counts twice."""
        once = [put(b"done-7", b"true", expect=0, required=True), incr(b"count")]
        assert isinstance(node.transact(kv=once), Committed)
        assert isinstance(node.transact(kv=once), RolledBack)
        for expected in (b"2", b"3"):
            (element,) = committed(node.transact(kv=[incr(b"count")])).elements
            assert isinstance(element, kv.Single)
            assert element.value == expected

    def test_the_quota_comes_before_the_acks(self, node: Node) -> None:
        """TX-20, KV-62, TX-54: compared with the group's exact counts by the cap in the command."""
        node.transact(kv=[put(b"k", b"7")])
        stale = [(QM.encode(), (b"x", 99, 0, b"", None))]
        assert node.transact(stale, kv=[put(b"l")], caps=commands.KvCaps(rows=1)) == RolledBack(
            Cause.KV_QUOTA, Part.KV, -1)
        assert node.transact(stale, kv=[put(b"l")], caps=commands.KvCaps(rows=2)) == rejected(0, CONSUMER_NOT_FOUND)
        assert isinstance(node.transact(kv=[put(b"k", b"8")], caps=commands.KvCaps(rows=1)), Committed)


class TestOrderOfRefusals:
    def test_violations_are_named_in_their_order(self, node: Node) -> None:
        """TX-20, transactions.md 9.2: everything is wrong; one mistake after the other is taken away."""
        node.configure(queue="secret", encryption_enabled=True)
        node.transact(pushes=[node.item_of("stored")])
        lease = node.leased("a")
        acks = [node.ack_of("a", node.new_lease())]
        pushes = [node.item_of("stored"), node.item_of("x", queue="secret")]
        operations = [schedule("k", 5, queue="secret")]
        gate, places = [check(b"never", 5, required=True)], [position(0, queue="never")]
        causes = []
        for _ in range(7):
            answer = node.transact(acks, pushes, operations, positions=places, kv=gate)
            if isinstance(answer, Committed):
                break
            causes.append((answer.cause, answer.part))
            match answer.cause, answer.part:
                case Cause.KEY_MISSING, Part.PUSH:
                    pushes.pop()
                case Cause.KEY_MISSING, _:
                    operations.pop()
                case Cause.REJECTED_ACK, _:
                    acks = [node.ack_of("a", lease)]
                case Cause.DUPLICATE, _:
                    pushes.pop()
                case Cause.QUEUE_NOT_FOUND, _:
                    places = []
                case _:
                    gate = []
        assert causes == [
            (Cause.KEY_MISSING, Part.PUSH), (Cause.KEY_MISSING, Part.TIMER), (Cause.REJECTED_ACK, Part.ACK),
            (Cause.DUPLICATE, Part.PUSH), (Cause.QUEUE_NOT_FOUND, Part.POSITION), (Cause.KV_PRECONDITION, Part.KV)]
        assert node.committed() == 0


class TestNothingIsLeftBehind:
    @pytest.mark.parametrize("why", ["ack", "duplicate", "clear text", "gate"])
    def test_a_refused_transaction_leaves_every_row_as_it_was(self, node: Node, why: str) -> None:
        """TX-2, TX-20: offsets, cursors, leases, attempts, timers, queues, partitions, counters; and pops are not
        told of anything."""
        node.configure(queue="secret", encryption_enabled=True)
        node.transact(pushes=[node.item_of("stored")], operations=[schedule("old", 1000)])
        node.pop(group="late", mode="all")
        lease = node.leased("a", "b")
        acks = [node.ack_of("a", lease, "dlq"), node.ack_of("b", lease, "failed")]
        pushes = [node.item_of("new", queue="never-seen"), node.item_of("new", partition="never-seen")]
        operations = [schedule("k", 0, queue="nor-this"), cancel("old")]
        gate = [put(b"a"), incr(b"b")]
        # A group that is registered and has no cursor there yet: looking for one must not make it.
        acks.append(node.ack_of("a", group="late", status="completed"))
        match why:
            case "ack":
                acks.append(node.ack_of("never", lease))
            case "duplicate":
                pushes.append(node.item_of("stored"))
            case "clear text":
                operations.append(schedule("s", 5, queue="secret"))
            case _:
                gate.append(check(b"never", 5, required=True))
        before, counters = node.everything(), repr(node.store.counters())
        assert isinstance(node.transact(acks, pushes, operations, kv=gate), RolledBack)
        assert node.everything() == before
        assert repr(node.store.counters()) == counters, "changed in memory only"
        assert node.wakes == {}
        cursor = node.cursor()
        assert cursor is not None
        assert (cursor.lease_id, cursor.committed, cursor.retries) == (lease.lease_id, -1, 0)

    def test_a_repeat_of_every_kind(self, node: Node) -> None:
        """TX-62, G-T3, both ways: what makes a repeat harmless, and what does not."""
        lease = node.leased("a", "b", "c")
        covers_more = [node.ack_of("a", lease)]
        for expected in ([DONE], [DONE | NOOP]):
            assert committed(node.transact(covers_more)).verdicts == expected
        finishes = [node.ack_of("c", lease)]
        assert committed(node.transact(finishes)).verdicts == [DONE]
        assert node.transact(finishes) == rejected(0, INVALID_LEASE)
        assert committed(node.transact([node.ack_of("c")])).verdicts == [DONE | NOOP]
        timer = [schedule("k", 1000)]
        assert [committed(node.transact(operations=timer)).timer_results[0][0] for _ in range(2)] == [
            Verdict.SCHEDULED, Verdict.RESCHEDULED]
