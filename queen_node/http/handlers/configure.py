"""POST /api/v1/configure: checks and clamps what a caller wants of a queue (queues.md 1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from queen_node import commands
from queen_node.answers.push import render_configure, wire_name
from queen_node.broker import Broker, Unavailable
from queen_node.errors import BAD_BODY, BAD_REQUEST, NAME_TOO_LONG, STORAGE_FULL, UNDECIDED, Refused
from queen_node.http.messages import Request, Response
from queen_node.ids import IdMint
from queen_node.state.rows import QueueOptions

QUEUE_BYTES_MAX = 411  # PU-21, the tenant taken off; one that long can be named but has no room for a partition
LABEL_BYTES_MAX = 411
BODY_BYTES_MAX = 256 << 10  # decoded in one go, so it must be short (M-51)
LEASE_TIME_MAX_S = 86_400
MIN_POP_WAIT_TIME_MAX_MS = 60_000
SINK_HOLD_SECONDS = range(60, 31_536_000 + 1)
SECONDS_MAX = 1 << 40  # 35,000 years: as microseconds beside a stamp it still fits 64 bits
INTEGER_MAX = (1 << 53) - 1  # what every JSON reader keeps exact

_SINK_HOLD = re.compile(r"[A-Za-z0-9._-]{0,64}")

Check = Callable[[str, object], object]


def _boolean(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(option, "must be true or false")
    return value


def _integer(option: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(option, "must be a whole number")
    if value > INTEGER_MAX:
        raise _wrong(option, "too large", limit=INTEGER_MAX, got=value)
    return value


def _count(option: str, value: object) -> int:
    number = _integer(option, value)
    if number < 0:
        raise _wrong(option, "must not be negative")
    return number


def _seconds(option: str, value: object) -> int:
    number = _count(option, value)
    if number > SECONDS_MAX:
        raise _wrong(option, "too large", limit=SECONDS_MAX, got=number)
    return number


def _seconds_clamped_at_zero(option: str, value: object) -> int:
    return _seconds(option, max(0, _integer(option, value)))


def _lease_time(option: str, value: object) -> int:
    number = min(_count(option, value), LEASE_TIME_MAX_S)
    if number == 0:
        raise _wrong(option, "must not be 0")
    return number


def _min_pop_wait_time(option: str, value: object) -> int:
    return min(max(0, _integer(option, value)), MIN_POP_WAIT_TIME_MAX_MS)


def _sink_hold(option: str, value: object) -> str:
    if not isinstance(value, str) or not _SINK_HOLD.fullmatch(value):
        raise _wrong(option, "must be at most 64 letters, digits, dots, underscores or hyphens")
    return value


def _sink_hold_seconds(option: str, value: object) -> int:
    number = _integer(option, value)
    if number not in SINK_HOLD_SECONDS:
        raise _wrong(option, f"must be {SINK_HOLD_SECONDS.start} to {SINK_HOLD_SECONDS.stop - 1}")
    return number


# Field of QueueOptions -> what a value must be, and what becomes of it.
CHECKS: dict[str, Check] = {
    "lease_time": _lease_time,
    "retry_limit": _count,
    "dead_letter_queue": _boolean,
    "dlq_after_max_retries": _boolean,
    "dedup_window_seconds": _seconds_clamped_at_zero,
    "delayed_processing": _seconds,
    "window_buffer": _seconds,
    "retention_enabled": _boolean,
    "retention_seconds": _seconds,
    "completed_retention_seconds": _seconds,
    "max_wait_time_seconds": _seconds,
    "encryption_enabled": _boolean,
    "min_pop_wait_time": _min_pop_wait_time,
    "priority": _count,
    "max_size": _count,
    "ttl": _count,
    "retry_delay": _count,
    "retention_sink_hold": _sink_hold,
    "retention_sink_hold_max_seconds": _sink_hold_seconds,
}
FIELD_OF = {wire_name(field): field for field in QueueOptions.__struct_fields__}
LABELS = ("namespace", "task")


class ConfigureHandlers:
    """Creates and edits queues. timeout_ms: how long a call waits for its outcome."""

    def __init__(self, broker: Broker, ids: IdMint, *, timeout_ms: int = 30_000) -> None:
        self._broker, self._ids, self._timeout_ms = broker, ids, timeout_ms

    async def configure(self, request: Request) -> Response:
        """Create the queue or edit it, in one entry (QU-1). Raises Refused; then nothing was written."""
        wish, ignored = read_wish(request.body)
        if not self._broker.takes_changes():
            raise Refused(STORAGE_FULL)
        command = commands.configure(
            self._ids.request_id(), wish.queue, self._ids.uuid7(), wish.labels, wish.mode, wish.options)
        try:
            raw = await self._broker.write(request.tenant, command, timeout_ms=self._timeout_ms)
        except Unavailable as error:
            raise Refused(UNDECIDED[error.code]) from None
        status, body = render_configure(raw)
        if ignored:
            body = b'%b,"ignored":%b}' % (body[:-1], msgspec.json.encode(ignored))
        return Response(status, body)


class Wish(msgspec.Struct):
    """What a call wants. labels: None keeps; options: (field of QueueOptions, value or None for its default)."""

    queue: bytes
    labels: tuple[bytes | None, bytes | None]
    mode: str
    options: list[tuple[str, object]]


def read_wish(raw: bytes) -> tuple[Wish, list[str]]:
    """(what the body asks for, names in it that mean nothing). Raises Refused."""
    if len(raw) > BODY_BYTES_MAX:
        raise Refused(BAD_BODY, "too long", limit=BODY_BYTES_MAX, got=len(raw))
    try:
        body = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(BAD_BODY, str(error)) from None
    queue = _name("queue", body.pop("queue", None), QUEUE_BYTES_MAX)
    if not queue:
        raise _wrong("queue", "must be a non-empty text")
    mode = body.pop("mode", None)
    if mode not in (None, "merge", "replace"):
        raise _wrong("mode", "must be merge or replace")
    # The SDK always sends both labels here, null when unset: only a text says something (QU-1).
    labels = {name: body.pop(name, None) for name in LABELS}
    labels = {name: value for name, value in labels.items() if isinstance(value, str) and value}
    options = body.pop("options", None)
    if options is None:
        options, stray = body, []
    elif isinstance(options, dict):
        stray = list(body)
    else:
        raise _wrong("options", "must be an object")
    values, unknown = _values(options)
    labels |= {name: options[name] for name in LABELS if name in options}
    namespace, task = (_label(name, labels[name]) if name in labels else None for name in LABELS)
    return Wish(queue, (namespace, task), mode or "merge", values), stray + unknown


def _values(options: Mapping[str, object]) -> tuple[list[tuple[str, object]], list[str]]:
    values: list[tuple[str, object]] = []
    unknown = []
    for option, value in options.items():
        field = FIELD_OF.get(option)
        if field is not None:
            values.append((field, None if value is None else CHECKS[field](option, value)))
        elif option not in LABELS:
            unknown.append(option)
    return values, unknown


def _label(option: str, value: object) -> bytes:
    return b"" if value is None else _name(option, value, LABEL_BYTES_MAX)


def _name(option: str, value: object, limit: int) -> bytes:
    if not isinstance(value, str):
        raise _wrong(option, "must be a text")
    if "\0" in value:
        raise _wrong(option, "must not hold U+0000")
    name = value.encode()
    if len(name) > limit:
        raise Refused(NAME_TOO_LONG, field=option, limit=limit, got=len(name))
    return name


def _wrong(option: str, text: str, *, limit: int | None = None, got: int | None = None) -> Refused:
    return Refused(BAD_REQUEST, text, field=option, limit=limit, got=got, invalid=option)
