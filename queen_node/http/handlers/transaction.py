"""POST /api/v1/transaction: admission, the one command of a call, its answer (transactions.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from queen_node import commands
from queen_node.answers.transactions import refusal_of, render_committed, unpacked
from queen_node.broker import Broker, Lane, Unavailable
from queen_node.commands import KvCaps, RulesOfFire
from queen_node.errors import (
    NAME_TOO_LONG,
    STORAGE_FULL,
    TX_BINARY,
    TX_TOO_LARGE,
    UNDECIDED,
    Refused,
    Shape,
)
from queen_node.http.handlers.binary_bodies import BINARY_TRANSACTION_MAGIC, Declined, has_binary_type
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.timers import nobody
from queen_node.http.handlers.transaction_body import BODY_MAX_BYTES, RefusedAt, Transaction
from queen_node.http.messages import Request, Response
from queen_node.ids import IdMint, uuid_text
from queen_node.quotas import no_caps
from queen_node.state.transactions import Committed

COMMAND_MAX_BYTES = 8 << 20  # M-51: applying one must not hold the group
PIECES_OF_ONE_SLICE = 2  # of an answer: its head and the only slice of its results
KV_OPERATIONS_MAX, KV_KEYS_MAX = 64, 256  # fixed, other than on the route (transactions.md 2.3)


class TransactionHandlers:
    """Answers transactions.

    limits: of the timers in them; kv_limits: of the key/value operations, of which only the size of a value is a
    setting here. firing, rules, subject_of: as of `TimerHandlers`. timeout_ms: a call's deadline,
    QUEEN_STMT_TIMEOUT_MS. command_max_bytes: of a whole transaction. caps_of: what a tenant may hold; its rates hold
    for no transaction (TX-6). monotonic_s: for the pace of log lines.
    """

    def __init__(
        self,
        broker: Broker,
        ids: IdMint,
        limits: TimerLimits,
        kv_limits: KvLimits,
        *,
        firing: Callable[[], bool],
        timeout_ms: int = 30_000,
        subject_of: Callable[[Request], bytes | None] = nobody,
        rules: RulesOfFire | None = None,
        command_max_bytes: int = COMMAND_MAX_BYTES,
        caps_of: Callable[[bytes], KvCaps] = no_caps,
        monotonic_s: Callable[[], float] = trio.current_time,
    ) -> None:
        self._broker, self._ids = broker, ids
        self._kv_limits = replace(kv_limits, operations_max=KV_OPERATIONS_MAX, keys_max=KV_KEYS_MAX)
        self._limits = replace(limits, call_max_bytes=BODY_MAX_BYTES)  # that of the whole comes first
        self._firing, self._timeout_ms, self._subject_of, self._rules = firing, timeout_ms, subject_of, rules
        self._command_max_bytes, self._caps_of = command_max_bytes, caps_of
        self.declined = Declined("transaction", monotonic_s)

    def before_commit(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Before the body is read: decline binary bodies by their type, and wait for admission by Content-Length."""
        if has_binary_type(request):
            return self._decline()
        body_bytes = request.announced_bytes()
        return None if self._broker.admits(body_bytes, grows=False) else self._admit(body_bytes)

    async def commit(self, request: Request) -> Response:
        """Do all of it or nothing. Raises Refused for what is no rollback (TX-55)."""
        body = request.body
        if body.startswith(BINARY_TRANSACTION_MAGIC):
            return self._decline()
        transaction = self._transaction(request)
        try:
            if not transaction.read_quickly(body):
                transaction = self._transaction(request)
                for _ in transaction.read(body):
                    await trio.lowlevel.checkpoint()
            command = self._command(request.tenant, transaction)
        except RefusedAt as error:
            return self._refusal(error.refused, error.failed_index)
        if transaction.grows and not self._broker.takes_growth():
            raise Refused(STORAGE_FULL)
        try:
            raw = await self._broker.write(
                request.tenant, command, timeout_ms=self._timeout_ms, lane=Lane.DRAINING, places=transaction.places)
        except Unavailable as error:
            raise Refused(UNDECIDED[error.code]) from None
        answer = unpacked(raw)
        if isinstance(answer, Committed):
            return Response(200, await self._rendered(answer, transaction))
        refused, particulars = refusal_of(answer, transaction.acks, transaction.pushes)
        failed_index = None if answer.index < 0 else transaction.flat_index(answer.part, answer.index)
        return Response(refused.refusal.status, refused.transaction_body(self._new_id(), failed_index, particulars))

    def _transaction(self, request: Request) -> Transaction:
        return Transaction(self._limits, self._kv_limits, self._ids, self._subject_of(request))

    async def _rendered(self, answer: Committed, transaction: Transaction) -> bytes:
        pieces: list[bytes] = []
        for piece in render_committed(
            self._new_id(), answer, transaction.layout, transaction.acks, transaction.pushes,
        ):
            if len(pieces) > PIECES_OF_ONE_SLICE:
                await trio.lowlevel.checkpoint()
            pieces.append(piece)
        return b"".join(pieces)

    def _command(self, tenant: bytes, transaction: Transaction) -> bytes:
        """The one command of the call (TX-2). Raises RefusedAt."""
        command = commands.transaction(
            self._ids.request_id(), acks=transaction.acks, pushes=transaction.pushes,
            kv=transaction.kv.operations, timers=transaction.timers.operations,
            firing=self._firing(), caps=self._caps_of(tenant), rules=self._rules)
        if len(command) > self._command_max_bytes:
            raise RefusedAt(Refused(TX_TOO_LARGE, limit=self._command_max_bytes, got=len(command)), None)
        return command

    def _refusal(self, refused: Refused, failed_index: int | None) -> Response:
        """What is refused before anything is proposed, in the transaction's body unless it is the engine's (TX-55)."""
        if refused.refusal.code == NAME_TOO_LONG.code:
            raise Refused(NAME_TOO_LONG, refused.text)
        if refused.refusal.shape not in (Shape.TRANSACTION, Shape.FAMILY):
            raise refused
        return Response(refused.refusal.status, refused.transaction_body(self._new_id(), failed_index))

    def _decline(self) -> Response:
        self.declined.count_one()
        return self._refusal(Refused(TX_BINARY), None)

    async def _admit(self, body_bytes: int) -> Response | None:
        await self._broker.admit(body_bytes, grows=False)
        return None

    def _new_id(self) -> str:
        """Of this call; it is no dedup key (TX-41)."""
        return uuid_text(self._ids.uuid7())
