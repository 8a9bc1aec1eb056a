"""How clients call in virtual time: scripts, who runs them, and what is known of a call afterwards.

A client is a generator that yields what it wants next, a pause or a call, and is sent the answer. Nothing is repeated
inside an operation, and what nobody knows is labelled so (guarantees.md 2). What clients do stands in `clients` and in
the `*_client` files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from queen_node.answers import read_result
from queen_node.broker import Lane, Unavailable
from tests.checkers.history import History, Outcome
from tests.simulation.cluster import Cluster
from tests.simulation.process import Process
from tests.simulation.shape import DRIFT_PPM_MAX, Shape
from tests.simulation.slots import NODE_TIMEOUT_US, CallSlot, Result
from tests.simulation.world import MS, SECOND, World
from tests.workloads.road import rolled_back

RECENT_KEYS: Final = 20  # W10
KNOCK_US: Final = 50 * MS  # pause after a refusal
NOT_SENT: Final = "not sent"  # why a call failed whose node does not run
PATIENCE_US: Final = 3 * SECOND  # the client's


class Answer(NamedTuple):
    """What a client knows of its call. body: of an OK."""

    start_us: int
    end_us: int
    outcome: Outcome
    why: str
    body: Any

    def times(self) -> dict[str, Any]:
        """The fields that every call in a history has."""
        return {"start_ns": self.start_us * 1000, "end_ns": self.end_us * 1000, "outcome": self.outcome,
                "why": self.why}


class Wish(NamedTuple):
    """A call to a node."""

    node_id: int
    send: Callable[[Process, CallSlot], None]


T = TypeVar("T")
Talk: TypeAlias = Generator[int | Wish, Answer | None, T]  # an int is a pause in µs; T is what comes of it
Script: TypeAlias = Talk[None]


class Runner:
    """Runs one client's script: one call at a time."""

    def __init__(self, world: World, cluster: Cluster, script: Script) -> None:
        self._world, self._cluster, self._script = world, cluster, script
        self._turn = 0
        self.ended = False
        world.after(0, self._go_on, 0, None)

    def _go_on(self, turn: int, answer: Answer | None) -> None:
        if turn != self._turn:
            return
        self._turn += 1
        try:
            wish = self._script.send(answer)
        except StopIteration:
            self.ended = True
            return
        if isinstance(wish, int):
            self._world.after(wish, self._go_on, self._turn, None)
        else:
            self._call(wish)

    def _call(self, wish: Wish) -> None:
        world, turn, start_us = self._world, self._turn, self._world.now_us

        def deliver(result: Result) -> None:
            if isinstance(result, Unavailable):
                world.reached(f"answered {result.code}")
            if turn == self._turn:
                self._go_on(turn, _read(start_us, world.now_us, result, slot))
            elif isinstance(result, bytes) and slot is not None and slot.hand_back is not None:
                slot.hand_back()

        slot = self._cluster.call(wish.node_id, wish.send, deliver)
        if slot is None:
            world.after(KNOCK_US, self._go_on, turn, Answer(start_us, world.now_us, Outcome.FAIL, NOT_SENT, None))
        else:
            world.after(PATIENCE_US, self._give_up, turn, start_us, slot)

    def _give_up(self, turn: int, start_us: int, slot: CallSlot) -> None:
        if turn != self._turn:
            return
        self._world.reached("client gave up")
        if slot.withdraw is not None and not slot.answered:
            slot.withdraw()
        self._go_on(turn, Answer(start_us, self._world.now_us, Outcome.INFO, "gave up", None))


def _read(start_us: int, end_us: int, result: Result, slot: CallSlot | None) -> Answer:
    """What an answer says about the call (guarantees.md 2)."""
    if result is None:
        return Answer(start_us, end_us, Outcome.INFO, "connection broke", None)
    if isinstance(result, Unavailable):
        outcome = Outcome.FAIL if result.code == "no_leader" else Outcome.INFO
        return Answer(start_us, end_us, outcome, result.code, None)
    status, body = (slot.render if slot is not None else read_result)(result)
    if status < 300:
        document = msgspec.json.decode(body) if body else {}
        if rolled_back(document):
            return Answer(start_us, end_us, Outcome.FAIL, document["reason"], None)
        return Answer(start_us, end_us, Outcome.OK, "", document)
    return Answer(start_us, end_us, Outcome.FAIL if status < 500 else Outcome.INFO, str(status), None)


class Hours:
    """When the clients of a tenant call. is_open: its queues were configured, so they may begin. silent_until_us:
    before that they begin no new calls. stopping: nor ever again.
    """

    def __init__(self) -> None:
        self.is_open = self.stopping = False
        self.silent_until_us = 0


class Ground:
    """What clients of one tenant share that do one kind of work: a history, names that are used once in it."""

    def __init__(self, world: World, shape: Shape, tenant: bytes, hours: Hours | None = None) -> None:
        """hours: of the tenant; None: nobody else is there."""
        self.world, self.shape, self.tenant = world, shape, tenant
        self.hours = hours or Hours()
        self.history = History(drift_ppm=DRIFT_PPM_MAX)
        self.versions = self.keys = 0
        self.recent: deque[str] = deque(maxlen=RECENT_KEYS)
        self.recent_timers: deque[tuple[str, str]] = deque(maxlen=RECENT_KEYS)

    def apart(self) -> Ground:
        """For another kind of work at the same hours."""
        return Ground(self.world, self.shape, self.tenant, self.hours)

    def next_version(self, name: str) -> str:
        """A text unique in the history: the version of a timer, the id of a push, the value of a row."""
        self.versions += 1
        return f"{name}-{self.versions}"


Step: TypeAlias = Callable[[], Script]


class Caller:
    """A client's way to the cluster. It stays with a node that answers, and tries another after one that does not."""

    def __init__(self, ground: Ground, number: int, dice: Random) -> None:
        self.ground, self.number, self._dice = ground, number, dice
        self._node_id = dice.choice(ground.shape.node_ids)

    def go_on(self, weighted_steps: Sequence[tuple[int, Step]]) -> Script:
        """Take step after step until the run's clients stop."""
        steps = [step for _, step in weighted_steps]
        weights = [weight for weight, _ in weighted_steps]
        think_us = self.ground.shape.think_us
        hours, world = self.ground.hours, self.ground.world
        while not hours.is_open and not hours.stopping:
            yield KNOCK_US
        while not hours.stopping:
            yield max(self._dice.randint(0, 2 * think_us), hours.silent_until_us - world.now_us)
            yield from self._dice.choices(steps, weights)[0]()

    def call(self, send: Callable[[Process, CallSlot], None]) -> Talk[Answer]:
        """One call, to the node that served the last one; after a refusal the next goes elsewhere."""
        answer = yield Wish(self._node_id, send)
        if answer is None:
            raise AssertionError("a call without an answer")
        self.ground.world.trace(b"%d %b" % (self.number, repr(answer).encode()))
        if answer.outcome is not Outcome.OK:
            self.roam()
        return answer

    def roam(self) -> None:
        """Go to another node, or by chance to the same."""
        self._node_id = self._dice.choice(self.ground.shape.node_ids)

    def submit(
        self, process: Process, slot: CallSlot, command: bytes, *, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> None:
        """A command, at the node."""
        process.submit(self.ground.tenant, command, slot, lane=lane, places=places, timeout_us=NODE_TIMEOUT_US)

    def ask(self, method: str, target: str, document: object = None) -> Talk[Answer]:
        """A call through the node's door."""
        answer = yield from self.call(
            lambda process, slot: process.door.call(self.ground.tenant, method, target, document, slot))
        return answer
