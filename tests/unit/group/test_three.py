"""A group on three nodes: calls find their leader, go again when it is gone, and are done once."""

from __future__ import annotations

import msgspec
import pytest

from queen_node import queries
from queen_node.answers import NOTHING
from queen_node.answers.kv import decode_answer
from queen_node.answers.push import push_results
from queen_node.answers.timers import render_timers
from queen_node.calls import PendingRead
from queen_node.commands import KvOp
from queen_node.group import Group
from queen_node.guests import SEEN_MAX, SEEN_TICKS, Guests
from queen_node.peer_calls import Forward, ForwardPop, Nothing
from queen_node.queries import Query
from queen_node.slots import Slot
from queen_node.state.kv import Single
from queen_node.state.store import Store
from tests.unit.group.driver import delivered, outcome
from tests.unit.group.three import Three


def offsets(slot: object) -> list[int]:
    """Of the messages that a push was answered with."""
    answer = outcome(slot)  # type: ignore[arg-type]
    assert isinstance(answer, bytes), answer
    return [result.offset for result in push_results(answer)]


def test_any_node_takes_any_call_and_answers_when_it_has_applied_it() -> None:
    """CL-2, CL-35, cluster.md 4.2."""
    three = Three()
    three.elect(1)
    slots = [three.push(node, b"q", b"m%d" % node) for node in (1, 2, 3)]
    reads = [three.read(node) for node in (1, 2, 3)]
    pop = three.pop(2, b"q")
    three.settle()
    assert sorted(offsets(slot)[0] for slot in slots) == [0, 1, 2]
    assert all(read.answered for read in reads)
    assert sorted(delivered(pop) or ()) == ["m1", "m2", "m3"]
    three.pass_time(0.2)
    assert len(three.digests()) == 1


def test_a_read_on_any_node_is_judged_at_the_leaders_time() -> None:
    """KV-22, KV-53: a follower only estimates the clock, and a row that one node called dead must not live on another.
    """
    three = Three()
    leader = three.elect(1)
    three.pass_time(0.2)
    times = [member.group.raft.clock.now_us() for member in three.members.values()]
    assert times[1] < times[0], "or the follower's own clock would do"
    read = PendingRead(b"", Slot(), give_up_at_s=three.now_s + 30)
    three.members[2].group.read(read)
    three.settle()
    assert read.slot.answered and read.now_us == leader.group.raft.clock.now_us() == times[0]


def test_a_row_that_is_dead_by_a_clock_that_no_entry_carries_is_not_told_of() -> None:
    """KV-70, M-23: the next leader, which heard no sample, is behind, and the row lives on there until its own time."""
    three = Three()
    three.elect(1)
    put = three.kv(1, (KvOp.PUT, b"n", b"k", b"1", 20, None, False))
    three.pass_time(20.1)
    assert put.answered
    get = (KvOp.GET, b"n", b"k")
    leader, next_one = three.members[1].group, three.members[2].group
    at_us = leader.raft.clock.now_us()
    assert next_one.raft.clock.now_us() < at_us, "or there is nothing to fear"
    asked = queries.query(Query.KV, False, True, (get,))
    assert answered(leader.machine.store, at_us, asked) == NOTHING
    three.kv(1)
    three.settle()
    told = queries.query(Query.KV, True, True, (get,))
    assert next_one.raft.clock.now_us() >= at_us, "where it would begin to lead from"
    for member in (leader, next_one):
        (element,) = decode_answer(answered(member.machine.store, 0, told))[3]
        assert isinstance(element, Single) and not element.done


def answered(store: Store, now_us: int, query: bytes) -> bytes:
    """What a read of the committed state gives."""
    reader = queries.reader(store.committed(now_us), query)
    while True:
        try:
            next(reader)
        except StopIteration as end:
            result: bytes = end.value
            return result


def test_calls_wait_for_a_leader_and_then_for_nothing() -> None:
    """CL-140: a node holds a call through an election."""
    three = Three()
    push, read, pop = three.push(2, b"q", b"m"), three.read(3), three.pop(3, b"q")
    three.settle()
    assert outcome(push) is None and not read.answered and delivered(pop) is None
    three.elect(1)
    assert offsets(push) == [0] and read.answered and delivered(pop) == ["m"]


def test_what_was_never_sent_is_refused_as_surely_not_applied_after_eight_seconds() -> None:
    """CL-90, CL-140, G-D5: `no_leader` means that it never left this node."""
    three = Three()
    three.cut = {1, 2, 3}
    push = three.push(2, b"q", b"m")
    three.pass_time(7.8)
    assert outcome(push) is None
    three.pass_time(0.6)
    assert outcome(push) == "no_leader"


def test_a_leader_lost_with_a_call_costs_a_repeat_and_no_second_message() -> None:
    """CL-27, M-53: the first copy is in the log that the next leader brings along; so both are, and one counts."""
    three = Three()
    leader = three.elect(1)
    three.pass_time(0.2)
    leader.disk_works = False  # it sends what it cannot write yet: the entry commits on the others, or not at all
    push = three.push(3, b"q", b"once")
    three.settle()
    assert outcome(push) is None or offsets(push) == [0]
    three.cut = {1}
    three.pass_time(4)
    assert offsets(push) == [0]
    again = three.push(2, b"q", b"next")
    three.pass_time(0.3)
    assert offsets(again) == [1]
    assert len(three.digests()) == 1


def test_both_copies_of_a_call_in_the_log_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """CL-27, TX-60, M-53: the first copy is on one follower, which leads next; the other node sends its call
    again. Nothing but the request id tells the copies apart: the queue checks no transaction ids."""
    monkeypatch.setattr(Group, "was_applied", lambda *_: False)  # as where it is not applied yet when the second comes
    three = Three()
    three.elect(1)
    three.configure(1, b"q", dedup_window_seconds=0)
    three.pass_time(0.2)
    three.members[1].disk_works = three.members[3].disk_works = False
    push = three.push(3, b"q", b"once")
    three.settle()
    assert outcome(push) is None
    three.cut = {1}
    three.members[3].disk_works = True
    three.pass_time(4)
    assert offsets(push) == [0]
    assert 2 in three.members[3].copies.values(), "the scene did not come about"
    assert offsets(three.pushed(2, b"q", b"next")) == [1]
    assert len(three.digests()) == 1


def test_who_was_deposed_does_not_say_that_a_timer_is_absent() -> None:
    """CL-80, G-M12: a cancel at a leader that was cut off before the timer was scheduled is not answered."""
    three = Three()
    three.elect(1)
    three.pass_time(0.2)
    three.cut = {1}
    three.pass_time(2)
    scheduled = three.schedule(2, b"q", b"k", 3_600_000)
    three.pass_time(2)
    assert scheduled.answered
    cancel = three.cancel(1, b"q", b"k")
    three.pass_time(2)
    assert not cancel.answered
    three.cut = set()
    three.pass_time(6)
    answer = outcome(cancel)
    assert isinstance(answer, bytes)
    status, body = render_timers(answer)
    assert status == 200 and msgspec.json.decode(body)["results"][0]["status"] == "cancelled"


def test_a_call_that_comes_twice_stands_in_the_log_once() -> None:
    """The node that took it sends it again while the leader waits for its disk."""
    three = Three()
    leader = three.elect(1)
    three.pass_time(0.2)
    for member in three.members.values():
        member.disk_works = False
    push = three.push(2, b"q", b"m")
    three.pass_time(0.9)
    for member in three.members.values():
        member.disk_works = True
    three.pass_time(0.9)
    assert offsets(push) == [0] and sum(leader.entries) == 1


def test_a_first_sending_that_comes_again_when_its_call_was_applied_is_dropped() -> None:
    """CL-27: it does not say that it is a repeat, so applying it would not step over it. Simulation, seed 141: a timer
    was moved by it after its client had been told when it fires."""
    three = Three()
    leader = three.elect(1)
    three.configure(1, b"q", dedup_window_seconds=0)
    three.pass_time(0.2)
    push, pop = three.push(2, b"q", b"once"), three.pop(3, b"other")
    doubled = [(node, call) for node in (2, 3) for _, call in three.members[node].group.outgoing]
    three.settle()
    assert offsets(push) == [0] and delivered(three.popped(3, b"q")) == ["once"]
    three.members[3].group.withdraw(pop)
    three.settle()

    assert [type(call) for _, call in doubled] == [Forward, ForwardPop]
    for node, call in doubled:
        leader.group.hear(node, call, leader.group.raft.clock.now_us())
    assert not leader.group.guests.writes and not leader.group.guests.pops
    assert offsets(three.pushed(2, b"q", b"next")) == [1]


def test_a_node_that_lags_adds_nothing_to_the_log_by_asking_again() -> None:
    """CL-111: it asks until it applies its calls itself. Simulation, seeds 105804, 107356, 109589: an entry for each
    repeat kept it from ever getting there, as it took snapshots of a log that its own repeats moved on."""
    three = Three()
    leader = three.elect(1)
    three.pushed(1, b"q", b"m")
    three.pass_time(0.2)
    popped = three.popped(3, b"q")
    assert delivered(popped) == ["m"]
    three.members[3].disk_works = False
    push, pop = three.push(3, b"q", b"late"), three.pop(3, b"timers")
    three.schedule(1, b"timers", b"k", 100)
    three.members[3].group.hand_back(popped.lease_id)
    three.pass_time(12)
    assert outcome(push) is None and delivered(pop) is None
    waiting = [*three.members[3].group.calls.writes, pop.request_id]
    assert [leader.copies[request_id] for request_id in waiting] == [1, 1, 1]
    three.members[3].disk_works = True
    three.pass_time(0.5)
    assert offsets(push) == [1] and delivered(pop) == ["txn-k"] and not three.members[3].group.calls
    assert len(three.digests()) == 1


def test_what_came_is_known_for_a_while_and_then_forgotten() -> None:
    guests, call = Guests(), Forward(b"i" * 16, 0, False, (), b"")
    assert not guests.is_late(call) and guests.is_late(call)
    assert not guests.is_late(msgspec.structs.replace(call, repeat=True))
    for _ in range(2 * SEEN_TICKS):
        guests.tick()
    assert not guests.is_late(call)


def test_what_came_is_bounded_however_much_comes() -> None:
    guests = Guests()
    for number in range(2 * SEEN_MAX + 3):
        guests.is_late(Forward(number.to_bytes(16, "big"), 0, False, (), b""))
    assert not guests.is_late(Forward(bytes(16), 0, False, (), b""))


def test_a_leader_that_lost_its_place_keeps_nobody_waiting() -> None:
    """Its parked pops and the calls of other nodes go to the next leader, and stay with nobody else."""
    three = Three()
    old = three.elect(1)
    pops = [three.pop(node, b"q") for node in (1, 2, 3)]
    three.settle()
    assert len(old.group.pops) == 3
    three.hand_over(1, 2)
    assert len(old.group.pops) == 0 and not old.group.guests.pops
    assert len(three.members[2].group.pops) == 3
    three.push(1, b"q", b"m")
    three.settle()
    assert [delivered(pop) for pop in pops].count(["m"]) == 1


def test_a_lost_frame_is_sent_again() -> None:
    """A connection that breaks takes frames with it; the leader takes a call that comes twice once."""
    three = Three()
    leader = three.elect(1)
    three.lose_calls = True
    push, read, pop = three.push(2, b"q", b"m"), three.read(2), three.pop(2, b"empty")
    three.settle()
    three.lose_calls = False
    assert outcome(push) is None and not read.answered
    three.pass_time(1)
    assert offsets(push) == [0] and read.answered and delivered(pop) is None
    three.pass_time(6)
    assert leader.group.pops.count(b"empty", (b"__QUEUE_MODE__", None)) == 1
    three.push(3, b"empty", b"late")
    three.settle()
    assert delivered(pop) == ["late"]


def test_a_parked_pop_moves_to_the_next_leader() -> None:
    """M-42, CL-81: what is pushed after the change of leader is delivered at once."""
    three = Three()
    three.elect(1)
    pop = three.pop(3, b"q")
    three.settle()
    assert len(three.members[1].group.pops) == 1
    three.cut = {1}
    three.pass_time(4)
    three.push(2, b"q", b"m")
    three.settle()
    assert delivered(pop) == ["m"]


def test_a_pop_whose_client_left_hands_back_what_the_leader_claimed_for_it() -> None:
    """PA-23, M-42: the claim was on its way when the client went."""
    three = Three()
    three.elect(1)
    three.push(1, b"q", b"m")
    three.pass_time(0.2)
    pop = three.pop(2, b"q")
    three.members[2].group.withdraw(pop)
    three.settle()
    three.pass_time(0.2)
    assert delivered(pop) == []
    again = three.pop(3, b"q")
    three.settle()
    assert delivered(again) == ["m"]
    assert three.members[1].group.machine.store.counters().leases_live == 1


def test_an_empty_pop_is_answered_on_the_node_that_took_it() -> None:
    """PA-20: at once without a wait, at its deadline with one."""
    three = Three()
    three.elect(1)
    at_once, waits = three.pop(2, b"q", wait_s=None), three.pop(2, b"q", wait_s=2)
    three.settle()
    assert delivered(at_once) == [] and delivered(waits) is None
    three.pass_time(2.5)
    assert delivered(waits) == []
    assert not three.members[2].group.calls and not three.members[1].group.guests.pops


def test_a_guests_pop_in_the_log_is_no_call_of_this_nodes_clients() -> None:
    """An alarm every half a second for calls that another node watches would ring for nobody."""
    three = Three()
    leader = three.elect(1)
    three.pushed(1, b"q", b"m")
    three.pass_time(0.2)
    three.cut = {2, 3}
    guest = three.pop(2, b"q")
    three.cut = set()
    three.members[1].disk_works = three.members[3].disk_works = False
    three.settle()
    assert leader.group.guests.pops and not len(leader.group.pops), "or its claim is not on its way"
    assert not leader.group.has_calls
    own = three.pop(1, b"q")
    assert leader.group.has_calls, "its own client's is to be looked after until it is parked or answered"
    three.members[1].disk_works = three.members[3].disk_works = True
    three.pass_time(0.5)
    assert delivered(guest) == ["m"] and delivered(own) is None
    assert leader.group.pops.own_count == 1 and not leader.group.has_calls


def test_a_poll_is_not_answered_empty_by_a_leader_without_a_majority() -> None:
    """PA-6, PA-7: its messages may be with the next leader already. Nor does it keep the polls of other nodes."""
    three = Three()
    leader = three.elect(1)
    three.pass_time(0.2)
    own, guests, later = (three.pop(node, b"q", wait_s=wait_s) for node, wait_s in ((1, 1.0), (2, 1.0), (2, 9.0)))
    three.settle()
    three.cut = {1, 2, 3}
    three.pass_time(1.5)
    assert outcome(own.slot) is None and outcome(guests.slot) is None
    three.pass_time(1.0)
    assert leader.leads and set(leader.group.guests.pops) == {later.request_id}
    assert outcome(own.slot) == "no_leader" and outcome(guests.slot) == "timeout"
    three.cut = set()
    three.pass_time(7.5)
    assert delivered(later) == []


def test_a_poll_whose_time_is_over_when_a_leader_comes_is_judged_by_that_leader() -> None:
    """PA-6, PA-22: it is given to it as a poll that has no time left, and claims nothing."""
    three = Three()
    three.elect(1)
    poll = three.pop(3, b"q", wait_s=1.0)
    three.settle()
    three.cut = {1}
    three.pass_time(1.0)
    assert outcome(poll.slot) is None
    three.members[2].group.raft.core.campaign(skip_pre_vote=True)
    three.settle()
    assert three.members[2].leads
    assert delivered(poll) == [] and not three.members[2].group.guests.pops


def test_timers_fire_on_the_next_leader() -> None:
    """CL-77: pending timers are state; nothing is handed over, nothing fires twice."""
    three = Three()
    three.elect(1)
    three.schedule(2, b"q", b"k", 2000)
    three.pass_time(0.5)
    three.cut = {1}
    pop = three.pop(3, b"q")
    three.pass_time(6)
    assert delivered(pop) == ["txn-k"]
    assert three.members[2].group.machine.store.counters().timers_pending == 0
    three.cut = set()
    three.pass_time(3)
    assert len(three.digests()) == 1


def test_a_leader_without_a_majority_proposes_nothing_until_it_is_back() -> None:
    """CL-52, CL-79."""
    three = Three()
    leader = three.elect(1)
    three.pass_time(0.2)
    three.cut = {2, 3}
    three.pass_time(1.7)
    last_index = leader.group.raft.core.log.last_index
    push = three.push(1, b"q", b"m")
    three.pass_time(0.5)
    assert leader.leads and leader.group.raft.core.log.last_index == last_index
    three.cut = set()
    three.pass_time(0.5)
    assert offsets(push) == [0]


def test_a_deposed_leader_answers_from_the_log_and_not_from_what_it_proposed() -> None:
    """CL-41: a write accepted under an old term is answered only if it is what stands at its place."""
    three = Three()
    three.elect(1)
    three.pass_time(0.2)
    three.cut = {1}
    lost = three.push(1, b"q", b"lost?")
    three.settle()
    three.pass_time(3)
    three.push(2, b"q", b"first")
    three.pass_time(0.5)
    assert outcome(lost) is None
    three.cut = set()
    three.pass_time(3)
    assert offsets(lost) == [1], "it went again to the leader, behind what was written meanwhile"
    assert len(three.digests()) == 1


def test_a_client_that_leaves_while_nobody_leads_keeps_no_call_waiting() -> None:
    """PA-23: its pop was sent to a leader that is gone; nobody will ever say what became of it."""
    three = Three()
    three.elect(1)
    pop = three.pop(2, b"q")
    three.settle()
    three.cut = {1, 3}
    three.pass_time(3)
    assert three.members[2].group.raft.core.leader == 0 and delivered(pop) is None
    three.members[2].group.withdraw(pop)
    assert delivered(pop) == []


def test_a_pop_whose_entry_was_lost_with_its_leader_leaves_nobody_waiting() -> None:
    """PA-23: the client left, the entry that would have told was overwritten."""
    three = Three()
    three.elect(1)
    three.push(1, b"q", b"m")
    three.pass_time(0.2)
    three.cut = {1}
    pop = three.pop(1, b"q")
    three.settle()
    three.members[1].group.withdraw(pop)
    three.pass_time(4)
    three.pushed(2, b"q", b"n")
    three.cut = set()
    three.pass_time(3)
    assert delivered(pop) == []
    assert delivered(three.popped(3, b"q")) == ["m", "n"]


def test_a_pop_that_found_nothing_once_may_have_claimed_since() -> None:
    """CL-27: its leader keeps it and tries again, and that may be in the log of the next one: taken there for a new
    pop it would wait a second time, and claim for nobody."""
    three = Three()
    three.elect(1)
    three.pushed(1, b"q", b"m")
    three.pass_time(0.2)
    pops = [three.pop(3, b"q") for _ in range(2)]  # one message: both look servable, one will find nothing
    three.settle()
    (waits,) = [pop for pop in pops if delivered(pop) is None]
    three.members[1].disk_works = three.members[3].disk_works = False
    three.push(1, b"q", b"n", partition=b"other")  # and the claim behind it: on node 2 alone
    three.settle()
    assert delivered(waits) is None
    three.cut = {1}
    three.members[3].disk_works = True
    three.pass_time(4)
    assert three.members[2].leads and delivered(waits) == ["n"]
    assert not three.members[2].group.guests.pops


def test_a_pop_that_was_proposed_twice_waits_once() -> None:
    """Its first copy comes to nothing when the second one is about to be proposed: parked twice, it ended the node."""
    three = Three()
    one = three.elect(1)
    three.push(1, b"q", b"m")
    three.pass_time(0.2)
    for node in (2, 3):
        three.members[node].disk_works = False
    pops = [three.pop(1, b"q") for _ in range(2)]  # one message: both look servable, one will find nothing
    three.settle()
    three.cut = {2, 3}
    three.pass_time(3.5)
    assert not one.leads
    for node in (2, 3):
        three.members[node].disk_works = True
    three.cut = set()
    three.elect(1)
    three.pass_time(0.3)
    assert sorted(map(str, map(delivered, pops))) == ["None", "['m']"]
    assert one.group.pops.count(b"q", (b"__QUEUE_MODE__", None)) == 1
    three.pushed(2, b"q", b"n")  # the partition is leased: the other pop rides behind the push, and waits again
    assert sorted(map(str, map(delivered, pops))) == ["None", "['m']"]
    assert one.group.pops.count(b"q", (b"__QUEUE_MODE__", None)) == 1


def test_what_an_earlier_leader_says_of_a_pop_counts_no_longer() -> None:
    """M-42: its word that there was nothing may be late; the next leader may be about to claim."""
    three = Three()
    three.elect(1)
    pop = three.pop(3, b"q")
    three.settle()
    three.hand_over(1, 2)
    three.members[3].group.hear(1, Nothing(pop.request_id), 0)
    assert delivered(pop) is None
    three.pushed(1, b"q", b"m")
    assert delivered(pop) == ["m"]
