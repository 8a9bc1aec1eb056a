"""What a member starts with whose state was flipped to a snapshot, and whose log may not know (M-61, M-3)."""

from __future__ import annotations

from random import Random

import pytest

from raft.clock import ClockReading
from raft.core import Core
from raft.messages import HardState
from raft.quorum import Configuration
from raft.settings import Settings
from raft.snapshot_start import log_was_told, start_behind_flip
from raft.wal import RecoveredGroup


def recovered(previous: int, last: int, terms: list[tuple[int, int]], hard_state: HardState) -> RecoveredGroup:
    return RecoveredGroup(1, hard_state, previous, terms[0][1], last, terms, 0, 0, ClockReading(bytes(16), 0, 0))


@pytest.mark.parametrize(("group", "told"), [
    (None, False),  # it had no record of the group at all
    (recovered(0, 5, [(0, 0), (1, 2)], HardState(2, 0, 5)), False),  # it ends before
    (recovered(0, 12, [(0, 0), (1, 2)], HardState(2, 0, 5)), False),  # it holds another leader's entry there
    (recovered(9, 9, [(9, 4)], HardState(4, 0, 9)), True),  # it starts there
    (recovered(9, 12, [(9, 4), (10, 5)], HardState(5, 0, 9)), True),
    (recovered(11, 12, [(11, 5)], HardState(5, 0, 11)), True),  # and has gone on since
])
def test_whether_the_log_knows_is_found_in_the_log(group: RecoveredGroup | None, told: bool) -> None:
    assert log_was_told(group, 9, 4) is told


@pytest.mark.parametrize(("on_disk", "expected"), [
    (HardState(6, 2, 5), HardState(6, 2, 9)),  # a vote that was given stays given
    (HardState(3, 2, 5), HardState(4, 0, 9)),  # a term of which nothing was promised
    (None, HardState(4, 0, 9)),
])
def test_a_log_that_was_not_told_is_told_with_the_first_write(
    on_disk: HardState | None, expected: HardState,
) -> None:
    """CL-112: a crash between the flip and the log's record."""
    group = None if on_disk is None else recovered(0, 5, [(0, 0), (1, 2)], on_disk)
    log, hard_state = start_behind_flip(group, 9, 4)
    core = Core(
        node_id=1, configuration=Configuration((1, 2, 3)), log=log, hard_state=hard_state, applied_index=9,
        settings=Settings(), random=Random(1))
    assert core.has_ready()
    ready = core.ready()
    assert (ready.must_write, ready.restart_after, ready.previous_term) == (True, 9, 4)
    assert ready.hard_state == expected
    assert (log.first_index, log.last_term) == (10, 4)
