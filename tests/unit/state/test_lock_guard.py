"""A lock's guard in a transaction, against a model of who holds the permit (G-K6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queen_node import commands
from queen_node.commands import KvOp, LockOp
from queen_node.state.locks import NAMESPACE
from queen_node.state.transactions import Committed
from tests.support.outward import SECOND
from tests.support.transaction_state import Node

OWNERS = ("a", "b", "c")
STEPS = st.lists(st.tuples(
    st.sampled_from(["acquire", "renew", "release", "work", "work", "work", "wait"]), st.sampled_from(OWNERS),
    st.integers(1, 4)), max_size=40)


@given(STEPS)
def test_guarded_work_commits_only_while_the_permit_is_still_its_workers(steps: list[tuple[str, str, int]]) -> None:
    """G-K6, LK-31: every worker goes on with the token that it was given last, however old; what it pushes is there
    exactly if the token was that of the permit at that instant."""
    node = Node()
    tokens: dict[str, int] = {}
    held: tuple[int, int] | None = None  # the permit's token and when it ends
    done: list[str] = []
    last_token = 0
    for number, (step, owner, seconds) in enumerate(steps):
        if held is not None and held[1] <= node.now_us:
            held = None
        ends_us = node.now_us + seconds * SECOND
        token = tokens.get(owner, 1 << 40)
        if step == "wait":
            node.now_us = ends_us
        elif step == "work":
            guard = (KvOp.CHECK, NAMESPACE, b"job#0", token, True)
            answer = node.transact(pushes=[node.item_of(f"{number}", queue="orders")], kv=[guard])
            assert isinstance(answer, Committed) == (held is not None and held[0] == token)
            done += [f"{number}"] if isinstance(answer, Committed) else []
        else:
            operation = {
                "acquire": (LockOp.ACQUIRE, b"job", seconds, f"{owner}{number}", 1),
                "renew": (LockOp.RENEW, b"job", token, seconds, 0, None),
                "release": (LockOp.RELEASE, b"job", token, 0),
            }[step]
            exceeds, (result,) = node.apply(commands.locks(b"r" * 16, [operation]))[0]  # type: ignore[list-item]
            assert not exceeds
            free_to_do = held is None if step == "acquire" else held is not None and held[0] == token
            assert result.done == free_to_do
            if result.done and step == "release":
                held = None
            elif result.done:
                assert result.token > last_token, "no token comes twice"
                last_token = tokens[owner] = result.token
                held = result.token, ends_us
    if done:
        assert node.ids(queue="orders", mode="all", batch=100) == done
