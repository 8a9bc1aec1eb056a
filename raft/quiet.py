"""When an idle group sleeps: what a leader asks, what a member promises, why nothing is lost by it (M-31).

A group that sleeps is not ticked and says nothing. Its leader asks for that once nothing is under way and every member
on a live node holds the whole log; it sleeps when all of those have agreed. Whatever else happens to a member wakes it.

Why that is safe. Raft's safety rests on terms, logs and votes, never on ticks: a member that sleeps votes, appends and
commits as one whose ticks are slow. In particular
- a leader that sleeps serves a read only after a round of answers in its term (M-40), as any other: if somebody else
  was elected meanwhile, no majority answers, and a stale leader answers nobody;
- who agreed holds every committed entry on its disk, so also every timer: each of them can be elected and fire it;
- who agreed has given no vote away: it votes by term and log, once it is asked.
What would be lost is only that somebody notices: a leader that is gone, a deadline that has passed. So each member that
agrees hands both over to its node: the node watches the leader's process, by the frames that nodes exchange (M-30), and
keeps the deadline in its wheel, leading or not (M-32). The agreement is void with that process: its silence for an
election timeout, or another process in its place, and the group has no leader.

Plain decisions; what a node knows of processes and deadlines does not belong here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from raft.messages import AskQuiet, QuietAgreed, QuietRefused
from raft.progress import Mode
from raft.quorum import Tally

if TYPE_CHECKING:
    from raft.core import Core

ANSWERED_WITHIN_TICKS: Final = 6
"""So long a leader that asked says nothing else: a heartbeat would wake those who have agreed. Below an election
timeout of 10, as who was not reached by the question still waits for heartbeats. With 3, on a machine on which a frame
took 400 ms, hundreds of groups fell asleep and woke again without end."""
USED_PERIODS: Final = 20
"""Idle for so many heartbeat periods before a group that was used is asked to sleep: a sleep and a waking cost as much
as 2 s awake. In periods, not ticks: where so many are awake that each is ticked less often, they are to sleep soon."""
ELECTED_PERIODS: Final = 2
"""The same for one that only elected a leader: after a leader's end thousands do."""
ASK_AGAIN_PERIODS: Final = 10
"""Between two questions, when somebody did not agree; doubled with each in a row, for ASK_DOUBLED_MAX of them."""
ASK_DOUBLED_MAX: Final = 4
ASK_SPREAD_PERIODS: Final = 8
"""Groups that were used at one moment ask one after another: each comes so much later at most, by its life."""
WORDS: Final = frozenset((AskQuiet, QuietAgreed, QuietRefused))
"""What is said about sleeping wakes nobody."""


class QuietAsk:
    """A leader's question and who has agreed to it. Good until the leader says anything else."""

    __slots__ = ("_is_open", "_number", "_ticks", "agreed")

    def __init__(self) -> None:
        self._number = self._ticks = 0
        self._is_open = False
        self.agreed: set[int] = set()

    @property
    def waits(self) -> bool:
        """Whether the leader holds back its heartbeats for the answers."""
        return self._is_open and self._ticks < ANSWERED_WITHIN_TICKS

    def ask(self, peers: Collection[int]) -> int:
        """Its number. While one holds these are asked too; who was not asked before has not agreed."""
        if not self._is_open:
            self._number += 1
            self._is_open, self._ticks = True, 0
            self.agreed = set()
        self.agreed.difference_update(peers)
        return self._number

    def agree(self, peer: int, number: int) -> None:
        if self._is_open and number == self._number:
            self.agreed.add(peer)

    def take_back(self) -> None:
        """The leader speaks: everybody is awake again."""
        self._is_open = False
        self.agreed = set()

    def tick(self) -> None:
        self._ticks += 1


def is_level(core: Core, live: Collection[int]) -> bool:
    """Whether this member leads, nothing is under way, and every member on a live node, a majority among them, holds
    the whole log. live: nodes that answer, this one included. Dead ones do not keep a group awake."""
    leadership, log = core._leadership, core.log
    if leadership is None or core.is_wanted or not 0 < leadership.term_start_index <= core.applied_index:
        return False
    if core._is_unsettled or leadership.transfer_target or not leadership.reads.is_idle:
        return False
    if not core.applied_index == log.flushed_index == log.last_index:
        return False
    if core.configuration.tally(dict.fromkeys(live, True)) is not Tally.WON:
        return False
    return all(
        progress.mode is Mode.REPLICATE and progress.match_index == progress.told_commit == log.last_index
        for peer, progress in leadership.progress.items() if peer in live
    )


def ask(core: Core, peers: Collection[int]) -> None:
    """Ask those of these nodes that are members to sleep. Raises NotLeader."""
    leadership, log = core._lead(), core.log
    asked = [peer for peer in leadership.progress if peer in peers]
    number = leadership.quiet.ask(asked)
    for peer in asked:
        core._send.append(AskQuiet(core.node_id, peer, core.term, log.last_index, log.last_term, number))


def rest_if_agreed(core: Core, live: Collection[int]) -> None:
    """A leader sleeps once every member on a live node has agreed. Asking one more does not wake one that sleeps."""
    leadership = core._leadership
    if leadership is None or core.rests or not leadership.quiet.agreed:
        return
    if all(peer in leadership.quiet.agreed for peer in leadership.progress if peer in live):
        core.rests = is_level(core, live)


def agreed(core: Core) -> frozenset[int]:
    """Who agreed to sleep, as their leader knows it; nobody for all but a leader."""
    return frozenset(core._leadership.quiet.agreed) if core._leadership is not None else frozenset()


def answer(core: Core, message: AskQuiet) -> None:
    """A member agrees when its log is the leader's and nothing waits for the group here.

    The agreement leaves after what is being written: it speaks of the disk, as an acceptance does.
    """
    core._hear_from_leader(message.sender)
    core.leader_commit_index = max(core.leader_commit_index, message.last_index)
    log = core.log
    same = log.last_index == message.last_index and log.holds(message.last_index, message.last_term)
    core.rests = same and core._restore is None and not core.is_wanted
    if same:
        core._commit_to(message.last_index)
    if core.rests:
        core._promises.add(QuietAgreed(core.node_id, message.sender, core.term, message.number))
    else:
        core._send.append(QuietRefused(core.node_id, message.sender, core.term, message.number))


def take_agreement(core: Core, message: QuietAgreed) -> None:
    leadership = core._lead()
    if message.sender in leadership.progress:
        leadership.progress[message.sender].silent_ticks = 0
        leadership.quiet.agree(message.sender, message.number)


def take_refusal(core: Core, message: QuietRefused) -> None:
    """One that lacks something needs heartbeats: they show what."""
    core.rests = False
    core._lead().quiet.take_back()
