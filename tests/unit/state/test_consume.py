"""What a pop takes, from where a group starts, and what is never proposed (pop-ack.md 3, 4, 5, 7)."""

from __future__ import annotations

import pytest

from queen_node.state.claims import LOOK_MAX
from queen_node.state.consume import shared_among
from queen_node.state.keys import CURSOR, GROUP, LEASE
from queen_node.state.queues import find_queue
from queen_node.state.verdicts import DONE
from tests.support.outward import QM, SECOND, START_US, Got, Outward, got


@pytest.fixture
def node() -> Outward:
    return Outward()


def five_in_each_of_four(node: Outward) -> None:
    for partition in "abcd":
        node.push(*[f"{partition}{number}" for number in range(5)], partition=partition)


class TestClaims:
    def test_a_claim_takes_what_stands_above_the_cursor_in_order(self, node: Outward) -> None:
        """PA-5, PA-10: consecutive messages from the cursor on, attempt 1."""
        node.push("a", "b", "c")
        assert node.got() == [Got("Default", 0, ["a", "b", "c"], 1)]

    def test_one_live_lease_per_partition_and_group(self, node: Outward) -> None:
        """PA-11: the group waits, another group does not."""
        node.push("a", "b")
        assert node.ids(batch=1) == ["a"]
        assert node.ids() == []
        assert node.ids(group="other", mode="all") == ["a", "b"]

    @pytest.mark.parametrize(("asked", "sizes"), [
        ({}, [5]),
        ({"partitions": 3}, [5, 5, 5]),
        ({"batch": 10, "partitions": 5}, [5, 5]),
        ({"batch": 7, "partitions": 5}, [5, 2]),
        ({"batch": 0, "partitions": 0}, [5, 5, 5, 5]),
    ])
    def test_batch_is_the_budget_of_the_whole_call(
        self, node: Outward, asked: dict[str, int], sizes: list[int],
    ) -> None:
        """pop-ack.md 11.3: four partitions of five."""
        five_in_each_of_four(node)
        assert [len(claim.ids) for claim in node.got(**asked)] == sizes

    def test_ready_partitions_are_served_in_the_order_in_which_they_became_ready(self, node: Outward) -> None:
        """PA-12: a served one goes to the back."""
        five_in_each_of_four(node)
        served = []
        for _ in range(9):
            popped = node.pop(batch=1)
            (claim,) = got(popped)
            served.append(claim.partition)
            node.wait(0.001)
            node.ack(*claim.ids, lease=popped, partition=claim.partition)
        assert served == list("abcdabcda")

    def test_another_append_does_not_send_a_ready_partition_to_the_back(self, node: Outward) -> None:
        """PA-12: it became ready with the first."""
        node.push("first", partition="a")
        node.push("second", partition="b")
        node.push("third", partition="a")
        assert node.ids(partitions=1) == ["first", "third"]

    def test_an_expired_lease_takes_its_place_at_its_expiry(self, node: Outward) -> None:
        """PA-12: ready at the end of the lease, so before what was appended after that."""
        node.push("early", partition="a")
        node.pop(lease_s=10)
        node.wait(11)
        node.push("late", partition="b")
        assert node.ids() == ["early"]
        assert node.ids() == ["late"]

    def test_bytes_are_capped_but_never_below_one_message(self, node: Outward) -> None:
        """PA-13: a message that would cross the cap stays, unless it is the first."""
        node.push("a", "b", "c", payload=b"x" * 100)
        assert node.ids(max_bytes=50, group="one", mode="all") == ["a"]
        assert node.ids(max_bytes=200, group="two", mode="all") == ["a", "b"]
        assert node.ids(max_bytes=299, group="three", mode="all") == ["a", "b"]

    def test_the_cap_on_bytes_is_of_the_whole_answer(self, node: Outward) -> None:
        """PA-13: the first message of a second partition stays too, and its partition is not leased."""
        node.push("a", partition="p", payload=b"x" * 100)
        node.push("b", partition="q", payload=b"x" * 100)
        assert node.ids(max_bytes=150, partitions=2) == ["a"]
        assert node.ids(max_bytes=150, partitions=2) == ["b"]

    def test_commit_on_delivery_leases_nothing(self, node: Outward) -> None:
        """PA-40: the cursor moves in the claiming entry, the attempt is always 1, the rest can be had at once."""
        node.push("a", "b", "c")
        popped = node.pop(commit=True, batch=2)
        assert popped is not None
        assert popped.lease_id == b""
        assert node.rows(LEASE) == []
        assert node.store.counters().leases_live == 0
        assert node.wakes == {b"orders": 1}
        assert node.got(commit=True) == [Got("Default", 2, ["c"], 1)]
        assert node.chance() is None

    def test_commit_on_delivery_moves_the_cursor_like_an_ack(self, node: Outward) -> None:
        """PA-40, PA-24, PA-55: retries and attempts start anew behind it."""
        node.configure(retry_limit=1)
        node.push("a", "b")
        node.ack(("a", "failed"), lease=node.pop())
        node.ids(commit=True, batch=1)
        popped = node.pop()
        assert got(popped) == [Got("Default", 1, ["b"], 1)]
        assert [answer.verdict for answer in node.ack(("b", "failed"), lease=popped)] == [DONE]
        assert node.ids() == ["b"], "its one retry was still unspent"

    def test_the_partition_route_takes_that_partition_only(self, node: Outward) -> None:
        five_in_each_of_four(node)
        assert [claim.partition for claim in node.got(partition="c", partitions=4)] == ["c"]
        assert node.got(partition="c") == []
        assert node.got(partition="never written") == []
        assert [claim.partition for claim in node.got(partitions=4)] == ["a", "b", "d"]

    def test_a_pop_behind_a_push_in_one_entry_sees_it(self, node: Outward) -> None:
        """M-41: messages of the open batch are read like stored ones."""
        node.push("first")
        node.ids(commit=True)
        answers = node.apply(node.push_command("second"), node.pop_command())
        assert [claim.ids for claim in got(answers[1])] == [["second"]]

    def test_a_pop_that_lost_the_race_changes_nothing_and_is_answered_nothing(self, node: Outward) -> None:
        """PA-20, PA-62: the leader's order is a hint, apply takes what is still ready."""
        node.push("a")
        answers = node.apply(node.pop_command(), node.pop_command())
        assert [len(got(answer)) for answer in answers] == [1, 0]
        assert node.store.counters().leases_live == 1

    def test_a_retained_start_above_the_cursor_is_where_it_goes_on(self, node: Outward) -> None:
        """PA-15: a cursor below the log start continues at the first retained offset."""
        node.push("a", "b", "c", "d")
        node.pop(batch=1, lease_s=1)
        node.partition().log_start = 2
        node.wait(1)
        assert node.got() == [Got("Default", 2, ["c", "d"], 1)]


class TestHeldBack:
    def test_delayed_processing_counts_from_each_append(self, node: Outward) -> None:
        """PA-14: invisible until createdAt + D, to the microsecond; the next chance is known."""
        node.configure(delayed_processing=3)
        node.push("a")
        node.wait(1)
        node.push("b")
        assert node.ids() == []
        assert node.chance() == START_US + 3 * SECOND
        node.now_us = START_US + 3 * SECOND - 1
        assert node.ids() == []
        node.wait(0.000001)
        assert node.ids(commit=True) == ["a"]
        assert node.chance() == START_US + 4 * SECOND
        node.wait(1)
        assert node.ids() == ["b"]

    def test_window_buffer_waits_for_quiet(self, node: Outward) -> None:
        """PA-14: nothing until the newest message is W old."""
        node.configure(window_buffer=4)
        node.push("a")
        node.wait(3)
        node.push("b")
        node.wait(3)
        assert node.ids() == []
        node.wait(1)
        assert node.ids() == ["a", "b"]

    def test_a_writer_that_never_pauses_holds_back_ten_windows_at_most(self, node: Outward) -> None:
        """PA-14's Open, and pop-ack.md 11.10: at 10 x W after the oldest undelivered message."""
        node.configure(window_buffer=1)
        first_delivery = None
        for number in range(30):
            node.push(f"m{number}")
            if node.ids(batch=1) and first_delivery is None:
                first_delivery = node.now_us
            node.wait(0.5)
        assert first_delivery == START_US + 10 * SECOND

    def test_the_longer_of_both_decides(self, node: Outward) -> None:
        """pop-ack.md 11.10: delayedProcessing 3 with windowBuffer 1."""
        node.configure(delayed_processing=3, window_buffer=1)
        node.push("a")
        node.wait(2.5)
        node.push("b")
        node.wait(0.5)
        assert node.ids() == []
        node.wait(0.5)
        assert node.ids() == ["a"]

    @pytest.mark.parametrize("partition", [None, "Default"])
    def test_a_changed_delay_counts_at_once_for_stored_messages(self, node: Outward, partition: str | None) -> None:
        """PA-14, QU-5: lowered and raised, on every route."""
        node.configure(delayed_processing=100)
        node.push("a")
        node.wait(5)
        assert node.ids(partition=partition) == []
        node.configure(delayed_processing=10)
        assert node.ids(partition=partition) == []
        assert node.chance(partition=partition) == START_US + 10 * SECOND
        node.configure(delayed_processing=5)
        assert node.wakes[b"orders"] > 0
        assert node.ids(partition=partition, lease_s=1) == ["a"]
        node.configure(delayed_processing=20)
        node.wait(1)
        assert node.ids(partition=partition) == [], "redelivery is held back too"
        node.wait(14)
        assert node.ids(partition=partition) == ["a"]


class TestGroups:
    def test_new_skips_what_existed_and_all_does_not(self, node: Outward) -> None:
        """PA-30, PA-31."""
        node.push("before")
        assert node.ids(group="new", mode="new") == []
        assert node.ids(group="all", mode="all") == ["before"]
        node.push("after")
        assert node.ids(group="new") == ["after"]

    def test_existed_is_decided_by_log_order_not_by_stamps(self, node: Outward) -> None:
        """PA-31: all of this happens within one microsecond."""
        node.push("acknowledged before")
        node.pop(group="g", mode="new")
        node.push("sent after", "and this")
        assert node.ids(group="g") == ["sent after", "and this"]

    def test_a_partition_created_later_is_read_from_its_start(self, node: Outward) -> None:
        """PA-30: under `new` too; even when it was made in the entry of the registration."""
        node.push("old", partition="a")
        node.apply(node.pop_command(group="g", mode="new"), node.push_command("first", partition="b"))
        node.push("second", partition="b")
        assert node.ids(group="g") == ["first", "second"]

    def test_a_time_starts_at_the_first_message_appended_at_or_after_it(self, node: Outward) -> None:
        """PA-30: in each partition by itself; a time that is still to come is waited for."""
        for number in range(6):
            node.push(f"a{number}", partition="a")
            node.push(f"b{number}", partition="b")
            node.wait(1)
        at = START_US + 3 * SECOND
        assert node.ids(group="g", mode="time", from_us=at, partitions=2) == ["a3", "a4", "a5", "b3", "b4", "b5"]
        assert node.ids(group="just above", mode="time", from_us=at + 1, partitions=1) == ["a4", "a5"]
        assert node.ids(group="later", mode="time", from_us=START_US + 9 * SECOND) == []
        node.wait(2)
        node.push("too early", partition="a")
        node.wait(1)
        node.push("in time", partition="a")
        assert node.ids(group="later") == ["in time"]

    def test_the_stored_record_wins_over_what_later_pops_say(self, node: Outward) -> None:
        """PA-30."""
        node.pop(group="g", mode="new")
        node.push("a")
        assert node.ids(group="g", mode="all") == ["a"]
        assert len(node.rows(GROUP)) == 2, "one record, and the names of the queue's groups"

    def test_queue_mode_always_starts_at_the_oldest(self, node: Outward) -> None:
        """PA-30: mode and from are ignored."""
        node.push("a")
        assert node.ids(mode="new") == ["a"]

    @pytest.mark.parametrize("partition", [None, "p"])
    def test_a_named_group_creates_a_missing_queue_and_queue_mode_nothing(
        self, node: Outward, partition: str | None,
    ) -> None:
        """PA-32: with a push's defaults; on the partition route too."""
        assert node.chance(partition=partition) is None
        assert node.apply(node.pop_command(partition=partition)) == [None]
        assert find_queue(node.store, b"orders") is None
        assert node.chance(group="g", partition=partition) is True
        assert node.ids(group="g", partition=partition) == []
        queue = find_queue(node.store, b"orders")
        assert queue is not None
        assert queue.options.lease_time == 60
        assert node.chance(group="g", partition=partition) is None
        node.push("a", partition="p")
        assert node.ids(group="g", partition=partition) == ["a"]

    def test_more_partitions_than_one_pop_files_are_all_found(self, node: Outward) -> None:
        """PA-12 and M-50: each pop looks at a bounded number, in order of creation, and the leader proposes again."""
        for number in range(LOOK_MAX + 10):
            node.push(f"m{number}", partition=f"p{number}")
        for number in range(LOOK_MAX + 5):
            node.ids(partition=f"p{number}", commit=True)
        assert node.ids(partitions=64) == [f"m{number}" for number in range(LOOK_MAX + 5, LOOK_MAX + 10)]

    def test_a_new_group_costs_nothing_for_what_exists(self, node: Outward) -> None:
        """PA-30: no cursor and no row of a list until something is appended."""
        five_in_each_of_four(node)
        node.pop(group="g", mode="new")
        assert node.rows(CURSOR) == []
        node.push("x", partition="b")
        assert node.got(group="g", partitions=4) == [Got("b", 5, ["x"], 1)]


class TestTheLeadersLook:
    def test_nothing_is_proposed_until_something_can_change(self, node: Outward) -> None:
        """CL-26: unregistered is an entry, served is True, leased is a time, empty is None."""
        assert node.chance() is None
        assert node.chance(group="g") is True
        node.push("a")
        assert node.chance() is True
        node.pop(lease_s=7)
        assert node.chance() == START_US + 7 * SECOND
        node.wait(7)
        assert node.chance() is True

    def test_mere_expiry_writes_nothing(self, node: Outward) -> None:
        """PA-63: a lease that runs out changes the next look, not the state."""
        node.push("a")
        node.pop(lease_s=7)
        before = node.store.meta
        node.wait(8)
        assert node.chance() is True
        assert node.store.meta == before


class TestAttempts:
    def test_a_claim_at_the_same_offset_counts_one_more(self, node: Outward) -> None:
        """PA-24: after expiry, retry and failed; 1 again once the cursor has moved."""
        node.push("a", "b")
        attempts = [claim.attempt for claim in node.got(lease_s=1)]
        node.wait(1)
        popped = node.pop()
        node.ack(("a", "retry"), lease=popped)
        third = node.pop()
        node.ack(("a", "failed"), lease=third)
        fourth = node.pop()
        attempts += [claim.attempt for one in (popped, third, fourth) for claim in got(one)]
        assert attempts == [1, 2, 3, 4]
        node.ack("a", ("b", "retry"), lease=fourth)
        assert node.got() == [Got("Default", 1, ["b"], 1)]

    def test_another_batch_size_is_the_same_claim(self, node: Outward) -> None:
        """PA-24: the attempt belongs to the first offset."""
        node.push("a", "b")
        node.pop(lease_s=1, batch=1)
        node.wait(1)
        assert node.got() == [Got("Default", 0, ["a", "b"], 2)]


class TestAutopilot:
    def test_batch_follows_the_groups_pace_between_its_bounds(self, node: Outward) -> None:
        """PA-41: clamp(acked in the last second, 100, 1000)."""
        for page in range(4):
            node.push(*[f"{page}-{number}" for number in range(400)])
        assert len(node.ids(batch=0, partitions=0, commit=True)) == 100
        popped = node.pop(batch=700)
        node.ack(*[txn for claim in got(popped) for txn in claim.ids], lease=popped)
        node.wait(0.5)
        popped = node.pop(batch=0, partitions=1)
        assert popped is not None
        assert popped.autopilot == (1, 700, 100)
        assert [len(claim.messages) for claim in popped.claims] == [700]

    def test_what_is_ready_is_shared_among_the_pops_that_wait(self, node: Outward) -> None:
        """PA-41: partitions = ceil(ready / pops waiting); waitMs 0 while something is left."""
        five_in_each_of_four(node)
        popped = node.pop(batch=0, partitions=-3)
        assert popped is not None
        assert len(popped.claims) == 2
        assert popped.autopilot == (2, 100, 0)

    def test_the_leader_says_how_many_share(self, node: Outward) -> None:
        """PA-41: only where the choice is left to the broker."""
        left, given = node.pop_command(batch=0, partitions=0), node.pop_command(batch=0, partitions=2)
        assert shared_among(given, 3) == given
        assert shared_among(left, 1) == left
        five_in_each_of_four(node)
        answers = node.apply(shared_among(left, 4), shared_among(given, 4))
        assert [len(got(answer)) for answer in answers] == [1, 2]

    def test_given_values_are_never_changed(self, node: Outward) -> None:
        """PA-41."""
        five_in_each_of_four(node)
        popped = node.pop(batch=3, partitions=0)
        assert popped is not None
        assert [len(claim.messages) for claim in popped.claims] == [3]
        assert popped.autopilot == (4, 3, 0)
        plain = node.pop(batch=3, partitions=2)
        assert plain is not None
        assert plain.autopilot is None


def test_a_push_looks_at_no_group_where_nobody_reads(node: Outward) -> None:
    """QueueRow.groups spares the look: no cursor comes into being."""
    node.push("a")
    assert node.rows(CURSOR) == []
    assert node.ids(group=QM) == ["a"]
