"""Numbers in KV values, and their sum (KV-40 to KV-42). Pure, and alike on every node: no digit depends on a library.

Whole numbers are added exactly. Where one side has a fraction, both are IEEE doubles, written as the shortest text
that reads back as the same double.
"""

from __future__ import annotations

from math import isfinite

Number = int | float

WHOLE_MAX = (1 << 53) - 1  # beyond it a whole number is no JSON number that every client keeps
DIGITS_MAX = 400  # of a stored whole number: a longer one is as far outside as any


def read(value: bytes) -> Number | None:
    """The number that a JSON text is; None for any other JSON. Too large a one is infinite."""
    if not value or value[:1] not in b"-0123456789":
        return None
    if any(mark in value for mark in b".eE"):
        return plain(float(value))
    if len(value) > DIGITS_MAX:
        return float("-inf") if value[:1] == b"-" else float("inf")
    return int(value)


def plain(number: Number) -> Number:
    """The same number, whole if it has no fraction: 1e16 is what others write as 10000000000000000 (KV-42)."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def add(current: Number, delta: Number, least: Number | None, most: Number | None) -> Number | None:
    """The sum; None where it would leave the bounds, or what a JSON number can say (KV-41, KV-42)."""
    if isinstance(current, int) and isinstance(delta, int):
        total: Number = current + delta
        if abs(total) > WHOLE_MAX:
            return None
    else:
        try:
            total = float(current) + float(delta)
        except OverflowError:  # a whole number that no double reaches
            return None
        if not isfinite(total):
            return None
    if (least is not None and total < least) or (most is not None and total > most):
        return None
    return total


def written(number: Number) -> bytes:
    """The number as JSON."""
    return repr(number).encode()
