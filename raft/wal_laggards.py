"""What the log keeps though no group of this node needs it any more: for members elsewhere that lag (M-10, CL-111).

One bound for the whole node, in bytes: a number of entries a group would let an idle group pin the oldest segment for
ever. Who released first loses first. No file is touched here.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from raft.wal_index import GroupLog, Groups

LAGGARD_BYTES_DEFAULT: Final = 256 << 20  # M-10
PIECE_BYTES: Final = 1 << 20  # dropped at once; a restart releases all that a group had kept in one call


class _Piece(NamedTuple):
    """Entries of a group up to `through_index`, after those of its piece before."""

    life: int
    through_index: int
    size_bytes: int


class KeptForLaggards:
    """What was released and is still held, oldest release first."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._pieces: deque[_Piece] = deque()
        self._through: dict[int, int] = {}  # of the last piece of each life that has one
        self._budget_bytes = 0
        self.kept_bytes = 0

    def keep(self, budget_bytes: int) -> None:
        """Keep so much from now on; 0 for a node without peers."""
        self._budget_bytes = budget_bytes
        self._drop_what_is_too_much()

    def release(self, group: GroupLog, through_index: int) -> None:
        """This node needs the group's entries up to there no longer.

        A state that was flipped to a snapshot holds more than the log, until the log's next record says so.
        """
        through_index = min(through_index, group.last_index)
        after = max(group.previous_index, self._through.get(group.life, 0))
        if through_index <= after:
            return
        size_bytes = 0
        for run in group.runs(after + 1, through_index):
            if run.last_index < through_index:
                size_bytes += run.size_bytes
                if size_bytes >= PIECE_BYTES:
                    self._add(_Piece(group.life, run.last_index, size_bytes))
                    size_bytes = 0
            elif run.last_index == through_index:
                size_bytes += run.size_bytes
        self._add(_Piece(group.life, through_index, size_bytes))
        self._drop_what_is_too_much()

    def _add(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._through[piece.life] = piece.through_index
        self.kept_bytes += piece.size_bytes

    def _drop_what_is_too_much(self) -> None:
        while self._pieces and (self.kept_bytes > self._budget_bytes or not self._budget_bytes):
            life, index, size_bytes = self._pieces.popleft()
            self.kept_bytes -= size_bytes
            if self._through[life] == index:
                del self._through[life]
            group = self._groups.get(life)
            if group is not None and group.previous_index < index:  # else it ended, or began anew behind a snapshot
                group.release(index, group.term_at(index))
                group.pack_row(self._groups.rows)
