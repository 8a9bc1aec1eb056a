"""Reads of what is committed, in slices (timers.md 4, M-50)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queen_node.answers import pack, read_result
from queen_node.answers import timers as answers
from queen_node.answers.timers import Reader
from queen_node.state.step import Step
from queen_node.state.timers import apply_timers
from tests.support.timer_state import RULES, START_US, TimerState, cancel, schedule


def run(reader: Reader) -> tuple[Any, int]:
    """What a reader returns, and how often it gave way."""
    slices = 0
    while True:
        try:
            next(reader)
            slices += 1
        except StopIteration as end:
            status, body = read_result(end.value)
            assert status == 200
            return msgspec.json.decode(body), slices


def filled(count: int, **fields: Any) -> TimerState:
    state = TimerState()
    for start in range(0, count, 500):
        state.apply(*(schedule(f"{index:05}", 10, **fields) for index in range(start, min(start + 500, count))))
    return state


def test_a_long_count_gives_way_every_few_hundred_rows() -> None:
    """M-50."""
    state = filled(3000)
    document, slices = run(answers.read_count(state.store.committed(), [b"q", b""]))
    assert document == {"count": 3000} and slices == 3


@pytest.mark.parametrize("size", [10, 2000])
def test_a_long_list_gives_way_and_never_reads_large_payloads(size: int) -> None:
    state = filled(600, payload=b"x" * size)
    document, slices = run(answers.read_list(state.store.committed(), [b"q", b"", 1000]))
    assert len(document["rows"]) == state.pending and "payload" not in document["rows"][0]
    assert slices == 6


def test_a_page_is_its_own_snapshot() -> None:
    """TM-41: what happens between two slices is not seen."""
    state = filled(1500)
    reader = answers.read_list(state.store.committed(), [b"q", b"", 1000])
    next(reader)
    for index in range(1500):
        state.apply(cancel(f"{index:05}"))
    document, _slices = run(reader)
    assert len(document["rows"]) == 1000 and document["nextAfter"] == "00999"
    assert run(answers.read_count(state.store.committed(), [b"q", b""]))[0] == {"count": 0}


def test_a_list_ends_with_its_queue() -> None:
    """TM-41: queues that sort next to it are none of it."""
    state = TimerState()
    state.apply(schedule("a", 10, queue="q"), schedule("b", 10, queue="r"), schedule("a", 10, queue="qa"))
    document, _slices = run(answers.read_list(state.store.committed(), [b"q", b"", 1]))
    assert [row["queue"] for row in document["rows"]] == ["q"]
    assert (document["truncated"], document["nextAfter"]) == (False, None)


def test_a_timer_that_is_due_but_has_not_fired_is_still_there() -> None:
    """TM-43."""
    state = filled(1)
    state.advance(86_400_000)
    assert run(answers.read_peek(state.store.committed(), [b"q", b"00000"]))[0]["found"] is True
    state.fire()
    assert run(answers.read_peek(state.store.committed(), [b"q", b"00000"]))[0] == {"found": False}


def test_a_peek_in_backoff_shows_the_failure() -> None:
    """TM-40, TM-54."""
    state = filled(1)
    state.advance(10)
    state.fire(rules=RULES._replace(fail_queue=b"q"))
    document = run(answers.read_peek(state.store.committed(), [b"q", b"00000"]))[0]
    assert document["attempts"] == 1 and "QUEEN_TEST_FIRE_FAIL_QUEUE" in document["lastError"]
    assert document["deliverAt"] == document["updatedAt"] == "2023-11-14T22:13:20.010000Z"
    assert document["createdAt"] == "2023-11-14T22:13:20.000000Z"


def test_names_with_everything_in_them_are_shown_as_they_are() -> None:
    """PU-20: JSON escapes what it must, nothing else changes."""
    state = TimerState()
    key, txn = 'a"\\\n\x1f\u2028ü/😀', 'µ"'
    step = Step(state.store, now_us=START_US, index=1)
    answer = apply_timers(step, [2, b"", [schedule(key, 10, txn=txn, queue=key, partition=key)], True, False])
    state.commit(step)
    status, body = answers.render_timers(pack(answer))
    (result,) = msgspec.json.decode(body)["results"]
    assert status == 200 and (result["timerKey"], result["queue"], result["txn"]) == (key, key, txn)
    document = run(answers.read_peek(state.store.committed(), [key.encode(), key.encode()]))[0]
    assert (document["timerKey"], document["partition"], document["txn"]) == (key, key, txn)


def test_the_refusal_of_clear_text_names_the_operation() -> None:
    """TM-24."""
    status, body = answers.render_timers(pack((False, 3)))
    document = msgspec.json.decode(body)
    assert (status, document["error"], document["reason"]) == (400, "encryption_key_missing", "encryption_key_missing")
    assert document["detail"].startswith("op at index 3: ")
