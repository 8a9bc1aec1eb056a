"""How deep a JSON text nests, against what a walk over the decoded value says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node.state.nesting import DEPTH_MAX, nests_deeper

texts = st.text(st.sampled_from('[]{}"\\a'), max_size=6)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=12)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max((depth(each) for each in value), default=0) if isinstance(value, list) else 0


@given(values)
def test_strings_do_not_nest(value: Any) -> None:
    text, found = msgspec.json.encode(value), depth(value)
    assert not nests_deeper(text, found) and (found == 0 or nests_deeper(text, found - 1))


@pytest.mark.parametrize("more", [0, 1])
def test_the_bound(more: int) -> None:
    """At the bound and one over it, beside many brackets that stand side by side or in a string."""
    inner = b"[" * (DEPTH_MAX - 1 + more) + b"]" * (DEPTH_MAX - 1 + more)
    assert nests_deeper(b'["%b",%b%b]' % (b"[{" * 900, b"[{}]," * 900, inner)) == bool(more)
