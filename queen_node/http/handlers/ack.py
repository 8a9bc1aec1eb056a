"""POST /api/v1/ack, /api/v1/ack/batch, /api/v1/lease/:leaseId/extend (pop-ack.md 6, 8)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from queen_node import commands
from queen_node.answers.consume import extended, render_ack, render_extend
from queen_node.broker import Broker, Unavailable
from queen_node.commands import AckItem, AckStatus
from queen_node.errors import BAD_BODY, NAME_TOO_LONG, OUTCOME_UNKNOWN, UNDECIDED, Applied, Refused
from queen_node.http.messages import BadPath, Request, Response
from queen_node.ids import IdMint
from queen_node.state.groups import QUEUE_MODE
from queen_node.state.leases import EXTEND_MAX_S, EXTEND_MIN_S

GROUP_BYTES_MAX = 411  # PU-21, with the shortest queue there can be
ERROR_BYTES_MAX = 16 << 10  # of a reason; it is kept with the dead letter, and in the log, as long as that
EXTEND_DEFAULT_S = 60

UNKNOWN_PARTITION = 0  # an id that no partition ever has: "consumer not found"
UNKNOWN_LEASE = b"?"  # a lease id that no pop ever gives: "invalid or expired lease"

_STATUSES: dict[str | None, int] = {
    None: int(AckStatus.COMPLETED), **dict.fromkeys(("completed", "success", "acked", "ok"), int(AckStatus.COMPLETED)),
    "retry": int(AckStatus.RETRY), "dlq": int(AckStatus.DLQ)}
_FAILED = int(AckStatus.FAILED)  # what anything else means
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DIGITS = re.compile(r"[0-9]{1,20}")


class Acknowledgment(msgspec.Struct):
    """One item of an ack."""

    transactionId: str
    partitionId: str | int
    status: str | None = None
    leaseId: str | None = None
    error: str | None = None


class SingleAck(Acknowledgment):
    """The body of POST /api/v1/ack."""

    consumerGroup: str | None = None


class BatchAck(msgspec.Struct):
    """The body of POST /api/v1/ack/batch. The group stands here and nowhere else (PA-45)."""

    acknowledgments: list[Acknowledgment]
    consumerGroup: str | None = None


class AckHandlers:
    """Answers acks and extensions. timeout_ms: how long a call waits for its outcome (PA-58)."""

    def __init__(self, broker: Broker, ids: IdMint, *, timeout_ms: int = 30_000) -> None:
        self._broker, self._ids, self._timeout_ms = broker, ids, timeout_ms
        self._single = msgspec.json.Decoder(SingleAck).decode
        self._batch = msgspec.json.Decoder(BatchAck).decode

    async def ack(self, request: Request) -> Response:
        """One item; the answer is an array too. Raises Refused."""
        try:
            body = self._single(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(BAD_BODY, str(error)) from None
        return await self._ack(request.tenant, body.consumerGroup, [body])

    async def ack_batch(self, request: Request) -> Response:
        """Several items of one group. Raises Refused."""
        try:
            body = self._batch(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(BAD_BODY, str(error)) from None
        return await self._ack(request.tenant, body.consumerGroup, body.acknowledgments)

    async def extend(self, request: Request) -> Response:
        """Extend a lease (PA-37). Always 200 once the group has decided. Raises Refused."""
        try:
            text = request.text("leaseId")
        except BadPath:
            text = request.params["leaseId"].decode(errors="replace")
        lease_id = lease_id_of(text)
        if lease_id == UNKNOWN_LEASE:
            return Response(200, extended(text, 0, None))
        command = commands.extend(self._ids.request_id(), lease_id, _seconds_of(request.body))
        try:
            raw = await self._broker.write(request.tenant, command, timeout_ms=self._timeout_ms)
        except Unavailable as error:
            raise Refused(UNDECIDED[error.code]) from None
        return Response(*render_extend(raw))

    async def _ack(
        self, tenant: bytes, group_name: str | None, acknowledgments: list[Acknowledgment] | list[SingleAck],
    ) -> Response:
        if not acknowledgments:
            return Response(200, b"[]")
        group = group_name.encode() if group_name else QUEUE_MODE
        if len(group) > GROUP_BYTES_MAX:
            raise Refused(NAME_TOO_LONG, limit=GROUP_BYTES_MAX, got=len(group))
        command = commands.ack(self._ids.request_id(), group, _items(acknowledgments))
        try:
            raw = await self._broker.write(tenant, command, timeout_ms=self._timeout_ms)
        except Unavailable as error:
            refusal = UNDECIDED[error.code]
            raise Refused(refusal if refusal.applied is Applied.NO else OUTCOME_UNKNOWN) from None
        return Response(*render_ack(raw))


def _items(acknowledgments: Sequence[Acknowledgment]) -> list[AckItem]:
    """The items as they stand in the command. Nearly always they name one partition and one lease: each is read once.
    """
    lease_text, lease_id = None, b""
    partition_text: str | int | None = None
    partition_id = UNKNOWN_PARTITION
    items: list[AckItem] = []
    for item in acknowledgments:
        if item.leaseId != lease_text:
            lease_text = item.leaseId
            lease_id = lease_id_of(lease_text) if lease_text else b""
        if item.partitionId != partition_text:
            partition_text = item.partitionId
            partition_id = partition_id_of(partition_text)
        error = item.error.encode()[:ERROR_BYTES_MAX] if item.error else None
        items.append((
            item.transactionId.encode(), partition_id, _STATUSES.get(item.status, _FAILED), lease_id, error))
    return items


def partition_id_of(value: str | int) -> int:
    """The id as it stands in a command; UNKNOWN_PARTITION for what can be none."""
    number = value if isinstance(value, int) else int(value) if _DIGITS.fullmatch(value) else UNKNOWN_PARTITION
    return number if 0 < number < 1 << 64 else UNKNOWN_PARTITION


def lease_id_of(text: str) -> bytes:
    """The id as it stands in a command; UNKNOWN_LEASE for what no pop ever gave."""
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else UNKNOWN_LEASE


def _seconds_of(body: bytes) -> int:
    """`{"seconds": n}` of an extension; whatever else stands there means the default (PA-37)."""
    try:
        document = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = None
    seconds = document.get("seconds") if isinstance(document, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return EXTEND_DEFAULT_S
    return int(min(max(seconds, EXTEND_MIN_S), EXTEND_MAX_S))
