"""Times on the wire: UTC text made of whole microseconds of the group clock (TM-5, README 16)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=4096)  # deadlines of one call share their second; strftime costs ten times the lookup
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=256)  # of one call: what its entry schedules with one delay has one deadline
def micros_text(at_us: int) -> str:
    """Always six digits and `Z`, so that texts compare as times do."""
    second, micros = divmod(at_us, 1_000_000)
    return f"{_second_text(second)}.{micros:06d}Z"


def millis_text_rounded_up(at_us: int) -> str:
    """Three decimals, rounded up: a message's `createdAt` never shows a time before its timer's `deliverAt`."""
    second, millis = divmod(-(-at_us // 1000), 1000)
    return f"{_second_text(second)}.{millis:03d}Z"
