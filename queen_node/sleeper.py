"""One group on its way to sleep and back: what its driver asks before, between and after its events (M-31).

Plain code around `raft.quiet`, which says when a group may sleep and why that is safe. What the node does for those
that sleep is in `sleepers`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from queen_node.events import Alarm, AskAlso, Event, Heard, HeardClock, LetPopsGo, Tick, Wake, Written
from queen_node.group import Group
from queen_node.sleepers import Woken
from raft import quiet
from raft.core import Role
from raft.messages import AskQuiet

SLEPT_THROUGH: Final = frozenset((Alarm, AskAlso, HeardClock, LetPopsGo, Tick, Written))
"""Events that change nothing for a group that sleeps, or only with whom."""


class Bed(Protocol):
    """Where a group sleeps: the host. live: nodes that answer, this one included."""

    @property
    def live(self) -> Collection[int]: ...

    def fell_asleep(self, life: int, term: int, leader: int, agreed: frozenset[int]) -> None:
        """See `Sleepers.fell_asleep`."""
        ...

    def wake(self, life: int) -> Woken:
        """See `Sleepers.wake`."""
        ...


class Sleeper:
    """See the module. sleeps: nobody ticks it. bed: None while the group is one that never sleeps."""

    __slots__ = ("_has_news", "_woke", "bed", "group", "sleeps")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.bed: Bed | None = None
        self.sleeps = False
        self._has_news = False  # under whom it sleeps, or with whom, may have changed
        self._woke = False

    def begin(self, bed: Bed) -> None:
        """Opened as it slept since the node's start, where others may lead the group already: without a leader."""
        self.bed = bed
        self.sleeps = self.group.raft.core.rests = True

    def stir(self, events: Sequence[Event]) -> None:
        """These come next: wake if one of them matters."""
        self._woke = self.sleeps and not all(map(_is_slept_through, events))
        if self._woke:
            self._wake()

    def takes(self, event: Event, now_us: int) -> bool:
        """Whether that event is done with. now_us: of the group clock."""
        if type(event) is Heard and type(event.said) not in quiet.WORDS:
            return False  # the most of what comes
        core = self.group.raft.core
        match event:
            case Tick(periods):
                if not self.sleeps:
                    self.group.tick(self.bed.live if self.bed is not None else (), now_us, periods)
            case Wake(stands):
                if stands and not core.leader:
                    core.campaign()
            case AskAlso(node):
                if self.sleeps and core.role is Role.LEADER:
                    quiet.ask(core, (node,))
            case Heard(node, said):
                self._has_news = True
                if type(said) is AskQuiet:  # who asks must be seen to live, or its end would not be seen
                    core.is_wanted = self.bed is None or node not in self.bed.live or self.group.is_wanted(now_us)
                return False
            case _:
                return False
        return True

    def stand_if_called(self) -> None:
        """After the events: somebody waits for a group that slept without a leader."""
        core = self.group.raft.core
        if self._woke and self.group.has_calls and not core.leader:
            core.campaign()

    def settle(self, goes_on: bool) -> None:
        """After the turn: sleep if all agreed, wake if something came between. goes_on: the group still works."""
        if self.bed is None:
            return
        raft = self.group.raft
        if not (goes_on and raft.rests(self.bed.live)) or self.group.is_wanted(raft.clock.now_us()):
            raft.core.rests = self._has_news = False
            if self.sleeps:
                self._wake()
        elif raft.is_settled and (self._has_news or not self.sleeps):
            self.sleeps, self._has_news = True, False
            self.bed.fell_asleep(raft.life, raft.core.term, raft.core.leader, quiet.agreed(raft.core))

    def _wake(self) -> None:
        raft = self.group.raft
        self.sleeps = False
        if self.bed is not None:
            woken = self.bed.wake(raft.life)
            if woken.clock is not None:
                raft.hear_boottime(*woken.clock)
            raft.wake(woken.silent_ticks)


def _is_slept_through(event: Event) -> bool:
    if type(event) is Heard:
        return type(event.said) in quiet.WORDS
    return type(event) in SLEPT_THROUGH
