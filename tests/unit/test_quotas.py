"""Token buckets (TA-53)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node import quotas
from queen_node.quotas import Buckets, Quotas, Rate
from raft.invariants import InvariantBroken

SECOND_NS = 1_000_000_000
START_NS = 123_456_789_012


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)


def made(reads: Rate = Rate(1, 1), writes: Rate = Rate(10, 3)) -> tuple[Quotas, Clock]:  # noqa: B008 - frozen
    clock = Clock()
    return Quotas(reads=reads, writes=writes, clock_ns=clock), clock


def test_starts_full_spends_the_burst_exactly_and_refills_at_the_rate() -> None:
    """TA-53, tenancy-auth.md 8, case 7."""
    limits, clock = made()
    assert [limits.take_write(b"t") for _ in range(4)] == [0, 0, 0, 1]
    clock.advance(0.1)
    assert [limits.take_write(b"t") for _ in range(2)] == [0, 1]
    clock.advance(3600)
    assert [limits.take_write(b"t") for _ in range(4)] == [0, 0, 0, 1], "no more than the burst lies ready"


def test_a_refused_call_costs_nothing() -> None:
    """TA-53: waiting as long as was said is enough, however often one tried in between."""
    limits, clock = made(writes=Rate(0.25, 1))
    assert limits.take_write(b"t") == 0
    for _ in range(100):
        assert limits.take_write(b"t") == 4
    clock.advance(4)
    assert limits.take_write(b"t") == 0


@pytest.mark.parametrize(("per_second", "wait_s"), [(1000, 1), (1, 1), (0.5, 2), (0.3, 4)])
def test_the_wait_is_whole_seconds_rounded_up_and_at_least_one(per_second: float, wait_s: int) -> None:
    limits, _clock = made(writes=Rate(per_second, 1))
    limits.take_write(b"t")
    assert limits.take_write(b"t") == wait_s


def test_reads_writes_and_tenants_are_independent() -> None:
    """TA-53, TA-8."""
    limits, _clock = made(writes=Rate(1, 1))
    assert [limits.take_write(b"a"), limits.take_write(b"a"), limits.take_write(b"b")] == [0, 1, 0]
    assert [limits.take_read(b"a"), limits.take_read(b"a")] == [0, 1]


def test_a_clock_that_stands_still_gives_nothing_away() -> None:
    limits, clock = made(writes=Rate(10, 1))
    assert limits.take_write(b"t") == 0
    assert [limits.take_write(b"t") for _ in range(10)] == [1] * 10
    clock.advance(0.099)
    assert limits.take_write(b"t") == 1
    clock.advance(0.001)
    assert limits.take_write(b"t") == 0


def test_memory_is_bounded_by_the_tenants_that_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting a full bucket changes nothing, and one that misses a token is never forgotten."""
    monkeypatch.setattr(quotas, "TENANTS_KEPT", 10)
    buckets, now_ns = Buckets(Rate(1, 1)), START_NS
    for index in range(1000):
        now_ns += SECOND_NS // 2
        assert buckets.take(b"%d" % index, now_ns) == 0
    assert len(buckets) <= 20
    for index in range(1000, 1100):
        assert buckets.take(b"%d" % index, now_ns) == 0
    for index in range(999, 1100):
        assert buckets.take(b"%d" % index, now_ns) == 1, "a bucket that missed a token was forgotten"


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_rate_that_lets_nothing_through_is_a_mistake_of_ours(per_second: float, burst: int) -> None:
    with pytest.raises(InvariantBroken):
        Rate(per_second, burst)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=200), st.integers(1, 50), st.integers(1, 20))
def test_never_more_than_burst_and_rate_allow_and_never_less(
    pauses_ms: list[int], per_second: int, burst: int,
) -> None:
    """Against a bucket that counts tokens."""
    limits, clock = made(writes=Rate(per_second, burst))
    token_ns = round(SECOND_NS / per_second)
    missing_ns = 0
    for pause_ms in pauses_ms:
        clock.now_ns += pause_ms * 1_000_000
        missing_ns = max(0, missing_ns - pause_ms * 1_000_000)
        has_token = burst * token_ns - missing_ns >= token_ns
        assert (limits.take_write(b"t") == 0) == has_token
        missing_ns += token_ns if has_token else 0
