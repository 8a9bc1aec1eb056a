"""The group clock: never early, whatever wall clocks do (M-20 to M-23)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.clock import (
    NOTHING_KNOWN,
    ClockReading,
    Estimate,
    GroupClock,
    ShiftedWallTime,
    SystemTime,
    estimate_after_restart,
    read_clocks,
    start_of_term_us,
)
from raft.invariants import InvariantBroken
from tests.support.fake_machine import EPOCH, SECOND, FakeMachine

HOUR = 3600 * SECOND


def jump(us: int) -> Callable[[FakeMachine], None]:
    def change(machine: FakeMachine) -> None:
        machine.now_wall_us += us

    return change


WALL_FAULTS = {"an hour ahead": jump(HOUR), "an hour back": jump(-HOUR), "back to 1970": jump(-EPOCH), "right": jump(0)}
wall_faults = pytest.mark.parametrize("fault", WALL_FAULTS.values(), ids=WALL_FAULTS.keys())


# -- one voter


@wall_faults
def test_a_leaders_clock_hears_no_wall_clock(fault: Callable[[FakeMachine], None]) -> None:
    """M-20: the offset is a constant of the term; delays are exact to the oscillator."""
    machine = FakeMachine()
    clock = GroupClock.first_ever(machine)
    assert clock.lead(1, EPOCH) == EPOCH - 500 * SECOND
    first = clock.stamp()
    fault(machine)
    machine.pass_time(10 * SECOND)
    assert clock.stamp() - first == 10 * SECOND


@wall_faults
def test_a_process_that_restarts_goes_on_by_boottime(fault: Callable[[FakeMachine], None]) -> None:
    """M-22: same boot id. A leader's own clock goes on exactly, whatever the wall clock did meanwhile."""
    machine = FakeMachine()
    clock = GroupClock.first_ever(machine)
    clock.lead(1, EPOCH)
    recorded, (clock_us, offset_us) = read_clocks(machine), clock.to_record(1)
    fault(machine)
    machine.pass_time(20 * SECOND)
    again = estimate_after_restart(clock_us, offset_us, recorded, read_clocks(machine))
    assert again == Estimate(EPOCH + 20 * SECOND, is_weak=False)


@wall_faults
def test_a_follower_that_restarts_is_never_ahead(fault: Callable[[FakeMachine], None]) -> None:
    """M-21, M-22: it goes on by its BOOTTIME, slowed by 500 ppm, as before the restart."""
    machine = FakeMachine()
    clock = GroupClock(machine)
    clock.hear(1, EPOCH + 7)
    recorded, (clock_us, offset_us) = read_clocks(machine), clock.to_record(1)
    assert offset_us == 0
    fault(machine)
    machine.pass_time(1000 * SECOND)
    again = estimate_after_restart(clock_us, offset_us, recorded, read_clocks(machine))
    assert again == Estimate(EPOCH + 7 + 1000 * SECOND - SECOND // 2, is_weak=False)


def test_a_reboot_makes_an_estimate_weak() -> None:
    """M-22: record + what the wall clock says was slept, and never less than the record."""
    for wall_jump_us, expected_us in ((0, 60 * SECOND), (HOUR, HOUR + 60 * SECOND), (-HOUR, 0)):
        machine = FakeMachine()
        recorded = read_clocks(machine)
        machine.reboot(off_for_us=60 * SECOND)
        machine.now_wall_us += wall_jump_us
        again = estimate_after_restart(EPOCH, 5, recorded, read_clocks(machine))
        assert again == Estimate(EPOCH + expected_us, is_weak=True)


def test_a_weak_estimate_stays_weak_over_a_second_restart() -> None:
    """M-22: a weak estimate is not recorded, so the old record and its boot id stay in the log."""
    machine = FakeMachine()
    recorded = read_clocks(machine)
    machine.reboot(off_for_us=60 * SECOND)
    clock = GroupClock(machine, estimate_after_restart(EPOCH, 5, recorded, read_clocks(machine)))
    machine.pass_time(SECOND)
    assert clock.estimate().is_weak
    assert clock.to_record(1) == (0, 0)
    clock.hear(2, EPOCH)
    assert clock.estimate() == Estimate(EPOCH, is_weak=False)
    assert clock.to_record(1) == (EPOCH, 0)


def test_nothing_recorded_is_nothing_known() -> None:
    reading = ClockReading(bytes(16), 0, 0)
    assert estimate_after_restart(0, 0, reading, read_clocks(FakeMachine())) == NOTHING_KNOWN


def test_clocks_that_stop_or_go_back_stop_the_group_clock() -> None:
    """M-23: late, never early; and stamps never fall."""
    machine = FakeMachine()
    clock = GroupClock.first_ever(machine)
    clock.lead(1, EPOCH)
    first = clock.stamp()
    assert clock.stamp() == first
    machine.now_us -= 5 * SECOND
    assert clock.stamp() == first
    assert clock.now_us() == first
    machine.now_us += 8 * SECOND
    assert clock.stamp() == first + 3 * SECOND


happenings = st.sampled_from(["pass", "wall", "stamp", "seen", "hear", "lead"])


@given(st.lists(st.tuples(happenings, st.integers(-HOUR, HOUR))))
def test_stamps_and_seen_stamps_never_fall(events: list[tuple[str, int]]) -> None:
    """M-20: apply takes max(stamp, last), so a leader gives no lower one."""
    machine = FakeMachine()
    clock = GroupClock.first_ever(machine)
    last, term = 0, 1
    for what, value in events:
        if what == "pass":
            machine.pass_time(abs(value))
        elif what == "wall":
            machine.now_wall_us += value
        elif what == "seen":
            clock.see_stamp(clock.now_us() + value)
        elif what == "hear":
            term += 1
            clock.hear(term, EPOCH + value)
        elif what == "lead":
            term += 1
            clock.lead(term, start_of_term_us(clock.last_stamp_us, [clock.estimate()], 1))
        elif clock.offset_us is not None:
            clock.stamp()
        assert clock.last_stamp_us >= last
        assert clock.now_us() >= clock.last_stamp_us
        last = clock.last_stamp_us


def test_a_follower_is_never_ahead_while_rates_differ_by_less_than_500_ppm() -> None:
    """M-21: last heard + own elapsed × 0.9995."""
    leader, follower = FakeMachine(), FakeMachine(boot=9, boottime_us=77)
    leading, following = GroupClock.first_ever(leader), GroupClock(follower)
    leading.lead(1, EPOCH)
    following.hear(1, leading.now_us())
    for _ in range(100):
        leader.pass_time(SECOND * 9996 // 10000)  # the follower's oscillator is 400 ppm faster
        follower.pass_time(SECOND)
        assert following.now_us() <= leading.now_us()
        assert leading.now_us() - following.now_us() < 100_000


def test_an_old_sample_moves_nothing_back_within_a_term() -> None:
    """M-21: a frame that was long under way tells nothing new; another leader's clock is another clock."""
    machine = FakeMachine()
    clock = GroupClock(machine)
    clock.hear(3, EPOCH)
    machine.pass_time(10 * SECOND)
    clock.hear(3, EPOCH + SECOND)
    assert clock.now_us() == EPOCH + 10 * SECOND * 9995 // 10000
    clock.hear(2, EPOCH + HOUR)
    assert clock.now_us() == EPOCH + 10 * SECOND * 9995 // 10000
    clock.hear(4, EPOCH + SECOND)
    assert clock.now_us() == EPOCH + SECOND


def test_a_deposed_leader_goes_on_as_a_follower() -> None:
    machine = FakeMachine()
    clock = GroupClock.first_ever(machine)
    clock.lead(1, EPOCH)
    machine.pass_time(10 * SECOND)
    clock.follow()
    machine.pass_time(10 * SECOND)
    assert clock.now_us() == EPOCH + 10 * SECOND + 10 * SECOND * 9995 // 10000
    with pytest.raises(InvariantBroken, match="does not lead"):
        clock.stamp()


def test_a_new_tenants_group_starts_from_group_zeros_clock() -> None:
    """M-22: not from the wall clock of the node that leads it first."""
    machine = FakeMachine(wall_us=EPOCH + HOUR)
    clock = GroupClock.born(machine, EPOCH + 5)
    start_us = start_of_term_us(clock.last_stamp_us, [clock.estimate(), NOTHING_KNOWN], 3)
    assert clock.lead(1, start_us) == EPOCH + 5 - machine.now_us


def test_who_opens_a_group_late_does_not_take_group_zeros_clock_for_the_groups() -> None:
    """M-21: since it was made the group may have fallen behind group 0's clock, by its changes of leader; started from
    that one, what it has promised would come early.
    """
    late = GroupClock.born(FakeMachine(wall_us=EPOCH), EPOCH + HOUR)
    assert late.estimate() == Estimate(EPOCH + HOUR, is_weak=True)
    knows = Estimate(EPOCH + 3 * HOUR, False)
    assert start_of_term_us(EPOCH + 2 * HOUR, [late.estimate(), knows], 3) == knows.clock_us


def test_a_terms_clock_does_not_start_before_the_last_stamp() -> None:
    clock = GroupClock(FakeMachine(), last_stamp_us=EPOCH)
    with pytest.raises(InvariantBroken, match="before the last stamp"):
        clock.lead(1, EPOCH - 1)


# -- several voters


@pytest.mark.parametrize(
    ("last_stamp", "estimates", "voters", "start"),
    [
        (10, [Estimate(20, False), Estimate(30, False)], 3, 30),  # the highest
        (40, [Estimate(20, False), Estimate(30, False)], 3, 40),  # a stamp in the log is a lower bound
        (10, [Estimate(20, False), Estimate(900, True)], 3, 20),  # one rebooted with its wall clock gone forward
        (10, [Estimate(900, True), Estimate(20, False), Estimate(950, True)], 3, 20),
        (10, [Estimate(900, True), Estimate(20, True)], 3, 20),  # two of three rebooted, one of them wrong: the lower
        (10, [Estimate(900, True), Estimate(20, True), Estimate(30, True)], 3, 30),
        (10, [Estimate(900, True), Estimate(800, True)], 3, 800),  # M-23: early only after a majority went forward
        (10, [Estimate(900, True), NOTHING_KNOWN], 3, 10),  # a machine without a record vouches for nothing
        (10, [Estimate(50, True)], 1, 50),  # a single node has no other
        (10, [Estimate(900, True), Estimate(800, True), Estimate(20, True)], 5, 20),  # two of five, and who elects
        (10, [Estimate(900, True), Estimate(800, True), Estimate(20, True), Estimate(30, True)], 5, 30),
    ],
)
def test_where_a_new_leader_starts(last_stamp: int, estimates: list[Estimate], voters: int, start: int) -> None:
    """M-21, M-22, M-23."""
    assert start_of_term_us(last_stamp, estimates, voters) == start


@given(st.integers(0, 1000), st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=5))
def test_start_of_term_against_its_slow_twin(last_stamp: int, estimates: list[tuple[int, bool]]) -> None:
    """All voters took part."""
    weak = [us for us, is_weak in estimates if is_weak]
    strong = [us for us, is_weak in estimates if not is_weak]
    expected = max([last_stamp, *(strong or [statistics.median_low(weak)])])
    assert start_of_term_us(last_stamp, [Estimate(*one) for one in estimates], len(estimates)) == expected


@given(st.integers(1, 5), st.data())
def test_only_a_majority_of_wall_clocks_makes_a_term_start_early(voters: int, data: st.DataObject) -> None:
    """M-23: whoever elects, after all machines have rebooted."""
    majority = voters // 2 + 1
    electing = data.draw(st.integers(majority, voters))
    hasty = data.draw(st.integers(0, min(electing, majority - 1)))
    honest = data.draw(st.lists(st.integers(0, 1000), min_size=electing - hasty, max_size=electing - hasty))
    estimates = [Estimate(us, is_weak=True) for us in [*honest, *[5000] * hasty]]
    assert start_of_term_us(0, estimates, voters) <= max(honest)


def test_a_leader_change_makes_things_late_by_the_age_of_the_last_sample() -> None:
    """M-23: never early, also when the new leader's wall clock is an hour ahead."""
    old, new = FakeMachine(), FakeMachine(boot=5, wall_us=EPOCH + HOUR)
    leading, following = GroupClock.first_ever(old), GroupClock(new)
    leading.lead(1, EPOCH)
    following.hear(1, leading.now_us())
    old.pass_time(SECOND)
    new.pass_time(SECOND)
    true_us = leading.now_us()
    following.lead(2, start_of_term_us(following.last_stamp_us, [following.estimate()], 1))
    assert 0 <= true_us - following.stamp() <= SECOND // 1000


# -- the machine's clocks


def test_system_time_runs_and_names_its_clock() -> None:
    """M-20: a platform without BOOTTIME uses its nearest clock and says so."""
    source = SystemTime()
    assert len(source.boot_id) == 16
    assert 0 < source.boottime_us() <= source.boottime_us()
    assert source.wall_us() > EPOCH
    assert source.is_exact == (source.clock_name == "CLOCK_BOOTTIME")


def test_the_nearest_clock_where_boottime_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("time.CLOCK_BOOTTIME", raising=False)
    source = SystemTime()
    assert (source.clock_name, source.is_exact) == ("CLOCK_MONOTONIC", False)
    assert source.boottime_us() > 0


def test_without_a_boot_id_every_start_is_a_reboot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("raft.clock.BOOT_ID_PATH", tmp_path / "none")
    assert SystemTime().boot_id != SystemTime().boot_id


def test_the_clock_file_shifts_the_wall_clock_alone(tmp_path: Path) -> None:
    """config page, QUEEN_TEST_CLOCK_FILE: read again each time."""
    machine, path = FakeMachine(), tmp_path / "offset"
    source = ShiftedWallTime(machine, path)
    assert read_clocks(source) == read_clocks(machine)
    path.write_text("-3600000\n")
    assert source.wall_us() == EPOCH - HOUR
    path.write_text("250")
    assert source.wall_us() == EPOCH + 250_000
    assert source.boottime_us() == machine.now_us
    path.write_text("soon")
    with pytest.raises(ValueError, match="soon"):
        source.wall_us()


def test_what_is_known_of_an_older_terms_clock_comes_back_as_weak() -> None:
    """M-22, M-23: the log ends with an entry of a term whose clock this node has not heard."""
    machine = FakeMachine()
    clock = GroupClock(machine, Estimate(EPOCH, is_weak=False), log_term=3)
    machine.pass_time(SECOND)
    assert clock.estimate_for(3).is_weak is False and clock.estimate_for(4).is_weak
    recorded, (clock_us, offset_us) = read_clocks(machine), clock.to_record(4)
    assert clock_us < 0 == offset_us
    machine.pass_time(SECOND)
    again = estimate_after_restart(clock_us, offset_us, recorded, read_clocks(machine))
    assert again.is_weak and EPOCH + 1.99 * SECOND < again.clock_us <= EPOCH + 2 * SECOND
    assert GroupClock(machine, again).to_record(4) == (0, 0), "what is recorded stays"
    clock.hear(4, EPOCH)
    assert clock.to_record(4)[0] > 0 and not clock.estimate_for(4).is_weak
