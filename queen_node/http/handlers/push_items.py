"""Items of pushes as they stand in a command: names, ids, trace ids (push.md 2, 3). For every route that appends."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from queen_node.commands import PayloadFlag, PushItem
from queen_node.errors import BAD_REQUEST, NAME_TOO_LONG, Refused
from queen_node.http.handlers.push_body import NO_TRACE, Item
from queen_node.ids import IdMint, uuid_text

NAMES_BYTES_MAX = 411  # queue and partition; the tenant's 36 of PU-21 are taken off
TRANSACTION_ID_BYTES_MAX = 65_535
DEFAULT_PARTITION = "Default"
_JSON = int(PayloadFlag.JSON)

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def command_items(items: Sequence[Item], first_index: int, ids: IdMint) -> list[PushItem]:
    """Items as they stand in a command. Raises Refused: names first, then the other fields (push.md 9)."""
    queue_text = partition_text = None
    queue = partition = b""
    names = []
    for index, item in enumerate(items, first_index):
        if item.queue != queue_text or item.partition != partition_text:
            queue_text, partition_text = item.queue, item.partition
            queue, partition = _names(queue_text, partition_text, index)
        names.append((queue, partition))
    built: list[PushItem] = []
    for item, (queue, partition), message_id in zip(items, names, ids.uuid7s(len(items)), strict=True):
        if item.transactionId:
            transaction_id = item.transactionId.encode()
            if len(transaction_id) > TRANSACTION_ID_BYTES_MAX:
                raise Refused(
                    BAD_REQUEST, "too long", operation=first_index + len(built), field="transactionId",
                    limit=TRANSACTION_ID_BYTES_MAX, got=len(transaction_id))
        else:  # an empty one counts as absent (PU-14)
            transaction_id = uuid_text(message_id).encode()
        trace_id = None if item.traceId is NO_TRACE else _trace_id(item.traceId)
        built.append((queue, partition, transaction_id, message_id, bytes(item.payload), _JSON, trace_id, None))
    return built


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
