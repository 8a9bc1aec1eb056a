"""Rows of locks that were written by hand, as apply finds them (LK-28)."""

from __future__ import annotations

import pytest

from queen_node.commands import LockOp
from queen_node.state import locks
from queen_node.state.locks import NAMESPACE
from queen_node.state.nesting import DEPTH_MAX
from tests.support.kv_state import KvState, put


@pytest.mark.parametrize(("depth", "owner"), [(DEPTH_MAX, "eve"), (DEPTH_MAX + 1, None), (30_000, None)])
def test_a_row_that_nests_deeper_than_the_stack_allows_is_a_holder_without_owner(
    depth: int, owner: str | None,
) -> None:
    """LK-28, CL-28: apply finds the same on every node, however deep its caller stands, and is stopped by no row."""
    state = KvState()
    inner = depth - 1
    state.call(put(b"job#0", b'{"owner":"eve","x":%b}' % (b"[" * inner + b"]" * inner), ns=NAMESPACE))
    judged = locks.judge(state.store, state.now_us, 1, [(LockOp.GET, b"job")])
    assert [holder.owner for holder in judged.results[0].holders] == [owner]
