"""Known bugs of transactions, locks and refused fires, to be put back: see `bugs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queen_node.commands import NO_CAPS, Kind, KvOp, LockOp, RulesOfFire, TimerOp
from queen_node.state.keys import DEAD_LETTER
from queen_node.state.machine import HANDLERS, Answer, Application, Machine
from queen_node.state.rows import Row
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


class _LeavesTimers(_RollsBackLess):
    @staticmethod
    def leaves(wanted: Wanted) -> list[Any]:
        return [Kind.TIMERS, b"", wanted.timers, wanted.firing, False]


class RollsBackNoTimers(Machine):
    """G-T4: what a transaction that is rolled back would schedule or cancel is scheduled or cancelled."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        return _begin_with(super().begin(index=index, term=term, data=data), _LeavesTimers)


class CancelsNothing(Machine):
    """G-T4: a cancel in a transaction looks at another key than the schedules do."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.TRANSACTION:
                command[6] = [
                    [TimerOp.CANCEL, operation[1], operation[2] + b"?", operation[3]]
                    if operation[0] == TimerOp.CANCEL else operation for operation in command[6]]
        return application


class GuardsNothing(Machine):
    """G-K6: a transaction whose guard is lost commits all the same."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.TRANSACTION:
                command[5] = [
                    [*operation[:4], False] if operation[0] == KvOp.CHECK else operation for operation in command[5]]
        return application


class LendsForLess(Machine):
    """LK-34: no permit lasts longer than a second."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.LOCKS:
                command[2] = [
                    [*operation[:2], 1, *operation[3:]] if operation[0] == LockOp.ACQUIRE else operation
                    for operation in command[2]]
        return application


class GivesUpSooner(Machine):
    """TM-54: a fire that fails for good is tried once less."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.FIRE:
                rules = RulesOfFire(*command[4:])
                command[4:] = rules._replace(max_attempts=rules.max_attempts - 1)
        return application


class WaitsNoLonger(Machine):
    """TM-54: the wait between two tries does not grow."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.FIRE:
                rules = RulesOfFire(*command[4:])
                command[4:] = rules._replace(backoff_max_ms=rules.backoff_min_ms)
        return application


class _FireThatFilesNothing(Application):
    def apply_next(self) -> tuple[bytes, int, Answer]:
        store = self.step.store
        if self.commands[self._next][0] != Kind.FIRE:
            return super().apply_next()
        put_row = store.put_row

        def put_no_letters(key: bytes, row: Row) -> None:
            if not key.startswith(DEAD_LETTER):
                put_row(key, row)

        store.put_row = put_no_letters  # type: ignore[method-assign]
        try:
            return super().apply_next()
        finally:
            del store.put_row


class LosesTheDead(Machine):
    """G-M9: a timer whose fires all failed is gone, without a dead letter."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        return _begin_with(super().begin(index=index, term=term, data=data), _FireThatFilesNothing)
