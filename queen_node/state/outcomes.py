"""Which requests were applied within the last minute, so that a repeat of one changes nothing (CL-27, M-53).

A node that took a call sends it again, under the same request id, when it cannot know whether a leader that is gone
got it into the log. Both copies may then be in the log; the second one is stepped over. What the first was answered
with is not kept: the node that took the call applies the first copy too, and answers from that.

One row an entry holds its request ids. In memory they are kept as they are in the rows, 16 bytes a request, and looked
up only for commands that are marked as repeats; these come in the seconds after a change of leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from queen_node.state.keys import OUTCOMES, after, read_u64, u64
from queen_node.state.store import Store
from raft.invariants import must

KEPT_US = 60 * 1_000_000
FORGOTTEN_AN_ENTRY = 4  # rows whose time is over, removed by each entry that adds one: more than it adds
ID_BYTES = 16
STAMP_BYTES = 8


class Outcomes:
    """The rows of one group, and their content in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: deque[tuple[int, int, bytes]] | None = None  # index, stamp, ids; None: to be read again
        self._known: set[bytes] | None = None  # each id of `_kept`, while repeats come: 600,000 of them take 0.1 s
        self._asked_us = 0

    def record(self, index: int, now_us: int, ids: Sequence[bytes]) -> None:
        """Keep the ids of the requests of the entry at `index`, whose stamp is now_us; forget some that are old."""
        kept = self._rows()
        packed = b"".join(ids)
        must(len(packed) == ID_BYTES * len(ids), "a request id of another length", index=index)
        self._store.put(OUTCOMES + u64(index), u64(now_us) + packed)
        kept.append((index, now_us, packed))
        if self._known is not None:
            self._known.update(ids)
            if now_us - self._asked_us > KEPT_US:
                self._known = None
        for _ in range(FORGOTTEN_AN_ENTRY):
            oldest_index, oldest_us, oldest = kept[0]
            if now_us - oldest_us <= KEPT_US:
                break
            self._store.delete(OUTCOMES + u64(oldest_index))
            kept.popleft()
            if self._known is not None:
                self._known.difference_update(_ids(oldest))

    def holds(self, request_id: bytes, now_us: int) -> bool:
        """Whether the request was applied, of late."""
        if self._known is None:
            self._known = {one for _, _, packed in self._rows() for one in _ids(packed)}
        self._asked_us = now_us
        return request_id in self._known

    def forget_memory(self) -> None:
        """The store took back what an entry wrote, or holds another state now."""
        self._kept = self._known = None

    def _rows(self) -> deque[tuple[int, int, bytes]]:
        if self._kept is None:
            view = self._store.committed()
            self._kept = deque(
                (read_u64(key[len(OUTCOMES) :]), read_u64(row[:STAMP_BYTES]), row[STAMP_BYTES:])
                for key, row in view.iterate(OUTCOMES, after(OUTCOMES)))
        return self._kept


def _ids(packed: bytes) -> Iterator[bytes]:
    return (packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES))
