"""What a tenant may ask of a node in a second (tenancy-auth.md 6): token buckets for reads and writes.

In memory, a node each: a client that sprays three nodes gets three times the rate, which is documented. Occupancy
(how much may be stored) is decided where the entry applies, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from raft.invariants import must

_FORGET_FULL_AT = 10_000  # buckets kept at least; beyond them the full ones, which say nothing, are forgotten


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens: `per_second` come, at most `burst` lie ready (TA-53)."""

    per_second: float
    burst: float

    def __post_init__(self) -> None:
        must(self.per_second > 0 and self.burst >= 1, "a rate that never lets a call through", rate=self)


class Bucket:
    """Tokens of one tenant. Starts full."""

    __slots__ = ("_at_s", "_tokens", "rate")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self.rate = rate
        self._tokens = rate.burst
        self._at_s = now_s

    def take(self, now_s: float) -> int:
        """Spend a token: 0. Or spend nothing: whole seconds, at least 1, until there is one (Retry-After)."""
        self._refill(now_s)
        if self._tokens >= 1:
            self._tokens -= 1
            return 0
        return max(1, ceil((1 - self._tokens) / self.rate.per_second))

    def is_full(self, now_s: float) -> bool:
        """Whether it says no more than a new bucket would."""
        self._refill(now_s)
        return self._tokens >= self.rate.burst

    def _refill(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self._tokens = min(self.rate.burst, self._tokens + elapsed_s * self.rate.per_second)
            self._at_s = now_s


class _Buckets:
    """The buckets of all tenants for one kind of call."""

    __slots__ = ("_buckets", "_forget_at", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: dict[bytes, Bucket] = {}
        self._forget_at = _FORGET_FULL_AT

    def take(self, tenant: bytes, now_s: float) -> int:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            self._make_room(now_s)
            bucket = self._buckets[tenant] = Bucket(self._rate, now_s)
        return bucket.take(now_s)

    def _make_room(self, now_s: float) -> None:
        if len(self._buckets) >= self._forget_at:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now_s)}
            self._forget_at = max(_FORGET_FULL_AT, 2 * len(self._buckets))


class Quotas:
    """The rates of one node. clock_s: a monotonic clock in seconds."""

    def __init__(self, *, reads: Rate, writes: Rate, clock_s: Callable[[], float]) -> None:
        self._reads, self._writes, self._clock_s = _Buckets(reads), _Buckets(writes), clock_s

    def take_read(self, tenant: bytes) -> int:
        """Spend one of the tenant's read tokens: 0; or the seconds to wait, and nothing is spent."""
        return self._reads.take(tenant, self._clock_s())

    def take_write(self, tenant: bytes) -> int:
        """Spend one of the tenant's write tokens: 0; or the seconds to wait, and nothing is spent."""
        return self._writes.take(tenant, self._clock_s())
