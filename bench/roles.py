"""What the clients of a load do: send without a pause, send at a fixed rate, consume. The engine is bench/loop.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from bench import calls
from bench.http import Answer
from bench.loop import ACCEPTED, Connection, Loop

type_of_moments = "q"  # array code of 64-bit moments and durations in ns


class Sender:
    """Sends the next request as soon as the answer to the last is there, until its requests end."""

    def __init__(self, requests: Iterator[bytes], on_answer: Callable[[bytes], None] | None = None) -> None:
        """on_answer: is shown the body of each accepted answer."""
        self._requests = requests
        self._on_answer = on_answer
        self.accepted = 0
        self.waiting = 0
        self.took_ns = array(type_of_moments)

    @property
    def is_done(self) -> bool:
        """True once the requests have ended and every answer is there."""
        return self.waiting == 0

    def begin(self, connection: Connection) -> bytes | None:
        return self._next()

    def answered(self, connection: Connection, answer: Answer, now_ns: int) -> bytes | None:
        self.waiting -= 1
        if answer.status in ACCEPTED:
            self.accepted += 1
            self.took_ns.append(now_ns - connection.sent_ns)
            if self._on_answer is not None:
                self._on_answer(answer.body)
        return self._next()

    def _next(self) -> bytes | None:
        request = next(self._requests, None)
        if request is not None:
            self.waiting += 1
        return request


class Pacer:
    """Sends at a fixed rate, whatever the answers do. A call counts from the moment at which it was due.

    So an answer that is late makes those behind it late too, as it would for real clients.
    """

    def __init__(self, loop: Loop, requests: Iterator[bytes], *, per_second: float, count: int, start_ns: int) -> None:
        self._loop = loop
        self._requests = requests
        self._every_ns = 1e9 / per_second
        self._count = count
        self._start_ns = start_ns
        self._idle: list[Connection] = []
        self.due_ns = array(type_of_moments)  # by number of the call
        self.took_ns = array(type_of_moments)  # of the accepted ones, in the order of their answers
        self.accepted = 0
        loop.on_time(self.wake)

    def begin(self, connection: Connection) -> bytes | None:
        self._idle.append(connection)
        return None

    def answered(self, connection: Connection, answer: Answer, now_ns: int) -> bytes | None:
        if answer.status in ACCEPTED:
            self.accepted += 1
            self.took_ns.append(now_ns - connection.sent_ns)
        self._idle.append(connection)
        return None

    def wake(self, now_ns: int) -> int | None:
        while (number := len(self.due_ns)) < self._count:
            due_ns = self._start_ns + int(number * self._every_ns)
            if due_ns > now_ns:
                return due_ns
            if not self._idle:
                return now_ns + 1_000_000
            self.due_ns.append(due_ns)
            self._loop.send(self._idle.pop(), next(self._requests), due_ns)
        return None


class Consumer:
    """Pops, acks what came (when there is a lease), pops again; one cycle a connection."""

    def __init__(
        self,
        loop: Loop,
        pop_for: Callable[[int], bytes],
        on_messages: Callable[[list[calls.Message], int], None],
        *,
        keep: bool = True,
        pops_empty: bool = True,
        on_acked: Callable[[int, int], None] | None = None,
    ) -> None:
        """pop_for: the pop of a lane. on_messages: is shown what came, and when (monotonic ns). keep: as the pops say.

        pops_empty: go on after an empty answer; else that lane ends. on_acked: lane and number of messages acked.
        """
        self._loop = loop
        self._pop_for = pop_for
        self._on_messages = on_messages
        self._on_acked = on_acked
        self._keep = keep
        self._pops_empty = pops_empty
        self._in_hand: dict[Connection, int] = {}  # messages of the ack under way
        self.pops = 0
        self.popped = 0
        self.acked = 0
        self.lanes_ended = 0

    def begin(self, connection: Connection) -> bytes | None:
        self._in_hand.pop(connection, None)
        return self._pop_for(connection.lane)

    def answered(self, connection: Connection, answer: Answer, now_ns: int) -> bytes | None:
        acking = self._in_hand.pop(connection, 0)
        if acking:
            self._check_ack(connection, answer, acking)
            return self._pop_for(connection.lane)
        if answer.status != 200:
            if answer.status == 204 and not self._pops_empty:
                self.lanes_ended += 1
                return None
            return self._pop_for(connection.lane)
        messages = calls.decode_delivery(answer.body).messages
        self.pops += 1
        self.popped += len(messages)
        self._on_messages(messages, now_ns)
        if not self._keep:
            return self._pop_for(connection.lane)
        self._in_hand[connection] = len(messages)
        return calls.ack_call(messages)

    def _check_ack(self, connection: Connection, answer: Answer, acking: int) -> None:
        if answer.status != 200:
            return  # counted by the loop
        verdicts = calls.decode_ack(answer.body)
        done = sum(verdict.success for verdict in verdicts)
        self.acked += done
        for verdict in verdicts:
            if not verdict.success:
                self._loop.count_refused("ack without success", verdict.error or "")
        if len(verdicts) != acking:
            self._loop.count_refused("ack with missing verdicts", f"{len(verdicts)} for {acking}")
        if self._on_acked is not None:
            self._on_acked(connection.lane, done)


class Steps:
    """Pops a batch and takes its messages in transactions, one after the other; then pops again.

    Each connection has a partition to itself: there are as many consumer groups as that takes.
    """

    def __init__(self, loop: Loop, queue: str, *, items: int, batch: int) -> None:
        self._loop, self._queue, self._items, self._batch = loop, queue, items, batch
        self._left: dict[Connection, list[calls.Message]] = {}
        self._under_way: dict[Connection, int] = {}  # messages of the transaction that the connection waits for
        self.done = 0  # messages
        self.lanes_ended = 0
        self.took_ns = array(type_of_moments)

    def begin(self, connection: Connection) -> bytes | None:
        self._left.pop(connection, None)
        self._under_way.pop(connection, None)
        return self._pop(connection)

    def answered(self, connection: Connection, answer: Answer, now_ns: int) -> bytes | None:
        taken = self._under_way.pop(connection, 0)
        if not taken:
            if answer.status == 204:
                self.lanes_ended += 1
                return None
            self._left[connection] = calls.decode_delivery(answer.body).messages
        elif answer.status == 200:
            step = calls.decode_step(answer.body)
            if step.success:
                self.done += taken
                self.took_ns.append(now_ns - connection.sent_ns)
            else:
                self._loop.count_refused("transaction without success", step.reason)
        return self._next(connection)

    def _next(self, connection: Connection) -> bytes:
        messages = self._left.get(connection)
        if not messages:
            return self._pop(connection)
        self._left[connection] = messages[self._items :]
        self._under_way[connection] = len(messages[: self._items])
        return calls.step_call(self._queue, self._group(connection), messages[: self._items])

    def _pop(self, connection: Connection) -> bytes:
        partition = calls.lane_name(connection.lane)
        return calls.pop_call(self._queue, batch=self._batch, partition=partition, group=self._group(connection))

    def _group(self, connection: Connection) -> str:
        return f"g{connection.lane // calls.LANES}"


class Lanes:
    """Producers that keep a few batches ahead of their lane's consumer: end to end without a backlog that grows."""

    def __init__(self, loop: Loop, queue: str, *, batch: int, batches_ahead: int) -> None:
        self._loop = loop
        self._queue = queue
        self._batch = batch
        self._ahead_max = batch * batches_ahead
        self._ahead: dict[int, int] = {}
        self._idle: dict[int, Connection] = {}
        self._number = 0
        self.pushed = 0

    def begin(self, connection: Connection) -> bytes | None:
        self._ahead.setdefault(connection.lane, 0)
        return self._push_or_rest(connection)

    def answered(self, connection: Connection, answer: Answer, now_ns: int) -> bytes | None:
        if answer.status in ACCEPTED:
            self.pushed += self._batch
            self._ahead[connection.lane] += self._batch
        return self._push_or_rest(connection)

    def acked(self, lane: int, count: int) -> None:
        """The consumer of a lane is done with `count` messages more: its producer may go on."""
        self._ahead[lane] -= count
        connection = self._idle.pop(lane, None)
        if connection is None:
            return
        request = self._push_or_rest(connection)
        if request is not None:
            self._loop.send(connection, request)

    def _push_or_rest(self, connection: Connection) -> bytes | None:
        lane = connection.lane
        if self._ahead[lane] >= self._ahead_max:
            self._idle[lane] = connection
            return None
        numbers = range(self._number, self._number + self._batch)
        self._number += self._batch
        return calls.push_call(self._queue, calls.lane_name(lane), numbers)
