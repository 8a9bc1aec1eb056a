"""Clients in virtual time: W10 (timers) and W2 (queue) of guarantees.md, written down as `tests.faults.load` does it.

A client is a generator that yields what it wants next, a pause or a call, and is sent the answer. Nothing is repeated
inside an operation, and what nobody knows is labelled so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from queen_node import commands, queries
from queen_node.answers import read_result
from queen_node.broker import Lane, Unavailable
from queen_node.commands import AckItem as AckCommandItem
from queen_node.commands import AckStatus, PayloadFlag, ScheduleOp, TimerOp
from queen_node.places import place
from queen_node.queries import Query
from tests.checkers.history import Ack, AckItem, Cancel, History, Outcome, Peek, Pop, Push, Schedule
from tests.simulation.cluster import Cluster
from tests.simulation.process import Process
from tests.simulation.shape import DRIFT_PPM_MAX, Shape
from tests.simulation.slots import CallSlot, Result
from tests.simulation.world import MS, SECOND, World
from tests.support.wire import parse_time_us, read_message

TIMER_QUEUE, WORK_QUEUE = "timers", "work"
GROUP: Final = "workers"
RECENT_KEYS: Final = 20  # W10
PADDING_BYTES: Final = (0, 0, 600, 2000)  # of a payload: a write of several sectors can be torn
KNOCK_US: Final = 50 * MS  # pause after a refusal
NODE_TIMEOUT_US: Final = 2 * SECOND  # the node's own limit of a call
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


Script: TypeAlias = Generator[int | Wish, Answer | None, None]  # an int is a pause in µs


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
            world.after(KNOCK_US, self._go_on, turn, Answer(start_us, world.now_us, Outcome.FAIL, "not sent", None))
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
        return Answer(start_us, end_us, Outcome.OK, "", msgspec.json.decode(body) if body else {})
    return Answer(start_us, end_us, Outcome.FAIL if status < 500 else Outcome.INFO, str(status), None)


class Ground:
    """What the clients of one tenant share. is_open: its queues were configured, so its clients may begin.
    silent_until_us: before that they begin no new calls.
    """

    def __init__(self, world: World, shape: Shape, tenant: bytes) -> None:
        self.world, self.shape, self.tenant = world, shape, tenant
        self.is_open = False
        self.silent_until_us = 0
        self.history = History(drift_ppm=DRIFT_PPM_MAX)
        self.stopping = False
        self.versions = self.keys = 0
        self.recent: deque[str] = deque(maxlen=RECENT_KEYS)
        self.recent_timers: deque[tuple[str, str]] = deque(maxlen=RECENT_KEYS)


class Client:
    """One client. It stays with a node that answers, and tries another after one that does not."""

    def __init__(self, ground: Ground, number: int, dice: Random) -> None:
        self.ground, self.number, self._dice = ground, number, dice
        self._node_id = dice.choice(ground.shape.node_ids)
        self._steps: Sequence[tuple[int, Callable[[], Script]]] = (
            (6, self._schedule_new), (2, self.schedule_several), (2, self._schedule_again), (2, self._cancel),
            (3, self._peek), (1, self._push_txn_of_timer), (6, lambda: self.consume(TIMER_QUEUE)), (3, self._push),
            (4, lambda: self.consume(WORK_QUEUE)),
        )

    def run(self) -> Script:
        """Go on until the run's clients stop."""
        steps = [step for _, step in self._steps]
        weights = [weight for weight, _ in self._steps]
        think_us = self.ground.shape.think_us
        while not self.ground.is_open and not self.ground.stopping:
            yield KNOCK_US
        while not self.ground.stopping:
            yield max(self._dice.randint(0, 2 * think_us), self.ground.silent_until_us - self.ground.world.now_us)
            yield from self._dice.choices(steps, weights)[0]()

    # --- timers

    def _schedule_new(self) -> Script:
        yield from self._schedule([self._new_key()])

    def schedule_several(self, within_ms: int | None = None) -> Script:
        """Several keys in one call: all or nothing (TM-15). within_ms: the longest delay; None: the usual one."""
        yield from self._schedule([self._new_key() for _ in range(self._dice.randint(2, 6))], within_ms)

    def _schedule_again(self) -> Script:
        yield from self._schedule([self._recent_key()])

    def _schedule(self, keys: Sequence[str], within_ms: int | None = None) -> Script:
        ground, dice = self.ground, self._dice
        longest_ms = within_ms or ground.shape.delay_ms_max
        wanted = []
        for key in keys:
            delay_ms = 0 if dice.random() < 0.15 else dice.randint(1, longest_ms)
            txn = self._next_version(key)
            wanted.append((key, txn, delay_ms))
            ground.recent_timers.append((txn, self._timer_partition(key)))

        def send(process: Process, slot: CallSlot) -> None:
            operations: list[ScheduleOp] = [
                (TimerOp.SCHEDULE, TIMER_QUEUE.encode(), key.encode(), delay_ms, txn.encode(), process.ids.uuid7(),
                 b'{"v":"%b"}' % txn.encode(), PayloadFlag.JSON, self._timer_partition(key).encode(), None)
                for key, txn, delay_ms in wanted
            ]
            command = commands.timers(process.ids.request_id(), operations, firing=True)
            places = tuple(place(operation[1], operation[8]) for operation in operations if operation[3] <= 0)
            self._submit(process, slot, command, places=places)

        answer = yield from self.call(send)
        results = answer.body["results"] if answer.outcome is Outcome.OK else [{}] * len(wanted)
        for (key, txn, delay_ms), result in zip(wanted, results, strict=True):
            ground.history.calls.append(Schedule(
                client=self.number, **answer.times(), queue=TIMER_QUEUE, key=key, txn=txn,
                partition=self._timer_partition(key), delay_ms=delay_ms, payload={"v": txn},
                status=result.get("status", ""), message_id=result.get("messageId", ""),
                deliver_at_us=parse_time_us(result["deliverAt"]) if result else 0,
            ))

    def _cancel(self) -> Script:
        key = self._recent_key()

        def send(process: Process, slot: CallSlot) -> None:
            operation = (TimerOp.CANCEL, TIMER_QUEUE.encode(), key.encode(), None)
            command = commands.timers(process.ids.request_id(), [operation], firing=True, one=True)
            self._submit(process, slot, command)

        answer = yield from self.call(send)
        body = answer.body or {}
        removed = (body.get("txn") or "") if body.get("status") == "cancelled" else ""
        self.ground.history.calls.append(Cancel(
            client=self.number, **answer.times(), queue=TIMER_QUEUE, key=key, status=body.get("status", ""),
            removed_txn=removed))

    def _peek(self) -> Script:
        key = self._recent_key()
        query = queries.query(Query.TIMER_PEEK, TIMER_QUEUE.encode(), key.encode())
        answer = yield from self.call(
            lambda process, slot: process.read(self.ground.tenant, query, slot, timeout_us=NODE_TIMEOUT_US))
        body = answer.body or {}
        self.ground.history.calls.append(Peek(
            client=self.number, **answer.times(), queue=TIMER_QUEUE, key=key, found=bool(body.get("found")),
            txn=body.get("txn") or ""))

    # --- messages

    def _push(self) -> Script:
        dice = self._dice
        items = [(WORK_QUEUE, f"p{dice.randrange(self.ground.shape.partitions)}", self._next_version("push"))
                 for _ in range(dice.randint(1, 4))]
        yield from self._push_items(items)

    def _push_txn_of_timer(self) -> Script:
        """A message with the id of a recent timer, into its partition: one of the two must give way (G-M7)."""
        if self.ground.recent_timers:
            txn, partition = self._dice.choice(self.ground.recent_timers)
            yield from self._push_items([(TIMER_QUEUE, partition, txn)])

    def _push_items(self, wanted: Sequence[tuple[str, str, str]]) -> Script:
        padding = b" " * self._dice.choice(PADDING_BYTES)

        def send(process: Process, slot: CallSlot) -> None:
            items: list[commands.PushItem] = [
                (queue.encode(), partition.encode(), txn.encode(), process.ids.uuid7(),
                 b'{"p":"%b"%b}' % (txn.encode(), padding),
                 PayloadFlag.JSON, None, None)
                for queue, partition, txn in wanted
            ]
            command = commands.push(process.ids.request_id(), items)
            places = tuple(place(item[0], item[1]) for item in items)
            self._submit(process, slot, command, lane=Lane.PUSHES, places=places)

        answer = yield from self.call(send)
        results = answer.body if answer.outcome is Outcome.OK else [{}] * len(wanted)
        for (queue, partition, txn), result in zip(wanted, results, strict=True):
            self.ground.history.calls.append(Push(
                client=self.number, **answer.times(), queue=queue, partition=partition, txn=txn, payload={"p": txn},
                status=result.get("status", ""), message_id=result.get("message_id", ""),
                offset=result.get("offset", -1)))

    def consume(self, queue: str) -> Script:
        """Pop some and ack them in one call under their lease."""
        dice = self._dice
        pop = yield from self.pop(
            queue, lease_s=dice.randint(1, self.ground.shape.lease_s_max), batch=dice.randint(1, 5),
            partitions=dice.randint(1, 3), wait_us=dice.choice((None, None, 200 * MS)))
        if not pop.messages or dice.random() < 0.05:  # left to expire
            return
        yield dice.choice((0, 10 * MS, 500 * MS))
        if dice.random() < 0.1:
            yield from self._extend(pop)
        yield from self.ack(pop, dice.choice(("failed", "retry", "dlq")) if dice.random() < 0.06 else "completed")

    def pop(
        self, queue: str, *, lease_s: int, batch: int, partitions: int, wait_us: int | None, group: str = GROUP,
        commit_on_delivery: bool = False,
    ) -> Generator[int | Wish, Answer | None, Pop]:
        """One pop, written down."""
        answer = yield from self.call(lambda process, slot: process.pop(
            self.ground.tenant, slot, queue=queue.encode(), group=group.encode(), batch=batch, partitions=partitions,
            lease_ms=lease_s * 1000, wait_us=wait_us, commit_on_delivery=commit_on_delivery))
        body = answer.body or {}
        pop = Pop(
            client=self.number, **answer.times(), queue=queue, group=group, lease_ms=lease_s * 1000,
            lease_id=body.get("leaseId", ""), messages=tuple(read_message(raw) for raw in body.get("messages", ())))
        self.ground.history.calls.append(pop)
        return pop

    def ack(self, pop: Pop, last: str = "completed") -> Script:
        """Ack all of a pop in one call, its last message with the status `last`."""
        wanted = [(message, "completed") for message in pop.messages[:-1]] + [(pop.messages[-1], last)]
        lease_id = bytes.fromhex(pop.lease_id.replace("-", ""))
        items: list[AckCommandItem] = [
            (message.txn.encode(), int(message.partition_id), AckStatus[status.upper()], lease_id, None)
            for message, status in wanted
        ]
        answer = yield from self.call(lambda process, slot: self._submit(
            process, slot, commands.ack(process.ids.request_id(), pop.group.encode(), items)))
        verdicts = answer.body if answer.outcome is Outcome.OK else [{}] * len(wanted)
        self.ground.history.calls.append(Ack(
            client=self.number, **answer.times(), group=pop.group, lease_id=pop.lease_id,
            items=tuple(
                AckItem(message, status, verdict.get("success", False), verdict.get("noop", False),
                        verdict.get("redelivers", False))
                for (message, status), verdict in zip(wanted, verdicts, strict=True))))

    def _extend(self, pop: Pop) -> Script:
        """Keep a lease a second longer. No checker reads it: an extension only makes what they know too short."""
        lease_id = bytes.fromhex(pop.lease_id.replace("-", ""))
        yield from self.call(lambda process, slot: self._submit(
            process, slot, commands.extend(process.ids.request_id(), lease_id, 1)))

    # --- ground

    def _submit(
        self, process: Process, slot: CallSlot, command: bytes, *, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> None:
        process.submit(self.ground.tenant, command, slot, lane=lane, places=places, timeout_us=NODE_TIMEOUT_US)

    def call(self, send: Callable[[Process, CallSlot], None]) -> Generator[int | Wish, Answer | None, Answer]:
        """One call, to the node that served the last one; after a refusal the next goes elsewhere."""
        answer = yield Wish(self._node_id, send)
        if answer is None:
            raise AssertionError("a call without an answer")
        self.ground.world.trace(b"%d %b" % (self.number, repr(answer).encode()))
        if answer.outcome is not Outcome.OK:
            self._node_id = self._dice.choice(self.ground.shape.node_ids)
        return answer

    def _next_version(self, key: str) -> str:
        """A transaction id unique in the run: the version of the timer, or the id of a push."""
        self.ground.versions += 1
        return f"{key}-{self.ground.versions}"

    def _new_key(self) -> str:
        self.ground.keys += 1
        key = f"t{self.ground.keys}"
        self.ground.recent.append(key)
        return key

    def _recent_key(self) -> str:
        return self._dice.choice(self.ground.recent) if self.ground.recent else self._new_key()

    def _timer_partition(self, key: str) -> str:
        """A key's timers go to one partition, so that a version names its place."""
        number = int(key[1:]) % self.ground.shape.partitions
        return "Default" if number == 0 else f"timers {number}"
