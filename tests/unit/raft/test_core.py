"""What a driver can rely on, call by call. Whole courses of events are scenes and random runs."""

from __future__ import annotations

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
    Committed,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswered,
    Message,
    TimeoutNow,
)
from raft.quorum import Configuration
from tests.unit.raft.cores import core_of, entries_of_term, lead, write

KINDS: tuple[type, ...] = get_args(Message)


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
