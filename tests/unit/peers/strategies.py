"""Frames of every kind, drawn."""

from __future__ import annotations

from hypothesis import strategies as st

from raft.messages import NUMBER_MAX
from raft.peer_frames import (
    CODE_MAX_CHARS,
    CUT_KINDS,
    Answer,
    AnswerFrame,
    Call,
    CallFrame,
    CancelFrame,
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
codes = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=CODE_MAX_CHARS)

hellos = st.builds(
    Hello, st.binary(min_size=1, max_size=64), st.integers(1, NUMBER_MAX), identities, identities, numbers, numbers,
    numbers)
calls = st.builds(Call, numbers, numbers, numbers, st.integers(0, 255), payloads)
answers = st.builds(Answer, numbers, codes, payloads)


def some(items: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(items, min_size=1, max_size=5).map(tuple)


frames: st.SearchStrategy[Frame] = st.one_of(
    hellos,
    st.builds(NodeFrame, numbers, identities, numbers, numbers, numbers, st.integers(0, 100)),
    st.builds(RaftFrame, some(st.tuples(numbers, payloads))),
    st.builds(CallFrame, some(calls)),
    st.builds(AnswerFrame, some(answers)),
    st.builds(CancelFrame, some(numbers)),
    st.builds(SnapshotFrame, numbers, payloads),
    st.builds(PartFrame, st.sampled_from(CUT_KINDS), st.binary(min_size=1, max_size=40)),
)
