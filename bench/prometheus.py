"""Reads what `/metrics/prometheus` says: plain values, and percentiles of what a histogram gained between two looks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_SAMPLE = re.compile(r'^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)')
_BOUND = re.compile(r'(?:^|,)le="(?P<bound>[^"]+)"')


def value_of(text: str, name: str) -> float | None:
    """The sum of all samples of one name, whatever their labels; None when there is no such sample."""
    samples = (sample for line in text.splitlines() if (sample := _SAMPLE.match(line)) is not None)
    found = [float(sample["value"]) for sample in samples if sample["name"] == name]
    return sum(found) if found else None


@dataclass(frozen=True)
class Histogram:
    """Counts at or below each upper bound, bounds ascending, the last one infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    def since(self, earlier: Histogram) -> Histogram:
        """What came in after `earlier` was read."""
        if not earlier.bounds:
            return self
        if earlier.bounds != self.bounds:
            raise ValueError("two histograms with different buckets have no difference")
        return Histogram(self.bounds, tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True)))

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0

    def at_most(self, percent: float) -> float:
        """The upper bound of the bucket in which a percentile lies: no more is known. NaN when nothing was counted."""
        if self.count <= 0:
            return math.nan
        wanted = self.count * percent / 100
        return next(bound for bound, count in zip(self.bounds, self.counts, strict=True) if count >= wanted)


def histogram_of(text: str, name: str) -> Histogram:
    """The histogram of one family, series with different labels added up; without buckets when there is none."""
    totals: dict[float, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample["name"] != f"{name}_bucket":
            continue
        bound = _BOUND.search(sample["labels"] or "")
        if bound is not None:
            upper = float(bound["bound"].replace("+Inf", "inf"))
            totals[upper] = totals.get(upper, 0) + float(sample["value"])
    bounds = tuple(sorted(totals))
    return Histogram(bounds, tuple(totals[bound] for bound in bounds))
