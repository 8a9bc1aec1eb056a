"""The answers of pushes (push.md 4) and of configure (QU-3)."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from queen_node.answers import result
from queen_node.errors import ENCRYPTION_KEY_MISSING, Refused
from queen_node.ids import uuid_text
from queen_node.state.push import PUSHED, PushAnswer
from queen_node.state.queues import ConfigureAnswer

QUEUED, DUPLICATE = "queued", "duplicate"


class PushResult(msgspec.Struct, gc=False):
    """What is answered for one item: the mixed spelling is the wire contract (push.md 4)."""

    index: int
    message_id: str
    transaction_id: str
    queueName: str
    status: str
    offset: int


def render_push(answer: tuple[Any, ...] | None) -> bytes:
    """One object an item, in order; or the refusal of the whole call (PU-71)."""
    kind, placed = cast(PushAnswer, answer)
    if kind != PUSHED or isinstance(placed, bytes):
        refused = Refused(ENCRYPTION_KEY_MISSING, field=cast(bytes, placed).decode())
        return result(refused.refusal.status, refused.body())
    queue = name = None
    results = []
    # Structs filled by position and encoded in one call: 0.63 µs an item, against 0.79 for dicts and 0.82 for text
    # put together here.
    for index, (message_id, transaction_id, queue_name, duplicate, offset) in enumerate(placed):
        if queue_name != queue or name is None:
            queue, name = queue_name, queue_name.decode()
        results.append(PushResult(
            index, uuid_text(message_id), transaction_id.decode(), name, DUPLICATE if duplicate else QUEUED, offset))
    return result(201, _encode(results))


def render_configure(answer: tuple[Any, ...] | None) -> bytes:
    """The queue as it now stands, with every option (QU-3)."""
    uuid, queue, namespace, task, options = cast(ConfigureAnswer, answer)
    return result(200, _encode({
        "configured": True,
        "queueId": uuid_text(uuid),
        "partitionId": None,  # configuring makes no partition
        "queue": queue.decode(),
        "namespace": namespace.decode(),
        "task": task.decode(),
        "storage": "segments",
        "options": {wire_name(name): value for name, value in options},
    }))


def wire_name(field: str) -> str:
    """The spelling on the wire of a field of QueueOptions."""
    first, *rest = field.split("_")
    return first + "".join(part.capitalize() for part in rest)


_encode = msgspec.json.Encoder().encode
