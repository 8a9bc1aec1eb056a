"""Which segments are still needed, and what to copy forward so that one idle group pins none for ever (M-10). No file
is touched here.
"""

from __future__ import annotations

from raft.wal_index import GroupLog, Groups, Run

COPY_BYTES_MAX = 256 << 10  # copied with one batch; more would delay those who wait for it
GAIN_MIN = 10  # copy one byte only when it frees ten: the log is at most about ten times as large as what is needed


class Space:
    """The segments on disk. They go oldest first: their numbers stay without gaps, so that a missing one is noticed
    (CL-125).
    """

    def __init__(self, groups: Groups, floor: int, active: int, segment_bytes: dict[int, int]) -> None:
        self._groups = groups
        self.oldest = floor  # still on disk
        self.floor = floor  # the log on disk says that nothing older is needed
        self.segment_bytes = {number: size for number, size in segment_bytes.items() if number != active}
        self._copied_from = 0  # the segment being copied forward
        self._lives: list[int] = []  # that may have entries there and were not yet looked at
        self._after_index = 0  # of the last of them: entries up to here were copied

    @property
    def total_bytes(self) -> int:
        return sum(self.segment_bytes.values())

    def oldest_needed(self, active: int) -> int:
        """The segment that may become the floor."""
        needed = self._groups.use.needed_bytes
        segment = self.oldest
        while segment < active and not needed[segment]:
            segment += 1
        return segment

    def is_untidy(self, active: int) -> bool:
        """Whether a batch, even an empty one, would bring some segment nearer to its end."""
        oldest = self.oldest_needed(active)
        return oldest != self.floor or self.oldest != self.floor or self._is_worth_copying(oldest, active)

    def runs_to_copy(self, active: int) -> list[tuple[GroupLog, Run]]:
        """What to copy with the next batch; empty unless it frees GAIN_MIN times as much."""
        oldest = self.oldest_needed(active)
        if not self._is_worth_copying(oldest, active):
            return []
        if self._copied_from != oldest or not self._lives:
            self._copied_from, self._after_index = oldest, 0
            self._lives = sorted(self._groups.use.lives[oldest])
        return self._next_runs(oldest)

    def _is_worth_copying(self, oldest: int, active: int) -> bool:
        if oldest >= active:
            return False
        needed = self._groups.use.needed_bytes
        gain = self.segment_bytes[oldest]
        following = oldest + 1
        while following < active and not needed[following]:
            gain += self.segment_bytes[following]
            following += 1
        return needed[oldest] * GAIN_MIN < gain

    def _next_runs(self, segment: int) -> list[tuple[GroupLog, Run]]:
        chosen: list[tuple[GroupLog, Run]] = []
        size_bytes, left_bytes = 0, self._groups.use.needed_bytes[segment]
        while self._lives and left_bytes > 0:
            group = self._groups.get(self._lives[-1])
            for run in group.runs(self._after_index + 1) if group else ():
                if run.segment == segment:
                    if chosen and size_bytes + run.size_bytes > COPY_BYTES_MAX:
                        return chosen
                    if group:
                        chosen.append((group, run))
                    size_bytes += run.size_bytes
                    left_bytes -= run.size_bytes
                if left_bytes <= 0:
                    break
                self._after_index = run.last_index
            else:
                self._lives.pop()
                self._after_index = 0
        return chosen
