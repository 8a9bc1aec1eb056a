"""What is done once at the end of a pass of trio's loop, behind all tasks that had their turn in it.

The groups that run in one pass leave things for the node: writes for its log, answers for its doors. Together these are
one write and one system call. A task that wakes to gather them does it a pass later, and a pass costs as much as a
tenth of an entry that is alone: so this is an instrument of the loop, called between its tasks and its wait.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

Act = Callable[[], None]


class PassEnd(trio.abc.Instrument):
    """Does at the end of a pass what was left for it in that pass, in order. One a loop; it joins the loop at the first
    use, and ends with it."""

    def __init__(self) -> None:
        self._left: list[Act] = []
        self._joined = False

    def leave(self, act: Act) -> None:
        """Do this before the loop waits. It must not block, and must wake no task but with `wake`: by then the loop has
        decided how long it waits. What it raises ends the loop."""
        if not self._joined:
            self._joined = True
            trio.lowlevel.add_instrument(self)
        self._left.append(act)

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio. An instrument that raises is only taken out of the loop, so what an act raises is raised
        again where it ends the loop."""
        while self._left:
            left, self._left = self._left, []
            for act in left:
                try:
                    act()
                except BaseException as error:
                    self.wake(_Raise(error))

    def wake(self, act: Act) -> None:
        """Do this in the next pass, for which the loop does not wait."""
        trio.lowlevel.current_trio_token().run_sync_soon(act)


class _Raise:
    """Raises an error when called."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self) -> None:
        raise self._error
