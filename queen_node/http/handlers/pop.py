"""GET /api/v1/pop/queue/…: what a call asks for, its command, its answer (pop-ack.md 1, 2, 4)."""

from __future__ import annotations

from collections.abc import Mapping

from queen_node import commands
from queen_node.answers.consume import render_pop
from queen_node.broker import Broker, Unavailable
from queen_node.errors import (
    NAME_TOO_LONG,
    NO_SUCH_ROUTE,
    POP_BAD_PARAMETER,
    POP_NO_LEADER,
    POP_RETRY,
    POP_TIMEOUT,
    Refused,
)
from queen_node.http.messages import BadPath, BadQuery, Request, Response
from queen_node.http.parameters import parse_time_us, whole_number
from queen_node.ids import IdMint
from queen_node.state.claims import PARTITIONS_MAX
from queen_node.state.groups import MODE_ALL, MODE_NEW, MODE_TIME, QUEUE_MODE

NAMES_BYTES_MAX = 411  # queue and the longer of partition and group; the tenant's 36 of PU-21 are taken off
BATCH_DEFAULT, PARTITIONS_DEFAULT = 200, 1
BATCH_MAX = 1_000_000  # above it a number is only a number; the state has bounds of its own
WAIT_MAX_MS = 60_000
LEASE_MAX_S = 86_400
ANSWER_MAX_BYTES = 8 << 20  # of payload (PA-13)
AUTOPILOT_CHOOSES = 0  # in the command: batch or partitions by the law of PA-41

_NEW_WORDS = frozenset({"new", "new-only", "latest"})
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


_REFUSAL_OF = {"retry": POP_RETRY, "timeout": POP_TIMEOUT, "no_leader": POP_NO_LEADER}


class PopHandlers:
    """Answers pops of one queue.

    wait_default_ms: of a long poll that names no timeout (PA-1). subscription_mode: where a group starts whose first
    pop says nothing of it, in the words of `subscriptionMode` (PA-30).
    """

    def __init__(
        self, broker: Broker, ids: IdMint, *, wait_default_ms: int = 30_000, subscription_mode: str = "new",
    ) -> None:
        self._broker, self._ids = broker, ids
        self._wait_default_ms, self._subscription_mode = wait_default_ms, subscription_mode

    async def pop_queue(self, request: Request) -> Response:
        """The broker chooses the partitions. Raises Refused."""
        return await self._pop(request, None)

    async def pop_partition(self, request: Request) -> Response:
        """Exactly one partition. Raises Refused."""
        return await self._pop(request, _name(request, "partition"))

    async def _pop(self, request: Request, partition: bytes | None) -> Response:
        if request.method == "HEAD":  # it would take messages and show none
            raise Refused(NO_SUCH_ROUTE)
        queue = _name(request, "queue")
        try:
            query = request.query
        except BadQuery as error:
            raise Refused(POP_BAD_PARAMETER, str(error)) from None
        group = query.get("consumerGroup", "").encode() or QUEUE_MODE
        names_bytes = len(queue) + max(len(partition or b""), len(group))
        if names_bytes > NAMES_BYTES_MAX:
            raise Refused(NAME_TOO_LONG, limit=NAMES_BYTES_MAX, got=names_bytes)
        if b"\x00" in group:
            raise Refused(POP_BAD_PARAMETER, "U+0000 in a name", field="consumerGroup")
        mode, from_us = self._start(query)
        autopilot = _boolean(query, "autopilot") and partition is None
        lease_s = _positive(query, "leaseSeconds")
        commit = _commits_on_delivery(query)
        lease_id = self._ids.uuid7()
        command = commands.pop(
            self._ids.request_id(),
            lease_id=lease_id,
            queue=queue,
            partition=partition,
            group=group,
            mode=mode,
            from_us=from_us,
            batch=min(_positive(query, "batch") or (AUTOPILOT_CHOOSES if autopilot else BATCH_DEFAULT), BATCH_MAX),
            partitions=1 if partition is not None else min(
                _positive(query, "partitions") or (AUTOPILOT_CHOOSES if autopilot else PARTITIONS_DEFAULT),
                PARTITIONS_MAX),
            lease_ms=None if lease_s is None else min(lease_s, LEASE_MAX_S) * 1000,
            commit_on_delivery=commit,
            max_bytes=ANSWER_MAX_BYTES,
        )
        wait_ms = self._wait_ms(query)
        try:
            raw = await self._broker.pop(
                request.tenant, command, lease_id=lease_id, queue=queue, group=group, partition=partition,
                wait_ms=wait_ms, client_gone=request.client_gone)
        except Unavailable as error:
            raise Refused(_REFUSAL_OF[error.code]) from None
        response = Response(*render_pop(raw))
        if commit or response.status != 200:
            return response

        async def hand_back() -> None:
            await self._broker.hand_back(request.tenant, lease_id)

        response.on_undelivered = hand_back
        return response

    def _wait_ms(self, query: Mapping[str, str]) -> int | None:
        """How long a long poll waits; None: it does not (PA-20). A bad `timeout` is refused either way."""
        timeout_ms = whole_number(query, "timeout", POP_BAD_PARAMETER, None)
        if not _boolean(query, "wait"):
            return None
        return self._wait_default_ms if timeout_ms is None else min(max(timeout_ms, 0), WAIT_MAX_MS)

    def _start(self, query: Mapping[str, str]) -> tuple[str, int]:
        """(mode, from) of the group, should this pop be its first (PA-30)."""
        since = query.get("subscriptionFrom", "")
        if since == "now":
            return MODE_NEW, 0
        if since:
            from_us = parse_time_us(since)
            if from_us is None:
                raise Refused(
                    POP_BAD_PARAMETER, "must be now, an ISO-8601 time or epoch milliseconds", field="subscriptionFrom",
                    got=since[:64])
            return MODE_TIME, from_us
        word = query.get("subscriptionMode", "") or self._subscription_mode
        return mode_of(word), 0


def mode_of(word: str) -> str:
    """Where a group starts that `subscriptionMode` says this of (PA-30)."""
    return MODE_NEW if word in _NEW_WORDS else MODE_ALL


def _name(request: Request, part: str) -> bytes:
    """A name in the path."""
    try:
        name = request.text(part)
    except BadPath as error:
        raise Refused(POP_BAD_PARAMETER, str(error)) from None
    if "\x00" in name:
        raise Refused(POP_BAD_PARAMETER, "U+0000 in a name", field=part)
    return name.encode()


def _positive(query: Mapping[str, str], name: str) -> int | None:
    """A number; none or less counts as absent (PA-1)."""
    number = whole_number(query, name, POP_BAD_PARAMETER, None)
    return number if number is not None and number > 0 else None


def _boolean(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name)
    if not text:
        return False
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise Refused(POP_BAD_PARAMETER, "must be true or false", field=name, got=text[:64])
    return value


def _commits_on_delivery(query: Mapping[str, str]) -> bool:
    """`autoAck` is the old name; the new one decides when both are sent."""
    return _boolean(query, "commitOnDelivery" if query.get("commitOnDelivery") else "autoAck")
