"""Calls of tenants that have no group yet (M-70, README 27)."""

from __future__ import annotations

import cbor2
import pytest

from queen_node import commands, queries
from queen_node.answers import NOTHING, pack, read_result
from queen_node.antechamber import Antechamber
from queen_node.broker import Lane, Unavailable
from queen_node.calls import Pending, PendingRead
from queen_node.commands import Kind
from queen_node.events import LET_POPS_GO, Event, HandBack, Pop, Withdraw
from queen_node.parked_pops import WaitingPop
from queen_node.queries import Query

A, B = bytes(15) + b"a", bytes(15) + b"b"
PEEK = queries.query(Query.TIMER_PEEK, b"q", b"k")


class Waiter:
    """Implements `slots.ResultSlot`."""

    def __init__(self) -> None:
        self.result: bytes | str | None = None

    @property
    def answered(self) -> bool:
        return self.result is not None

    def answer(self, result: bytes | Unavailable) -> None:
        if self.result is None:
            self.result = result.code if isinstance(result, Unavailable) else result


class Scene:
    """An antechamber for two calls and seven tenants."""

    def __init__(self) -> None:
        ids = iter(range(1, 100))
        self.room = Antechamber(at_most_tenants=7, bound=2, mint=lambda: next(ids).to_bytes(16, "big"))

    def write(self, tenant: bytes = A, *, give_up_at_s: float = 30.0) -> tuple[Waiter, Event]:
        waiter = Waiter()
        event = Lane.PUSHES, Pending(commands.extend(bytes(16), bytes(16), 1), waiter, give_up_at_s=give_up_at_s)
        self.room.put(tenant, event, 0.0)
        return waiter, event

    def read(self, *, give_up_at_s: float = 30.0) -> tuple[Waiter, Event]:
        waiter = Waiter()
        event = PendingRead(PEEK, waiter, give_up_at_s=give_up_at_s)
        self.room.put(A, event, 0.0)
        return waiter, event

    def pop(self, *, waits: bool, answer_by_s: float = 30.0) -> tuple[Waiter, WaitingPop]:
        waiter = Waiter()
        pop = WaitingPop(
            commands.hand_back(bytes(16)), lease_id=bytes(16), queue=b"q", reader=(b"g", None), slot=waiter,
            waits=waits, answer_by_s=answer_by_s)
        self.room.put(A, Pop(pop), 0.0)
        return waiter, pop

    def asked(self) -> Pending | PendingRead:
        """The one question to group 0."""
        (event,) = self.room.take_outgoing()
        if isinstance(event, tuple):
            return event[1]
        assert isinstance(event, PendingRead)
        return event


def test_a_write_has_the_group_made_and_goes_on_to_it() -> None:
    scene = Scene()
    (first, one), (second, two) = scene.write(), scene.write()
    question = scene.asked()  # one for both
    assert isinstance(question, Pending)
    assert cbor2.loads(question.command) == [Kind.CREATE_TENANT, (1).to_bytes(16, "big"), A, 7]
    assert scene.room.full and len(scene.room) == 2
    assert scene.room.take(A) == [one, two]
    question.slot.answer(pack(5))
    assert (first.result, second.result, len(scene.room), scene.room.full) == (None, None, 0, False)


def test_each_tenant_asks_for_itself() -> None:
    """TA-8."""
    scene = Scene()
    scene.write(A)
    kept, event = scene.write(B)
    asked = [cbor2.loads(one[1].command)[2] for one in scene.room.take_outgoing() if isinstance(one, tuple)]
    assert asked == [A, B]
    scene.room.take(A)
    assert scene.room.take(B) == [event] and kept.result is None


@pytest.mark.parametrize(("said", "code"), [
    (pack(0), "tenant_limit"), (Unavailable("no_leader"), "no_leader"), (Unavailable("timeout"), "no_leader"),
    (Unavailable("retry"), "retry"),
])
def test_where_no_group_is_made_writes_are_refused_and_polls_wait_on(said: bytes | Unavailable, code: str) -> None:
    """Of the call itself nothing was proposed, so a deadline of group 0's is `no_leader` to it (G-D5)."""
    scene = Scene()
    (poll, _), (write, _) = scene.pop(waits=True), scene.write()
    scene.asked().slot.answer(said)
    assert (write.result, poll.result, len(scene.room)) == (code, None, 1)
    scene.write()  # the next one asks again
    assert scene.asked()


def test_a_read_of_nobody_is_confirmed_and_finds_nothing() -> None:
    """README 27: group 0's leader vouches for it."""
    scene = Scene()
    waiter, _ = scene.read()
    question = scene.asked()
    assert isinstance(question, PendingRead) and waiter.result is None
    question.slot.answer(b"")
    assert isinstance(waiter.result, bytes)
    assert read_result(waiter.result) == (200, b'{"found":false}')


def test_a_read_that_nobody_confirms_is_refused() -> None:
    scene = Scene()
    waiter, _ = scene.read()
    scene.asked().slot.answer(Unavailable("no_leader"))
    assert waiter.result == "no_leader"


def test_a_read_goes_on_to_the_group_that_appeared_meanwhile() -> None:
    scene = Scene()
    waiter, event = scene.read()
    question = scene.asked()
    assert scene.room.take(A) == [event]
    question.slot.answer(b"")
    assert waiter.result is None


def test_a_pop_that_tries_once_is_confirmed_and_finds_nothing() -> None:
    """M-70: it makes no group."""
    scene = Scene()
    waiter, _ = scene.pop(waits=False)
    scene.asked().slot.answer(b"")
    assert waiter.result == NOTHING


@pytest.mark.parametrize(("said", "result"), [(b"", NOTHING), (Unavailable("no_leader"), "no_leader")])
def test_a_poll_waits_for_its_tenant_and_is_judged_at_its_deadline(said: bytes | Unavailable, result: object) -> None:
    """PA-6, PA-7: empty only where group 0's leader, with its majority, knows no such tenant."""
    scene = Scene()
    (first, _), (second, pop) = scene.pop(waits=True, answer_by_s=1.0), scene.pop(waits=True, answer_by_s=2.0)
    assert scene.room.take_outgoing() == []
    scene.room.give_up(1.0)
    question = scene.asked()
    assert isinstance(question, PendingRead) and question.give_up_at_s == 2.0
    scene.room.give_up(1.5)
    assert scene.room.take_outgoing() == [], "it was asked twice"
    assert (first.result, second.result) == (None, None)
    question.slot.answer(said)
    assert (first.result, second.result) == (result, None)
    assert scene.room.take(A) == [Pop(pop)]


def test_a_poll_goes_on_to_the_group_that_appeared_while_it_was_judged() -> None:
    scene = Scene()
    waiter, pop = scene.pop(waits=True, answer_by_s=1.0)
    scene.room.give_up(1.0)
    question = scene.asked()
    assert scene.room.take(A) == [Pop(pop)]
    question.slot.answer(b"")
    assert waiter.result is None


def test_a_client_that_leaves_takes_its_poll_along() -> None:
    """PA-23."""
    scene = Scene()
    waiter, pop = scene.pop(waits=True)
    scene.room.put(A, Withdraw(pop), 0.0)
    assert (waiter.result, pop.gone, len(scene.room)) == (NOTHING, True, 0)
    scene.room.put(A, HandBack(bytes(16)), 0.0)  # of an answer that told of nothing


def test_a_node_that_stops_lets_polls_go_and_keeps_writes() -> None:
    """CL-131."""
    scene = Scene()
    (poll, _), (write, _) = scene.pop(waits=True), scene.write()
    scene.room.put(A, LET_POPS_GO, 0.0)
    assert (poll.result, write.result) == (NOTHING, None)
    scene.room.stop()
    assert write.result == "retry" and not len(scene.room)


def test_calls_are_given_up_at_their_deadline() -> None:
    scene = Scene()
    (write, _), (read, _) = scene.write(give_up_at_s=1.0), scene.read(give_up_at_s=2.0)
    scene.room.give_up(1.5)
    assert (write.result, read.result) == ("no_leader", None)
    scene.room.give_up(2.0)
    assert read.result == "no_leader" and not len(scene.room)
