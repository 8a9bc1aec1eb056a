"""What lies between the nodes: a link for each directed pair, with delay, loss, doubling, reordering, cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.simulation.world import World

REORDERED_US_MAX: Final = 50_000


class Network:
    """Links keep the order unless they reorder. Messages are objects: their CBOR form has tests of its own.

    loss, doubling, reordering: probabilities for each message. cut: (sender, receiver) whose messages are lost, also
    those on their way.
    """

    def __init__(self, world: World, node_ids: Iterable[int], wire_us: tuple[int, int]) -> None:
        self._world, self._wire_us = world, wire_us
        self._dice = world.dice("network")
        self.cut: set[tuple[int, int]] = set()
        self.loss = self.doubling = self.reordering = 0.0
        self.slow = 1
        self._busy_until_us: dict[tuple[int, int], int] = {}
        self.deliver: dict[int, Callable[[Any], None]] = {}
        self.node_ids = tuple(node_ids)

    def send(self, sender: int, receiver: int, message: Any) -> None:
        """Put a message on its way."""
        dice, link = self._dice, (sender, receiver)
        if link in self.cut or (self.loss and dice.random() < self.loss):
            return
        self._carry(link, message)
        if self.doubling and dice.random() < self.doubling:
            self._world.reached("message doubled")
            self._carry(link, message)

    def heal(self) -> None:
        """All links are whole again."""
        self.cut.clear()
        self.loss = self.doubling = self.reordering = 0.0
        self.slow = 1

    def cut_off(self, nodes: Iterable[int], *, deaf: bool, mute: bool) -> None:
        """Part these from all others. deaf: they hear nobody; mute: nobody hears them."""
        some = set(nodes)
        for one in some:
            for other in self.node_ids:
                if other not in some:
                    if deaf:
                        self.cut.add((other, one))
                    if mute:
                        self.cut.add((one, other))

    def _carry(self, link: tuple[int, int], message: Any) -> None:
        world, dice = self._world, self._dice
        low, high = self._wire_us
        arrives_us = world.now_us + (low + int(dice.random() * (high - low))) * self.slow
        if self.reordering and dice.random() < self.reordering:
            arrives_us += dice.randrange(REORDERED_US_MAX)
        else:
            busy_until_us = self._busy_until_us.get(link, 0)
            if arrives_us < busy_until_us:
                arrives_us = busy_until_us
            self._busy_until_us[link] = arrives_us
        world.after(arrives_us - world.now_us, self._arrive, link, message)

    def _arrive(self, link: tuple[int, int], message: Any) -> None:
        if link not in self.cut:
            self.deliver[link[1]](message)
