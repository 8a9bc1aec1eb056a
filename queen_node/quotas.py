"""What a tenant may ask of a node in a second, and what it may hold (tenancy-auth.md 6).

Rates are token buckets in memory, a node each: a client that sprays three nodes gets three times the rate, which is
documented. Occupancy (how much may be stored) is decided where the entry applies (README 12): here it is only known
which caps are in force, for the door to stamp into the command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queen_node.commands import NO_CAPS, KvCaps
from raft.invariants import must

SECOND_NS = 1_000_000_000
TENANTS_KEPT = 10_000  # beyond so many, buckets that are full again are forgotten: they say what a new one says


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` tokens come, at most `burst` lie ready (TA-53)."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        must(self.per_second > 0 and self.burst >= 1, "a rate that never lets a call through", rate=self)


class Buckets:
    """One bucket a tenant, each starts full. Times are ns of one monotonic clock.

    A bucket is one number: when it will be full again. Whole nanoseconds, so that waiting as long as was said is
    enough: tokens counted in floats came out as 0.9999999.
    """

    __slots__ = ("_forget_at", "_full_at_ns", "_slack_ns", "_token_ns")

    def __init__(self, rate: Rate) -> None:
        self._token_ns = max(1, round(SECOND_NS / rate.per_second))
        self._slack_ns = (rate.burst - 1) * self._token_ns  # while no more is missing, a token is there
        self._full_at_ns: dict[bytes, int] = {}
        self._forget_at = TENANTS_KEPT

    def __len__(self) -> int:
        """Tenants remembered."""
        return len(self._full_at_ns)

    def take(self, tenant: bytes, now_ns: int) -> int:
        """Spend a token: 0. Or spend nothing: whole seconds, at least 1, until there is one (Retry-After)."""
        full_at_ns = max(self._full_at_ns.get(tenant, 0), now_ns)
        wait_ns = full_at_ns - now_ns - self._slack_ns
        if wait_ns > 0:
            return -(-wait_ns // SECOND_NS)
        self._full_at_ns[tenant] = full_at_ns + self._token_ns
        if len(self._full_at_ns) > self._forget_at:
            self._forget(now_ns)
        return 0

    def _forget(self, now_ns: int) -> None:
        self._full_at_ns = {tenant: at_ns for tenant, at_ns in self._full_at_ns.items() if at_ns > now_ns}
        self._forget_at = max(TENANTS_KEPT, 2 * len(self._full_at_ns))


def no_caps(_tenant: bytes) -> KvCaps:
    """Of a tenant without a quota row, where no grant is required (TA-57): as much as there is room for."""
    return NO_CAPS


class Quotas:
    """The limits of one node's tenants. clock_ns: a monotonic clock. caps_of: what a tenant may hold, by its row in
    group 0 as this node knows it."""

    def __init__(
        self, *, reads: Rate, writes: Rate, clock_ns: Callable[[], int], caps_of: Callable[[bytes], KvCaps] = no_caps,
    ) -> None:
        self._reads, self._writes, self._clock_ns = Buckets(reads), Buckets(writes), clock_ns
        self.caps_of = caps_of

    def take_read(self, tenant: bytes) -> int:
        """Spend one of the tenant's read tokens: 0; or the seconds to wait, and nothing is spent."""
        return self._reads.take(tenant, self._clock_ns())

    def take_write(self, tenant: bytes) -> int:
        """Spend one of the tenant's write tokens: 0; or the seconds to wait, and nothing is spent."""
        return self._writes.take(tenant, self._clock_ns())
