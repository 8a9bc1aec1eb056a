"""Where one request's result arrives: once, also when its client leaves, also when it is a refusal."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from queen_node.broker import Unavailable
from queen_node.slots import Slot


async def test_the_first_result_counts() -> None:
    slot = Slot()
    slot.answer(b"first")
    slot.answer(b"second")
    assert slot.answered and await slot.wait() == b"first"


@pytest.mark.parametrize("late", [False, True])
async def test_a_refusal_comes_out_as_itself_also_beside_a_watcher(late: bool) -> None:
    """Out of a nursery it would come in a group, which no handler knows: a 503 became a 500."""
    for watching in (False, True):
        slot = Slot()
        async with trio.open_nursery() as nursery:
            if late:
                nursery.start_soon(trio.lowlevel.checkpoint)
                nursery.start_soon(_answer_later, slot)
            else:
                slot.answer(Unavailable("retry"))
            with pytest.raises(Unavailable, match="retry"):
                if watching:
                    await slot.wait_watching(trio.sleep_forever, lambda: None)
                else:
                    await slot.wait()


async def _answer_later(slot: Slot) -> None:
    await trio.lowlevel.checkpoint()
    slot.answer(Unavailable("retry"))


async def test_a_client_that_leaves_withdraws_and_the_result_is_still_awaited() -> None:
    slot = Slot()
    assert await slot.wait_watching(trio.lowlevel.checkpoint, lambda: slot.answer(b"nothing")) == b"nothing"


async def test_a_result_that_comes_first_withdraws_nothing() -> None:
    """Also when the client goes in the same moment."""
    slot, withdrawn = Slot(), list[bool]()

    async def answered_while_it_goes() -> None:
        await trio.lowlevel.checkpoint()
        slot.answer(b"result")

    assert await slot.wait_watching(answered_while_it_goes, lambda: withdrawn.append(True)) == b"result"
    assert await slot.wait_watching(trio.sleep_forever, lambda: withdrawn.append(True)) == b"result"  # it is there
    assert not withdrawn


async def test_whoever_cancels_the_waiter_ends_also_its_watch() -> None:
    slot, withdrawn, ended = Slot(), list[bool](), list[str]()

    async def gone() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("watch")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slot.wait_watching, gone, lambda: withdrawn.append(True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert ended == ["watch"] and not withdrawn
    slot.answer(b"nobody waits")  # the group may decide yet
    assert slot.answered
