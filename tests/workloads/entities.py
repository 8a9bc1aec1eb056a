"""A state machine with deadlines (W13 of guarantees.md): one transaction acks what happened to an entity, moves its
state, and schedules or cancels its timer, which is what happens to it next.

    free -- hold, with a deadline --> held -- confirm, which cancels it --> done
    held -- the deadline, or release --> free;   done -- release --> free;   held -- extend, which moves it --> held

What finds the entity in another state is ignored: it is acked in a move that changes nothing.
"""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.checkers.history import Ack, AckItem, Cancel, Message, Move, Outcome, Pop, Push, Schedule
from tests.support.wire import parse_time_us, read_message
from tests.workloads.leases import LEASES_S
from tests.workloads.road import Road, Told, push_one

EVENTS, DEADLINES = "entity-events", "entity-deadlines"
ENTITY_QUEUES = EVENTS, DEADLINES
GROUP = NAMESPACE = "entities"
ENTITIES = 3
HAPPENINGS = ("hold", "hold", "hold", "extend", "confirm", "confirm", "release")
DUE = "due"
DELAYS_MS = (50, 1000)
WAIT_MS = 50
DAWDLES, DAWDLE_S_MAX = 0.1, 2.0  # of the workers with something to do: another may move the entity meanwhile
REPEATS_MAX = 2  # of a move of which nobody knows


class Row(NamedTuple):
    """An entity's row. move: the attempt that wrote it; hold: the deadline that counts, by its transaction id."""

    state: str = "free"
    move: str = ""
    hold: str = ""
    version: int = 0


class Wish(NamedTuple):
    """What a move does. timer: schedule, cancel, or nothing."""

    state: str
    timer: str = ""


def wish(row: Row, happening: str, txn: str) -> Wish:
    """What comes of what happened; txn: of its message."""
    match row.state, happening:
        case ("free", "hold") | ("held", "extend"):
            return Wish("held", "schedule")
        case "held", "confirm":
            return Wish("done", "cancel")
        case "held", "release":
            return Wish("free", "cancel")
        case "done", "release":
            return Wish("free")
        case "held", "due" if row.hold == txn:
            return Wish("free")
    return Wish(row.state)


class EntityClient:
    """One worker, to which things happen too: dice of its own, one call at a time."""

    def __init__(self, road: Road, number: int, dice: Random) -> None:
        self._road, self._number, self._dice = road, number, dice

    async def step(self) -> None:
        """Something happens, or a worker looks for what happened."""
        kind = self._dice.choices(("happen", EVENTS, DEADLINES), (4, 4, 3))[0]
        if kind == "happen":
            await self.happen()
        else:
            await self.work(kind, lease_s=self._dice.choice(LEASES_S))

    async def happen(self) -> None:
        """Push an event."""
        entity, txn = self._entity(self._dice.randrange(ENTITIES)), self._road.next_version("event")
        payload = {"entity": entity, "happening": self._dice.choice(HAPPENINGS)}
        await push_one(
            self._road, Push, self._number, queue=EVENTS, partition=entity, txn=txn, payload=payload)

    async def work(self, queue: str, *, lease_s: int, dawdles: float = DAWDLES) -> bool | None:
        """Pop what happened and move its entity. False: there was nothing; None: nobody knows."""
        query = urlencode({
            "consumerGroup": GROUP, "subscriptionMode": "all", "batch": 1, "leaseSeconds": lease_s, "wait": "true",
            "timeout": WAIT_MS})
        told = await self._road.call("GET", f"/api/v1/pop/queue/{queue}?{query}")
        body = told.body or {}
        messages = tuple(read_message(raw) for raw in body.get("messages", ()))
        pop = Pop(
            client=self._number, **told.times(), queue=queue, group=GROUP, lease_ms=1000 * lease_s,
            lease_id=body.get("leaseId", ""), messages=messages)
        self._road.note(pop)
        if told.outcome is not Outcome.OK:
            return None
        for message in messages:
            row = await self.read(_field(message, "entity"))
            if self._dice.random() < dawdles:
                await self._road.pause(self._dice.uniform(0, DAWDLE_S_MAX))
            if row is not None:
                await self._move(message, pop.lease_id, row)
        return bool(messages)

    async def read(self, entity: str) -> Row | None:
        """An entity's row; None when it was not shown."""
        told = await self._road.call("POST", "/api/v1/kv", {"operations": [
            {"op": "get", "ns": NAMESPACE, "key": entity}]})
        if told.outcome is not Outcome.OK:
            return None
        result = told.body["results"][0]
        if not result["found"]:
            return Row()
        state, move, hold = result["value"]
        return Row(state, move, hold, result["version"])

    async def read_all(self) -> dict[str, Row] | None:
        """Every entity's row; None when one was not shown."""
        rows = {}
        for number in range(ENTITIES):
            row = await self.read(self._entity(number))
            if row is None:
                return None
            rows[self._entity(number)] = row
        return rows

    async def _move(self, message: Message, lease_id: str, row: Row) -> None:
        """One that nobody knows of is sent again as it was: its lease and the row's version let it happen once."""
        entity, attempt = _field(message, "entity"), self._road.next_version("move")
        wanted = wish(row, _field(message, "happening"), message.txn)
        hold = {"schedule": attempt, "cancel": "", "": row.hold if wanted.state == "held" else ""}[wanted.timer]
        delay_ms = self._dice.randint(*DELAYS_MS)
        deadline = {"entity": entity, "happening": DUE}
        timer: dict[str, Any] = {"op": wanted.timer, "queue": DEADLINES, "timerKey": entity}
        if wanted.timer == "schedule":
            timer |= {
                "txn": attempt, "partition": entity, "delayMs": delay_ms,
                "payload": base64.b64encode(json.dumps(deadline).encode()).decode()}
        told = await self._send({
            "operations": [{
                "type": "ack", "transactionId": message.txn, "partitionId": message.partition_id,
                "consumerGroup": GROUP, "leaseId": lease_id, "status": "completed"}],
            "kv": [{
                "op": "put", "ns": NAMESPACE, "key": entity, "value": [wanted.state, attempt, hold], "forever": True,
                "expect": row.version, "required": True}],
            "timers": [timer] if wanted.timer else [],
        })
        results = told.body["results"] if told.outcome is Outcome.OK else [{}]
        times, answered = {"client": self._number, **told.times()}, results[-1] if wanted.timer else {}
        status, acked = answered.get("status", ""), results[0]
        self._road.note(Ack(**times, group=GROUP, lease_id=lease_id, items=(AckItem(
            message, "completed", acked.get("success", False), acked.get("noop", False)),)))
        if wanted.timer == "schedule":
            self._road.note(Schedule(
                **times, queue=DEADLINES, key=entity, txn=attempt, partition=entity, delay_ms=delay_ms,
                payload=deadline, status=status, message_id=answered.get("messageId", ""),
                deliver_at_us=parse_time_us(answered["deliverAt"]) if answered else 0))
        elif wanted.timer:
            removed = answered.get("txn") or "" if status == "cancelled" else ""
            self._road.note(Cancel(**times, queue=DEADLINES, key=entity, status=status, removed_txn=removed))
        self._road.note(Move(
            **times, entity=entity, attempt=attempt, before=row.move, source=message.queue, input_txn=message.txn,
            state=wanted.state, timer=wanted.timer, status=status))
        self._mark(row, wanted, message, status)

    async def _send(self, document: dict[str, Any]) -> Told:
        """What is known after the last of the calls, of all of them."""
        told = first = await self._road.call("POST", "/api/v1/transaction", document)
        for _ in range(REPEATS_MAX):
            if told.outcome is not Outcome.INFO:
                break
            told = await self._road.call("POST", "/api/v1/transaction", document)
        # A repeat may be refused because of what the call before it did.
        outcome = told.outcome if told.outcome is Outcome.OK else first.outcome
        return told._replace(start_ns=first.start_ns, outcome=outcome)

    def _mark(self, row: Row, wanted: Wish, message: Message, status: str) -> None:
        if status == "absent":
            self._road.reached("a deadline came before the move that would cancel it")
        elif status == "cancelled":
            self._road.reached("a move cancelled its deadline")
        elif status == "rescheduled":
            self._road.reached("a move put its deadline off")
        elif message.queue == DEADLINES and wanted.state == row.state:
            self._road.reached("a deadline that counts no longer was ignored")

    def _entity(self, number: int) -> str:
        return f"{self._road.prefix}entity-{number}"


def _field(message: Message, name: str) -> str:
    assert isinstance(message.payload, dict), message
    return str(message.payload[name])
