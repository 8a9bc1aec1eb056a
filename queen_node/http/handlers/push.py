"""POST /api/v1/push: what a call must fulfil, its command or commands, its answer (push.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from queen_node import commands
from queen_node.answers.push import render_push
from queen_node.broker import Broker, Lane, Unavailable
from queen_node.errors import BINARY_PUSH, TENANT_LIMIT, TIMEOUT, UNDECIDED, Refused
from queen_node.http.handlers.binary_bodies import BINARY_MAGIC, Declined, has_binary_type
from queen_node.http.handlers.push_body import SLICE_BYTES, decode, decode_in_slices
from queen_node.http.handlers.push_items import command_items
from queen_node.http.handlers.push_parts import PART_ITEMS_MAX, Parts, joined, places_of
from queen_node.http.messages import Request, Response, refusal_response
from queen_node.ids import IdMint


class PushHandlers:
    """Answers pushes. timeout_ms: how long a call waits for its outcome; monotonic_s: for the pace of log lines."""

    def __init__(
        self, broker: Broker, ids: IdMint, *, timeout_ms: int = 30_000,
        monotonic_s: Callable[[], float] = trio.current_time,
    ) -> None:
        self._broker, self._ids, self._timeout_ms = broker, ids, timeout_ms
        self.declined = Declined("push", monotonic_s)

    def before_push(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Before the body is read: decline binary bodies by their type, and wait for admission by Content-Length."""
        if has_binary_type(request):
            return self._decline()
        body_bytes = request.announced_bytes()
        return None if self._broker.admits(body_bytes) else self._admit(body_bytes)

    async def push(self, request: Request) -> Response:
        """Append the items of a call. Raises Refused."""
        body = request.body
        if body.startswith(BINARY_MAGIC):
            return self._decline()
        if len(body) > SLICE_BYTES:
            return await self._push_large(request.tenant, body)
        items = command_items(decode(body), 0, self._ids)
        if not items:
            return Response(201, b"[]")
        if len(items) > PART_ITEMS_MAX:
            parts = Parts(self._ids)
            parts.add(items)
            return await self._write_parts(request.tenant, parts)
        return await self._write(request.tenant, commands.push(self._ids.request_id(), items), places_of(items))

    async def _push_large(self, tenant: bytes, body: bytes) -> Response:
        """The same for a body that must not be decoded, checked and encoded in one go (M-51)."""
        parts = Parts(self._ids)
        for items in decode_in_slices(body):
            for start in range(0, len(items), PART_ITEMS_MAX):
                parts.add(command_items(items[start : start + PART_ITEMS_MAX], parts.count, self._ids))
                await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        if not parts.count:
            return Response(201, b"[]")
        return await self._write_parts(tenant, parts)

    async def _write(self, tenant: bytes, command: bytes, places: tuple[bytes, ...]) -> Response:
        try:
            raw = await self._broker.write(
                tenant, command, timeout_ms=self._timeout_ms, lane=Lane.PUSHES, places=places)
        except Unavailable as error:
            raise Refused(UNDECIDED[error.code]) from None
        return Response(*render_push(raw))

    async def _write_parts(self, tenant: bytes, parts: Parts) -> Response:
        """Write all parts of a call, adjacent and in order (PU-43)."""
        ready = parts.finish()
        if len(ready) == 1 and not parts.twin_of:
            return await self._write(tenant, *ready[0])
        try:
            raws = await self._broker.write_all(tenant, ready, timeout_ms=self._timeout_ms, lane=Lane.PUSHES)
        except Unavailable as error:
            # Whatever it says of one part, another may have been written; a tenant without a group wrote none.
            raise Refused(TENANT_LIMIT if error.code == "tenant_limit" else TIMEOUT) from None
        return Response(201, await joined(raws, parts.twin_of))

    async def _admit(self, body_bytes: int) -> Response | None:
        await self._broker.admit(body_bytes)
        return None

    def _decline(self) -> Response:
        self.declined.count_one()
        return refusal_response(BINARY_PUSH)
