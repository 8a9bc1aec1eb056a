"""Members that need what is no longer in their leader's memory: served from the log on disk (M-10, CL-111).

Which of them, and from where on, `RaftGroup.pump` says; what the log on disk does not reach back to is the business of
snapshots.
"""

from __future__ import annotations

from typing import Final

from raft.group import RaftGroup
from raft.wal import Wal

SUPPLY_BYTES_MAX: Final = 1 << 20  # read and sent at once; the next part follows when this one is accepted


def supply(raft: RaftGroup, wal: Wal, peer: int, next_index: int) -> bool:
    """Send `peer` entries from `next_index` on, as far as they are not in memory. False: it needs a snapshot.

    Reads files, from the page cache when they are young. Raises Damaged, LogFailed, OSError.
    """
    log = raft.core.log
    previous_index, last_index = wal.span(raft.life)
    if next_index <= previous_index:
        return False
    last_index = min(last_index, log.first_index - 1)
    if next_index <= last_index:
        entries = wal.read(raft.life, next_index, last_index, SUPPLY_BYTES_MAX)
        raft.supply(peer, (next_index - 1, wal.term_at(raft.life, next_index - 1)), entries)
    return True
