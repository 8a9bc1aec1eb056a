"""What a group's driver decides of its own, beside the core and the clock."""

from __future__ import annotations

import pytest

from raft.clock import Estimate, GroupClock
from raft.core import Core, Role
from raft.group import RaftGroup
from raft.log import Log
from raft.messages import Append, AppendAccepted, Entry, EntryKind, HardState, VoteGranted
from raft.quorum import Configuration
from raft.settings import Settings
from tests.support.fake_machine import EPOCH, FakeMachine
from tests.unit.raft.groups import PatientRandom, stamp_of

OLD, NEW = b"the disk before.", b"the next disk..."
THREE = Configuration((1, 2, 3)).named({1: b"of node 1.......", 2: OLD, 3: b"of node 3......."})
ENTRY = Entry(1, 1, EntryKind.BLANK, b"")


def member_of(configuration: Configuration, node_id: int = 1, directory_id: bytes = b"") -> RaftGroup:
    core = Core(
        node_id=node_id, configuration=configuration, log=Log.restore((0, 0), [ENTRY]), hard_state=HardState(term=1),
        applied_index=0, settings=Settings(election_ticks=10, pre_vote=False), random=PatientRandom(),
        directory_id=directory_id)
    return RaftGroup(
        life=1, core=core, clock=GroupClock(FakeMachine(), Estimate(EPOCH, is_weak=False), 0), stamp_of=stamp_of,
        offset=(0, 0))


def write(raft: RaftGroup) -> None:
    pumped = raft.pump()
    for each in pumped.writes if pumped is not None else ():
        raft.written(each)


@pytest.mark.parametrize(("directory_id", "counts"), [(OLD, True), (NEW, False), (b"", True)])
def test_a_vote_counts_as_that_of_the_disk_that_is_meant(directory_id: bytes, counts: bool) -> None:
    """CL-105: the next disk under the id of a lost one has forgotten for whom that one voted, and what it held."""
    raft = member_of(THREE)
    raft.core.campaign()
    write(raft)
    raft.step(VoteGranted(2, 1, raft.core.term, 0, True), directory_id)
    assert (raft.core.role is Role.LEADER) == counts


@pytest.mark.parametrize(("directory_id", "counts"), [(OLD, True), (NEW, False)])
def test_an_acceptance_counts_as_that_of_the_disk_that_is_meant(directory_id: bytes, counts: bool) -> None:
    """CL-105: a leader that has not heard of the replacement would commit what no majority of its members holds."""
    raft = member_of(THREE)
    raft.core.campaign()
    write(raft)
    raft.step(VoteGranted(3, 1, raft.core.term, 0, True))
    write(raft)
    raft.step(AppendAccepted(2, 1, raft.core.term, 2, 0), directory_id)
    assert raft.core.commit_index == (2 if counts else 0)


def test_whoever_leads_is_heard_by_any_member() -> None:
    """A member that missed the replacement has to hear the replaced node, when that leads, to learn of it."""
    raft = member_of(THREE)
    raft.step(Append(2, 1, 2, 1, 1, 0, 0, (Entry(2, 2, EntryKind.BLANK, b""),)), NEW)
    assert raft.core.leader == 2 and raft.core.log.last_index == 2


@pytest.mark.parametrize(("directory_id", "stands"), [(OLD, True), (NEW, False), (b"", True)])
def test_a_disk_stands_only_where_the_log_means_it(directory_id: bytes, stands: bool) -> None:
    """CL-105: what it holds of a log may end where the lost disk still voted."""
    raft = member_of(THREE, 2, directory_id)
    raft.core.campaign()
    assert (raft.core.role is Role.CANDIDATE) == stands == raft.core.is_voter
