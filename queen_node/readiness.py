"""What /health says of quorum and lag (cluster.md 13): how long ago a majority was heard, how old what is applied is.

A follower cannot know by itself whether its leader still has a majority: the leader says it in its node frames. Through
an election the last word counts on: calls are held then and answered (CL-140), so clients need not go elsewhere.
Not here: which silence is too long (`http.handlers.operations`).
"""

from __future__ import annotations

from typing import Final

US_PER_MS: Final = 1000
NEVER_APPLIED: Final = 0


class QuorumWatch:
    """When a majority was last heard, as far as this node knows.

    usual_ms: what passes between two words of a majority that is well. It is no silence: a silence begins when a word
    is missing.
    """

    __slots__ = ("_heard_at_s", "_usual_ms")

    def __init__(self, usual_ms: int) -> None:
        self._usual_ms = usual_ms
        self._heard_at_s: float | None = None

    def hear(self, silent_ms: int, now_s: float) -> None:
        """A leader, this node or the one that it follows: so long ago a majority last answered it."""
        heard_at_s = now_s - silent_ms / 1000
        self._heard_at_s = heard_at_s if self._heard_at_s is None else max(self._heard_at_s, heard_at_s)

    def silent_ms(self, now_s: float) -> int | None:
        """For how long a majority has been silent; None: this node never knew of one."""
        if self._heard_at_s is None:
            return None
        return max(0, round((now_s - self._heard_at_s) * 1000) - self._usual_ms)


def lag_ms(*, applied_index: int, gap_entries: int, stamp_us: int, now_us: int, caught_up_entries: int) -> int:
    """How far a node that does not lead is behind.

    The age of what it applied last, by the group clock, once it is more than `caught_up_entries` behind the leader's
    commit index; a node that applied nothing counts from the epoch. gap_entries: so far behind it is; stamp_us: of the
    entry applied last.
    """
    if applied_index == NEVER_APPLIED:
        return max(1, now_us // US_PER_MS)
    if gap_entries <= caught_up_entries:
        return 0
    return max(0, now_us - stamp_us) // US_PER_MS
