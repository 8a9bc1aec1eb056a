"""Acks as a whole: fences, which message an item means, retries and dead letters, repeats (pop-ack.md 8)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from queen_node.commands import AckStatus, forget_ids
from queen_node.state import lookup
from queen_node.state.ack_memory import LEASES_KEPT
from queen_node.state.consume import Popped
from queen_node.state.keys import LEASE
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
from tests.support.outward import Acked, Got, Outward

TEN = [f"m{number}" for number in range(10)]


@pytest.fixture
def node() -> Outward:
    return Outward()


@pytest.fixture
def claim(node: Outward) -> Popped:
    """Offsets 0-9 under one lease."""
    node.push(*TEN)
    popped = node.pop()
    assert popped is not None
    return popped


def verdicts(answers: Sequence[Acked]) -> list[int]:
    return [answer.verdict for answer in answers]


def released(answers: Sequence[Acked]) -> bool:
    """Equal for all items of a part (PA-45)."""
    (value,) = {answer.released for answer in answers}
    return value


class TestCursor:
    def test_the_last_message_alone_completes_the_claim(self, node: Outward, claim: Popped) -> None:
        """PA-50: silent gaps are done, the end releases."""
        assert node.ack("m9", lease=claim) == [Acked(b"m9", DONE, True)]
        assert node.committed() == 9
        assert node.rows(LEASE) == []
        assert node.store.counters().leases_live == 0
        assert node.chance() is None

    def test_the_middle_keeps_the_lease(self, node: Outward, claim: Popped) -> None:
        """PA-50: it stays until the cursor reaches the claim's end."""
        assert node.ack("m4", lease=claim) == [Acked(b"m4", DONE, False)]
        assert node.committed() == 4
        assert node.ids() == []
        assert node.ack("m9", lease=claim) == [Acked(b"m9", DONE, True)]

    def test_expiry_after_a_partial_ack_goes_on_behind_it(self, node: Outward, claim: Popped) -> None:
        """PA-36, G-Q2: delivery starts again at the cursor."""
        node.ack("m4", lease=claim)
        node.wait(60)
        assert node.got() == [Got("Default", 5, TEN[5:], 1)]

    @pytest.mark.parametrize("status", ["failed", "retry"])
    def test_what_comes_back_stops_the_cursor_and_releases(self, node: Outward, claim: Popped, status: str) -> None:
        """PA-51, PA-52, PA-38."""
        answers = node.ack("m1", ("m3", status), "m5", ("m6", "dlq"), lease=claim)
        assert verdicts(answers) == [DONE, DONE, DONE | REDELIVERS, DONE | REDELIVERS]
        assert released(answers)
        assert node.wakes == {b"orders": 1}
        assert node.got() == [Got("Default", 2, TEN[2:], 1)]

    def test_several_dead_letters_in_one_call(self, node: Outward, claim: Popped) -> None:
        """PA-52: each is filed, the cursor goes to the highest, the lease is over though the end is not reached."""
        answers = node.ack(("m2", "dlq"), ("m4", "dlq"), "m5", lease=claim)
        assert verdicts(answers) == [DONE | DLQ, DONE | DLQ, DONE]
        assert released(answers)
        assert node.store.counters().dead_letters == 2
        assert node.ids() == TEN[6:]

    def test_a_refused_item_releases_nothing(self, node: Outward, claim: Popped) -> None:
        """PA-52, PA-53's table: nothing moves, the lease lives on."""
        assert node.ack(("never pushed", "failed"), lease=claim) == [Acked(b"never pushed", UNRESOLVABLE, False)]
        assert node.ids() == []
        node.ack("m4", lease=claim)
        assert node.ack(("m3", "failed"), lease=claim) == [Acked(b"m3", ALREADY_COMMITTED, False)]
        assert node.ids() == []

    def test_an_unknown_id_beside_known_ones_does_not_hold_them_up(self, node: Outward, claim: Popped) -> None:
        answers = node.ack("never pushed", "m9", lease=claim)
        assert verdicts(answers) == [UNRESOLVABLE, DONE]
        assert released(answers)

    def test_completed_below_the_cursor_is_a_noop(self, node: Outward, claim: Popped) -> None:
        node.ack("m4", lease=claim)
        assert node.ack("m4", "m0", lease=claim) == [
            Acked(b"m4", DONE | NOOP, False), Acked(b"m0", DONE | NOOP, False)]

    def test_parts_do_not_affect_each_other(self, node: Outward) -> None:
        """PA-46, PA-38: one nack releases one partition, the others of the pop keep theirs."""
        for partition in "ab":
            node.push("x", "y", partition=partition)
        popped = node.pop(partitions=2)
        assert popped is not None
        a, b = (node.partition(partition=name).partition_id for name in "ab")
        answers = node.ack_raw([
            (b"x", a, AckStatus.RETRY, popped.lease_id, None),
            (b"x", b, AckStatus.COMPLETED, popped.lease_id, None),
            (b"y", 99, AckStatus.COMPLETED, popped.lease_id, None),
            (b"y", a, AckStatus.COMPLETED, popped.lease_id, None),
        ])
        assert [(answer.verdict, answer.released) for answer in answers] == [
            (DONE, True), (DONE, False), (CONSUMER_NOT_FOUND, False), (DONE | REDELIVERS, True)]
        assert node.got(partitions=2) == [Got("a", 0, ["x", "y"], 2)]


class TestFence:
    def test_a_lease_that_is_not_live_moves_nothing(self, node: Outward, claim: Popped) -> None:
        """PA-47, G-Q6: stale, foreign, unknown, expired but untaken."""
        assert verdicts(node.ack("m0", lease=b"unknown lease id")) == [INVALID_LEASE]
        assert verdicts(node.ack("m0", lease=b"?")) == [INVALID_LEASE]
        node.wait(60)
        assert verdicts(node.ack("m0", ("m1", "dlq"), lease=claim)) == [INVALID_LEASE] * 2
        again = node.pop()
        assert verdicts(node.ack("m0", lease=claim)) == [INVALID_LEASE]
        assert node.committed() == -1
        assert verdicts(node.ack("m0", lease=again)) == [DONE]

    def test_a_lease_is_of_its_group(self, node: Outward, claim: Popped) -> None:
        """PA-47: another group's lease, and the SDK's ack without a group (PA-45)."""
        node.pop(group="g", mode="all")
        assert verdicts(node.ack("m0", lease=claim, group="g")) == [INVALID_LEASE]
        assert verdicts(node.ack("m0", lease=claim, group="unheard of")) == [INVALID_LEASE]
        assert verdicts(node.ack("m0", lease=claim)) == [DONE]

    def test_ids_are_looked_up_inside_the_claim_only(self, node: Outward) -> None:
        """PA-47, PA-53's table: above the claim is unresolvable."""
        node.push("a", "b", "c")
        popped = node.pop(batch=2)
        assert verdicts(node.ack("c", lease=popped)) == [UNRESOLVABLE]
        assert node.committed() == -1

    def test_without_a_lease_anybodys_batch_is_completed(self, node: Outward, claim: Popped) -> None:
        """PA-48: no fence; the ack may complete and release somebody else's batch, or go beyond it."""
        node.push("later")
        assert node.ack("m4", lease=None) == [Acked(b"m4", DONE, False)]
        assert node.ack("later", lease=None) == [Acked(b"later", DONE, True)]
        assert node.committed() == 10
        assert verdicts(node.ack("m9", lease=claim)) == [DONE | NOOP]
        assert verdicts(node.ack(("m9", "failed"), lease=claim)) == [INVALID_LEASE]

    def test_without_a_lease_after_expiry(self, node: Outward, claim: Popped) -> None:
        """pop-ack.md 11.7: nobody's lease is released by it, but the batch is done."""
        node.wait(61)
        assert node.ack("m9", lease=None) == [Acked(b"m9", DONE, False)]
        assert node.store.counters().leases_live == 0
        assert node.chance() is None

    @pytest.mark.parametrize("partition_id", [0, 2, 99, 1 << 64])
    def test_a_partition_that_is_not_there(self, node: Outward, claim: Popped, partition_id: int) -> None:
        answers = node.ack_raw([(b"m0", partition_id, AckStatus.COMPLETED, b"", None)])
        assert verdicts(answers) == [CONSUMER_NOT_FOUND]

    def test_a_group_without_cursor_and_record(self, node: Outward) -> None:
        node.push("a")
        assert verdicts(node.ack("a", lease=None, group="g")) == [CONSUMER_NOT_FOUND]
        assert verdicts(node.ack("a", lease=None)) == [CONSUMER_NOT_FOUND]
        node.pop(partition="Default", commit=True, queue="orders")
        node.push("b", partition="p")
        assert verdicts(node.ack("b", lease=None, partition="p")) == [CONSUMER_NOT_FOUND], "queue mode has no record"

    def test_a_registered_group_acks_from_where_it_starts(self, node: Outward) -> None:
        """PA-53's table: a record is enough."""
        node.push("a", "b")
        node.pop(group="new", mode="new")
        assert verdicts(node.ack("a", ("b", "failed"), lease=None, group="new")) == [DONE | NOOP, ALREADY_COMMITTED]
        node.pop(group="all", mode="all", partition="nothing there")
        assert verdicts(node.ack("a", lease=None, group="all")) == [DONE]
        assert node.ids(group="all") == ["b"]


class TestWhichMessage:
    @pytest.fixture
    def twice(self, node: Outward) -> Popped:
        """Ids a, b, a, c: dedup is off."""
        node.configure(dedup_window_seconds=0)
        for txn in "abac":
            node.push(txn)
        popped = node.pop()
        assert popped is not None
        return popped

    def test_the_first_item_means_the_first_occurrence(self, node: Outward, twice: Popped) -> None:
        """PA-53."""
        node.ack("a", lease=twice)
        assert node.committed() == 0

    def test_the_second_item_means_the_second(self, node: Outward, twice: Popped) -> None:
        """PA-53."""
        assert verdicts(node.ack("a", ("a", "retry"), lease=twice)) == [DONE, DONE]
        assert node.committed() == 0
        assert node.got() == [Got("Default", 1, ["b", "a", "c"], 1)]

    def test_surplus_items_mean_the_last_where_the_strongest_wins(self, node: Outward, twice: Popped) -> None:
        """PA-53, PA-51: dlq over failed over retry."""
        answers = node.ack("a", ("a", "retry"), ("a", "dlq"), ("a", "failed"), lease=twice)
        assert verdicts(answers) == [DONE, DONE | DLQ, DONE | DLQ, DONE | DLQ]
        assert node.committed() == 2

    @pytest.mark.parametrize("fenced", [True, False])
    def test_inside_a_live_lease_an_id_is_found_after_its_memory_has_ended(self, node: Outward, fenced: bool) -> None:
        """PA-54."""
        node.push(*TEN)
        node.wait(3 * 24 * 3600)
        for _ in range(3):
            node.apply(forget_ids(at_most=1000, keep_at_least_s=0))
        assert node.partition().ids_start == 10
        popped = node.pop()
        assert verdicts(node.ack("m7", lease=popped if fenced else None)) == [DONE]
        assert node.committed() == 7
        assert verdicts(node.ack("m3", lease=popped if fenced else None)) == [DONE | NOOP]

    def test_how_far_back_a_forgotten_id_is_looked_for(self, node: Outward, monkeypatch: pytest.MonkeyPatch) -> None:
        """PA-54: among the last messages below the cursor, a bound that a test can see; so many bytes at most."""
        node.push(*TEN)
        node.ids(commit=True)
        node.wait(3 * 24 * 3600)
        for _ in range(3):
            node.apply(forget_ids(at_most=1000, keep_at_least_s=0))
        assert node.partition().ids_start == 10
        assert verdicts(node.ack("m0", lease=None)) == [DONE | NOOP]
        monkeypatch.setattr(lookup, "LOOKBACK_MAX", 4)
        assert verdicts(node.ack("m6", "m5", lease=None)) == [DONE | NOOP, UNRESOLVABLE]
        monkeypatch.setattr(lookup, "PAGE", 2)
        monkeypatch.setattr(lookup, "LOOKBACK_MAX_BYTES", 1)
        assert verdicts(node.ack("m8", "m7", lease=None)) == [DONE | NOOP, UNRESOLVABLE]

    def test_lease_less_below_the_cursor(self, node: Outward, claim: Popped) -> None:
        """PA-54, PA-48: while its id is kept."""
        node.ack("m9", lease=claim)
        assert verdicts(node.ack("m2", ("m3", "dlq"), lease=None)) == [DONE | NOOP, ALREADY_COMMITTED]


class TestRetries:
    @pytest.mark.parametrize("limit", [0, 1, 3])
    def test_failure_n_plus_one_files(self, node: Outward, limit: int) -> None:
        """PA-55: N = 3 means that the fourth delivery's failure files."""
        node.configure(retry_limit=limit)
        node.push("a", "b")
        for _ in range(limit):
            assert verdicts(node.ack(("a", "failed"), lease=node.pop())) == [DONE]
        popped = node.pop()
        assert popped is not None
        assert popped.claims[0].attempt == limit + 1
        assert verdicts(node.ack(("a", "failed"), lease=popped)) == [DONE | DLQ]
        assert node.got() == [Got("Default", 1, ["b"], 1)]

    def test_retry_and_expiry_spend_nothing(self, node: Outward) -> None:
        """PA-55, PA-36."""
        node.configure(retry_limit=1)
        node.push("a")
        for _ in range(4):
            node.ack(("a", "retry"), lease=node.pop())
            node.pop(lease_s=1)
            node.wait(1)
        assert verdicts(node.ack(("a", "failed"), lease=node.pop())) == [DONE]

    @pytest.mark.parametrize(("flags", "verdict"), [
        ((True, True), DONE | DLQ), ((True, False), DONE | DLQ), ((False, True), DONE | DLQ), ((False, False), DONE),
    ])
    def test_the_two_flags_are_ored(self, node: Outward, flags: tuple[bool, bool], verdict: int) -> None:
        """PA-55: both false drops the message, the cursor moves past."""
        node.configure(retry_limit=0, dead_letter_queue=flags[0], dlq_after_max_retries=flags[1])
        node.push("a")
        assert verdicts(node.ack(("a", "failed"), lease=node.pop())) == [verdict]
        assert node.committed() == 0
        assert node.store.counters().dead_letters == (1 if verdict & DLQ else 0)

    def test_dlq_is_filed_whatever_the_flags(self, node: Outward) -> None:
        """PA-52: the flags are about exhausted messages (queues.md 1)."""
        node.configure(dead_letter_queue=False, dlq_after_max_retries=False)
        node.push("a")
        assert verdicts(node.ack(("a", "dlq"), lease=node.pop())) == [DONE | DLQ]

    def test_a_lowered_limit_counts_at_the_next_failure(self, node: Outward) -> None:
        """PA-55."""
        node.push("a")
        for _ in range(2):
            node.ack(("a", "failed"), lease=node.pop())
        node.configure(retry_limit=1)
        assert verdicts(node.ack(("a", "failed"), lease=node.pop())) == [DONE | DLQ]

    def test_the_counter_starts_anew_when_the_cursor_moves(self, node: Outward) -> None:
        """PA-55's Open: so that N is per message."""
        node.configure(retry_limit=1)
        node.push("a", "b")
        assert verdicts(node.ack(("a", "failed"), lease=node.pop())) == [DONE]
        assert verdicts(node.ack("a", ("b", "failed"), lease=node.pop())) == [DONE, DONE]
        assert verdicts(node.ack(("b", "failed"), lease=node.pop())) == [DONE | DLQ]

    def test_a_message_that_retention_took_is_passed_and_not_filed(self, node: Outward, claim: Popped) -> None:
        """PA-56: dlq:false, noop:true."""
        node.partition().log_start = 3
        assert verdicts(node.ack(("m1", "dlq"), ("m4", "dlq"), lease=claim)) == [DONE | NOOP, DONE | DLQ]
        assert node.store.counters().dead_letters == 1
        assert node.committed() == 4


class TestRepeats:
    def test_the_same_ack_is_answered_as_the_first_time(self, node: Outward, claim: Popped) -> None:
        """PA-59, G-Q7: also after the partition went to somebody else."""
        items: list[tuple[str, str] | str] = ["m1", ("m2", "dlq"), ("m3", "retry"), "m4"]
        first = node.ack(*items, lease=claim)
        assert node.ack(*items, lease=claim) == first
        node.pop()
        assert node.ack(*items, lease=claim) == first
        assert node.store.counters().dead_letters == 1
        assert node.committed() == 2

    def test_another_ack_under_a_released_lease_fails(self, node: Outward, claim: Popped) -> None:
        """PA-59, G-Q6: but for a completed that the cursor has passed."""
        node.ack("m4", ("m5", "retry"), lease=claim)
        answers = node.ack("m4", "m0", "m5", ("m4", "failed"), "never pushed", lease=claim)
        assert verdicts(answers) == [DONE | NOOP, DONE | NOOP, INVALID_LEASE, INVALID_LEASE, INVALID_LEASE]
        assert not released(answers)

    def test_it_is_remembered_for_sixty_seconds(self, node: Outward, claim: Popped) -> None:
        """PA-59."""
        first = node.ack("m9", lease=claim)
        node.wait(60)
        assert node.ack("m9", lease=claim) == first
        node.wait(0.000001)
        assert verdicts(node.ack("m9", lease=claim)) == [INVALID_LEASE]

    def test_the_last_sixty_four_leases_are_remembered(self, node: Outward) -> None:
        """PA-59: a bound that a test can see."""
        leases = []
        for number in range(LEASES_KEPT + 1):
            node.push(f"a{number}")
            popped = node.pop()
            leases.append(popped)
            node.ack(f"a{number}", lease=popped)
        assert verdicts(node.ack("a0", lease=leases[0])) == [INVALID_LEASE]
        assert verdicts(node.ack("a1", lease=leases[1])) == [DONE]
        assert verdicts(node.ack(f"a{LEASES_KEPT}", lease=leases[-1])) == [DONE]

    def test_a_lease_that_only_ran_out_is_not_remembered(self, node: Outward, claim: Popped) -> None:
        """PA-59 is of leases that an ack released."""
        node.wait(60)
        node.ack("m9", lease=None)
        assert verdicts(node.ack("m9", lease=claim)) == [INVALID_LEASE]


def test_a_large_claim_is_acked_in_one_call(node: Outward) -> None:
    """Every item of 1,000 finds its message, whichever way it is looked up."""
    ids = [f"m{number}" for number in range(1000)]
    node.push(*ids)
    popped = node.pop(batch=1000)
    assert verdicts(node.ack("m998", lease=popped)) == [DONE]
    answers = node.ack(*ids, lease=popped)
    assert verdicts(answers) == [DONE | NOOP] * 999 + [DONE]
    assert released(answers)
