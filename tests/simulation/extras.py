"""What else is done in a run beside timers, pushes and pops: key/value calls (W3, W4 of guarantees.md).

Each kind is drawn for some of the seeds, by dice that nothing else is drawn with: a seed without any takes the course
that it took before there were these. Each has a history of its own, judged by the same checkers as the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.simulation.calls import Ground, Script
from tests.simulation.kv_client import KvClient

SEEDS_WITH_EXTRAS: Final = 0.3
CLIENTS_BEGIN_AT: Final = 3000  # their numbers


class Extra(ABC):
    """One kind of work on one tenant. queues: what must be configured before its clients begin."""

    queues: Sequence[str] = ()

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    @abstractmethod
    def clients(self, dice: Random) -> Sequence[Script]:
        """Until the run's clients stop."""

    @abstractmethod
    def finish(self, dice: Random) -> Script:
        """Once all is healed: see to it that the history can be judged."""


class KvCalls(Extra):
    """W3, W3b, W3c, W4."""

    def clients(self, dice: Random) -> Sequence[Script]:
        """See `Extra`."""
        return [
            KvClient(self.ground, CLIENTS_BEGIN_AT + number, Random(dice.random())).run()
            for number in range(dice.choice((3, 5)))]

    def finish(self, dice: Random) -> Script:
        """See `Extra`."""
        return KvClient(self.ground, CLIENTS_BEGIN_AT, dice).read_everything()


KINDS: Final[Sequence[Callable[[Ground], Extra]]] = (KvCalls,)


def draw_extras(dice: Random, grounds: Sequence[Ground]) -> list[Extra]:
    """What else this seed does. grounds: of the tenants that are called."""
    if dice.random() >= SEEDS_WITH_EXTRAS:
        return []
    return [kind(dice.choice(grounds).apart()) for kind in dice.sample(KINDS, 1)]
