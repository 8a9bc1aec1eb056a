"""The end of a pass of the loop: behind all of its tasks, before the wait, once."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from queen_node.pass_end import PassEnd


async def test_it_comes_behind_the_last_task_of_the_pass_and_before_the_next() -> None:
    pass_end, seen = PassEnd(), list[str]()

    async def group(number: int) -> None:
        seen.append("turn")
        pass_end.leave(partial(seen.append, f"left by {number}"))
        await trio.lowlevel.checkpoint()
        seen.append("next turn")

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(group, number)
    assert seen[:3] == ["turn"] * 3
    assert sorted(seen[3:6]) == ["left by 0", "left by 1", "left by 2"]
    assert seen[6:] == ["next turn"] * 3


async def test_what_is_left_is_done_in_order_and_once() -> None:
    pass_end, seen = PassEnd(), list[int]()
    for number in range(3):
        pass_end.leave(partial(seen.append, number))
    pass_end.leave(lambda: pass_end.leave(partial(seen.append, 3)))  # from the end itself: still in this pass
    await trio.lowlevel.checkpoint()
    assert seen == [0, 1, 2, 3]
    await trio.testing.wait_all_tasks_blocked()
    assert seen == [0, 1, 2, 3]


async def test_it_wakes_tasks_though_the_loop_was_about_to_wait() -> None:
    """By then the loop has decided that it waits for ever."""
    pass_end, woken = PassEnd(), trio.Event()
    pass_end.leave(lambda: pass_end.wake(woken.set))
    with trio.fail_after(60):
        await woken.wait()


def test_what_an_act_raises_ends_the_loop() -> None:
    """trio only logs what an instrument raises, and goes on without it: nothing would be written any more."""
    seen: list[str] = []

    def fails() -> None:
        raise ValueError("the act's")

    async def main() -> None:
        pass_end = PassEnd()
        pass_end.leave(fails)
        pass_end.leave(partial(seen.append, "the one behind it"))
        await trio.sleep_forever()

    with pytest.raises(trio.TrioInternalError) as raised:
        trio.run(main)
    assert isinstance(raised.value.__cause__, ExceptionGroup | ValueError)
    assert seen == ["the one behind it"]
