"""Known bugs of transactions, to be put back: see `bugs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queen_node.commands import NO_CAPS, Kind
from queen_node.state.machine import HANDLERS, Answer, Application, Machine
from queen_node.state.transactions import RolledBack, Wanted


class AcksUnfenced(Machine):
    """G-T2: an ack of a transaction counts whoever has the lease by now."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.TRANSACTION:
                command[2] = [[group, [*item[:3], b"", item[4]]] for group, item in command[2]]
        return application


class _RollsBackLess(Application):
    """leaves: the command that is carried out all the same where a transaction is rolled back."""

    leaves: Callable[[Wanted], list[Any]]

    def apply_next(self) -> tuple[bytes, int, Answer]:
        command = self.commands[self._next]
        applied = super().apply_next()
        if isinstance(applied[2], RolledBack):
            left = self.leaves(Wanted(*command[2:]))
            HANDLERS[left[0]](self.step, left)
        return applied


def _begin_with(application: Application, kind: type[Application]) -> Application:
    return kind(
        application.step, application.commands, index=application.index, term=application.term,
        outcomes=application._outcomes, repeats=application.repeats)


class _LeavesCounts(_RollsBackLess):
    @staticmethod
    def leaves(wanted: Wanted) -> list[Any]:
        return [Kind.KV, b"", wanted.kv, False, NO_CAPS]


class RollsBackNoCounts(Machine):
    """G-T1: what a transaction that is rolled back would write of keys stays written."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        return _begin_with(super().begin(index=index, term=term, data=data), _LeavesCounts)
