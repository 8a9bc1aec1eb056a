"""POST /api/v1/locks (locks.md): requests in, a command or a query out, answers back."""

from __future__ import annotations

from collections.abc import Mapping

from queen_node import commands, queries
from queen_node.answers import NOTHING
from queen_node.answers.locks import render_locks
from queen_node.http.handlers.kv_gate import KvGate
from queen_node.http.handlers.lock_calls import LockCall, only_reads
from queen_node.http.messages import Request, Response
from queen_node.http.routes import Handler
from queen_node.ids import IdMint
from queen_node.queries import Query


class LockHandlers:
    """Handler of /api/v1/locks."""

    def __init__(self, gate: KvGate, ids: IdMint) -> None:
        self._gate, self._ids = gate, ids

    def handlers(self) -> Mapping[str, Handler]:
        """By the names of their routes."""
        return {"locks": self.apply}

    async def apply(self, request: Request) -> Response:
        """The operations of one call, decided in one entry (LK-4, LK-11).

        Who polls for a held lock is answered from a linearizable read: the log is not filled by waiting.
        """
        call = LockCall(request.body)
        self._gate.take_token(request.tenant, writes=not only_reads(call.words))
        operations = call.operations()
        if all(word in ("get", "acquire") for word in call.words):
            raw = await self._gate.read(request.tenant, queries.query(Query.LOCKS, operations))
            if raw != NOTHING:
                return Response(*render_locks(raw))
        if "acquire" in call.words and not self._gate.admits(len(request.body)):
            await self._gate.admit(len(request.body))
        caps = self._gate.caps_of(request.tenant)
        command = commands.locks(self._ids.request_id(), operations, caps=caps)
        return Response(*render_locks(await self._gate.write(request.tenant, command)))
