"""What a group decides: batching, riding, parking, waking, answering, firing."""

from __future__ import annotations

from dataclasses import replace

from queen_node import commands
from queen_node.broker import Lane
from queen_node.commands import KvOp
from tests.unit.group.driver import SECOND_US, SETTINGS, Driver, delivered, fire_of, messages, outcome


def test_all_that_waits_becomes_one_entry() -> None:
    """CL-31: batching is by what is waiting."""
    driver = Driver()
    slots = [driver.push(b"q", b"%d" % number) for number in range(5)]
    driver.turn()
    assert driver.entries == [5]
    assert all(isinstance(outcome(slot), bytes) for slot in slots)


def test_while_a_write_is_under_way_the_next_batch_gathers_and_nothing_is_answered() -> None:
    """CL-30: an answer means flushed."""
    driver = Driver()
    driver.disk_works = False
    first = driver.push(b"q", b"1")
    driver.turn()
    later = [driver.push(b"q", b"%d" % number) for number in (2, 3)]
    driver.turn()
    assert driver.entries == [] and outcome(first) is None
    driver.disk_works = True
    driver.write_out()
    assert driver.entries == [1, 2]
    assert outcome(first) is not None and all(outcome(slot) is not None for slot in later)


def test_an_entry_holds_at_most_so_many_commands_and_bytes() -> None:
    """M-50; one larger command goes alone."""
    driver = Driver()
    for number in range(20):
        driver.push(b"q", b"%d" % number)
    driver.turn()
    assert driver.entries == [8, 8, 4]
    driver.entries.clear()
    driver.push(b"q", b"s1")
    driver.push(b"q", b"big" * 3000)
    driver.push(b"q", b"s2")
    driver.turn()
    assert driver.entries == [1, 1, 1]


def test_what_empties_the_system_goes_first() -> None:
    """CL-32: with one shared queue consumption fell to zero under a flood of pushes."""
    driver = Driver()
    driver.push(b"q", b"0")
    driver.turn()
    pop = driver.pop(b"q")
    driver.turn()
    assert delivered(pop) == ["0"]
    driver.disk_works = False
    driver.push(b"other", b"blocks")
    driver.turn()
    for number in range(30):
        driver.push(b"q", b"flood-%d" % number)
    handed = driver.schedule(b"q", b"key", 60_000)
    driver.disk_works = True
    driver.entries.clear()
    driver.group.settings = replace(SETTINGS, batch_max_commands=8)
    while outcome(handed) is None:
        driver.write_out()
    assert sum(driver.entries[:2]) <= 9, "the schedule had to wait behind pushes"


def test_a_parked_pop_rides_behind_the_push_that_serves_it() -> None:
    """M-41: one commit serves both, and at most as many pops ride as there are messages."""
    driver = Driver()
    pops = [driver.pop(b"q") for _ in range(3)]
    driver.turn()
    assert driver.entries == [] and len(driver.group.pops) == 3, "a pop that cannot be served proposes nothing (CL-26)"
    driver.push(b"q", b"only")
    driver.turn()
    assert driver.entries == [2], "the push and one pop"
    assert [delivered(pop) for pop in pops] == [["only"], None, None], "the oldest is served first (PA-12)"


def test_a_pop_of_one_partition_rides_behind_what_goes_there_and_nothing_else() -> None:
    """M-41: a consumer of one partition waits for one commit, not for two."""
    driver = Driver()
    here, elsewhere = driver.pop(b"q", partition=b"Default"), driver.pop(b"q", partition=b"other")
    driver.push(b"q", b"m")
    driver.turn()
    assert driver.entries == [2]
    assert delivered(here) == ["m"] and delivered(elsewhere) is None
    pinned = driver.pop(b"later", partition=b"Default")
    driver.schedule(b"later", b"k", 1000)
    driver.turn()
    driver.entries.clear()
    driver.pass_time(1)
    assert driver.entries == [2] and delivered(pinned) == ["txn-k"]


def test_sixty_four_waiters_cost_one_rider_a_message() -> None:
    """FAULTS: every append woke every parked pop; proposals per productive pop stay at most 2."""
    driver = Driver(replace(SETTINGS, batch_max_commands=256, batch_max_bytes=1 << 20))
    pops = [driver.pop(b"q") for _ in range(64)]
    for number in range(10):
        driver.push(b"q", b"%d" % number)
        driver.turn()
    proposed = sum(driver.entries) - 10
    productive = sum(delivered(pop) is not None for pop in pops)
    assert productive >= 1 and proposed <= 2 * 10


def test_a_fire_serves_a_parked_pop_in_its_own_entry() -> None:
    """FAULTS: a fired timer told nobody; a parked consumer waited up to 30 s."""
    driver = Driver()
    pop = driver.pop(b"reminders")
    driver.schedule(b"reminders", b"k", 1000)
    driver.turn()
    driver.entries.clear()
    driver.pass_time(0.999)
    assert driver.entries == [] and delivered(pop) is None
    driver.pass_time(0.001)
    assert driver.entries == [2], "the fire and the pop"
    assert delivered(pop) == ["txn-k"]


def test_never_two_fires_in_flight_and_a_backlog_goes_on_at_once() -> None:
    """DESIGN: a second fire is never proposed while one is unapplied; CL-74: the next follows without a tick."""
    driver = Driver(replace(SETTINGS, fire=fire_of(2)))
    for number in range(5):
        driver.schedule(b"q", b"%d" % number, 1000)
    driver.turn()
    driver.entries.clear()
    driver.disk_works = False
    driver.pass_time(2)
    driver.pass_time(2)
    assert len(driver.writes) == 1
    driver.disk_works = True
    driver.write_out()
    assert driver.entries == [1, 1, 1]
    pop = driver.pop(b"q")
    driver.turn()
    assert delivered(pop) == [f"txn-{number}" for number in range(5)]
    assert driver.group.deadline_us is not None, "the ids' deadline is left"


def test_with_firing_off_timers_stay_pending() -> None:
    """TA-74."""
    driver = Driver(replace(SETTINGS, firing=False))
    driver.schedule(b"q", b"k", 10)
    driver.turn()
    driver.entries.clear()
    driver.pass_time(60)
    assert driver.entries == []
    assert driver.group.machine.store.counters().timers_pending == 1


def test_an_empty_pop_that_waits_is_answered_at_its_time_and_not_before() -> None:
    """PA-20."""
    driver = Driver()
    pop = driver.pop(b"q", wait_s=2)
    driver.pass_time(1.9)
    assert delivered(pop) is None
    assert driver.group.next_alarm(driver.now_s, driver.group.raft.clock.now_us()) == pop.answer_by_s
    driver.pass_time(0.1)
    assert delivered(pop) == []
    assert len(driver.group.pops) == 0


def test_a_pop_that_does_not_wait_is_answered_once_it_is_confirmed_that_we_lead() -> None:
    """PA-6: 204 is a leader's word."""
    driver = Driver()
    pop = driver.pop(b"q", wait_s=None)
    assert delivered(pop) is None
    driver.turn()
    assert delivered(pop) == [] and driver.entries == []


def test_the_end_of_a_lease_serves_a_parked_pop_by_time_alone() -> None:
    """PA-21, PA-36: mere expiry proposes nothing (PA-63), but a pop that waits for it is tried."""
    driver = Driver()
    driver.push(b"q", b"m")
    driver.turn()
    holder = driver.pop(b"q", lease_ms=5000)
    driver.turn()
    waiter = driver.pop(b"q")
    driver.turn()
    assert delivered(holder) == ["m"] and delivered(waiter) is None
    driver.entries.clear()
    driver.pass_time(4.9)
    assert driver.entries == []
    driver.pass_time(0.1)
    assert delivered(waiter) == ["m"]
    assert driver.entries == [1]


def test_a_pop_whose_client_left_claims_nothing_or_hands_back() -> None:
    """PA-23: parked, it is forgotten; on its way, what it claims is released with its attempt uncounted (G-Q8)."""
    driver = Driver()
    gone = driver.pop(b"q")
    driver.turn()
    driver.group.withdraw(gone)
    driver.push(b"q", b"m")
    driver.turn()
    assert driver.entries == [1], "nobody rides"
    before_proposed = driver.pop(b"q")
    driver.group.withdraw(before_proposed)
    driver.turn()
    assert driver.entries == [1] and delivered(before_proposed) == []
    driver.disk_works = False
    on_its_way = driver.pop(b"q")
    driver.turn()
    driver.group.withdraw(on_its_way)
    driver.disk_works = True
    driver.write_out()
    assert driver.entries == [1, 1, 1] and delivered(on_its_way) == []
    again = driver.pop(b"q")
    driver.turn()
    assert [message["deliveryAttempt"] for message in messages(again) or ()] == [1]
    assert driver.group.machine.store.counters().leases_live == 1


def test_a_read_waits_for_what_was_committed_before_it() -> None:
    """M-40: what was acknowledged before a read began is in its answer."""
    driver = Driver()
    driver.disk_works = False
    driver.push(b"q", b"m")
    driver.turn()
    read = driver.read()
    driver.turn()
    driver.disk_works = True
    driver.write_out()
    assert outcome(driver.push(b"q", b"n")) is None
    assert read.answered


def test_calls_past_their_deadline_are_answered_and_what_was_proposed_is_unknown() -> None:
    """G-D5: `no_leader` is surely not applied, `timeout` may be."""
    driver = Driver()
    driver.disk_works = False
    proposed = driver.push(b"q", b"1")
    driver.turn()
    waiting = driver.push(b"q", b"2")
    driver.clock.since_boot_us += 31_000_000
    driver.group.give_up_late_calls(driver.now_s, driver.group.raft.clock.now_us())
    assert (outcome(proposed), outcome(waiting)) == ("timeout", "no_leader")
    driver.disk_works = True
    driver.write_out()
    assert sum(driver.entries) == 1, "what was refused as surely not applied is never proposed"


def test_a_stopped_group_answers_everyone_and_takes_nothing() -> None:
    driver = Driver()
    pop = driver.pop(b"q")
    driver.disk_works = False
    proposed = driver.push(b"q", b"1")
    driver.turn()
    waiting = driver.push(b"q", b"2")
    driver.group.stop("retry")
    late = driver.submit(commands.push(driver.ids.uuid7(), []), (), Lane.PUSHES)
    after = driver.pop(b"q")
    assert [outcome(slot) for slot in (pop.slot, proposed, waiting, late, after.slot, driver.read())] == ["retry"] * 6


def test_a_group_proposes_nothing_before_it_has_applied_its_terms_blank_entry() -> None:
    """CL-24."""
    driver = Driver()
    assert driver.group.raft.may_propose
    core = driver.group.raft.core
    assert core.term_start_index == 1 and core.applied_index == 1


def test_a_pop_that_left_before_its_chance_leaves_no_alarm_behind() -> None:
    """An alarm for a reader whom nobody waits for is set again as soon as it rings, and the loop never rests."""
    driver = Driver()
    driver.push(b"q", b"1")
    driver.turn()
    driver.pop(b"q", lease_ms=1000)
    driver.turn()
    waiting = driver.pop(b"q", wait_s=0.5)
    driver.turn()
    driver.pass_time(0.6)
    assert delivered(waiting) == []
    driver.pass_time(1)
    assert driver.group.next_alarm(driver.now_s, driver.group.raft.clock.now_us()) is None


def test_what_ended_is_swept_in_steps_by_whoever_leads() -> None:
    """KV-23: once a second, so many rows a step; a backlog goes on after a pause, never two steps in flight."""
    driver = Driver()
    puts = [(KvOp.PUT, b"n", b"k%d" % number, b"1", 1, None, False) for number in range(7)]
    driver.submit(commands.kv(driver.ids.uuid7(), puts))
    driver.turn()
    counters = driver.group.machine.store.counters()
    assert driver.group.deadline_us is not None and driver.group.deadline_us % SECOND_US == 0
    driver.pass_time((driver.group.deadline_us - driver.group.raft.clock.now_us()) / SECOND_US - 0.001)
    assert counters.kv_rows == 7
    driver.entries.clear()
    driver.disk_works = False
    driver.pass_time(0.001)
    driver.pass_time(0.1)
    assert driver.group.raft.unwritten_count == 1
    driver.disk_works = True
    driver.write_out()
    counters = driver.group.machine.store.counters()
    assert driver.entries == [1, 1] and counters.kv_rows == 1, "three rows a step"
    now_us, pause_us = driver.group.raft.clock.now_us(), SETTINGS.sweep_pause_us
    assert driver.group.deadline_us == now_us + pause_us
    alarm_s = driver.group.next_alarm(driver.now_s, now_us)
    assert alarm_s is not None and abs(alarm_s - driver.now_s - pause_us / SECOND_US) < 1e-6, "the wheel comes too late"
    driver.pass_time(pause_us / SECOND_US - 0.000001)
    assert driver.group.machine.store.counters().kv_rows == 1
    driver.pass_time(0.000001)
    assert driver.entries == [1, 1, 1]
    assert driver.group.machine.store.counters().kv_rows == 0 and driver.group.deadline_us is None
    assert driver.group.next_alarm(driver.now_s, driver.group.raft.clock.now_us()) is None
