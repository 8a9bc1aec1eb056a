"""The timer checkers prove themselves: fires, books and lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.checkers import timer_books, timer_fires, timer_lives, verdict
from tests.checkers.history import History, Outcome, Violation
from tests.checkers.scenes import cancel, history, message, peek, pop, push, schedule

Check = Callable[[History], list[Violation]]

FIRED = history(schedule("v1", 0), pop(102, message("v1", 0, 101)), log=(message("v1", 0, 101),))
REPLACED = history(
    schedule("v1", 0), schedule("v2", 50, status="rescheduled"), log=(message("v2", 0, 151),),
)
CANCELLED = history(schedule("v1", 0), cancel(50, "v1"), cancel(60), peek(70))
PEEKED = history(schedule("v1", 0), peek(10, "v1"), peek(300), log=(message("v1", 0, 101),))
# Applied though unanswered, twice: the first was replaced, the second fired.
UNKNOWN = history(
    schedule("v1", 0, outcome=Outcome.INFO), schedule("v2", 50, status="rescheduled"), log=(message("v2", 0, 151),),
)
# Not applied, though nobody could know.
NEVER = history(schedule("v1", 0, outcome=Outcome.INFO), cancel(60))
DEDUPED = history(push("v1", 0, 0), schedule("v1", 5), peek(300), log=(message("v1", 0, 1),))
TWO_LIVES = history(
    schedule("v1", 0, delay=0), schedule("v2", 50, delay=0), log=(message("v1", 0, 1), message("v2", 1, 51)),
)


@pytest.mark.parametrize("clean", [FIRED, REPLACED, CANCELLED, PEEKED, UNKNOWN, NEVER, DEDUPED, TWO_LIVES])
def test_clean_histories_pass_every_check(clean: History) -> None:
    """All checkers of the house, not only those of timers. Where nobody popped there is no group to deliver to."""
    assert verdict.judge(clean) == []


def broken(check: Check, wrong: History) -> list[str]:
    """The promises that a check finds broken."""
    return [found.promise for found in check(wrong)]


def test_two_fires_are_found() -> None:
    """G-M1."""
    twice = history(schedule("v1", 0), log=(message("v1", 0, 101), message("v1", 1, 102)))
    assert broken(timer_fires.check_fires_once, twice) == ["G-M1"]


def test_an_early_stamp_is_found() -> None:
    """G-M2 by the group's clock: one microsecond is enough."""
    early = message("v1", 0, 101)
    early = replace(early, created_at_us=early.created_at_us - 1)
    assert broken(timer_fires.check_not_early, history(schedule("v1", 0), log=(early,))) == ["G-M2"]


def test_early_delivery_is_found() -> None:
    """G-M2 by the observer's clock: held 1 ms before call + delay, though the stamps agree with each other."""
    held = history(schedule("v1", 0), pop(97, message("v1", 0, 101)), log=(message("v1", 0, 101),))
    assert broken(timer_fires.check_not_early, held) == ["G-M2"]


def test_a_fire_after_its_cancel_is_found() -> None:
    """G-M3."""
    wrong = history(schedule("v1", 0), cancel(50, "v1"), log=(message("v1", 0, 101),))
    assert broken(timer_fires.check_cancelled_stays_away, wrong) == ["G-M3"]
    assert broken(timer_books.check_books, wrong) == ["G-M5"]
    assert broken(timer_lives.check_lives, wrong) == ["G-M12"]


def test_a_fire_of_a_replaced_version_is_found() -> None:
    """G-M6: by the pair alone, and by the search when it fires beside the new one."""
    wrong = history(
        schedule("v1", 0), schedule("v2", 50, status="rescheduled"), log=(message("v1", 0, 101), message("v2", 1, 151)),
    )
    assert broken(timer_fires.check_replaced_stays_away, wrong) == ["G-M6"]
    assert broken(timer_lives.check_lives, wrong) == ["G-M12"]


def test_a_lost_timer_is_found() -> None:
    """G-M4: neither fired nor cancelled nor pending, or pending for ever."""
    lost = history(schedule("v1", 0))
    stuck = history(schedule("v1", 0), pending=(("q", "k"),))
    assert broken(timer_books.check_books, lost) == ["G-M4"]
    assert broken(timer_lives.check_lives, lost) == ["G-M12"]
    assert broken(timer_books.check_none_left, stuck) == ["G-M4"]


def test_half_a_fire_is_found() -> None:
    """G-M5: the message is there and the timer still pending."""
    half = history(schedule("v1", 0), log=(message("v1", 0, 101),), pending=(("q", "k"),))
    assert broken(timer_lives.check_lives, half) == ["G-M12"]


def test_a_late_fire_is_found() -> None:
    """G-M4: more than 5 s beyond deliverAt and the outages."""
    late = history(schedule("v1", 0), log=(message("v1", 0, 5102),))
    assert broken(timer_books.check_not_late, late) == ["G-M4"]
    late.outages.append((50_000_000, 60_000_000))
    assert timer_books.check_not_late(late) == []


def test_another_place_payload_or_id_is_found() -> None:
    """G-M8."""
    for wrong in (
        message("v1", 0, 101, partition="p"), message("v1", 0, 101, payload={}), message("v1", 0, 101, message_id="x"),
    ):
        assert broken(timer_fires.check_lands_as_promised, history(schedule("v1", 0), log=(wrong,))) == ["G-M8"]


def test_fires_out_of_order_are_found() -> None:
    """TM-50: the one due first stands behind."""
    wrong = history(
        schedule("v1", 0, key="a", delay=100), schedule("v2", 10, key="b", delay=100),
        log=(message("v2", 0, 120), message("v1", 1, 120)),
    )
    assert broken(timer_fires.check_fire_order, wrong) == ["TM-50"]


def test_a_due_schedule_may_overtake() -> None:
    """TM-21: it fires in its own entry and waits for nobody."""
    fine = history(
        schedule("v1", 0, key="a", delay=100), schedule("v2", 110, key="b", delay=0),
        log=(message("v2", 0, 111), message("v1", 1, 120)),
    )
    assert timer_fires.check_fire_order(fine) == []


def test_an_absent_for_a_pending_timer_is_found() -> None:
    """G-M12: cancel and peek miss a timer whose schedule was acknowledged and that fires later."""
    for blind in (cancel(10), peek(10)):
        wrong = history(schedule("v1", 0), blind, log=(message("v1", 0, 101),))
        assert broken(timer_lives.check_lives, wrong) == ["G-M12"]


def test_a_wrong_word_for_a_schedule_is_found() -> None:
    """G-M6, TM-12: `scheduled` says that nothing was pending."""
    wrong = history(schedule("v1", 0), schedule("v2", 50), log=(message("v2", 0, 151),))
    assert broken(timer_lives.check_lives, wrong) == ["G-M12"]


def test_an_unknown_cancel_explains_a_missing_fire() -> None:
    """Books and search allow what may have happened, and only that."""
    fine = history(schedule("v1", 0), cancel(50, outcome=Outcome.INFO))
    assert verdict.judge(fine) == []
    too_late = history(schedule("v1", 0), peek(200, "v1"), peek(300), cancel(400, outcome=Outcome.INFO))
    assert broken(timer_lives.check_lives, too_late) == ["G-M12"]


def test_the_report_names_the_promise_and_the_calls() -> None:
    """What a person reads first."""
    wrong = history(schedule("v1", 0), cancel(50, "v1"), log=(message("v1", 0, 101),))
    text = verdict.report(wrong, verdict.judge(wrong), again="./scripts/test faults --seed 1")
    assert "BROKEN   G-M3" in text
    assert "removed_txn='v1'" in text
    assert "COUNTS   schedule   ok 1  fail 0  info 0" in text
    assert text.endswith("AGAIN    ./scripts/test faults --seed 1")
