"""The group clock over changes of leader (M-20 to M-23): a test for each case of what M-23 promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft.clock import GroupClock
from raft.core import Role
from raft.group import RaftGroup, offset_of
from raft.messages import Append, Entry, EntryKind, Vote, VoteGranted
from tests.support.fake_machine import EPOCH, SECOND
from tests.unit.raft.groups import Groups, stamp_of

HOUR = 3600 * SECOND
SLOWED = 9995


def led_by_1() -> Groups:
    """Node 1 leads, 100 s after the group began; its followers have heard its BOOTTIME just now."""
    groups = Groups()
    groups.elect(1)
    groups.pass_time(100 * SECOND)
    groups.frames()
    groups.stamp(1)
    groups.settle()
    return groups


def wall_clocks_jump(groups: Groups, us: int) -> None:
    for member in groups.members.values():
        member.machine.now_wall_us += us * (1 if member.node_id % 2 else -1)


def true_us(groups: Groups) -> int:
    """What the clock of term 1 says: it never stopped."""
    member = groups[1]
    offset_us = offset_of(member.entries[0].data)
    assert offset_us is not None
    return offset_us + member.machine.boottime_us()


@pytest.mark.parametrize("us", [0, 300 * SECOND, -300 * SECOND, HOUR, -EPOCH])
def test_delays_are_exact_to_the_leaders_oscillator(us: int) -> None:
    """CL-78, M-20, M-23: whatever the wall clocks of all nodes do, the leader's included."""
    groups = led_by_1()
    first = groups.stamp(1)
    for _ in range(10):
        wall_clocks_jump(groups, us)
        groups.pass_time(SECOND)
    assert groups.stamp(1) - first == 10 * SECOND


@pytest.mark.parametrize("us", [0, 300 * SECOND, -300 * SECOND, HOUR])
def test_a_leader_change_makes_things_late_by_the_age_of_the_last_sample(us: int) -> None:
    """M-21, M-23: late by 500 ppm of its age, never early, whatever the wall clocks do."""
    groups = led_by_1()
    wall_clocks_jump(groups, us)
    groups.pass_time(20 * SECOND)
    groups.silent = {1}
    groups.elect(2)
    assert groups[2].raft.core.role is Role.LEADER
    late_us = true_us(groups) - groups.stamp(2)
    assert 0 <= late_us <= 20 * SECOND * (10000 - SLOWED) // 10000 + 1


def test_a_new_leader_goes_by_the_best_estimate_of_its_granters() -> None:
    """M-21: node 2 heard nothing for 1,000 s, node 3 heard the leader just now."""
    groups = led_by_1()
    groups.silent = {2}
    groups.pass_time(1000 * SECOND)
    groups.frames()
    groups.silent = {1}
    groups.elect(2)
    assert groups[2].raft.core.role is Role.LEADER
    assert groups.stamp(2) == true_us(groups)


def test_a_machine_that_was_paused_unseen_is_late() -> None:
    """M-23: a virtual machine whose BOOTTIME stood still. It leads later than true time, by the pause."""
    groups = led_by_1()
    groups.pass_time(40 * SECOND, asleep=(2, 3))
    groups.silent = {1}
    groups.elect(2)
    late_us = true_us(groups) - groups.stamp(2)
    assert 39 * SECOND < late_us <= 40 * SECOND


def reboot(groups: Groups, node_id: int, wall_jump_us: int) -> None:
    machine = groups[node_id].machine
    machine.reboot(off_for_us=0)
    machine.now_wall_us += wall_jump_us
    groups[node_id].restart()


@pytest.mark.parametrize("candidate", [2, 3])
def test_one_machine_that_rebooted_with_its_wall_clock_ahead_makes_nothing_early(candidate: int) -> None:
    """M-22, M-23: its estimate is weak, and a strong one is in every majority that elects."""
    groups = led_by_1()
    reboot(groups, 2, HOUR)
    assert groups[2].raft.clock.estimate().is_weak
    groups.silent = {1}
    groups.elect(candidate)
    late_us = true_us(groups) - groups.stamp(candidate)
    assert 0 <= late_us <= SECOND


@pytest.mark.parametrize(("jump_of_2", "jump_of_3"), [(HOUR, 0), (0, HOUR), (HOUR, -HOUR)])
def test_a_majority_that_rebooted_goes_by_the_lower_median(jump_of_2: int, jump_of_3: int) -> None:
    """M-22, M-23: early takes a majority whose wall clocks went forward; one of two is not enough."""
    groups = led_by_1()
    reboot(groups, 2, jump_of_2)
    reboot(groups, 3, jump_of_3)
    groups.silent = {1}
    groups.elect(2)
    assert 0 <= true_us(groups) - groups.stamp(2) <= SECOND


def test_things_are_early_only_after_a_majority_rebooted_with_their_wall_clocks_ahead() -> None:
    """M-23: the one case that is not promised, so that it is known to be the one."""
    groups = led_by_1()
    reboot(groups, 2, HOUR)
    reboot(groups, 3, 2 * HOUR)
    groups.silent = {1}
    groups.elect(2)
    assert HOUR - SECOND <= groups.stamp(2) - true_us(groups) <= HOUR


@pytest.mark.parametrize("takes_entry", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_clock_of_an_older_term_makes_nothing_early(restarts: bool, takes_entry: bool) -> None:
    """M-23: after a majority rebooted, with their wall clocks back, a term began 100 s late, and things became due by
    that. Who knows the term before alone, because it never rebooted, has the right time and must not bring it back; nor
    when it has an entry of the new term, but not heard its clock yet. Seeds 107828 and 201625 of 30 s.
    """
    groups = led_by_1()
    groups.silent = {1}
    groups.pass_time(100 * SECOND)
    for node_id in (2, 3):
        reboot(groups, node_id, -HOUR)
    groups.elect(2)
    if takes_entry:
        groups.silent = set()
        groups[2].raft.core.tick()
        groups.settle()
        groups.silent = {1}
    groups.frames()
    late_us = true_us(groups) - groups.stamp(2)
    assert late_us >= 99 * SECOND
    groups.settle()
    assert (groups[1].raft.core.log.last_term == 2) == takes_entry
    if restarts:
        groups[1].restart()
    groups.silent = {2}
    reboot(groups, 3, 0)
    groups.elect(3)
    assert groups[3].raft.core.role is Role.LEADER
    assert late_us <= true_us(groups) - groups.stamp(3) <= late_us + SECOND


def test_a_restart_within_one_boot_is_no_weak_estimate() -> None:
    """M-22: the process of 2 and 3 ended and began again, their wall clocks an hour ahead."""
    groups = led_by_1()
    for node_id in (2, 3):
        groups[node_id].machine.now_wall_us += HOUR
        groups[node_id].restart()
    groups.silent = {1}
    groups.elect(3)
    assert 0 <= true_us(groups) - groups.stamp(3) <= SECOND


def test_no_term_starts_below_a_stamp_that_its_log_holds() -> None:
    """M-21: here an entry that is not committed yet carries a stamp that no estimate of the electing majority reaches.

    2 and 3 were paused for an hour; then 1 stamps an entry, and dies when 2 has it.
    """
    groups = led_by_1()
    groups.pass_time(HOUR, asleep=(2, 3))
    last_us = groups.stamp(1)
    groups.reach_only(1, 2)
    groups.silent = {1}
    groups.elect(2)
    assert stamp_of(groups[2].entries[-2].data) == last_us
    assert groups.stamp(2) >= last_us


def test_a_follower_sees_the_stamps_that_it_applies() -> None:
    """M-20: apply takes max(stamp, last), so what a member reads by is never behind its state."""
    groups = led_by_1()
    groups[1].machine.pass_time(HOUR)
    last_us = groups.stamp(1)
    groups.settle()
    assert groups[2].raft.clock.now_us() == last_us


def test_a_grant_tells_what_the_voter_knows_at_that_moment() -> None:
    """M-21: not what it knew when it last had something to do."""
    groups = led_by_1()
    groups.pass_time(10 * SECOND)
    raft = groups[2].raft
    raft.step(Vote(3, 2, 9, 100, 1, True))
    granted = None
    while (pumped := raft.pump()) is not None:
        for write in pumped.writes:
            granted = next((message for message in write.send_after if isinstance(message, VoteGranted)), granted)
            raft.written(write)
    assert granted is not None
    assert (granted.clock_us, granted.is_weak) == raft.clock.estimate()
    assert granted.clock_us > EPOCH + 109 * SECOND


# Samples of the leader's BOOTTIME


def test_a_sample_of_another_node_than_the_leader_tells_nothing() -> None:
    groups = led_by_1()
    before_us = groups[2].raft.clock.now_us()
    groups[2].raft.hear_boottime(3, groups[3].machine.boottime_us() + HOUR)
    assert groups[2].raft.clock.now_us() == before_us


def test_a_sample_without_the_terms_offset_tells_nothing() -> None:
    """M-20: the offset of an earlier term is another clock. Here 2 follows a term whose blank entry it has not seen."""
    groups = led_by_1()
    raft = groups[2].raft
    raft.step(Append(3, 2, 9, 50, 5, 0, 0, ()))
    assert raft.core.leader == 3
    before_us = raft.clock.now_us()
    raft.hear_boottime(3, groups[3].machine.boottime_us() + HOUR)
    assert raft.clock.now_us() == before_us


@pytest.mark.parametrize("boottime_us", [-(2**62), -EPOCH, 2**63])
def test_a_sample_that_cannot_be_is_not_heard(boottime_us: int) -> None:
    groups = led_by_1()
    before_us = groups[2].raft.clock.now_us()
    groups[2].raft.hear_boottime(1, boottime_us)
    assert groups[2].raft.clock.now_us() == before_us


def forget_nothing(groups: Groups) -> None:
    """The log after the restart still holds the blank entry beyond the state."""
    groups[2].applied_index = 0


def remember_in_the_state(groups: Groups) -> None:
    offset_us = offset_of(groups[1].entries[0].data)
    assert offset_us is not None
    groups[2].offset = 1, offset_us


@pytest.mark.parametrize("remember", [forget_nothing, remember_in_the_state])
def test_a_member_that_restarts_hears_samples_of_the_same_term(remember: Callable[[Groups], None]) -> None:
    """M-21: else it would go by its own oscillator, 500 ppm slow, for as long as the term lasts."""
    groups = led_by_1()
    remember(groups)
    groups[2].restart()
    for _ in range(2):  # in the first period it accepted an entry, and needs no heartbeat
        groups[1].raft.core.tick()
        groups.settle()
    groups.pass_time(1000 * SECOND)
    groups.frames()
    assert groups[2].raft.clock.now_us() == true_us(groups)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\x82\x02\x05", b"\x82\x01\x61a", b"\x81\x01", b"\x05", b"\x82\x01\xf5"]
)
def test_a_blank_entry_that_holds_no_offset(data: bytes) -> None:
    """What a peer sends wrong is not believed; a later version's offset is not guessed at."""
    assert offset_of(data) is None


def test_a_blank_entry_that_cannot_be_read_changes_no_clock() -> None:
    groups = led_by_1()
    raft: RaftGroup = groups[2].raft
    clock: GroupClock = raft.clock
    last = raft.core.log.last_index
    raft.step(Append(1, 2, 1, last, 1, 0, 0, (Entry(1, last + 1, EntryKind.BLANK, b"\xff"),)))
    before_us = clock.now_us()
    raft.hear_boottime(1, groups[1].machine.boottime_us())
    assert 0 <= clock.now_us() - before_us <= SECOND


def test_a_snapshot_brings_its_last_stamp_and_the_offset_of_its_term() -> None:
    """M-20, M-61: the write that follows tells the log where it starts."""
    groups = led_by_1()
    leader = groups[1].raft
    groups.silent = {2}
    last_us = groups.stamp(1) + SECOND
    groups[2].restart()
    raft = groups[2].raft
    raft.step(Append(1, 2, 1, 50, 1, 0, 0, ()))
    offset_us = offset_of(groups[1].entries[0].data)
    assert raft.core.begin_restore(40, 1) and offset_us is not None
    raft.restore(40, 1, leader.core.configuration, stamp_us=last_us, offset=(1, offset_us))
    assert raft.clock.now_us() == last_us
    pumped = raft.pump()
    assert pumped is not None
    assert [write.group_write.restart_after for write in pumped.writes] == [40]
    groups[1].machine.pass_time(HOUR)
    raft.hear_boottime(1, groups[1].machine.boottime_us())
    assert raft.clock.now_us() == true_us(groups)


def test_a_leaders_stamp_is_a_sample_of_its_clock() -> None:
    """M-21: a member of a new cluster that heard no node frame yet knows the time from what it appended. The wall
    clocks are an hour ahead by then.
    """
    groups = Groups()
    for member in groups.members.values():
        member.machine.now_wall_us += HOUR
        member.raft.clock = GroupClock.first_ever(member.machine)
    groups.elect(1)
    before_us = groups.stamp(1)
    groups.settle()
    assert not groups[2].raft.clock.estimate().is_weak
    wall_clocks_jump(groups, HOUR)
    groups.silent = {1}
    groups.elect(2)
    assert groups.stamp(2) - before_us < SECOND


def test_of_several_founders_the_lower_median_of_wall_clocks_counts() -> None:
    """M-22: a new cluster believes its wall clocks as weakly as after a reboot: one that is an hour ahead makes nothing
    early."""
    groups = Groups()
    walls_us = []
    for node_id, ahead_us in ((1, HOUR), (2, 0), (3, SECOND)):
        groups[node_id].machine.now_wall_us += ahead_us
        walls_us.append(groups[node_id].machine.now_wall_us)
        groups[node_id].raft.clock = GroupClock.first_ever(groups[node_id].machine)
    groups.elect(1)
    assert groups.stamp(1) <= sorted(walls_us)[1]
