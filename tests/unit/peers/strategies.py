"""Frames of every kind, drawn."""

from __future__ import annotations

from hypothesis import strategies as st

from raft.messages import NUMBER_MAX
from raft.peer_frames import (
    CUT_KINDS,
    Call,
    CallFrame,
    Frame,
    Hello,
    NodeFrame,
    PartFrame,
    RaftFrame,
    SnapshotFrame,
)

numbers = st.integers(0, NUMBER_MAX)
identities = st.binary(min_size=16, max_size=16)
payloads = st.binary(max_size=40)

hellos = st.builds(
    Hello, st.binary(min_size=1, max_size=64), st.integers(1, NUMBER_MAX), identities, identities, numbers, numbers,
    numbers)
calls = st.builds(Call, numbers, payloads)


def some(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, min_size=1, max_size=5).map(tuple)


frames: st.SearchStrategy[Frame] = st.one_of(
    hellos,
    st.builds(NodeFrame, numbers, identities, numbers, numbers, numbers, st.integers(0, 100),
              st.none() | numbers),
    st.builds(RaftFrame, some(st.tuples(numbers, payloads))),
    st.builds(CallFrame, some(calls)),
    st.builds(SnapshotFrame, numbers, payloads),
    st.builds(PartFrame, st.sampled_from(CUT_KINDS), st.binary(min_size=1, max_size=40)),
)
