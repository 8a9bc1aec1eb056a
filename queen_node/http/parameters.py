"""What a query's parameters mean, for every route that takes numbers or times in one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

from queen_node.errors import Refusal, Refused

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_LATEST_MS = 253_402_300_799_999  # the year 9999, as far as ISO-8601 reaches
_SHOWN_CHARACTERS = 64  # of a wrong value, in the answer

Absent = TypeVar("Absent")


def whole_number(parameters: Mapping[str, str], name: str, wrong: Refusal, absent: Absent) -> int | Absent:
    """The number in `name`, or `absent` when it is missing or empty. Raises Refused (`wrong`) for any other text."""
    text = parameters.get(name)
    if not text:
        return absent
    if not _WHOLE.fullmatch(text):
        raise Refused(wrong, "must be a whole number", field=name, got=text[:_SHOWN_CHARACTERS])
    return int(text)


def parse_time_us(text: str) -> int | None:
    """A time that a client wrote, in µs since 1970: ISO-8601, no offset meaning UTC, or epoch milliseconds.

    None when it is neither; a time before 1970 counts as 1970.
    """
    if _WHOLE.fullmatch(text):
        return min(max(int(text), 0), _LATEST_MS) * 1000
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since_1970 = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return max((since_1970.days * 86_400 + since_1970.seconds) * 1_000_000 + since_1970.microseconds, 0)
