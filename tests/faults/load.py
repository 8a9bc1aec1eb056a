"""Clients that put a node under load and write down what they saw: W10 (timers) and W2 (queue) of guarantees.md.

The rules for test clients are those of guarantees.md 2: an operation is one HTTP call, nothing is repeated inside
it, and what nobody knows is labelled so.
"""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlencode

import trio

from tests.checkers.history import (
    Ack,
    AckItem,
    Call,
    Cancel,
    Doomed,
    Guarded,
    History,
    Holders,
    Kv,
    Outcome,
    Peek,
    Permit,
    Pop,
    Push,
    Schedule,
)
from tests.support.http_client import Answer, HttpClient, NotSent, Unanswered, segment
from tests.support.wire import parse_time_us, read_message
from tests.workloads.road import rolled_back

TIMER_QUEUE, WORK_QUEUE = "faults-timers", "faults-work"
GROUP = "workers"
RECENT_KEYS = 20  # W10: reschedules and cancels choose among the last 20 keys
KNOCK_S = 0.05  # pause after a refused connection: the node is down, and knocking harder does not start it sooner


def now_ns() -> int:
    """The observer's clock: goes on while the machine sleeps, and no jump of the wall clock moves it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns()


def label(answer: Answer) -> tuple[Outcome, str]:
    """What an answer says about the call (guarantees.md 2), and why when it is not OK."""
    why = f"{answer.status} {answer.body[:120].decode(errors='replace')}"
    if answer.status < 300:
        return (Outcome.FAIL, why) if rolled_back(_json_object(answer)) else (Outcome.OK, "")
    if answer.status < 500 or answer.status == 507:
        return Outcome.FAIL, why
    words = {str(value) for value in _json_object(answer).values()}
    surely_not = "no_leader" in words or any(word.endswith("_disabled") for word in words)
    return (Outcome.FAIL if answer.status == 503 and surely_not else Outcome.INFO), why


@dataclass(frozen=True, slots=True)
class Shape:
    """What the load looks like."""

    clients: int = 6
    delay_ms_max: int = 1500
    lease_s_max: int = 2
    poll_ms: int = 200
    partitions: int = 8
    timer_partitions: int = 3


@dataclass(slots=True)
class World:
    """What the clients of one run share. `prefix` keeps keys and ids of several runs on one folder, and of several
    tenants, apart. ports: of the nodes; each client is bound to one.
    """

    ports: Sequence[int]
    shape: Shape = field(default_factory=Shape)
    prefix: str = ""
    tenant: str = ""  # empty: the header is not sent
    history: History = field(default_factory=History)
    stopping: bool = False
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_KEYS))
    versions: int = 0
    keys: int = 0
    recent_timers: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=RECENT_KEYS))
    answered: int = 0
    _awaited_count: int = 0
    _awaited: trio.Event | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """That go with each call."""
        return {"x-queen-tenant": self.tenant} if self.tenant else {}

    def note(self, call: Call) -> None:
        """Write down a call that has ended. Those of keys, locks and failing timers are not awaited: they never wait.
        """
        self.history.calls.append(call)
        self.answered += call.outcome is Outcome.OK and not isinstance(call, Kv | Permit | Guarded | Holders | Doomed)
        if self._awaited is not None and self.answered >= self._awaited_count:
            self._awaited.set()

    async def wait_for_calls(self, count: int) -> None:
        """Until so many more calls were answered: a moment told by work, not by a clock. One waiter at a time."""
        self._awaited, self._awaited_count = trio.Event(), self.answered + count
        await self._awaited.wait()

    def next_version(self, key: str) -> str:
        """A transaction id unique in the run: the version of the timer, or the id of a push."""
        self.versions += 1
        return f"{self.prefix}{key}-{self.versions}"

    def new_key(self) -> str:
        """A key never used before."""
        self.keys += 1
        key = f"{self.prefix}t{self.keys}"
        self.recent.append(key)
        return key

    def timer_partition(self, key: str) -> str:
        """A key's timers go to one partition, so that a version names its place."""
        number = int(key.rsplit("t", 1)[1]) % self.shape.timer_partitions
        return "Default" if number == 0 else f"timers {number}"


class Client:
    """One client: a connection, dice of its own, one call at a time."""

    def __init__(self, world: World, number: int, dice: Random) -> None:
        self.world, self.number, self._dice = world, number, dice
        self._http = HttpClient(world.ports[number % len(world.ports)])
        self._steps: Sequence[tuple[int, Callable[[], Awaitable[None]]]] = (
            (6, self.schedule_new),
            (2, self.schedule_several),
            (2, self.schedule_again),
            (2, self.cancel),
            (1, self.peek),
            (1, self.push_txn_of_timer),
            (7, lambda: self.consume(TIMER_QUEUE)),
            (6, self.push),
            (6, lambda: self.consume(WORK_QUEUE)),
        )

    async def run(self) -> None:
        """Go on until the world stops."""
        steps = [step for _, step in self._steps]
        weights = [weight for weight, _ in self._steps]
        async with self._http:
            while not self.world.stopping:
                await self._dice.choices(steps, weights)[0]()

    # ---- timers

    async def schedule_new(self) -> None:
        """A key never used before."""
        await self._schedule([self.world.new_key()])

    async def schedule_several(self) -> None:
        """Several keys in one call: all or nothing (TM-15)."""
        await self._schedule([self.world.new_key() for _ in range(self._dice.randint(2, 6))])

    async def schedule_again(self) -> None:
        """One of the last keys, pending or not."""
        await self._schedule([self._recent_key()])

    async def cancel(self) -> None:
        """Cancel one of the last keys."""
        key = self._recent_key()
        start_ns, answer, outcome, why = await self._call("DELETE", f"/api/v1/timers/{TIMER_QUEUE}/{segment(key)}")
        body = answer.json() if outcome is Outcome.OK and answer else {}
        removed = body.get("txn") or "" if body.get("status") == "cancelled" else ""
        self.world.note(Cancel(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, queue=TIMER_QUEUE,
            key=key, status=body.get("status", ""), removed_txn=removed,
        ))

    async def peek(self) -> None:
        """Look at one of the last keys."""
        key = self._recent_key()
        start_ns, answer, outcome, why = await self._call("GET", f"/api/v1/timers/{TIMER_QUEUE}/{segment(key)}")
        body = answer.json() if outcome is Outcome.OK and answer else {}
        self.world.note(Peek(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, queue=TIMER_QUEUE,
            key=key, found=bool(body.get("found")), txn=body.get("txn") or "",
        ))

    async def _schedule(self, keys: Sequence[str]) -> None:
        world, dice = self.world, self._dice
        wanted = []
        for key in keys:
            due_now = dice.random() < 0.2
            delay_ms = dice.choice((0, -5)) if due_now else dice.randint(1, world.shape.delay_ms_max)
            txn = world.next_version(key)
            wanted.append((key, txn, delay_ms, {"key": key, "version": txn}))
            world.recent_timers.append((txn, world.timer_partition(key)))
        body = {"operations": [
            {
                "op": dice.choice(("schedule", "reschedule")), "queue": TIMER_QUEUE, "timerKey": key, "txn": txn,
                "delayMs": delay_ms, "payload": base64.b64encode(json.dumps(payload).encode()).decode(),
                "partition": world.timer_partition(key),
            }
            for key, txn, delay_ms, payload in wanted
        ]}
        start_ns, answer, outcome, why = await self._call("POST", "/api/v1/timers", body)
        results = answer.json()["results"] if outcome is Outcome.OK and answer else [{}] * len(wanted)
        end_ns = now_ns()
        for (key, txn, delay_ms, payload), result in zip(wanted, results, strict=True):
            self.world.note(Schedule(
                client=self.number, start_ns=start_ns, end_ns=end_ns, outcome=outcome, why=why, queue=TIMER_QUEUE,
                key=key, txn=txn, partition=world.timer_partition(key), delay_ms=delay_ms, payload=payload,
                status=result.get("status", ""), message_id=result.get("messageId", ""),
                deliver_at_us=parse_time_us(result["deliverAt"]) if result else 0,
            ))

    # ---- messages

    async def push(self) -> None:
        """A few messages into the work queue."""
        items = []
        for _ in range(self._dice.randint(1, 5)):
            txn = self.world.next_version("push")
            partition = f"p{self._dice.randrange(self.world.shape.partitions)}"
            items.append((WORK_QUEUE, partition, txn, {"pushed": txn}))
        await self._push(items)

    async def push_txn_of_timer(self) -> None:
        """A message with the id of a recent timer, into its partition: one of the two must give way (G-M7)."""
        if self.world.recent_timers:
            txn, partition = self._dice.choice(self.world.recent_timers)
            await self._push([(TIMER_QUEUE, partition, txn, {"instead": txn})])

    async def consume(self, queue: str) -> None:
        """Pop some and ack them in one call under their lease."""
        world, dice = self.world, self._dice
        lease_s = dice.randint(1, world.shape.lease_s_max)
        wait = dice.choice(({}, {}, {"wait": "true", "timeout": str(world.shape.poll_ms)}))
        pop = await self.pop(
            queue, lease_s=lease_s, batch=dice.randint(1, 5), partitions=dice.randint(1, 3), options=wait)
        if pop.messages and dice.random() < 0.97:  # else: left to expire
            last = "failed" if dice.random() < 0.03 else "completed"
            await self.ack(pop, last)

    async def pop(
        self, queue: str, *, lease_s: int, batch: int, partitions: int, options: Mapping[str, str],
        group: str = GROUP,
    ) -> Pop:
        """One pop, written down."""
        query = urlencode({
            "consumerGroup": group, "subscriptionMode": "all", "batch": batch, "partitions": partitions,
            "leaseSeconds": lease_s, **options,
        })
        start_ns, answer, outcome, why = await self._call("GET", f"/api/v1/pop/queue/{queue}?{query}")
        body = answer.json() if answer is not None and answer.status == 200 else {}
        pop = Pop(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, queue=queue,
            group=group, lease_ms=lease_s * 1000, lease_id=body.get("leaseId", ""),
            messages=tuple(read_message(raw) for raw in body.get("messages", ())),
        )
        self.world.note(pop)
        return pop

    async def ack(self, pop: Pop, last: str = "completed") -> None:
        """Ack all of a pop in one call, its last message with the status `last`."""
        wanted = [(message, "completed") for message in pop.messages[:-1]] + [(pop.messages[-1], last)]
        body = {
            "consumerGroup": pop.group,
            "acknowledgments": [
                {
                    "transactionId": message.txn, "partitionId": message.partition_id, "status": status,
                    "leaseId": pop.lease_id,
                }
                for message, status in wanted
            ],
        }
        start_ns, answer, outcome, why = await self._call("POST", "/api/v1/ack/batch", body)
        verdicts = answer.json() if outcome is Outcome.OK and answer else [{}] * len(wanted)
        items = tuple(
            AckItem(
                message, status, verdict.get("success", False), verdict.get("noop", False),
                verdict.get("redelivers", False),
            )
            for (message, status), verdict in zip(wanted, verdicts, strict=True)
        )
        self.world.note(Ack(
            client=self.number, start_ns=start_ns, end_ns=now_ns(), outcome=outcome, why=why, group=pop.group,
            lease_id=pop.lease_id, items=items,
        ))

    async def _push(self, items: Sequence[tuple[str, str, str, object]]) -> None:
        body = {"items": [
            {"queue": queue, "partition": partition, "transactionId": txn, "payload": payload}
            for queue, partition, txn, payload in items
        ]}
        start_ns, answer, outcome, why = await self._call("POST", "/api/v1/push", body)
        results = answer.json() if outcome is Outcome.OK and answer else [{}] * len(items)
        end_ns = now_ns()
        for (queue, partition, txn, payload), result in zip(items, results, strict=True):
            self.world.note(Push(
                client=self.number, start_ns=start_ns, end_ns=end_ns, outcome=outcome, why=why, queue=queue,
                partition=partition, txn=txn, payload=payload, status=result.get("status", ""),
                message_id=result.get("message_id", ""), offset=result.get("offset", -1),
            ))

    # ---- ground

    async def _call(
        self, method: str, target: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Answer | None, Outcome, str]:
        return await told(self._http, self.world, method, target, body)

    def _recent_key(self) -> str:
        return self._dice.choice(self.world.recent) if self.world.recent else self.world.new_key()


async def told(
    http: HttpClient, world: World, method: str, target: str, body: Mapping[str, Any] | None = None,
) -> tuple[int, Answer | None, Outcome, str]:
    """One call: when it left, its answer if there is one, what is known of it, and why."""
    start_ns = now_ns()
    try:
        answer = await http.request(method, target, body, headers=world.headers)
    except NotSent as error:
        await trio.sleep(KNOCK_S)
        return start_ns, None, Outcome.FAIL, str(error)
    except Unanswered as error:
        return start_ns, None, Outcome.INFO, str(error)
    return start_ns, answer, *label(answer)


def _json_object(answer: Answer) -> Mapping[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
