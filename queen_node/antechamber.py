"""Calls of tenants that have no group on this node yet.

A write has the group made: group 0 is told, and when its entry applies here the calls go on to the new group, in their
order (M-70). Reads and pops make nothing: group 0's leader confirms that there is no such tenant, and they are answered
as from an empty state (README 27); a pop that may wait does, in case the tenant appears, and is confirmed at its
deadline.

Plain code: what goes to group 0 waits in `outgoing`; nothing awaits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from queen_node import commands, queries
from queen_node.answers import NOTHING
from queen_node.broker import Lane, Unavailable
from queen_node.calls import POP_PATIENCE_S, Pending, PendingRead
from queen_node.events import Event, HandBack, LetPopsGo, Pop, Withdraw
from queen_node.slots import ResultSlot
from queen_node.state.store import NOTHING_STORED, CommittedStore
from queen_node.state.tenants import LIMIT_REACHED

CREATE_WITHIN_S = 30.0
TENANT_LIMIT = "tenant_limit"

Waiting = tuple[Lane, Pending] | PendingRead | Pop


class _Place(NamedTuple):
    """Where a call waits."""

    tenant: bytes
    number: int


class _Asked:
    """The slot of what group 0 was asked about one call. Implements `slots.ResultSlot`."""

    __slots__ = ("_tell", "answered")

    def __init__(self, tell: Callable[[bytes | Unavailable], None]) -> None:
        self._tell = tell
        self.answered = False

    def answer(self, result: bytes | Unavailable) -> None:
        """The first answer counts."""
        if not self.answered:
            self.answered = True
            self._tell(result)


class Antechamber:
    """The calls that wait, by tenant. at_most_tenants: that the cell takes; bound: calls that may wait here."""

    def __init__(self, *, at_most_tenants: int, bound: int, mint: Callable[[], bytes]) -> None:
        """mint: a new request id."""
        self.outgoing: list[Event] = []  # for group 0; taken by the host
        self._at_most_tenants, self._bound, self._mint = at_most_tenants, bound, mint
        self._waiting: dict[bytes, dict[int, Waiting]] = {}
        self._creating: set[bytes] = set()
        self._asked: set[int] = set()  # numbers of those about whom group 0 was asked: its word will come
        self._count = 0
        self._last_number = 0

    def __len__(self) -> int:
        return self._count

    @property
    def polls(self) -> int:
        """Pops among the calls that wait."""
        return sum(isinstance(event, Pop) for waiting in self._waiting.values() for event in waiting.values())

    @property
    def full(self) -> bool:
        """Whether a sender of new work must hold back."""
        return self._count >= self._bound

    def put(self, tenant: bytes, event: Event, now_s: float) -> None:
        """A call of a tenant that has no group here."""
        match event:
            case (_, Pending()):
                self._add(tenant, event)
                if tenant not in self._creating:
                    self._create(tenant, now_s)
            case PendingRead():
                self._confirm(self._add(tenant, event), event.give_up_at_s)
            case Pop(pop):
                place = self._add(tenant, event)
                if not pop.waits:
                    self._confirm(place, pop.answer_by_s)
            case Withdraw(pop):
                for number, waiting in list(self._waiting.get(tenant, {}).items()):
                    if isinstance(waiting, Pop) and waiting.pop is pop:
                        self._remove(_Place(tenant, number))
                pop.gone = True
                pop.slot.answer(NOTHING)
            case LetPopsGo():
                self.let_pops_go()
            case HandBack():
                pass  # of a lease that only the tenant's group could have given

    def take(self, tenant: bytes) -> list[Waiting]:
        """The tenant has a group here now: all that waited for it, in order."""
        self._creating.discard(tenant)
        waiting = self._waiting.pop(tenant, {})
        self._count -= len(waiting)
        self._asked.difference_update(waiting)
        return list(waiting.values())

    def take_outgoing(self) -> list[Event]:
        """What group 0 is to be asked."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def let_pops_go(self) -> None:
        """The node stops: pops that wait are answered empty (CL-131)."""
        for tenant, waiting in list(self._waiting.items()):
            for number, event in list(waiting.items()):
                if isinstance(event, Pop):
                    self._remove(_Place(tenant, number))
                    event.pop.slot.answer(NOTHING)

    def give_up(self, now_s: float) -> None:
        """Refuse writes whose deadline has passed: nothing was done for them. Of a pop that may still be answered empty
        group 0's leader is asked now: nobody else could say that there is nothing (PA-7)."""
        for tenant, waiting in list(self._waiting.items()):
            for number, event in list(waiting.items()):
                if _give_up_at_s(event) > now_s:
                    continue
                if not isinstance(event, Pop):
                    self._remove(_Place(tenant, number))
                    _slot_of(event).answer(Unavailable("no_leader"))
                elif number not in self._asked:
                    self._confirm(_Place(tenant, number), event.pop.answer_by_s + POP_PATIENCE_S)

    def stop(self) -> None:
        """The node does nothing more: answer everyone."""
        for tenant in list(self._waiting):
            for event in self.take(tenant):
                _slot_of(event).answer(Unavailable("retry"))

    # --- group 0's word

    def _create(self, tenant: bytes, now_s: float) -> None:
        self._creating.add(tenant)
        command = commands.create_tenant(self._mint(), tenant, at_most=self._at_most_tenants)
        slot = _Asked(lambda result: self._created(tenant, result))
        self.outgoing.append((Lane.DRAINING, Pending(command, slot, give_up_at_s=now_s + CREATE_WITHIN_S)))

    def _created(self, tenant: bytes, result: bytes | Unavailable) -> None:
        """Where the tenant got its group, its calls have gone on or are about to; else its writes are refused."""
        self._creating.discard(tenant)
        if isinstance(result, Unavailable):
            # Nothing of theirs was proposed, whatever became of the tenant.
            refusal = Unavailable("no_leader" if result.code == "timeout" else result.code)
        elif msgspec.msgpack.decode(result) == LIMIT_REACHED:
            refusal = Unavailable(TENANT_LIMIT)
        else:
            return
        for number, event in list(self._waiting.get(tenant, {}).items()):
            if isinstance(event, tuple):
                self._remove(_Place(tenant, number))
                event[1].slot.answer(refusal)

    def _confirm(self, place: _Place, give_up_at_s: float) -> None:
        self._asked.add(place.number)
        slot = _Asked(lambda result: self._confirmed(place, result))
        self.outgoing.append(PendingRead(queries.query(queries.Query.NOTHING), slot, give_up_at_s=give_up_at_s))

    def _confirmed(self, place: _Place, result: bytes | Unavailable) -> None:
        """Group 0's state is as new as the call, and knows no such tenant, else the call would not be here."""
        event = self._waiting.get(place.tenant, {}).get(place.number)
        if event is None:
            return
        self._remove(place)
        if isinstance(result, Unavailable):
            _slot_of(event).answer(result)
        elif isinstance(event, PendingRead):
            event.slot.answer(read_nothing(event.query))
        else:
            _slot_of(event).answer(NOTHING)

    # --- who waits

    def _add(self, tenant: bytes, event: Waiting) -> _Place:
        self._last_number += 1
        self._count += 1
        self._waiting.setdefault(tenant, {})[self._last_number] = event
        return _Place(tenant, self._last_number)

    def _remove(self, place: _Place) -> None:
        waiting = self._waiting[place.tenant]
        del waiting[place.number]
        self._asked.discard(place.number)
        self._count -= 1
        if not waiting:
            del self._waiting[place.tenant]


def read_nothing(query: bytes) -> bytes:
    """The result of a read of a tenant that has nothing."""
    reader = queries.reader(CommittedStore(NOTHING_STORED, b""), query)
    while True:
        try:
            next(reader)
        except StopIteration as finished:
            result: bytes = finished.value
            return result


def _give_up_at_s(event: Waiting) -> float:
    match event:
        case Pop(pop):
            return pop.answer_by_s
        case (_, pending):
            return pending.give_up_at_s
        case PendingRead():
            return event.give_up_at_s


def _slot_of(event: Waiting) -> ResultSlot:
    match event:
        case Pop(pop):
            return pop.slot
        case (_, pending):
            return pending.slot
        case PendingRead():
            return event.slot
