"""What a group's driver decides of its own, beside the core and the clock."""

from __future__ import annotations

import pytest

from raft.clock import Estimate, GroupClock
from raft.core import Core
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import Entry, EntryKind, HardState, Message, PreVote, Vote
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.fake_machine import EPOCH, FakeMachine
from tests.unit.raft.groups import PatientRandom, stamp_of

LEARNS = Configuration((1, 2, 3), (), (4,))
VOTES = Configuration((1, 2, 3, 4))
ENTRY = Entry(1, 1, EntryKind.BLANK, b"")


def member_4(configuration: Configuration, *entries: Entry) -> RaftGroup:
    core = Core(
        node_id=4, configuration=configuration, log=Log.restore((0, 0), list(entries)), hard_state=HardState(term=1),
        applied_index=0, settings=Settings(election_ticks=10, pre_vote=True), random=PatientRandom())
    for _ in range(10):
        core.tick()  # it hears of no leader, so that nothing else speaks against a vote
    return RaftGroup(
        life=1, core=core, clock=GroupClock(FakeMachine(), Estimate(EPOCH, is_weak=False), 0), stamp_of=stamp_of,
        offset=(0, 0))


@pytest.mark.parametrize("asked", [
    PreVote(term=5, sender=1, receiver=4, last_index=9, last_term=4),
    Vote(term=5, sender=1, receiver=4, last_index=9, last_term=4, transfer=False),
])
@pytest.mark.parametrize(("configuration", "entries", "hears"), [
    (LEARNS, [], False),
    (LEARNS, [ENTRY], True),
    (VOTES, [], True),
])
def test_who_only_learns_and_holds_nothing_gives_no_vote(
    configuration: Configuration, entries: list[Entry], hears: bool, asked: Message,
) -> None:
    """CL-105: under its id another disk may have voted in this very term."""
    raft = member_4(configuration, *entries)
    raft.step(asked)
    pumped = raft.pump()
    sent = [] if pumped is None else [*pumped.send, *(each for write in pumped.writes for each in write.send_after)]
    assert [type(message).__name__ for message in sent] == ([f"{type(asked).__name__}Granted"] if hears else [])
