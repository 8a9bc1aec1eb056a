"""What a group's Raft can be told to do differently: times in ticks, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Raises ValueError for what could not work.

    election_ticks: silence of a leader after which a follower stands; drawn anew each time, up to twice as many.
    quorum_ticks: silence of a majority after which a leader hands over and steps down (CL-53), if check_quorum.
    max_append_bytes: one append. max_inflight_bytes: sent to one follower and not answered. max_apply_bytes: handed
    out for apply at once. Each of them lets one larger entry through alone. kept_bytes: applied entries that a member
    of several keeps in memory; kept_for_followers_bytes: that a leader keeps while its followers need them. Beyond that
    they are read back from the log on disk (M-10).
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    quorum_ticks: int = 30
    max_append_bytes: int = 64 * 1024
    max_inflight_bytes: int = 4 * 1024 * 1024
    max_apply_bytes: int = 4 * 1024 * 1024
    kept_bytes: int = 8 * 1024
    kept_for_followers_bytes: int = 4 * 1024 * 1024
    pre_vote: bool = True
    check_quorum: bool = True

    @property
    def spares_heartbeats(self) -> bool:
        """Whether two periods may pass between two of them, and two more for one that is lost."""
        return 4 * self.heartbeat_ticks <= self.election_ticks

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks <= self.quorum_ticks:
            raise ValueError("ticks: 0 < heartbeat < election <= quorum")
        if min(self.max_append_bytes, self.max_inflight_bytes, self.max_apply_bytes) <= 0:
            raise ValueError("sizes are above 0")
        if not 0 <= self.kept_bytes <= self.kept_for_followers_bytes:
            raise ValueError("kept: 0 <= kept_bytes <= kept_for_followers_bytes")
