"""Clients in virtual time: W10 (timers) and W2 (queue) of guarantees.md, noted down as `tests.faults.load` does it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from queen_node import commands, queries
from queen_node.broker import Lane
from queen_node.commands import AckItem as AckCommandItem
from queen_node.commands import AckStatus, PayloadFlag, ScheduleOp, TimerOp
from queen_node.places import place
from queen_node.queries import Query
from tests.checkers.history import Ack, AckItem, Cancel, Outcome, Peek, Pop, Push, Schedule
from tests.simulation.calls import Caller, Ground, Script, Step, Talk
from tests.simulation.process import Process
from tests.simulation.slots import NODE_TIMEOUT_US, CallSlot
from tests.simulation.world import MS
from tests.support.wire import parse_time_us, read_message

TIMER_QUEUE, WORK_QUEUE = "timers", "work"
GROUP: Final = "workers"
PADDING_BYTES: Final = (0, 0, 600, 2000)  # of a payload: a write of several sectors can be torn


class Client(Caller):
    """One client. It does W10 and W2."""

    def __init__(self, ground: Ground, number: int, dice: Random) -> None:
        super().__init__(ground, number, dice)
        self._steps: Sequence[tuple[int, Step]] = (
            (6, self._schedule_new), (2, self.schedule_several), (2, self._schedule_again), (2, self._cancel),
            (3, self._peek), (1, self._push_txn_of_timer), (6, lambda: self.consume(TIMER_QUEUE)), (3, self._push),
            (4, lambda: self.consume(WORK_QUEUE)),
        )

    def run(self) -> Script:
        """Go on until the run's clients stop."""
        return self.go_on(self._steps)

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
            txn = self.ground.next_version(key)
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
            self.submit(process, slot, command, places=places)

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
            self.submit(process, slot, command)

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
        items = [(WORK_QUEUE, f"p{dice.randrange(self.ground.shape.partitions)}", self.ground.next_version("push"))
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
            self.submit(process, slot, command, lane=Lane.PUSHES, places=places)

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
    ) -> Talk[Pop]:
        """One pop, written down."""
        answer = yield from self.call(lambda process, slot: process.submit_pop(
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
        answer = yield from self.call(lambda process, slot: self.submit(
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
        yield from self.call(lambda process, slot: self.submit(
            process, slot, commands.extend(process.ids.request_id(), lease_id, 1)))

    # --- names

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
