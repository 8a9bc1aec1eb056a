"""A cluster writes a later format only when every member reads it (CL-132)."""

from __future__ import annotations

from typing import get_args

import pytest

from queen_node import operator_calls, peer_calls
from queen_node.commands import Kind
from queen_node.queries import Query
from queen_node.versions import FORMAT, QUIET, held_back_by, raised_version, unreadable
from raft import messages, peer_frames, snapshot_messages
from raft.messages import AskQuiet, QuietAgreed, QuietRefused


@pytest.mark.parametrize(("highest", "raised"), [
    ({1: 2, 2: 2, 3: 2}, 2),
    ({1: 3, 2: 2, 3: 3}, 2),
    ({1: 2, 2: 1, 3: 2}, None),
    ({1: 2, 2: 2}, None),  # who does not answer may be of an older release
    ({1: 1, 2: 1, 3: 1}, None),
    ({1: 2, 2: 2, 3: 2, 9: 1}, 2),  # no member
])
def test_the_version_is_what_all_members_read(highest: dict[int, int], raised: int | None) -> None:
    assert raised_version(1, (1, 2, 3), highest) == raised


def test_a_version_never_falls() -> None:
    assert raised_version(3, (1, 2), {1: 2, 2: 2}) is None


def test_a_release_that_reads_less_does_not_serve_the_data() -> None:
    assert unreadable(FORMAT) is None
    assert "start a later release" in (unreadable(FORMAT + 1) or "")


def test_whom_a_later_format_waits_for() -> None:
    assert held_back_by(1, (1, 2, 3), {1: 2, 2: 1}) == (2, 3)
    assert held_back_by(1, (1, 2, 3), {1: 2, 2: 2, 3: 3}) == ()


# How many kinds there were in each format. Who adds one gives it a format of its own, a constant in `versions`, and
# lets it be written or said only once the cluster is of it (CL-132); then counts it here.
KINDS = {
    "commands": {1: 18, 2: 18, 3: 18, 4: 18}, "queries": {1: 9, 2: 9, 3: 9, 4: 9},
    "messages": {1: 14, 2: 17, 3: 17, 4: 17}, "calls": {1: 12, 2: 14, 3: 14, 4: 14},
    "questions": {1: 5, 2: 5, 3: 5, 4: 5}, "frames": {1: 6, 2: 6, 3: 6, 4: 6},
    "snapshot words": {1: 6, 2: 6, 3: 6, 4: 6},
}


def test_no_kind_is_new_without_a_format_that_it_came_with() -> None:
    """CL-132: a node of an earlier release stops at an entry, and ends the connection at a word, that it does not know.
    """
    now = {
        "commands": len(Kind), "queries": len(Query), "messages": len(get_args(messages.Message)),
        "calls": len(get_args(peer_calls.PeerCall)), "questions": len(get_args(operator_calls.Question)),
        "frames": len(peer_frames.FrameKind), "snapshot words": len(get_args(snapshot_messages.SnapshotMessage)),
    }
    assert now == {name: counts[FORMAT] for name, counts in KINDS.items()}
    words = {AskQuiet, QuietAgreed, QuietRefused} | set(get_args(peer_calls.QuietCall))
    new = sum(counts[QUIET] - counts[QUIET - 1] for counts in KINDS.values())
    assert len(words) == new, "the words of sleeping are all that came with it"
