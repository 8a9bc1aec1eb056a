"""The door of a process: real routes and handlers, in virtual time.

They are coroutines that wait for nothing but the node behind them. What they ask of it comes out here, one question at
a time, and its result goes back in: no trio is needed, and a run of a seed stays one course.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from queen_node.answers import result
from queen_node.broker import Broker, Lane, Unavailable
from queen_node.commands import RulesOfFire
from queen_node.errors import Refused
from queen_node.http.handlers.deadletters import DeadLetterHandlers
from queen_node.http.handlers.kv import KvHandlers
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.http.handlers.kv_gate import KvGate
from queen_node.http.handlers.locks import LockHandlers
from queen_node.http.handlers.pop import PopHandlers
from queen_node.http.handlers.push import PushHandlers
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.timers import TimerHandlers
from queen_node.http.handlers.transaction import TransactionHandlers
from queen_node.http.messages import Request, Response
from queen_node.http.routes import build_router
from queen_node.kv_figures import KvFigures
from queen_node.metrics import Metrics
from queen_node.quotas import Quotas, Rate
from tests.simulation.slots import CallSlot, Result
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.process import Process

PLENTY: Final = Rate(1_000_000, 1_000_000)


class _Question:
    """What a handler asks of the node. ask: puts it to the groups; the result comes to the slot it is given."""

    def __init__(self, ask: Callable[[CallSlot], None]) -> None:
        self.ask = ask

    def __await__(self) -> Generator[_Question, bytes, bytes]:
        return (yield self)


class _Node:
    """The part of `broker.Broker` that these handlers use."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def write(
        self, tenant: bytes, command: bytes, *, timeout_ms: int, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> bytes:
        return await _Question(lambda slot: self._process.propose(
            tenant, command, slot, lane=lane, places=places, timeout_us=timeout_ms * MS))

    async def read(self, tenant: bytes, query: bytes, *, timeout_ms: int) -> bytes:
        return await _Question(lambda slot: self._process.read(tenant, query, slot, timeout_us=timeout_ms * MS))

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]],  # told by `CallSlot.withdraw` here
    ) -> bytes:
        return await _Question(lambda slot: self._process.pop(
            tenant, command, slot, lease_id=lease_id, queue=queue, reader=(group, partition),
            wait_us=None if wait_ms is None else wait_ms * MS))

    def admits(self, _body_bytes: int) -> bool:
        return True  # there is room on every disk

    def takes_growth(self) -> bool:
        return True


class Door:
    """One a process. rules: of fires that are refused, where they are not the contract's; timeout_ms: of each question.
    """

    def __init__(self, process: Process, *, rules: RulesOfFire | None, timeout_ms: int) -> None:
        node = cast(Broker, _Node(process))
        figures = KvFigures(Metrics(0.0), lambda: process.now_s)
        quotas = Quotas(reads=PLENTY, writes=PLENTY, clock_ns=lambda: round(process.now_s * 1e9))
        gate = KvGate(node, quotas, figures, timeout_ms=timeout_ms)
        limits = KvLimits()
        transactions = TransactionHandlers(
            node, process.ids, TimerLimits(), limits, firing=lambda: True, timeout_ms=timeout_ms,
            monotonic_s=lambda: process.now_s, rules=rules)
        timers = TimerHandlers(
            node, process.ids, quotas, TimerLimits(), firing=lambda: True, timeout_ms=timeout_ms, rules=rules)
        self._router = build_router({
            **KvHandlers(gate, process.ids, limits).handlers(),
            **LockHandlers(gate, process.ids).handlers(),
            "push": PushHandlers(
                node, process.ids, timeout_ms=timeout_ms, monotonic_s=lambda: process.now_s).push,
            "pop_queue": PopHandlers(node, process.ids).pop_queue,
            "transaction": transactions.commit,
            "timers_batch": timers.apply,
            "timers_cancel": timers.cancel,
            "timers_peek": timers.peek,
            "dlq_list": DeadLetterHandlers(node, timeout_ms=timeout_ms).list,
        })

    def call(self, tenant: bytes, method: str, target: str, document: object, slot: CallSlot) -> None:
        """A client's call; a document goes out as JSON, None: without a body."""
        path, _, query = target.encode().partition(b"?")
        request = Request(method, path, query, body=b"" if document is None else msgspec.json.encode(document))
        request.tenant = tenant
        handler = cast("Coroutine[_Question, Any, Response]", self._router.find(request).handler(request))
        self._go_on(handler, slot, None)

    def _go_on(self, handler: Coroutine[_Question, Any, Response], slot: CallSlot, answer: Result) -> None:
        """Hand the handler what it asked for; None: it begins. One whose process died is forgotten where it waits."""
        try:
            question = handler.throw(answer) if isinstance(answer, Unavailable) else handler.send(answer)
        except StopIteration as ended:
            response: Response = ended.value
            slot.answer(result(response.status, response.body))
        except Refused as refused:
            # The code of what made it refuse says whether anything may have happened; else it was judged by itself.
            slot.answer(answer if isinstance(answer, Unavailable) else result(refused.refusal.status, refused.body()))
        else:
            asked = CallSlot(slot.number, partial(self._go_on, handler, slot))
            question.ask(asked)
            slot.withdraw, slot.hand_back = asked.withdraw, asked.hand_back
