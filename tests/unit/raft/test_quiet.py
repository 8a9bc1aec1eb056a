"""When a group sleeps (M-31): everybody who lives has agreed and holds everything; whatever happens wakes them."""

from __future__ import annotations

from raft import quiet
from raft.core import Role
from raft.messages import AskQuiet, Heartbeat, PreVote, PreVoteDenied, PreVoteGranted, QuietAgreed, QuietRefused
from raft.quiet import ASK_AGAIN_PERIODS, ELECTED_PERIODS, USED_PERIODS, QuietAsk
from tests.unit.raft.groups import ELECTION_TICKS, Groups

ALL = (1, 2, 3)


def led_by_1() -> Groups:
    """A leader whose entry is everywhere, and everybody knows it to be committed."""
    groups = Groups()
    groups.elect(1)
    groups.stamp(1)
    groups.settle()
    return groups


def tick_until_it_asks(groups: Groups, live: tuple[int, ...] = ALL, at_most: int = USED_PERIODS + 10) -> int:
    """Ticks of the leader until it asks; the others are not ticked, so they cannot stand. The question waits."""
    raft = groups[1].raft
    for tick in range(1, at_most + 1):
        raft.tick(live)
        if any(type(message) is AskQuiet for message in raft.core._send):
            return tick
        groups.settle()
    return 0


def rests(groups: Groups, node: int, live: tuple[int, ...] = ALL) -> bool:
    return groups[node].raft.rests(live)


def asleep() -> Groups:
    groups = led_by_1()
    assert tick_until_it_asks(groups)
    groups.settle()
    assert all(rests(groups, node) for node in ALL)
    return groups


def test_a_group_sleeps_when_all_have_agreed() -> None:
    groups = asleep()
    assert quiet.agreed(groups[1].raft.core) == {2, 3}
    assert quiet.agreed(groups[2].raft.core) == frozenset()
    assert groups[1].raft.is_settled and groups[2].raft.is_settled


def test_one_that_was_used_is_asked_later_than_one_that_only_elected() -> None:
    elected = Groups()
    elected.elect(1)
    first = tick_until_it_asks(elected)
    assert first == ELECTED_PERIODS
    assert tick_until_it_asks(led_by_1()) == USED_PERIODS + 1  # life 1 is one period later than life 0


def test_a_leader_that_asked_holds_back_its_heartbeats_but_not_for_ever() -> None:
    groups = led_by_1()
    assert tick_until_it_asks(groups)
    raft = groups[1].raft
    groups.silent = {2, 3}
    raft.pump()
    silent = 0
    for _ in range(ELECTION_TICKS):
        raft.tick(ALL)
        pumped = raft.pump()
        if pumped is not None and any(type(message) is Heartbeat for message in pumped.send):
            break
        silent += 1
    assert 0 < silent < ELECTION_TICKS - 2
    raft.step(QuietAgreed(2, 1, raft.core.term, 1))  # too late: the heartbeat has woken it
    raft.step(QuietAgreed(3, 1, raft.core.term, 1))
    assert not raft.rests(ALL)


def test_who_lacks_an_entry_refuses_and_is_given_it() -> None:
    groups = led_by_1()
    groups.silent = {3}
    groups.stamp(1)
    groups.settle()
    core = groups[1].raft.core
    assert not quiet.is_level(core, ALL)
    assert quiet.is_level(core, (1, 2))  # a dead one does not keep a group awake
    quiet.ask(core, ALL)
    groups.silent = set()
    groups.settle()
    assert not rests(groups, 1) and not rests(groups, 3)
    for _ in range(3):
        groups[1].raft.tick(ALL)
        groups.settle()
    assert quiet.is_level(core, ALL)


def test_who_is_wanted_refuses() -> None:
    """A call waits at a follower: it is on its way to the leader."""
    groups = led_by_1()
    groups[2].raft.core.is_wanted = True
    assert tick_until_it_asks(groups)
    groups.settle()
    assert not rests(groups, 1) and not rests(groups, 2)
    groups[2].raft.core.is_wanted = False
    for _ in range(ASK_AGAIN_PERIODS + 2):
        groups[1].raft.tick(ALL)
        groups.settle()
    assert all(rests(groups, node) for node in ALL)


def test_without_a_majority_nobody_sleeps() -> None:
    """A leader whom no majority hears must go on counting the ticks of their silence (CL-53)."""
    groups = led_by_1()
    assert not quiet.is_level(groups[1].raft.core, (1,))
    assert tick_until_it_asks(groups, live=(1,)) == 0


def test_an_agreement_counts_for_the_question_that_it_answers() -> None:
    ask = QuietAsk()
    first = ask.ask((2, 3))
    ask.take_back()
    second = ask.ask((2, 3))
    ask.agree(2, first)
    assert ask.agreed == set()
    ask.agree(3, second)
    assert ask.agreed == {3}
    assert ask.ask((2,)) == second  # one more is asked: the others' word holds
    assert ask.agreed == {3}


def test_a_proposal_wakes_its_leader_and_the_append_the_others() -> None:
    groups = asleep()
    groups.stamp(1)
    assert not rests(groups, 1)
    groups.settle()
    assert not any(rests(groups, node) for node in ALL)
    assert {groups[node].raft.core.commit_index for node in ALL} == {3}


def test_a_member_that_wakes_alone_is_heard_by_its_sleeping_leader() -> None:
    """The leader fell asleep again upon agreements of before: that member stood for ever, and was denied for ever."""
    groups = asleep()
    alone = groups[3].raft
    alone.wake(ELECTION_TICKS)
    groups[1].raft.wake(0)
    groups[1].raft.step(PreVote(3, 1, alone.core.term, alone.core.log.last_index, alone.core.log.last_term))
    groups.settle()
    assert not rests(groups, 1)
    for _ in range(ELECTED_PERIODS + 1):
        groups[1].raft.tick(ALL)
        groups.settle()
    assert alone.core.leader == 1
    assert all(rests(groups, node) for node in ALL)


def test_where_many_are_awake_the_questions_come_by_time_not_by_ticks() -> None:
    groups = led_by_1()
    groups.stamp(1)
    groups.settle()
    groups[1].raft.tick(ALL, USED_PERIODS // 2)
    groups.settle()
    assert not rests(groups, 2)
    groups[1].raft.tick(ALL, USED_PERIODS)
    groups.settle()
    assert all(rests(groups, node) for node in ALL)


def test_a_sleeping_leader_that_was_deposed_answers_no_read() -> None:
    """The others' node lost its process for a while and elected another: no majority confirms the old one."""
    groups = asleep()
    groups.silent = {1}
    for node in (2, 3):
        groups[node].raft.wake(ELECTION_TICKS)
    groups[2].raft.core.campaign()
    groups.settle()
    assert groups[2].raft.core.role is Role.LEADER
    stamp = groups.stamp(2)
    groups.settle()
    assert rests(groups, 1)  # it does not know
    groups.silent = set()
    groups[1].raft.read_index(7)
    answered: list[tuple[int, int]] = []
    for _ in range(10):
        pumped = groups[1].raft.pump()
        if pumped is None:
            break
        answered += pumped.reads
        groups.network += pumped.send
        groups.settle()
    assert answered == [] and groups[1].raft.core.role is Role.FOLLOWER
    groups[2].raft.tick(ALL)
    groups.settle()
    assert groups[1].last_stamp_us == stamp  # and it has what it missed


def test_a_sleeping_member_denies_a_pre_vote_while_its_leaders_process_lives() -> None:
    """M-32; as soon as that has been silent for an election timeout, it grants one."""
    for silent_ticks, answer in ((1, PreVoteDenied), (ELECTION_TICKS, PreVoteGranted)):
        groups = asleep()
        raft = groups[3].raft
        raft.wake(silent_ticks)
        raft.step(PreVote(2, 3, raft.core.term, raft.core.log.last_index, raft.core.log.last_term))
        pumped = raft.pump()
        assert pumped is not None and [type(message) for message in pumped.send] == [answer]
        assert bool(raft.core.leader) == (answer is PreVoteDenied)


def test_one_that_comes_back_agrees_though_its_leader_sleeps() -> None:
    """Its process is another: it has the log, and learns from the question who leads and what is committed."""
    groups = asleep()
    groups[3].restart()
    core = groups[3].raft.core
    assert core.leader == 0
    quiet.ask(groups[1].raft.core, (3,))
    assert quiet.agreed(groups[1].raft.core) == {2} and rests(groups, 1)
    groups.settle()
    assert quiet.agreed(groups[1].raft.core) == {2, 3}
    assert rests(groups, 1) and rests(groups, 3)
    assert (core.leader, core.commit_index) == (1, core.log.last_index)


def test_a_refusal_wakes_a_leader_that_sleeps() -> None:
    groups = asleep()
    raft = groups[1].raft
    raft.step(QuietRefused(3, 1, raft.core.term, 1))
    assert not raft.rests(ALL) and quiet.agreed(raft.core) == frozenset()
