"""The timer routes (timers.md 1 to 4): requests in, commands and queries out, answers back.

What an operation must look like stands in `timer_calls.py`; what becomes of it is decided where its entry applies.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from queen_node import commands, errors, queries
from queen_node.answers import read_result
from queen_node.answers.timers import render_timers
from queen_node.broker import Broker
from queen_node.commands import RulesOfFire, TimerOp
from queen_node.errors import Refused
from queen_node.http.handlers.family_gate import FamilyGate
from queen_node.http.handlers.op_lists import SLICE_BYTES
from queen_node.http.handlers.timer_calls import (
    BODY_MAX_BYTES,
    Call,
    ExactCall,
    TimerLimits,
    check_names,
    read_in_slices,
    read_quickly,
)
from queen_node.http.messages import BadPath, BadQuery, Request, Response, refused_response
from queen_node.ids import IdMint
from queen_node.queries import Query
from queen_node.quotas import Quotas

LIST_LIMIT = 100
LIST_LIMIT_MAX = 1000
PREFIX_MAX_BYTES = 128
DIGITS_MAX = 18  # of a limit: more are clamped unread

# A refused call that held a cancel is told where a cancel is never refused (TM-27).
HINT = (b"x-queen-timers-hint", b"DELETE /api/v1/timers/:queue/:timerKey")

UNAVAILABLE = {
    "timeout": errors.TIMERS_TIMEOUT,
    "retry": errors.TIMERS_RETRY,
    "no_leader": errors.TIMERS_NO_LEADER,
    "tenant_limit": errors.FAMILY_TENANT_LIMIT,
}
EMPTY = Response(200, b'{"results":[]}')


def nobody(_request: Request) -> bytes | None:
    """The producer of a call without authentication."""
    return None


class TimerHandlers:
    """Handlers of /api/v1/timers.

    firing: whether due timers fire now (TA-74). timeout_ms: a call's deadline, QUEEN_STMT_TIMEOUT_MS. subject_of: the
    verified `sub` of a request (TA-35). on_rejected: told the reason of each refused POST, for the figures. rules: of a
    due timer's fire that is refused, where they are not the contract's.
    """

    def __init__(
        self,
        broker: Broker,
        ids: IdMint,
        quotas: Quotas,
        limits: TimerLimits,
        *,
        firing: Callable[[], bool],
        timeout_ms: int = 30_000,
        subject_of: Callable[[Request], bytes | None] = nobody,
        on_rejected: Callable[[str], None] = lambda _reason: None,
        rules: RulesOfFire | None = None,
    ) -> None:
        self._gate = FamilyGate(broker, UNAVAILABLE, timeout_ms=timeout_ms)
        self._ids, self._quotas, self._limits, self._firing = ids, quotas, limits, firing
        self._subject_of, self._on_rejected, self._rules = subject_of, on_rejected, rules

    # --- POST

    async def apply(self, request: Request) -> Response:
        """Schedule and cancel, all or nothing (TM-15)."""
        try:
            return await self._apply(request)
        except Refused as refused:
            self._on_rejected(refused.refusal.reason or refused.refusal.code)
            raise

    async def _apply(self, request: Request) -> Response:
        body = request.body
        if len(body) > BODY_MAX_BYTES:
            raise Refused(errors.TIMERS_CALL_TOO_LARGE, "the body", limit=BODY_MAX_BYTES, got=len(body))
        subject = self._subject_of(request)
        call, exact = Call(self._limits, self._ids, subject), None
        if not (read_quickly(body, call) if len(body) <= SLICE_BYTES else await self._reads_in_slices(body, call)):
            exact = ExactCall(body, self._limits.operations_max)
            exact.check_names()
        wait_s = self._quotas.take_write(request.tenant)  # one token, whatever the call holds (TM-26)
        if wait_s:
            return self._too_fast(wait_s, call.holds_cancel if exact is None else exact.holds_cancel)
        # Before anything that is wrong in an operation is told: what cannot be stored now is not looked at (TM-26).
        if (call.schedules if exact is None else exact.holds_schedule) and not self._gate.admits(len(body)):
            await self._gate.admit(len(body))
        if exact is not None:
            call = Call(self._limits, self._ids, subject)
            for _ in exact.take_into(call):
                await trio.lowlevel.checkpoint()
        if not call.operations:
            return EMPTY
        command = self._command(call)
        return Response(*render_timers(await self._gate.write(request.tenant, command, tuple(call.due_places))))

    async def _reads_in_slices(self, body: bytes, call: Call) -> bool:
        slices = read_in_slices(body, call)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return bool(end.value)
            await trio.lowlevel.checkpoint()

    def _too_fast(self, wait_s: int, holds_cancel: bool) -> Response:
        """The answer when the tenant's write rate is spent."""
        self._on_rejected(errors.TIMERS_RATE.reason)
        response = refused_response(Refused(errors.TIMERS_RATE))
        response.headers = ((b"Retry-After", b"%d" % wait_s), *((HINT,) if holds_cancel else ()))
        return response

    def _command(self, call: Call) -> bytes:
        command = commands.timers(self._ids.request_id(), call.operations, firing=self._firing(), rules=self._rules)
        if len(command) > self._limits.command_max_bytes:
            raise Refused(errors.TIMERS_CALL_TOO_LARGE, limit=self._limits.command_max_bytes, got=len(command))
        return command

    # --- DELETE

    async def cancel(self, request: Request) -> Response:
        """Cancel one timer. Never refused by quota, rate, admission or switch (TM-31)."""
        queue, key = _names_in_path(request)
        echo = _query(request, "txn")
        operation = (TimerOp.CANCEL, queue, key, None if echo is None else echo.encode())
        command = commands.timers(self._ids.request_id(), [operation], firing=False, one=True)
        return Response(*render_timers(await self._gate.write(request.tenant, command)))

    # --- GET

    async def peek(self, request: Request) -> Response:
        """One pending timer (TM-40)."""
        queue, key = _names_in_path(request)
        return await self._read(request.tenant, queries.query(Query.TIMER_PEEK, queue, key))

    async def look(self, request: Request) -> Response:
        """Pending timers of a queue, or how many (TM-41, TM-42)."""
        queue = _queue_in_path(request)
        mode = _query(request, "mode")
        if mode == "count":
            count = queries.query(Query.TIMER_COUNT, queue, _prefix(request))
            return await self._read(request.tenant, count)
        if mode is not None and mode != "list":
            raise Refused(errors.TIMERS_MODE_UNKNOWN)
        after = (_query(request, "after") or "").encode()
        return await self._read(request.tenant, queries.query(Query.TIMER_LIST, queue, after, _limit(request)))

    # --- to the broker

    async def _read(self, tenant: bytes, query: bytes) -> Response:
        return Response(*read_result(await self._gate.read(tenant, query)))


def _queue_in_path(request: Request) -> bytes:
    queue = _in_path(request, "queue")
    check_names(queue, _ANY_KEY, b"")
    return queue


def _names_in_path(request: Request) -> tuple[bytes, bytes]:
    """(queue, key). The key is all that follows the queue, slashes and all, decoded once (TM-3)."""
    queue, key = _in_path(request, "queue"), _in_path(request, "timerKey")
    check_names(queue, key, b"")
    return queue, key


def _in_path(request: Request, name: str) -> bytes:
    try:
        return request.text(name).encode()
    except BadPath as error:
        raise Refused(errors.TIMERS_BAD_OP, str(error)) from None


_ANY_KEY = b"k"  # where a route names no key


def _query(request: Request, name: str) -> str | None:
    try:
        return request.query.get(name)
    except BadQuery as error:
        raise Refused(errors.TIMERS_BAD_QUERY, str(error)) from None


def _limit(request: Request) -> int:
    text = _query(request, "limit")
    if not text:
        return LIST_LIMIT
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise Refused(errors.TIMERS_BAD_QUERY, "must be a whole number", field="limit")
    if len(digits) > DIGITS_MAX:
        digits = "9" * DIGITS_MAX
    return min(max(1, -int(digits) if text.startswith("-") else int(digits)), LIST_LIMIT_MAX)


def _prefix(request: Request) -> bytes:
    prefix = (_query(request, "prefix") or "").encode()
    if not prefix:
        raise Refused(errors.TIMERS_PREFIX_REQUIRED)
    if len(prefix) > PREFIX_MAX_BYTES:
        raise Refused(errors.TIMERS_PREFIX_INVALID, limit=PREFIX_MAX_BYTES, got=len(prefix))
    if b"\0" in prefix:
        raise Refused(errors.TIMERS_PREFIX_INVALID)
    if _query(request, "after") is not None or _query(request, "limit") is not None:
        raise Refused(errors.TIMERS_NO_PAGING)
    return prefix
