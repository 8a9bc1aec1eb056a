"""The key/value routes (kv.md): requests in, commands and queries out, answers back.

What an operation must look like stands in `kv_calls.py`; what becomes of it is decided where its entry applies.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from queen_node import commands, errors, queries
from queen_node.answers import NOTHING, read_result
from queen_node.answers.kv import decode_answer, rendered
from queen_node.errors import Refused
from queen_node.http.handlers.kv_calls import (
    READS,
    KvCall,
    KvLimits,
    Op,
    check_text,
    op_in_path,
    raw_operations,
    read_list,
    read_quickly,
    take_raws,
    word_of,
)
from queen_node.http.handlers.kv_gate import KvGate
from queen_node.http.handlers.op_lists import SLICE_BYTES
from queen_node.http.messages import BadPath, Request, Response
from queen_node.http.routes import Handler
from queen_node.ids import IdMint
from queen_node.queries import Query
from queen_node.state.kv import KvAnswer, Single

EMPTY = Response(200, b'{"results":[]}')
NO_FIELDS = b"{}"


class KvHandlers:
    """Handlers of /api/v1/kv and /api/v1/resources/kv. command_max_bytes: QUEEN_RAFT_ENTRY_MAX_BYTES."""

    def __init__(self, gate: KvGate, ids: IdMint, limits: KvLimits, *, command_max_bytes: int = 96 << 20) -> None:
        self._gate, self._ids, self._limits = gate, ids, limits
        self._command_max_bytes = command_max_bytes

    def handlers(self) -> Mapping[str, Handler]:
        """By the names of their routes."""
        return {
            "kv_batch": self.batch, "kv_get": self.get, "kv_put": self.put, "kv_delete": self.delete,
            "kv_namespaces": self.namespaces, "kv_list": self.list,
        }

    # --- the batch

    async def batch(self, request: Request) -> Response:
        """The operations of one call, all or none (KV-14)."""
        body, call = request.body, KvCall(self._limits)
        check_text(body)
        if len(body) <= SLICE_BYTES and read_quickly(body, call):
            self._gate.take_token(request.tenant, writes=call.writes)
        else:
            call = await self._read(request.tenant, body)
        if not call.operations:
            return EMPTY
        return Response(*rendered(await self._carry_out(request, call, one=False)))

    async def _read(self, tenant: bytes, body: bytes) -> KvCall:
        """Read a body that is large or not as it should be, and spend the call's token, unless it is no JSON of this
        route (README 28)."""
        raws = raw_operations(body)
        self._gate.take_token(tenant, writes=any(
            word_of(raw) not in READS for raw in raws[: self._limits.operations_max]))
        call = KvCall(self._limits)
        for _ in take_raws(raws, call):
            await trio.lowlevel.checkpoint()
        return call

    async def _carry_out(self, request: Request, call: KvCall, *, one: bool) -> KvAnswer:
        figures = self._gate.figures
        began_s = figures.now_s()
        try:
            if call.writes:
                command = self._command(request.tenant, call, one)
                if call.grows and not self._gate.admits(len(request.body)):
                    await self._gate.admit(len(request.body))
                raw = await self._gate.write(request.tenant, command)
            else:
                raw = await self._read_told(request.tenant, Query.KV, one, call.operations)
        except Refused:
            figures.failed(call.words)
            raise
        answer = decode_answer(raw)
        figures.answered(call.words, answer, began_s)
        return answer

    def _command(self, tenant: bytes, call: KvCall, one: bool) -> bytes:
        command = commands.kv(
            self._ids.request_id(), call.operations, one=one, caps=self._gate.caps_of(tenant))
        if len(command) > self._command_max_bytes:
            raise Refused(errors.KV_VALUE_TOO_LARGE, "the call", limit=self._command_max_bytes, got=len(command))
        return command

    # --- one key in the path

    async def get(self, request: Request) -> Response:
        """One row, its version as the ETag (KV-6)."""
        namespace, key = _names_in_path(request)
        answer = await self._one(request, Op("get", namespace, key))
        element = answer[3][0]
        found = isinstance(element, Single) and element.done
        headers = ((b"ETag", b'"%d"' % element.version),) if isinstance(element, Single) and found else ()
        return Response(*rendered(answer), headers=headers)

    async def put(self, request: Request) -> Response:
        """Write one row (KV-5)."""
        namespace, key = _names_in_path(request)
        return Response(*rendered(await self._one(request, op_in_path("put", namespace, key, request.body))))

    async def delete(self, request: Request) -> Response:
        """Remove one row; the body is usually empty (KV-5)."""
        namespace, key = _names_in_path(request)
        body = request.body.strip() or NO_FIELDS
        return Response(*rendered(await self._one(request, op_in_path("delete", namespace, key, body))))

    async def _one(self, request: Request, op: Op) -> KvAnswer:
        call = KvCall(self._limits)
        self._gate.take_token(request.tenant, writes=op.op not in READS)
        call.take(op)
        return await self._carry_out(request, call, one=True)

    # --- the console

    async def namespaces(self, request: Request) -> Response:
        """Every namespace of the tenant (KV-80)."""
        _no_query_string(request)
        self._gate.take_token(request.tenant, writes=False)
        query = queries.query(Query.KV_NAMESPACES)
        return Response(*read_result(await self._gate.read(request.tenant, query)))

    async def list(self, request: Request) -> Response:
        """A page of one namespace (KV-81)."""
        _no_query_string(request)
        fields = read_list(request.body)
        self._gate.take_token(request.tenant, writes=False)
        return Response(*read_result(await self._read_told(request.tenant, Query.KV_LIST, *fields)))

    async def _read_told(self, tenant: bytes, kind: Query, *fields: object) -> bytes:
        """The result of a read in which time decides what is there. What it tells of the end of a lifetime stands
        behind an entry of the log by then (`answers.kv.untold`)."""
        raw = await self._gate.read(tenant, queries.query(kind, False, *fields))
        if raw != NOTHING:
            return raw
        await self._gate.write(tenant, commands.kv(self._ids.request_id(), (), one=False))
        return await self._gate.read(tenant, queries.query(kind, True, *fields))


def _names_in_path(request: Request) -> tuple[str, str]:
    """(namespace, key), each decoded once and not normalised (KV-3); a query string is refused first (KV-4)."""
    _no_query_string(request)
    named = []
    for name, refusal in (("ns", errors.KV_BAD_NAMESPACE), ("key", errors.KV_BAD_KEY)):
        try:
            named.append(request.text(name))
        except BadPath as error:
            raise Refused(refusal, str(error)) from None
    namespace, key = named
    return namespace, key


def _no_query_string(request: Request) -> None:
    if request.raw_query:
        raise Refused(errors.KV_NO_QUERY_STRING)
