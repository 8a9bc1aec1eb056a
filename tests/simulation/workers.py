"""Clients of `tests.workloads` in virtual time: a coroutine that waits for nothing but its calls becomes a script."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from tests.checkers.history import Call
from tests.simulation.calls import KNOCK_US, NOT_SENT, Caller, Ground, Script, Talk
from tests.simulation.world import SECOND
from tests.workloads.road import Road, Told

ROAMS: Final = 0.5  # of the calls: they go to another node than the last one did

T = TypeVar("T")


class Stepping(Protocol):
    """A shared client."""

    async def step(self) -> None:
        """What it does next."""


class _Asked(Generic[T]):
    """What a coroutine waits for."""

    def __init__(self, talk: Talk[T]) -> None:
        self._talk = talk

    def __await__(self) -> Generator[Any, Any, T]:
        return self._talk


class DoorRoad:
    """A `Road`: through the doors of the cluster's processes."""

    prefix = ""

    def __init__(self, caller: Caller, dice: Random) -> None:
        self._caller, self._dice = caller, dice
        self.next_version, self.reached = caller.ground.next_version, caller.ground.world.reached

    async def call(self, method: str, target: str, document: Mapping[str, Any] | None = None) -> Told:
        """See `Road`."""
        if self._dice.random() < ROAMS:
            self._caller.roam()
        answer = await _Asked(self._caller.ask(method, target, document))
        times = answer.times()
        return Told(times["start_ns"], times["end_ns"], answer.outcome, answer.why, answer.body)

    async def pause(self, seconds: float) -> None:
        """See `Road`."""
        await _Asked(_pause(round(seconds * SECOND)))

    def note(self, call: Call) -> None:
        """See `Road`."""
        self._caller.ground.history.calls.append(call)


class PatientRoad(DoorRoad):
    """Goes on to another node for as long as the one that was asked does not run: in the end one of them may be down
    for good, and what it did not hear tells nothing about what is left to do."""

    async def call(self, method: str, target: str, document: Mapping[str, Any] | None = None) -> Told:
        """See `Road`."""
        while (told := await super().call(method, target, document)).why == NOT_SENT:
            pass
        return told


def _pause(lasts_us: int) -> Script:
    yield lasts_us


def talk(coroutine: Coroutine[Any, Any, T]) -> Talk[T]:
    """What a coroutine of a shared client wants, as a client's script."""
    answer = None
    while True:
        try:
            wish = coroutine.send(answer)
        except StopIteration as ended:
            result: T = ended.value
            return result
        answer = yield wish


def until_known(ask: Callable[[], Coroutine[Any, Any, T | None]]) -> Talk[T]:
    """Ask until it is answered."""
    while (answer := (yield from talk(ask()))) is None:
        yield KNOCK_US
    return answer


def worker(ground: Ground, make: Callable[[Road, int, Random], Stepping], number: int, dice: Random) -> Script:
    """A shared client, until the run's clients stop."""
    caller = Caller(ground, number, dice)
    client = make(DoorRoad(caller, dice), number, dice)
    return caller.go_on([(1, lambda: talk(client.step()))])
