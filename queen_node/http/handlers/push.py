"""POST /api/v1/push: what a call must fulfil, its command or commands, its answer (push.md)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog
import trio

from queen_node import commands
from queen_node.answers.push import render_push
from queen_node.broker import Broker, Lane, Unavailable
from queen_node.commands import PayloadFlag, PushItem
from queen_node.errors import BAD_REQUEST, BINARY_PUSH, NAME_TOO_LONG, TENANT_LIMIT, TIMEOUT, UNDECIDED, Refused
from queen_node.http.handlers.push_body import NO_TRACE, SLICE_BYTES, Item, decode, decode_in_slices
from queen_node.http.handlers.push_parts import PART_ITEMS_MAX, Parts, joined, places_of
from queen_node.http.messages import Request, Response, refusal_response
from queen_node.ids import IdMint, uuid_text

log = structlog.get_logger(__name__)

NAMES_BYTES_MAX = 411  # queue and partition; the tenant's 36 of PU-21 are taken off
TRANSACTION_ID_BYTES_MAX = 65_535
DEFAULT_PARTITION = "Default"
BINARY_TYPE = b"application/x-queen-push"
BINARY_MAGIC = b"QPB1"
DECLINES_LOGGED_EVERY_S = 60.0  # a buffered client repeats a declined batch every 250 ms for ever (PU-62)

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class PushHandlers:
    """Answers pushes. timeout_ms: how long a call waits for its outcome; monotonic_s: for the pace of log lines."""

    def __init__(
        self, broker: Broker, ids: IdMint, *, timeout_ms: int = 30_000,
        monotonic_s: Callable[[], float] = trio.current_time,
    ) -> None:
        self._broker, self._ids, self._timeout_ms, self._monotonic_s = broker, ids, timeout_ms, monotonic_s
        self._decline_logged_s = float("-inf")
        self.binary_declined = 0  # for the metrics (PU-60)

    def before_push(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Before the body is read: decline binary bodies by their type, and wait for admission by Content-Length."""
        content_type = request.header(b"content-type")
        if content_type is not None and content_type.strip().lower().startswith(BINARY_TYPE):
            return self._decline()
        length = request.header(b"content-length")
        body_bytes = int(length) if length is not None and length.isdigit() else 0
        return None if self._broker.admits(body_bytes) else self._admit(body_bytes)

    async def push(self, request: Request) -> Response:
        """Append the items of a call. Raises Refused."""
        body = request.body
        if body.startswith(BINARY_MAGIC):
            return self._decline()
        if len(body) > SLICE_BYTES:
            return await self._push_large(request.tenant, body)
        items = self._command_items(decode(body), 0)
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
                parts.add(self._command_items(items[start : start + PART_ITEMS_MAX], parts.count))
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

    def _command_items(self, items: Sequence[Item], first_index: int) -> list[PushItem]:
        """Items as they stand in a command. Raises Refused: names first, then the other fields (push.md 9)."""
        queue_text = partition_text = None
        queue = partition = b""
        names = []
        for index, item in enumerate(items, first_index):
            if item.queue != queue_text or item.partition != partition_text:
                queue_text, partition_text = item.queue, item.partition
                queue, partition = _names(queue_text, partition_text, index)
            names.append((queue, partition))
        mint = self._ids.uuid7
        built: list[PushItem] = []
        for index, item in enumerate(items, first_index):
            message_id = mint()
            if item.transactionId:
                transaction_id = item.transactionId.encode()
                if len(transaction_id) > TRANSACTION_ID_BYTES_MAX:
                    raise Refused(
                        BAD_REQUEST, "too long", operation=index, field="transactionId",
                        limit=TRANSACTION_ID_BYTES_MAX, got=len(transaction_id))
            else:  # an empty one counts as absent (PU-14)
                transaction_id = uuid_text(message_id).encode()
            trace_id = None if item.traceId is NO_TRACE else _trace_id(item.traceId)
            queue, partition = names[index - first_index]
            built.append((
                queue, partition, transaction_id, message_id, bytes(item.payload), PayloadFlag.JSON, trace_id, None))
        return built

    async def _admit(self, body_bytes: int) -> Response | None:
        await self._broker.admit(body_bytes)
        return None

    def _decline(self) -> Response:
        """A binary body: nothing of it is read further (PU-60). Cheap, and silent but for one line a minute (PU-62)."""
        self.binary_declined += 1
        now_s = self._monotonic_s()
        if now_s - self._decline_logged_s >= DECLINES_LOGGED_EVERY_S:
            self._decline_logged_s = now_s
            log.warning("binary push declined", declined=self.binary_declined)
        return refusal_response(BINARY_PUSH)


def _names(queue_text: str, partition_text: str | None, index: int) -> tuple[bytes, bytes]:
    """Queue and partition of an item as bytes. Raises Refused (PU-21)."""
    queue = queue_text.encode()
    partition = DEFAULT_PARTITION.encode() if partition_text is None else partition_text.encode()
    for field, name in (("queue", queue), ("partition", partition)):
        if not name:
            raise Refused(BAD_REQUEST, "must not be empty", operation=index, field=field)
        if b"\0" in name:
            raise Refused(BAD_REQUEST, "must not hold U+0000", operation=index, field=field)
    if len(queue) + len(partition) > NAMES_BYTES_MAX:
        raise Refused(NAME_TOO_LONG, operation=index, limit=NAMES_BYTES_MAX, got=len(queue) + len(partition))
    return queue, partition


def _trace_id(raw: msgspec.Raw) -> bytes | None:
    """The 16 bytes of a trace id; None when it is no UUID, which fails no call (PU-13)."""
    try:
        text = msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return None
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else None
