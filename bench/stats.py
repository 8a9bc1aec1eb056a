"""Arithmetic on measurements: exact percentiles, medians, ratios. No clock, no IO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """How some measured values lie; all but `count` in the unit of the values."""

    count: int
    p50: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank: always a measured value).

    ordered: ascending, not empty.
    """
    if not ordered:
        raise ValueError("no percentile of nothing")
    if not 0 < percent <= 100:
        raise ValueError(f"a percentile lies above 0 and is at most 100, not {percent}")
    # The products of float percents are off in the last bits (0.07 * 100 > 7): rounding keeps an exact rank exact.
    rank = math.ceil(round(percent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of `values`, in their unit; None when there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the middle two. Raises ValueError when there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no median of nothing")
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def ratio(value: float, base: float) -> float:
    """`value` in units of `base`; 0 when the base could not be measured, so that no target counts as met by it."""
    return value / base if base > 0 else 0.0
