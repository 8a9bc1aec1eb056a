"""What a member starts with when its state was flipped to a snapshot: a crash may have come before its log was told.

The state says at which entry it was flipped; whether the log knows is found in the log (M-61, M-3).
"""

from __future__ import annotations

from raft.log import Log
from raft.messages import HardState
from raft.wal_recovery import RecoveredGroup


def log_was_told(group: RecoveredGroup | None, index: int, term: int) -> bool:
    """Whether the log on disk starts behind the entry at (index, term), or did once and holds more since.

    While it was not told it ends before that entry, or holds another one in its place: else there would have been no
    flip (`Core.begin_restore`).
    """
    if group is None or group.last_index < index:
        return False
    if group.previous_index > index:
        return True
    return next(held for first_index, held in reversed(group.terms) if first_index <= index) == term


def start_behind_flip(group: RecoveredGroup | None, index: int, term: int) -> tuple[Log, HardState]:
    """Log and hard state of a member whose log was not told: it forgets what it holds, and its first write says so.

    A term that the log does not name yet is one in which it promised nothing. The flip, which is on the disk, names it
    from now on: so what the state stands for may be accepted in that term before the log's own word of it is written.
    """
    hard_state = group.hard_state if group is not None else HardState()
    if hard_state.term < term:
        hard_state = HardState(term, 0, hard_state.commit_index)
    log = Log()
    log.restart(index, term, hard_state.term)
    return log, hard_state
