"""Cores with one old fault each put back. The checkers prove themselves by finding them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raft import changes
from raft.configurations import Configurations
from raft.core import Core
from raft.leadership import Leadership
from raft.log import Log
from raft.membership import MembershipRefused, Why
from raft.messages import Append, Entry, HardState, Message, Vote
from raft.promises import Promises
from raft.quorum import Configuration
from raft.ready import Ready, Role


class CommitsEarlierTerms(Core):
    """§5.4.2: counts replicas of an entry of an earlier term."""

    def _advance_commit(self, leadership: Leadership) -> None:
        self._commit_to(leadership.agreed_match_index())


class CountsUnflushed(Core):
    """CL-30: the leader counts itself before its own flush."""

    def _advance_commit(self, leadership: Leadership) -> None:
        index = leadership._agreed(self.log.last_index, lambda progress: progress.match_index)
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self._commit_to(index)


class AppliesPastItsDisk(Core):
    """M-3."""

    def _take_applicable(self) -> tuple[Entry, ...]:
        if self.commit_index <= self._handed_index:
            return ()
        entries = self.log.entries(self._handed_index + 1, self.commit_index, 4096)
        self._handed_index = entries[-1].index
        return entries


class VotesTwice(Core):
    """§5.2: gives its vote to everyone who asks."""

    def step(self, message: Message) -> None:
        if isinstance(message, Vote) and self.role is Role.FOLLOWER:
            self.voted_for = 0
        super().step(message)


class VotesForAnyLog(Core):
    """§5.4.1: does not compare logs."""

    def _is_behind(self, message: object) -> bool:
        return False


class PromisesEarly(Core):
    """Figure 2: answers before the write."""

    def ready(self) -> Ready:
        ready = super().ready()
        return Ready(
            ready.hard_state, ready.must_write, ready.previous_term, ready.entries,
            ready.send_now + ready.send_after_write, (), ready.to_apply, ready.reads, ready.left_behind,
        )  # fmt: skip


class CommitsUnproven(Core):
    """Figure 2, receiver's step 5: takes the leader's commit index past what the append proved to agree."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, Append) and message.previous_index <= self.log.last_index:
            self._commit_to(min(message.commit_index, self.log.last_index))


class TruncatesAlways(Core):
    """Figure 2, receiver's step 3: cuts what follows an append even when nothing conflicts."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, Append) and message.term == self.term:
            cut_at = message.previous_index + len(message.entries) + 1
            if self.commit_index < cut_at <= self.log.last_index and self.log.holds(
                message.previous_index, message.previous_term
            ):
                self.log._cut_in_term = 0
                self.log._cut_from(cut_at, self.term)


class ServesReadsUnasked(Core):
    """Thesis 6.4: answers a read without asking whether it still leads."""

    def read_index(self, request: int) -> None:
        super().read_index(request)
        reads = self._lead().reads
        reads.begin(self.commit_index)
        reads.confirmed(reads.round)


class BelievesOldReports(Core):
    """M-13: takes a report for the entry that stands in that place now."""

    def written(self, term: int, index: int, hard_state: HardState | None) -> None:
        index = min(index, self.log.submitted_index)
        super().written(self.log.term_at(index), index, hard_state)


class StandsUnwritten(Core):
    """Figure 2: asks for votes before its own is on disk."""

    def ready(self) -> Ready:
        ready = super().ready()
        asks = tuple(message for message in ready.send_after_write if isinstance(message, Vote))
        rest: tuple[Message, ...] = tuple(m for m in ready.send_after_write if not isinstance(m, Vote))
        return Ready(
            ready.hard_state, ready.must_write, ready.previous_term, ready.entries, ready.send_now + asks, rest,
            ready.to_apply, ready.reads, ready.left_behind,
        )  # fmt: skip


class NeverObjects(Core):
    """Thesis 4.2.3: lets any candidate end the term of a leader that it hears."""

    def _hears_leader(self) -> bool:
        return False


class CarelessPromises(Promises):
    def _writes_under_way(self, log: Log) -> bool:
        return False


class PromisesBesideOlderWrites(Core):
    """CL-30: an acceptance leaves at once when it brings nothing new to write, though older writes are under way."""

    def __init__(self, **what: Any) -> None:
        super().__init__(**what)
        self._promises = CarelessPromises(what["hard_state"])


class TrustsPlaceAndTerm(Core):
    """M-13: a report counts if place and term are right, also when the entry was cut and came back since."""

    def written(self, term: int, index: int, hard_state: HardState | None) -> None:
        self.log._cut_in_term = 0
        super().written(term, index, hard_state)


class WinsWithoutItself(Core):
    """Figure 2: counts its own vote before it is on disk."""

    def _stand(self, *, transfer: bool) -> None:
        super()._stand(transfer=transfer)
        self._count_vote(self.node_id, granted=True)


class RulesOnceCommitted(Core):
    """§6: goes by a configuration only once it is committed."""

    def _use_configuration(self) -> None:
        super()._use_configuration()
        if self.role is not Role.LEADER:
            self.configuration = self._configurations.at(self.commit_index)


class KeepsCutConfigurations(Core):
    """§6: goes by a configuration whose entry was cut."""

    def __init__(self, **what: Any) -> None:
        super().__init__(**what)
        self._configurations = KeepingConfigurations(what["applied_index"], what["configuration"])
        changes.follow(self, self.log.after(self.applied_index))


class KeepingConfigurations(Configurations):
    def cut(self, holds: Callable[[int, int], bool], commit_index: int) -> None:
        pass


class SkipsTheJointStep(Core):
    """§6: goes from the old voters to the new ones in one step."""

    def change_membership(self, before: Configuration, after: Configuration) -> int:
        known = self._configurations
        if self.configuration.outgoing or known.latest_index > self.commit_index or before != self.configuration:
            raise MembershipRefused(Why.IN_FLIGHT, "")
        return changes.append(self, self._lead(), after)


class FinishesEarly(Core):
    """§6: appends the final configuration before the joint one is committed."""

    def _advance_commit(self, leadership: Leadership) -> None:
        super()._advance_commit(leadership)
        if self.configuration.outgoing:
            changes.append(self, leadership, self.configuration.settled)


class OnlyVotersStand(Core):
    """Thesis 4.2.2: one that its latest configuration leaves out never stands, also when that is not committed."""

    def _may_stand(self) -> bool:
        return self.configuration.is_voter(self.node_id)


class StartsFromItsState(Core):
    """§6: does not look for configurations in the log's tail at a start."""

    def __init__(self, **what: Any) -> None:
        super().__init__(**what)
        self._configurations = Configurations(what["applied_index"], what["configuration"])
        self._use_configuration()


class StaysThoughLeftOut(Core):
    """Thesis 4.2.2: leads on after the change that left it out."""

    def _must_go(self, leadership: Leadership) -> bool:
        self._is_unsettled = False
        return super()._must_go(leadership)


FOUND_BY_SEEDS: list[Callable[..., Core]] = [
    AppliesPastItsDisk,
    BelievesOldReports,
    CommitsUnproven,
    CountsUnflushed,
    FinishesEarly,
    KeepsCutConfigurations,
    PromisesEarly,
    RulesOnceCommitted,
    ServesReadsUnasked,
    SkipsTheJointStep,
    StandsUnwritten,
    StartsFromItsState,
    TruncatesAlways,
    VotesForAnyLog,
    VotesTwice,
]
FOUND_BY_SCENES: list[tuple[Callable[..., Core], str]] = [
    (AppliesPastItsDisk, "own_disk"),
    (CommitsEarlierTerms, "figure_8"),
    (CountsUnflushed, "own_disk"),
    (FinishesEarly, "change_leader_left_out"),
    (KeepsCutConfigurations, "change_cut"),
    (NeverObjects, "pre_vote"),
    (NeverObjects, "removed_member"),
    (NeverObjects, "stickiness"),
    (OnlyVotersStand, "change_left_out_stands"),
    (PromisesBesideOlderWrites, "repeated_promise"),
    (PromisesEarly, "vote_lost_in_crash"),
    (RulesOnceCommitted, "change_inherited"),
    (ServesReadsUnasked, "read_index"),
    (SkipsTheJointStep, "change_cut"),
    (StandsUnwritten, "candidate_without_disk"),
    (StartsFromItsState, "change_restart"),
    (StaysThoughLeftOut, "change_leader_left_out"),
    (TrustsPlaceAndTerm, "stale_report_returns"),
    (TruncatesAlways, "overtaken_append"),
    (VotesForAnyLog, "up_to_date"),
    (VotesTwice, "one_vote_a_term"),
    (WinsWithoutItself, "election_of_one"),
]
