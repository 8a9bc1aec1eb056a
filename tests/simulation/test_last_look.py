"""The final phase's looks tell what is there, whatever happened to their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.checkers.history import Message, Outcome
from tests.simulation.calls import Answer, Ground, Wish
from tests.simulation.last_look import witness
from tests.simulation.shape import draw_shape
from tests.simulation.world import World

TENANT = bytes(16)
EVERYTHING = ("a", "b", "c")


class _Queue:
    """A node that holds EVERYTHING and gives a group two messages a pop. outcomes: of the first pops, OK after that."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = list(outcomes)
        self._read: dict[bytes, int] = {}

    def answer(self, wish: Wish) -> Answer:
        """What the client hears; a pop of which it hears nothing took its messages all the same."""
        asked: dict[str, Any] = {}

        class _Process:
            def submit_pop(self, *_place: object, **options: object) -> None:
                asked.update(options)

        wish.send(_Process(), None)  # type: ignore[arg-type]
        outcome = self._outcomes.pop(0) if self._outcomes else Outcome.OK
        if outcome is Outcome.FAIL:
            return Answer(0, 0, outcome, "no_leader", None)
        begin = self._read.get(asked["group"], 0)
        self._read[asked["group"]] = begin + 2
        if outcome is Outcome.INFO:
            return Answer(0, 0, outcome, "timeout", None)
        return Answer(0, 0, outcome, "", {"messages": [_raw(txn) for txn in EVERYTHING[begin : begin + 2]]})


def _raw(txn: str) -> dict[str, Any]:
    return {
        "queue": "work", "partition": "p", "partitionId": "1", "offset": ord(txn), "id": f"id of {txn}",
        "transactionId": txn, "data": {}, "createdAt": "2026-01-01T00:00:00.000000Z", "deliveryAttempt": 1}


def _seen(*outcomes: Outcome) -> list[str]:
    """By a witness whose first pops end so."""
    world = World(1)
    ground = Ground(world, draw_shape(world.dice("shape"), world.dice("snapshots"), world.dice("sleep")), TENANT)
    queue, log = _Queue(outcomes), list[Message]()
    script = witness(ground, "work", log)
    answer = None
    while True:
        try:
            wish = script.send(answer)
        except StopIteration:
            return [message.txn for message in log]
        answer = queue.answer(wish) if isinstance(wish, Wish) else None


def test_a_witness_reads_everything() -> None:
    """Once each."""
    assert _seen() == list(EVERYTHING)


def test_a_witness_reads_on_after_a_refusal() -> None:
    """Nothing was taken."""
    assert _seen(Outcome.FAIL, Outcome.OK, Outcome.FAIL) == list(EVERYTHING)


def test_a_witness_whose_pop_was_not_answered_reads_from_the_begin() -> None:
    """G-T1 of seeds 102453 and 108179: what the pop committed on delivery was missing from the log that was judged."""
    assert _seen(Outcome.INFO) == list(EVERYTHING)
    assert _seen(Outcome.OK, Outcome.INFO, Outcome.INFO) == list(EVERYTHING)
