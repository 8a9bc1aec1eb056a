"""The safety properties of the Raft paper under faults, then liveness; and proof that broken cores are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft.core import Core
from raft.invariants import InvariantBroken
from raft.leadership import Leadership
from raft.messages import Append, Entry, Message, Vote
from raft.ready import Ready
from tests.unit.raft.random_run import RandomRun
from tests.unit.raft.rules import RuleBroken

SEEDS = range(300)
SEEDS_A_BATCH = 50
MARKS = {
    "append rejected",
    "crash that lost a write",
    "hand-over begun",
    "message doubled",
    "read served",
    "report out of date",
    "tail cut that was handed to the disk",
    "write of a hard state alone",
}


@pytest.mark.parametrize("first", SEEDS[::SEEDS_A_BATCH])
def test_a_group_is_safe_under_faults_and_live_after_them(first: int) -> None:
    """Raft paper figure 3: election safety, leader append-only, log matching, leader completeness, state machine
    safety; M-3, CL-30; §5.6 and thesis 9.6 for liveness. Each batch also reaches every rare branch it should."""
    marks: set[str] = set()
    for seed in range(first, first + SEEDS_A_BATCH):
        run = RandomRun(seed)
        try:
            run.run()
        except (RuleBroken, InvariantBroken) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        marks |= run.marks
    assert marks == MARKS


def test_a_seed_run_twice_takes_the_same_course() -> None:
    """Nothing in the core draws on anything but what it is given (DESIGN rule 4)."""
    histories = []
    for _ in range(2):
        run = RandomRun(7)
        run.run()
        histories.append((run.rules.leaders, [member.applied for member in run.members.values()]))
    assert histories[0] == histories[1]


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

    def _answer_vote(self, message: Vote) -> None:
        self.voted_for = 0
        super()._answer_vote(message)


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


class PromisesBesideOlderWrites(Core):
    """CL-30: lets an acceptance leave at once because there is nothing new to write, while older writes are under way."""

    def ready(self) -> Ready:
        ready = super().ready()
        if ready.entries or ready.hard_state is None or not ready.must_write:
            return ready
        moved = (ready.hard_state.term, ready.hard_state.voted_for) != self._told
        self._told = (ready.hard_state.term, ready.hard_state.voted_for)
        return Ready(None, False, 0, (), ready.send_now, ready.send_after_write, (), (), ()) if not moved else ready


class CommitsUnproven(Core):
    """Figure 2, receiver's step 5: takes the leader's commit index past what the append proved to agree."""

    def _take_append(self, message: Append) -> None:
        super()._take_append(message)
        if message.previous_index <= self.log.last_index:
            self._commit_to(min(message.commit_index, self.log.last_index))


class TruncatesAlways(Core):
    """Figure 2, receiver's step 3: cuts what follows an append even when nothing conflicts."""

    def _take_append(self, message: Append) -> None:
        cut_at = message.previous_index + len(message.entries) + 1
        if self.commit_index < cut_at <= self.log.last_index and self.log._cut_in_term < self.term:
            self.log._cut_from(cut_at, self.term)
        super()._take_append(message)


class ServesReadsUnasked(Core):
    """Thesis 6.4: answers a read without asking whether it still leads."""

    def read_index(self, request: int) -> None:
        super().read_index(request)
        reads = self._lead().reads
        reads.begin(self.commit_index)
        reads.confirmed(reads.round)


class BelievesOldReports(Core):
    """M-13: takes a report for the entry that stands there now."""

    def written(self, term: int, index: int, hard_state: object) -> None:
        super().written(self.log.term_at(min(index, self.log.submitted_index)), min(index, self.log.submitted_index), hard_state)  # type: ignore[arg-type]  # noqa: E501


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


MUTANTS: list[Callable[..., Core]] = [
    CommitsEarlierTerms,
    CountsUnflushed,
    AppliesPastItsDisk,
    VotesTwice,
    VotesForAnyLog,
    PromisesEarly,
    CommitsUnproven,
    TruncatesAlways,
    ServesReadsUnasked,
    BelievesOldReports,
    StandsUnwritten,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_core_is_found(mutant: Callable[..., Core]) -> None:
    """The checkers prove themselves: each fault put into the core is found by some seed."""
    for seed in SEEDS:
        try:
            RandomRun(seed, mutant).run()
        except (RuleBroken, InvariantBroken):
            return
    pytest.fail("no seed found it")
