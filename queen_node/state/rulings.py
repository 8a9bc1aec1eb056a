"""Cursor arithmetic of one ack (PA-50..55): what the marks on the messages of one part of a call add up to.

Pure: offsets and statuses in, a ruling out. Which message an item means, and what is written, is `acks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from queen_node.commands import AckStatus


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """What one part of an ack does.

    reached: the cursor afterwards. stop: the lowest offset that comes back, None when none does; marks above it have no
    effect. filed: offset -> retries spent, of the messages that leave as dead letters (or are dropped). retries: the
    counter afterwards. final: one of the three statuses that end a lease was carried out.
    """

    reached: int
    stop: int | None
    filed: dict[int, int]
    retries: int
    final: bool


def rule(committed: int, marks: Mapping[int, int], *, retries: int, retry_limit: int) -> Ruling:
    """Judge the strongest status said of each offset above the cursor (`marks`: offset -> AckStatus).

    committed: the cursor before, below all marks. retries: spent so far by `failed`, since the cursor last moved.
    """
    if not any(marks.values()):  # all completed: nearly every ack
        reached = max(marks, default=committed)
        return Ruling(reached, None, {}, 0 if marks else retries, final=False)
    stop = min((offset for offset, status in marks.items() if status == AckStatus.RETRY), default=None)
    failed = min((offset for offset, status in marks.items() if status == AckStatus.FAILED), default=None)
    charge = 0
    spent = retries
    if failed is not None and (stop is None or failed < stop):
        # The counter is of the message that stops the cursor: when the cursor moves up to it first, it starts anew.
        if any(offset < failed for offset in marks):
            spent = 0
        if spent < retry_limit:
            stop, charge = failed, 1
    done = [offset for offset in marks if stop is None or offset < stop]
    reached = max(done, default=committed)
    lowest = min(done, default=None)
    filed = {}
    for offset in sorted(done):
        if marks[offset] == AckStatus.FAILED:
            filed[offset] = spent
        elif marks[offset] == AckStatus.DLQ:
            filed[offset] = retries if offset == lowest else 0
    return Ruling(reached, stop, filed, (0 if reached > committed else retries) + charge, final=True)
