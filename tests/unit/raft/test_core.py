"""What a driver can rely on, call by call. Whole courses of events are scenes and random runs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, get_args

import pytest

from raft.core import Core, NotLeader, Ready, Role, Settings, TransferInProgress
from raft.handlers import HANDLERS
from raft.invariants import InvariantBroken
from raft.log import ENTRY_OVERHEAD_BYTES, Log
from raft.messages import (
    Append,
    AppendAccepted,
    AppendRejected,
    Committed,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswered,
    Message,
    PreVote,
    TimeoutNow,
    Vote,
    VoteGranted,
)
from raft.quorum import Configuration
from raft.reads import OPEN_ROUNDS_MAX

KINDS: tuple[type, ...] = get_args(Message)


def core_of(
    voters: Sequence[int] = (1,),
    *,
    log: Log | None = None,
    hard_state: HardState | None = None,
    applied_index: int = 0,
    random: Random | None = None,
    **settings: Any,
) -> Core:
    return Core(
        node_id=1,
        configuration=Configuration(tuple(voters)),
        log=log or Log(),
        hard_state=hard_state or HardState(),
        applied_index=applied_index,
        settings=Settings(**settings),
        random=random or Random(0),
    )


def write(core: Core) -> Ready:
    """Take a Ready, and carry it out at once."""
    ready = core.ready()
    if ready.must_write:
        core.written(core.log.last_term, core.log.last_index, ready.hard_state)
    if ready.to_apply:
        core.applied(ready.to_apply[-1].index)
    return ready


def lead(core: Core) -> Core:
    """Make it leader of term 1, its blank entry on its own disk."""
    core.campaign(skip_pre_vote=True)
    write(core)
    for voter in core.configuration.electors:
        if voter != core.node_id and core.role is Role.CANDIDATE:
            core.step(VoteGranted(voter, core.node_id, core.term, 0, True))
    assert core.role is Role.LEADER
    while core.has_ready():
        write(core)
    return core


# The table of handlers


def test_the_table_of_handlers_is_complete() -> None:
    assert set(HANDLERS) == set(Role)
    for role, handlers in HANDLERS.items():
        assert set(handlers) == set(KINDS), role


@pytest.mark.parametrize("kind", [Append, Heartbeat, TimeoutNow])
def test_two_leaders_in_one_term_stop_the_node(kind: type) -> None:
    """Election safety (Raft paper §5.2) is what all else rests on."""
    core = lead(core_of((1, 2, 3)))
    fields: dict[type, tuple[Any, ...]] = {Append: (0, 0, 0, 0, ()), Heartbeat: (0, 0), TimeoutNow: ()}
    with pytest.raises(InvariantBroken, match="two leaders"):
        core.step(kind(2, 1, core.term, *fields[kind]))
    follower = core_of((1, 2, 3))
    follower.step(Heartbeat(2, 1, 1, 0, 0))
    with pytest.raises(InvariantBroken, match="two leaders"):
        follower.step(Heartbeat(3, 1, 1, 0, 0))


# Ready


def test_the_cycle_of_a_lone_voter() -> None:
    """CL-1, CL-30: each step waits for the own disk, and nothing is handed out twice."""
    core = core_of()
    assert not core.has_ready()
    core.campaign()
    assert core.ready() == Ready(HardState(1, 1, 0), True, 0, (), (), (), (), (), ())
    assert not core.has_ready()
    assert core.leader == 0

    core.written(0, 0, HardState(1, 1, 0))
    assert core.role is Role.LEADER and core.leader == 1
    core.blank_data = b"offset"
    blank = Entry(1, 1, EntryKind.BLANK, b"offset")
    assert core.ready() == Ready(HardState(1, 1, 0), True, 0, (blank,), (), (), (), (), ())
    assert core.term_start_index == 1

    assert core.propose([b"a", b"b"]) == 2
    commands = (Entry(1, 2, EntryKind.COMMANDS, b"a"), Entry(1, 3, EntryKind.COMMANDS, b"b"))
    # The second write is handed out while the first is under way.
    assert core.ready() == Ready(HardState(1, 1, 0), True, 1, commands, (), (), (), (), ())
    core.written(1, 1, HardState(1, 1, 0))
    assert core.commit_index == 1
    # The commit index alone is no reason to write.
    assert core.ready() == Ready(HardState(1, 1, 1), False, 0, (), (), (), (blank,), (), ())
    core.applied(1)
    core.written(1, 3, None)
    assert core.ready() == Ready(HardState(1, 1, 3), False, 0, (), (), (), commands, (), ())
    core.applied(3)
    assert not core.has_ready()
    assert core.ready() == Ready(None, False, 0, (), (), (), (), (), ())


def test_a_proposal_before_the_blank_entry_comes_behind_it() -> None:
    """Raft paper §8: the blank entry opens the term."""
    core = core_of()
    core.campaign()
    write(core)
    assert core.propose([b"x"]) == 2
    assert [entry.kind for entry in core.ready().entries] == [EntryKind.BLANK, EntryKind.COMMANDS]


def test_apply_is_handed_out_in_bounded_parts() -> None:
    """M-50: a log replayed at start does not come in one piece, and one large entry does not block it."""
    sizes = [10, 500, 10, 10]
    entries = [Entry(1, index, EntryKind.COMMANDS, b"x" * size) for index, size in enumerate(sizes, 1)]
    core = core_of(
        log=Log.restore((0, 0), entries), hard_state=HardState(1, 1, 4), max_apply_bytes=2 * ENTRY_OVERHEAD_BYTES + 20
    )
    parts = []
    while core.has_ready():
        parts.append([entry.index for entry in core.ready().to_apply])
    assert parts == [[1], [2], [3, 4]]


def test_a_core_starts_behind_what_its_state_holds() -> None:
    """M-3: the applied index may be ahead of the commit index that was stored."""
    entries = [Entry(1, index, EntryKind.COMMANDS, b"") for index in (5, 6, 7)]
    core = core_of(log=Log.restore((4, 1), entries), hard_state=HardState(1, 0, 5), applied_index=6)
    assert (core.commit_index, core.applied_index) == (6, 6)
    assert core.ready().to_apply == ()


@pytest.mark.parametrize(
    ("hard_state", "applied_index"),
    [(HardState(1, 0, 0), 3), (HardState(1, 0, 3), 0), (HardState(0, 0, 0), 0)],
    ids=["applied past the log", "committed past the log", "log of a later term"],
)
def test_what_recovery_read_fits_together(hard_state: HardState, applied_index: int) -> None:
    """M-3: a store ahead of its log stops the boot."""
    log = Log.restore((0, 0), [Entry(1, index, EntryKind.COMMANDS, b"") for index in (1, 2)])
    with pytest.raises(InvariantBroken):
        core_of(log=log, hard_state=hard_state, applied_index=applied_index)


def test_a_log_that_starts_after_what_is_applied_stops_the_boot() -> None:
    with pytest.raises(InvariantBroken, match="starts after"):
        core_of(log=Log.restore((4, 1), []), hard_state=HardState(1, 0, 4), applied_index=3)


# Refusals


def test_who_does_not_lead_says_who_does() -> None:
    core = core_of((1, 2, 3))
    with pytest.raises(NotLeader) as refusal:
        core.propose([b"x"])
    assert refusal.value.leader == 0
    core.step(Heartbeat(2, 1, 1, 0, 0))
    for call in (
        lambda: core.propose([b"x"]),
        lambda: core.read_index(1),
        lambda: core.transfer_leadership(2),
        lambda: core.best_successor(10),
        lambda: core.membership_view(10),
        lambda: core.change_membership(core.configuration, Configuration((1,))),
        core.quorum_silent_ticks,
    ):
        with pytest.raises(NotLeader) as refusal:
            call()
        assert refusal.value.leader == 2


def test_nothing_is_proposed_while_leadership_is_handed_over() -> None:
    """Raft thesis 3.10, step 1."""
    core = lead(core_of((1, 2, 3)))
    core.transfer_leadership(2)
    last_index = core.log.last_index
    with pytest.raises(TransferInProgress) as refusal:
        core.propose([b"x"])
    assert refusal.value.leader == core.transfer_target == 2
    assert core.log.last_index == last_index


def test_a_proposal_has_entries() -> None:
    with pytest.raises(InvariantBroken, match="proposed nothing"):
        lead(core_of()).propose([])


# What is kept in memory


def test_a_leader_keeps_what_its_followers_were_not_seen_to_hold_within_a_bound() -> None:
    """M-10. Entries weigh 100 bytes here; a little is kept in any case."""
    core = lead(core_of((1, 2, 3), kept_bytes=200, kept_for_followers_bytes=500))
    core.step(AppendAccepted(2, 1, 1, 1, 0))
    core.step(AppendAccepted(3, 1, 1, 1, 0))
    first = core.propose([b"x" * (100 - ENTRY_OVERHEAD_BYTES)] * 9)
    write(core)
    for follower, index, expected in ((2, 4, 5), (2, 10, 6), (3, 8, 9)):
        core.step(AppendAccepted(follower, 1, 1, first + index - 2, 0))
        write(core)
        core.forget_applied()
        assert core.log.first_index == expected, (follower, index)


def test_who_is_left_behind_pins_nothing_in_memory() -> None:
    """M-10: it is supplied from disk."""
    core = lead(core_of((1, 2, 3), kept_bytes=0))
    core.step(AppendAccepted(2, 1, 1, 1, 0))
    core.propose([b"x"])
    write(core)
    core.step(AppendAccepted(2, 1, 1, 2, 0))
    write(core)
    core.log.forget_through(1)
    core.step(HeartbeatAnswered(3, 1, 1, 0))
    assert core.ready().left_behind == ((3, 1),)
    core.forget_applied()
    assert core.log.first_index == 3


def test_a_follower_keeps_a_little() -> None:
    """M-10."""
    core = core_of((1, 2, 3), kept_bytes=200)
    entries = tuple(Entry(1, index, EntryKind.COMMANDS, b"x" * 68) for index in range(1, 10))
    core.step(Append(2, 1, 1, 0, 0, 9, 0, entries))
    write(core)
    write(core)
    core.forget_applied()
    assert (core.applied_index, core.log.first_index) == (9, 8)


def test_a_lone_voter_keeps_nothing() -> None:
    core = lead(core_of())
    core.forget_applied()
    assert core.log.first_index == core.log.last_index + 1


def test_who_leads_no_longer_supplies_nobody() -> None:
    core = core_of((1, 2, 3))
    assert not core.supply(2, (0, 0), [Entry(1, 1, EntryKind.BLANK, b"")])
    assert not core.begin_snapshot(2)
    core.end_snapshot(2, 7)


# A snapshot takes the place of the log


def entries_of_term(term: int, *indexes: int) -> tuple[Entry, ...]:
    return tuple(Entry(term, index, EntryKind.COMMANDS, b"") for index in indexes)


def test_the_log_starts_anew_behind_a_snapshot() -> None:
    """M-61: the next write says so, and what follows comes behind it."""
    core = core_of((1, 2, 3), log=Log.restore((0, 0), entries_of_term(1, 1, 2)), hard_state=HardState(1, 0, 1))
    core.step(Heartbeat(2, 1, 5, 0, 0))
    write(core)
    assert core.begin_restore(9, 4)
    core.restore(9, 4, Configuration((1, 2, 4)))
    assert (core.commit_index, core.applied_index, core.log.first_index, core.log.last_term) == (9, 9, 10, 4)
    assert core.configuration == core.configuration_at(9) == Configuration((1, 2, 4))
    ready = write(core)
    assert (ready.must_write, ready.restart_after, ready.previous_term) == (True, 9, 4)
    assert ready.hard_state == HardState(5, 0, 9)
    core.step(Append(2, 1, 5, 9, 4, 10, 0, entries_of_term(5, 10)))
    ready = write(core)
    assert (ready.restart_after, ready.previous_term, ready.entries) == (None, 4, entries_of_term(5, 10))
    assert core.ready().to_apply == entries_of_term(5, 10)
    assert not core.begin_restore(7, 4), "an older one, that came late"


def test_what_was_accepted_is_not_thrown_away_for_a_snapshot() -> None:
    """Raft paper §7: a log that holds the snapshot's last entry goes on; an acceptance behind it is a promise."""
    core = core_of((1, 2, 3))
    core.step(Append(2, 1, 1, 0, 0, 0, 0, entries_of_term(1, 1, 2, 3)))
    write(core)
    assert not core.begin_restore(2, 1)
    assert (core.commit_index, core.log.last_index) == (2, 3)
    assert not core.begin_restore(2, 1), "it is committed here"
    assert not lead(core_of()).begin_restore(9, 1), "leaders need none"


def test_nothing_moves_while_the_state_flips() -> None:
    """M-61: what is applied then would be lost, or land in the new state."""
    core = core_of((1, 2, 3))
    core.step(Append(2, 1, 1, 0, 0, 0, 0, entries_of_term(1, 1, 2)))
    write(core)
    core.step(Heartbeat(2, 1, 1, 1, 0))
    assert core.begin_restore(9, 1)
    assert not core.begin_restore(12, 1), "one at a time"
    core.step(Heartbeat(2, 1, 1, 2, 0))
    core.step(Append(2, 1, 1, 2, 1, 3, 0, entries_of_term(1, 3)))
    ready = write(core)
    assert (ready.to_apply, core.log.last_index, core.commit_index) == ((), 2, 1)
    assert not core.has_ready()
    core.campaign(skip_pre_vote=True)
    assert core.role is Role.FOLLOWER
    core.give_up_restore()
    assert core.ready().to_apply == entries_of_term(1, 1)


def test_a_report_of_the_log_before_the_snapshot_counts_for_nothing() -> None:
    """M-13."""
    core = core_of((1, 2, 3))
    core.step(Append(2, 1, 1, 0, 0, 0, 0, entries_of_term(1, 1, 2)))
    first = core.ready()
    core.step(Heartbeat(3, 1, 2, 0, 0))
    assert core.begin_restore(9, 2)
    core.restore(9, 2, Configuration((1, 2, 3)))
    core.written(1, 2, first.hard_state)
    assert (core.log.flushed_index, core.log.last_index) == (9, 9)


def test_restores_that_cannot_be() -> None:
    core = core_of((1, 2, 3))
    core.step(Heartbeat(2, 1, 1, 0, 0))
    with pytest.raises(InvariantBroken, match="not begun"):
        core.give_up_restore()
    with pytest.raises(InvariantBroken, match="not begun"):
        core.restore(9, 1, Configuration((1,)))
    core.begin_restore(9, 2)
    with pytest.raises(InvariantBroken, match="not begun"):
        core.restore(8, 2, Configuration((1,)))
    with pytest.raises(InvariantBroken, match="later term"):
        core.restore(9, 2, Configuration((1,)))


# What breaks an invariant


def test_reports_that_cannot_be() -> None:
    core = lead(core_of())
    with pytest.raises(InvariantBroken, match="never submitted"):
        core.propose([b"x"])
        core.written(1, 2, None)
    with pytest.raises(InvariantBroken, match="term fell"):
        core.written(1, 1, HardState(0, 0, 0))
    with pytest.raises(InvariantBroken, match="applied index fell"):
        core.applied(0)
    with pytest.raises(InvariantBroken, match="do not fit together"):
        core.applied(2)


def test_a_leader_that_counts_entries_which_this_disk_lost_stops_the_node() -> None:
    """CL-105: a wiped disk under its old id. The heartbeat's commit index is one that this member once acknowledged."""
    core = core_of((1, 2, 3))
    with pytest.raises(InvariantBroken, match="committed what is not held"):
        core.step(Heartbeat(2, 1, 1, 7, 0))


def test_a_leader_that_speaks_to_the_disk_before_is_not_heard_by_a_replaced_node() -> None:
    """CL-105: deposed, it does not know of the replacement. An answer would count as that of the voter that it knew."""
    for message in (Heartbeat(2, 1, 1, 7, 0), Committed(2, 1, 1, 7)):
        core = Core(
            node_id=1, configuration=Configuration((2, 3), (), (1,)), log=Log(), hard_state=HardState(0, 0, 0),
            applied_index=0, settings=Settings(), random=Random(1))
        core.step(message)
        assert core.commit_index == 0 and core.leader == 0
        assert not core.has_ready() or core.ready().send_now == ()
        core.step(Heartbeat(3, 1, 2, 0, 0))
        assert core.leader == 3


def test_an_acceptance_of_what_was_never_sent_stops_the_node() -> None:
    core = lead(core_of((1, 2, 3)))
    with pytest.raises(InvariantBroken, match="never sent"):
        core.step(AppendAccepted(2, 1, 1, 9, 0))


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
    assert ready.hard_state == HardState(2, 3, 0)  # who takes in a leader's entries votes for no other in its term
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
