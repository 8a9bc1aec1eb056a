"""A member's role and term: who leads, and how that is decided (Raft paper §5.1, §5.2, §5.4.1; pre-vote: thesis 9.6).

The half of `Core` that elects. Entries, commitment and what a driver calls do not belong here.
"""

from __future__ import annotations

from random import Random

from raft.handlers import HANDLERS
from raft.invariants import must
from raft.leadership import Leadership
from raft.log import Log
from raft.messages import Denial, HardState, Message, PreVote, PreVoteDenied, Vote, VoteDenied
from raft.promises import Promises
from raft.quorum import Configuration, Tally
from raft.ready import NotLeader, Role
from raft.settings import Settings


class Member:
    """See `Core`, which is the whole."""

    __slots__ = (
        "_elapsed_ticks", "_handlers", "_leadership", "_promises", "_random", "_send", "_settings", "_timeout_ticks",
        "_votes", "configuration", "leader", "log", "node_id", "own_clock", "role", "term", "vote_clocks", "voted_for",
    )  # fmt: skip

    configuration: Configuration

    def __init__(self, node_id: int, log: Log, hard_state: HardState, settings: Settings, random: Random) -> None:
        self.node_id, self.log = node_id, log
        self._settings, self._random = settings, random
        self.term, self.voted_for = hard_state.term, hard_state.voted_for
        self._promises = Promises(hard_state)
        self._send: list[Message] = []
        self._votes: dict[int, bool] = {}
        self.vote_clocks: dict[int, tuple[int, bool]] = {}
        self.own_clock = (0, True)
        self.leader = 0
        self._elapsed_ticks = self._timeout_ticks = 0
        self._become(Role.FOLLOWER)

    # Roles and terms

    def _become(self, role: Role) -> None:
        self.role = role
        self._handlers = HANDLERS[role]
        self._leadership: Leadership | None = None
        self._elapsed_ticks = 0
        # Who stands waits for answers, not for a silent leader: a split vote is over sooner (of 20 killed leaders one
        # took 4.7 s to replace). A vote needs two disks, a pre-vote none.
        least_ticks = self._settings.election_ticks
        if role is Role.PRE_CANDIDATE:
            least_ticks = max(least_ticks // 2, 1)
        elif role is Role.CANDIDATE:
            least_ticks = max(least_ticks * 3 // 4, 1)
        self._timeout_ticks = self._random.randrange(least_ticks, 2 * least_ticks)

    def _become_follower(self, term: int) -> None:
        """Of a leader not yet known. A follower's timeout runs on: only its leader or a granted vote restart it."""
        self.leader = 0
        if term > self.term:
            self.term, self.voted_for = term, 0
            self._promises.drop()
        if self.role is not Role.FOLLOWER:
            self._become(Role.FOLLOWER)

    def _become_leader(self) -> None:
        self._become(Role.LEADER)
        self.leader = self.node_id
        self._leadership = Leadership(
            node_id=self.node_id, term=self.term, configuration=self.configuration, log=self.log,
            settings=self._settings, send=self._send,
        )  # fmt: skip

    def _hear_from_leader(self, leader: int) -> None:
        if self.role is not Role.FOLLOWER:
            self._become(Role.FOLLOWER)
        must(self.leader in (0, leader), "two leaders in one term", term=self.term, leaders=(self.leader, leader))
        self.leader = leader
        self._elapsed_ticks = 0

    def _give_up(self, leadership: Leadership) -> None:
        if successor := leadership.best_successor(self._settings.election_ticks):
            leadership.tell_to_stand(successor)
        self._become_follower(self.term)

    def _lead(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(self.leader)
        return self._leadership

    # Elections

    def _ask_for_pre_votes(self) -> None:
        self._become(Role.PRE_CANDIDATE)
        self.leader = 0
        self._votes = {}
        for peer in self.configuration.electors:
            if peer != self.node_id:
                self._send.append(PreVote(self.node_id, peer, self.term, self.log.last_index, self.log.last_term))
        self._count_vote(self.node_id, granted=True)

    def _stand(self, *, transfer: bool) -> None:
        self._become(Role.CANDIDATE)
        self.leader = 0
        self.term += 1
        self.voted_for = self.node_id
        self._promises.drop()
        self._votes = {}
        self.vote_clocks = {}
        for peer in self.configuration.electors:
            if peer != self.node_id:
                # After the write: who won a term and forgot it in a crash could win it again with another log.
                vote = Vote(self.node_id, peer, self.term, self.log.last_index, self.log.last_term, transfer)
                self._promises.add(vote)

    def _count_vote(self, voter: int, *, granted: bool) -> None:
        """The own vote is counted once the disk holds it, and without it nothing is won."""
        self._votes[voter] = granted
        tally = self.configuration.tally(self._votes)
        if tally is Tally.LOST:
            self._become_follower(self.term)
        elif tally is Tally.WON and self.node_id in self._votes:
            if self.role is Role.PRE_CANDIDATE:
                self._stand(transfer=False)
            else:
                self._become_leader()

    def _disturbs(self, message: Message) -> bool:
        """Whether this asks a member that hears its leader for a vote in a later term (Raft thesis 4.2.3)."""
        if type(message) is Vote:
            return not message.transfer and self._hears_leader()
        return type(message) is PreVote and self._hears_leader()

    def _hears_leader(self) -> bool:
        if self._leadership is not None:
            return not self._leadership.is_silent_for(self._settings.election_ticks)
        return self.leader != 0 and self._elapsed_ticks < self._settings.election_ticks

    def _deny(self, message: Message, reason: Denial) -> None:
        denied = PreVoteDenied if type(message) is PreVote else VoteDenied
        self._send.append(denied(self.node_id, message.sender, self.term, reason))

    def _is_behind(self, message: PreVote | Vote) -> bool:
        """Whether the asker's log is less up to date than this one's (Raft paper §5.4.1)."""
        return (message.last_term, message.last_index) < (self.log.last_term, self.log.last_index)
