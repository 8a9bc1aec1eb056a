"""How a core elects, and what it does as a leader, call by call. Whole courses of events are scenes and random runs."""

from __future__ import annotations

from random import Random

import pytest

from raft.core import Core, Role, Settings
from raft.invariants import InvariantBroken
from raft.log import Log
from raft.messages import (
    Append,
    AppendAccepted,
    AppendRejected,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswered,
    PreVote,
    Vote,
    VoteGranted,
)
from raft.quorum import Configuration
from raft.reads import OPEN_ROUNDS_MAX
from tests.unit.raft.cores import core_of, entries_of_term, lead, write

# Elections


def test_timeouts_are_drawn_between_one_and_two_election_timeouts() -> None:
    """Raft paper §5.2: randomised, so that split votes are rare."""
    seen = set()
    for seed in range(200):
        core = core_of((1, 2), random=Random(seed), election_ticks=5, quorum_ticks=5)
        ticks = 0
        while core.role is Role.FOLLOWER:
            core.tick()
            ticks += 1
        seen.add(ticks)
    assert seen == {5, 6, 7, 8, 9}


def test_only_a_leader_or_a_granted_vote_restart_the_timeout() -> None:
    """Raft paper §5.2: else a candidate that cannot win could keep everyone from standing."""
    log = Log.restore((0, 0), [Entry(1, 1, EntryKind.COMMANDS, b"")])
    core = core_of((1, 2, 3), log=log, hard_state=HardState(1, 0, 0), election_ticks=5, quorum_ticks=5)
    for term in range(2, 20):
        core.step(Vote(2, 1, term, 0, 0, False))
        core.tick()
        if core.role is not Role.FOLLOWER:
            return
    pytest.fail("kept from standing")


def test_the_first_leader_of_a_group_needs_no_pre_vote() -> None:
    """M-70."""
    core = core_of((1, 2, 3))
    core.campaign(skip_pre_vote=True)
    assert core.role is Role.CANDIDATE
    asked = core.ready()
    assert asked.must_write and asked.send_now == ()
    assert asked.send_after_write == (Vote(1, 2, 1, 0, 0, False), Vote(1, 3, 1, 0, 0, False))


def test_a_grant_carries_the_voters_clock() -> None:
    """M-21, M-22."""
    core = core_of((1, 2, 3))
    core.own_clock = 1_700_000, False
    core.step(Vote(2, 1, 1, 0, 0, False))
    assert core.ready().send_after_write == (VoteGranted(1, 2, 1, 1_700_000, False),)


def test_promises_of_a_term_that_is_over_are_not_made() -> None:
    """Raft paper §5.1. The vote of term 1 would leave after a write in which term 2 took its place."""
    core = core_of((1, 2, 3))
    core.step(Vote(2, 1, 1, 0, 0, False))
    core.step(Append(3, 1, 2, 0, 0, 0, 0, (Entry(2, 1, EntryKind.BLANK, b""),)))
    ready = core.ready()
    assert ready.hard_state == HardState(2, 0, 0)
    assert ready.send_after_write == (AppendAccepted(1, 3, 2, 1, 0),)


def test_who_is_no_voter_elects_nobody() -> None:
    core = core_of((1, 2, 3))
    core.campaign(skip_pre_vote=True)
    write(core)
    core.step(VoteGranted(9, 1, 1, 0, True))
    assert core.role is Role.CANDIDATE


def test_who_is_behind_knows_how_far() -> None:
    """cluster.md 13: by the leader's own commit index, which the appends name that it cannot take yet."""
    core = core_of((1, 2, 3))
    core.step(Append(2, 1, 1, 5000, 1, 6000, 0, ()))
    assert (core.commit_index, core.leader_commit_index) == (0, 6000)
    core.step(Append(2, 1, 1, 0, 0, 5900, 0, entries_of_term(1, 1, 2)))  # overtaken
    core.step(Heartbeat(2, 1, 1, 2, 0))
    assert (core.commit_index, core.leader_commit_index) == (2, 6000)


def test_a_learner_forgets_a_leader_that_fell_silent_and_then_objects_to_no_candidate() -> None:
    """Raft thesis 4.2.3; §6: who does not know yet that it is a voter must still give its vote."""
    core = Core(
        node_id=1, configuration=Configuration((2, 3), learners=(1,)), log=Log(), hard_state=HardState(),
        applied_index=0, settings=Settings(), random=Random(0),
    )  # fmt: skip
    core.step(Heartbeat(2, 1, 1, 0, 0))
    for _ in range(30):
        core.tick()
    assert (core.role, core.leader) == (Role.FOLLOWER, 0)
    core.step(Vote(3, 1, 2, 0, 0, False))
    assert VoteGranted(1, 3, 2, 0, True) in core.ready().send_after_write


# Leaders


def test_answers_of_who_is_no_member_tell_nothing() -> None:
    core = lead(core_of((1, 2, 3)))
    for answer in (AppendAccepted(9, 1, 1, 1, 0), AppendRejected(9, 1, 1, 0, 0, 0, 0), HeartbeatAnswered(9, 1, 1, 0)):
        core.step(answer)
    assert core.commit_index == 0
    assert not core.has_ready()


def test_an_answer_of_one_follower_does_not_hide_what_another_needs() -> None:
    """Several messages are taken in before the driver looks: the rejection of 2 is answered though 3 has it all."""
    core = lead(core_of((1, 2, 3)))
    core.step(AppendAccepted(2, 1, 1, 1, 0))
    core.step(AppendAccepted(3, 1, 1, 1, 0))
    core.propose([b"x"])
    write(core)
    core.step(AppendAccepted(3, 1, 1, 2, 0))
    write(core)
    core.step(AppendRejected(2, 1, 1, 2, 1, 1, 0))
    core.step(HeartbeatAnswered(3, 1, 1, 0))
    assert core.has_ready()
    (append,) = core.ready().send_now
    assert isinstance(append, Append) and (append.receiver, append.previous_index) == (2, 1)


def test_the_best_successor_holds_most_of_those_who_answered_of_late() -> None:
    """CL-53, CL-54."""
    core = lead(core_of((1, 2, 3, 4)))
    core.propose([b"x"])
    write(core)
    core.step(AppendAccepted(2, 1, 1, 2, 0))
    for _ in range(3):
        core.tick()
    core.step(AppendAccepted(3, 1, 1, 1, 0))
    core.step(HeartbeatAnswered(4, 1, 1, 0))
    assert core.best_successor(max_silent_ticks=2) == 3
    assert core.best_successor(max_silent_ticks=3) == 2
    assert lead(core_of()).best_successor(10) == 0
    spread = lead(core_of((1, 2, 3)))  # two that are as good
    assert [spread.best_successor(10, turn) for turn in range(4)] == [2, 3, 2, 3]


def test_what_a_leader_knows_of_the_members() -> None:
    """CL-100: what a change is checked against. 4 is no member yet; the driver knows that it runs (CL-104)."""
    core = lead(core_of((1, 2, 3)))
    core.tick()
    core.step(AppendAccepted(2, 1, 1, 1, 0))
    seen = core.membership_view(0, also_live=[4])
    assert (seen.configuration, seen.last_index, seen.live) == (Configuration((1, 2, 3)), 1, {1, 2, 4})
    assert seen.match_indexes == {2: 1, 3: 0}


def test_a_leader_without_check_quorum_stays() -> None:
    core = lead(core_of((1, 2, 3), check_quorum=False))
    for _ in range(100):
        core.tick()
    assert core.role is Role.LEADER
    assert core.quorum_silent_ticks() == 100


def test_a_leader_that_lost_its_majority_no_longer_objects_to_another() -> None:
    """Raft thesis 4.2.3, 6.2."""
    core = lead(core_of((1, 2, 3)))
    for _ in range(10):
        core.tick()
    core.ready()
    core.step(PreVote(2, 1, 1, 1, 1))
    assert [type(message).__name__ for message in core.ready().send_now] == ["PreVoteGranted"]


def test_reads_beyond_the_open_rounds_share_the_next_one() -> None:
    """M-40; OPEN_ROUNDS_MAX bounds what waits for a majority that is silent."""
    core = lead(core_of((1, 2, 3)))
    core.step(AppendAccepted(2, 1, 1, 1, 0))
    core.ready()
    for request in range(OPEN_ROUNDS_MAX + 10):
        core.read_index(request)
        core.ready()
    core.step(HeartbeatAnswered(2, 1, 1, OPEN_ROUNDS_MAX))
    assert [request for request, _ in core.ready().reads] == list(range(OPEN_ROUNDS_MAX))
    core.step(HeartbeatAnswered(2, 1, 1, OPEN_ROUNDS_MAX + 1))
    assert [request for request, _ in core.ready().reads] == list(range(OPEN_ROUNDS_MAX, OPEN_ROUNDS_MAX + 10))


def test_a_round_that_was_not_begun_cannot_be_answered() -> None:
    core = lead(core_of((1, 2, 3)))
    core.step(AppendAccepted(2, 1, 1, 1, 0))
    core.ready()
    core.read_index(1)
    core.ready()
    with pytest.raises(InvariantBroken, match="not begun"):
        core.step(HeartbeatAnswered(2, 1, 1, 2))


@pytest.mark.parametrize(
    "what",
    [
        {"heartbeat_ticks": 0},
        {"heartbeat_ticks": 10},
        {"quorum_ticks": 9},
        {"max_append_bytes": 0},
        {"max_inflight_bytes": 0},
        {"max_apply_bytes": 0},
        {"kept_bytes": -1},
        {"kept_bytes": 100, "kept_for_followers_bytes": 99},
    ],
)
def test_settings_that_could_not_work(what: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Settings(**what)  # type: ignore[arg-type]
