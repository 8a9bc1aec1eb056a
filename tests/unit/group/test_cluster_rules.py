"""Rules of the cluster that no single room shows: seen on three nodes, in virtual time."""

from __future__ import annotations

import pytest

from queen_node import commands, config
from queen_node.answers.kv import decode_answer
from queen_node.commands import KvOp, PayloadFlag, TimerOp
from queen_node.state.kv import Single
from queen_node.state.queues import find_queue
from queen_node.state.timers import find
from raft.settings import Settings
from tests.unit.group.driver import START_US, HandClock, delivered, outcome
from tests.unit.group.three import NODES, SECOND_US, TICK_S, Three

FAILOVER_S, HAND_OVER_S = 4.0, 1.0  # CL-51
POP_LATE_S = 2.0  # PA-9


def test_a_transaction_is_one_entry_and_its_timer_is_fired_by_the_leader_alone() -> None:
    """CL-10: two queues, a key and a timer in the one log of the tenant; a follower's wheel proposes nothing."""
    three = Three()
    three.elect(1)
    three.pass_time(0.2)
    before = {node: len(member.entries) for node, member in three.members.items()}
    ids = three.members[2].ids
    items = [(queue, b"Default", b"t", ids.uuid7(), b"1", PayloadFlag.JSON, None, None) for queue in (b"a", b"b")]
    timer = (TimerOp.SCHEDULE, b"later", b"k", 1000, b"txn", ids.uuid7(), b"1", PayloadFlag.JSON, b"Default", None)
    slot = three._submit(2, commands.transaction(
        ids.request_id(), pushes=items, kv=[(KvOp.PUT, b"n", b"k", b"1", 0, None, False)], timers=[timer],
        firing=True))
    three.settle()
    three.pass_time(0.1)
    assert isinstance(outcome(slot), bytes)
    assert {tuple(member.entries[before[node]:]) for node, member in three.members.items()} == {(1,)}

    three.clock.since_boot_us += 2 * SECOND_US
    for follower in (2, 3):
        group = three.members[follower].group
        held = group.raft.core.log.last_index
        group.due()
        assert not three.members[follower].work() and not group.outgoing
        assert group.raft.core.log.last_index == held, "a follower proposed a fire"
    three.members[1].group.due()
    three.settle()
    three.pass_time(0.2)
    for member in three.members.values():
        assert find_queue(member.group.machine.store, b"later") is not None, "the leader's fire applied everywhere"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("leader", NODES)
def test_how_long_a_cluster_is_without_a_leader(seed: int, leader: int) -> None:
    """CL-51: 4 s from the silence of the leader to the first committed write of the next; 1 s for a hand-over."""
    assert Settings().election_ticks * TICK_S * 1000 == config.CLUSTER_ELECTION_MS, "a tick is a heartbeat"
    three = Three(seed)
    three.elect(leader)
    three.pass_time(0.5)
    one, other = (node for node in NODES if node != leader)
    began_s = three.now_s
    three.cut = {leader}
    three.clock.since_boot_us += 50_000  # between two ticks
    push = three.push(one, b"q", b"m")
    three.settle()
    while outcome(push) is None:
        three.pass_time(TICK_S)
        assert three.now_s - began_s <= FAILOVER_S
    assert isinstance(outcome(push), bytes)

    three.cut = set()
    three.pass_time(1)
    now_leads = next(node for node in (one, other) if three.members[node].leads)
    began_s = three.now_s
    three.hand_over(now_leads, to=next(node for node in NODES if node != now_leads))
    push = three.push(now_leads, b"q", b"n")
    three.settle()
    while outcome(push) is None:
        three.pass_time(TICK_S)
        assert three.now_s - began_s <= HAND_OVER_S
    assert isinstance(outcome(push), bytes)


def test_versions_rise_across_delete_expiry_and_every_leader() -> None:
    """G-K5: the counter is state, so no leader starts it anew."""
    three = Three()
    three.elect(1)
    versions: list[int] = []

    def put(node: int, lifetime_s: int) -> None:
        slot = three.kv(node, (KvOp.PUT, b"n", b"k", b"1", lifetime_s, None, False))
        three.settle()
        three.pass_time(0.1)
        answer = outcome(slot)
        assert isinstance(answer, bytes)
        (element,) = decode_answer(answer)[3]
        assert isinstance(element, Single) and element.done
        versions.append(element.version)

    for round_, to in enumerate((2, 3, 1, 2, 1)):
        put(1 + round_ % 3, 0)
        three.kv(1, (KvOp.DELETE, b"n", b"k", None, False))
        three.settle()
        put(1 + (round_ + 1) % 3, 2)
        three.hand_over(next(node for node in NODES if three.members[node].leads), to)
        three.pass_time(2.5)
        put(to, 0)
    assert versions == sorted(set(versions))
    assert len(three.digests()) == 1


@pytest.mark.parametrize("cut", [(), (1,), (2,), (1, 2, 3)], ids=str)
def test_every_pop_is_answered_soon_after_its_deadline(cut: tuple[int, ...]) -> None:
    """PA-9: whoever leads, whoever is cut off, and if nobody leads at all."""
    three = Three()
    three.elect(1)
    three.pass_time(0.2)
    pops = [(node, three.pop(node, b"q", wait_s=wait_s)) for node in NODES for wait_s in (3.0, 7.0)]
    three.settle()
    three.pass_time(1)
    three.cut = set(cut)
    three.pass_time(1.9 + POP_LATE_S)
    for pop in [pop for _, pop in pops][::2]:
        assert outcome(pop.slot) is not None
    assert all(outcome(pop.slot) is None for _, pop in pops[1::2]), "the others wait still"
    three.pass_time(4 + POP_LATE_S)
    for _, pop in pops:
        assert outcome(pop.slot) is not None
    if not cut:
        assert all(delivered(pop) == [] for _, pop in pops)
    impatient = [three.pop(node, b"q", wait_s=None) for node in NODES]
    three.settle()
    three.pass_time(20 + POP_LATE_S)
    assert all(outcome(pop.slot) is not None for pop in impatient), "`wait=false` has 20 s"


def test_all_reads_of_a_moment_share_a_round() -> None:
    """CL-40: a batched read-index round: one heartbeat to each peer, however many ask, and from wherever."""
    three = Three()
    leader = three.elect(1)
    three.pass_time(0.2)
    reads = [three.read(1) for _ in range(20)]
    sent = leader.work()
    assert sorted(message.receiver for message in sent) == [2, 3] and not any(read.answered for read in reads)
    three._mail.extend((1, message.receiver, message) for message in sent)
    three.settle()
    assert all(read.answered for read in reads)


def test_a_node_that_restarted_answers_no_read_from_a_state_that_it_had_passed() -> None:
    """CL-40: not before it has applied again what it had applied, though nothing new is committed meanwhile."""
    three = Three()
    three.elect(1)
    for number in range(5):
        three.pushed(1, b"q", b"m%d" % number)
    three.pass_time(0.2)
    before = three.members[2].group.machine.applied_index
    again = three.restart(2)
    three.cut = {2}
    read = three.read(2)
    three.pass_time(3)
    assert not read.answered and again.group.machine.applied_index < before, "nobody vouches for what it has"
    three.cut = set()
    while not read.answered:
        three.pass_time(TICK_S)
        assert not read.answered or again.group.machine.applied_index >= before
    assert len(three.digests()) == 1


def test_a_fire_is_one_entry_so_a_cancel_comes_before_it_or_after_it() -> None:
    """CL-71: at every moment, on every node, the timer is pending or its message is there: never both, never neither.
    """
    three = Three()
    three.elect(1)
    three.schedule(1, b"q", b"k", 500)
    three.settle()
    three.pass_time(0.3)
    three.clock.since_boot_us += SECOND_US
    three.members[1].group.due()
    cancel = three.cancel(3, b"q", b"k")
    for member in three.members.values():
        store = member.group.machine.store
        assert (find(store, b"q", b"k") is None) == (find_queue(store, b"q") is not None)
    three.settle()
    assert isinstance(outcome(cancel), bytes)


class Strobing(HandClock):
    """Its wall clock is off by five minutes, once this way and once that, whenever somebody looks."""

    looks = 0

    def wall_us(self) -> int:
        self.looks += 1
        return START_US + (300 if self.looks % 2 else -300) * SECOND_US


@pytest.mark.parametrize("seed", range(3))
def test_elections_and_silences_go_on_alike_whatever_the_wall_clock_does(seed: int) -> None:
    """CL-55: who leads, and from which tick on, after a silence, and after the majority of a leader is gone."""
    courses = []
    for clock in (HandClock(), Strobing()):
        three = Three(seed, clock)
        three.elect(1)
        course = []
        for cut in (set[int](), {1}, set[int](), {2, 3}, set[int]()):
            three.cut = cut
            for _ in range(60):
                three.pass_time(TICK_S)
                course.append([(member.leads, member.group.raft.core.term) for member in three.members.values()])
        courses.append(course)
    assert courses[0] == courses[1]
    assert {leads for leads, _ in (each for moment in courses[0] for each in moment)} == {True, False}
