"""One group's Raft, as in the Raft paper and thesis: what a member decides, given messages, ticks and disk reports.

It is called and never calls: no IO, no clock, no await; randomness is passed in. What follows from a call waits in
`ready()`. What a member does with a message is in `handlers`; arithmetic of majorities, the log, followers' progress
and read rounds have rooms of their own; elections are in `member`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from raft import changes, quiet
from raft.configurations import Configurations
from raft.invariants import broken, must
from raft.leadership import Leadership
from raft.log import Log
from raft.member import Member
from raft.membership import View
from raft.messages import (
    Denial,
    Entry,
    EntryKind,
    HardState,
    Message,
    StaleTerm,
)
from raft.quorum import Configuration
from raft.ready import NotLeader, Ready, Restore, Role, TransferInProgress
from raft.settings import Settings

__all__ = ["Core", "NotLeader", "Ready", "Role", "Settings", "TransferInProgress"]


class Core(Member):
    """One member of one group.

    To be read, never set: role, term, voted_for, leader (0 unknown), commit_index, applied_index, log, configuration;
    leader_commit_index, the highest that a leader named, which a member that is behind cannot take as its own;
    vote_clocks, the group clock as each voter that elected this leader estimates it: (clock_us, is_weak) (M-21, M-22).
    For the driver to set: own_clock, its own estimate, which its grants of votes carry; blank_data, what the blank
    entry of a term holds. The first `ready` or `propose` after an election appends that entry, so a driver that sees
    `role` turn to LEADER can set it in time. is_wanted: something waits here for the group, so it must not sleep.
    rests: it agreed to sleep, or sleeps (`quiet`).
    """

    __slots__ = (
        "_configurations", "_directory_id", "_handed_index", "_is_unsettled", "_restore", "applied_index", "blank_data",
        "commit_index", "is_wanted", "leader_commit_index", "rests",
    )  # fmt: skip

    def __init__(
        self,
        *,
        node_id: int,
        configuration: Configuration,
        log: Log,
        hard_state: HardState,
        applied_index: int,
        settings: Settings,
        random: Random,
        directory_id: bytes = b"",
    ) -> None:
        """A member as its disk has it. Breaks an invariant if what recovery read does not fit together.

        configuration: as of the applied index; later ones are found in the log. directory_id: of this member; empty: it
        is whoever its id names.
        """
        super().__init__(node_id, log, hard_state, settings, random)
        self._directory_id = directory_id
        self.commit_index = max(hard_state.commit_index, applied_index)
        self.applied_index = applied_index
        self.leader_commit_index = 0
        self._handed_index = applied_index
        self._restore: Restore | None = None
        self.blank_data = b""
        self.is_wanted = self.rests = False
        must(applied_index >= log.first_index - 1, "the log starts after what is applied", applied=applied_index)
        self._configurations = Configurations(applied_index, configuration)
        self._use_configuration()
        changes.follow(self, log.after(applied_index))
        self._check()

    # What the driver asks

    @property
    def term_start_index(self) -> int:
        """Index of the blank entry of the leader's term; 0 while it is not appended, and for all but a leader.

        A leader serves once that entry is applied (CL-24).
        """
        return self._leadership.term_start_index if self._leadership else 0

    @property
    def transfer_target(self) -> int:
        """To whom a leader is handing over; 0 for nobody."""
        return self._leadership.transfer_target if self._leadership else 0

    def quorum_silent_ticks(self) -> int:
        """Ticks since a majority last answered this leader (CL-52). Raises NotLeader."""
        return self._lead().quorum_silent_ticks()

    def is_silent_for(self, ticks: int) -> bool:
        """Whether no majority has answered this leader for so many ticks. Raises NotLeader."""
        return self._lead().is_silent_for(ticks)

    def best_successor(self, max_silent_ticks: int, turn: int = 0) -> int:
        """The voter that this leader would best hand over to (CL-54); 0 for a lone voter. Raises NotLeader.

        It holds most of the log, of those who answered within so many ticks; if none did, of all. turn: which of
        several that are as good.
        """
        return self._lead().best_successor(max_silent_ticks, turn)

    def has_ready(self) -> bool:
        """Whether `ready` would hand anything out."""
        log, handed, leadership = self.log, self._promises.handed, self._leadership
        return bool(
            log.last_index > log.submitted_index
            or self.commit_index != handed.commit_index
            or self.commit_index > self._handed_index < log.flushed_index
            or self._send
            or self._promises
            or self.term != handed.term
            or self.voted_for != handed.voted_for
            or (leadership is not None and leadership.has_ready(self.commit_index))
        )

    def ready(self) -> Ready:
        """Hand out what follows from the calls so far."""
        reads: tuple[tuple[int, int], ...] = ()
        left_behind: tuple[tuple[int, int], ...] = ()
        if self._leadership is not None:
            self._open_term(self._leadership)
            self._leadership.begin_reads(self.commit_index)
            self._leadership.replicate(self.commit_index)
            reads, left_behind = self._leadership.take_ready()
        promises = self._promises
        must_write, hard_state = promises.take_hard_state(self.term, self.voted_for, self.commit_index, self.log)
        log = self.log
        previous_term, entries = log.submit()
        restart_after = log.restart_after
        if restart_after is not None:
            previous_term, log.restart_after = log.term_at(restart_after), None
        send_now = tuple(self._send)
        self._send.clear()
        return Ready(
            hard_state, must_write, previous_term, entries, send_now, promises.take(), self._take_applicable(), reads,
            left_behind, restart_after,
        )  # fmt: skip

    # What the driver tells

    def tick(self) -> None:
        """Raft's unit of time has passed."""
        self.rests = False
        leadership = self._leadership
        if leadership is not None:
            leadership.tick(self.commit_index)
            if self._must_go(leadership):
                self._give_up(leadership)
        else:
            self._elapsed_ticks += 1
            if self._elapsed_ticks >= self._timeout_ticks:
                self.leader = self._elapsed_ticks = 0
                self.campaign()
        self._check()

    def step(self, message: Message) -> None:
        """Take in a peer's message; what follows from it waits in `ready()`."""
        if type(message) not in quiet.WORDS:
            self.rests = False
        if message.term > self.term:
            if self._disturbs(message):
                self._deny(message, Denial.HEARS_LEADER)
                return
            self._become_follower(message.term)
        elif message.term < self.term:
            if message.is_request:
                self._send.append(StaleTerm(self.node_id, message.sender, self.term))
            return
        self._handlers[type(message)](self, message)
        self._check()

    def written(self, term: int, index: int, hard_state: HardState | None) -> None:
        """The disk holds, flushed, the log up to (term, index), and this hard state (None: none since the last report).

        Reports come in the order of the writes; one may stand for several; one out of date does no harm (M-13).
        """
        promises = self._promises
        if hard_state is not None:
            promises.written(hard_state)
        self.log.flushed(term, index, promises.on_disk.term)
        if self._leadership is not None:
            self._advance_commit(self._leadership)
        elif self.role is Role.CANDIDATE and promises.vote_is_on_disk(self.term, self.node_id):
            self._count_vote(self.node_id, granted=True)
        self._check()

    def applied(self, index: int) -> None:
        """The state holds everything up to `index`."""
        must(index >= self.applied_index, "applied index fell", index=index, applied=self.applied_index)
        self.applied_index = index
        self._check()

    def forget_applied(self) -> None:
        """Drop from memory what is applied and nobody needs there (M-10).

        A lone voter needs none of it. A leader keeps what its followers were not seen to hold, within a bound; beyond
        that, and at everybody else, a little is kept for whoever lags a little.
        """
        log, index, settings = self.log, self.applied_index, self._settings
        if self.configuration.is_alone(self.node_id):
            log.forget_through(index)
            return
        log.trim(index, settings.kept_for_followers_bytes)
        if self._leadership is not None:
            index = min(index, self._leadership.lowest_needed_index())
        log.trim(index, settings.kept_bytes)

    def propose(self, payloads: Sequence[bytes]) -> int:
        """Append commands, one entry a payload; returns the index of the first.

        They may be lost with the leader until they come back in `to_apply`. Raises NotLeader, TransferInProgress.
        """
        leadership = self._lead()
        if leadership.transfer_target:
            raise TransferInProgress(leadership.transfer_target)
        must(len(payloads) > 0, "proposed nothing")
        self.rests = False
        self._open_term(leadership)
        first_index = self.log.append(self.term, EntryKind.COMMANDS, payloads)
        self._check()
        return first_index

    def read_index(self, request: int) -> None:
        """Ask from which applied index on a read that begins now may be served; the answer comes in `Ready.reads`.

        It does not come if leadership is lost first: the driver gives those up, and bounds how many wait. Raises
        NotLeader.
        """
        self._lead().reads.ask(request)
        self.rests = False

    def supply(self, peer: int, previous: tuple[int, int], entries: Sequence[Entry]) -> bool:
        """Send a member that `Ready.left_behind` named the entries that it needs, read back from this disk (M-10).

        previous: (index, term) of the entry before the first. They go in appends of the usual size, all at once: the
        caller bounds how many. Returns whether they went: not if leadership was lost or the member moved since.
        """
        return self._leadership is not None and self._leadership.supply(peer, previous, entries, self.commit_index)

    def begin_snapshot(self, peer: int) -> bool:
        """The member that was named is sent a snapshot instead, as the log on disk does not reach back far enough.

        Until `end_snapshot` it is sent no entries; each heartbeat asks what it holds. Returns whether it lags still.
        """
        return self._leadership is not None and self._leadership.begin_snapshot(peer)

    def takes_snapshot(self, peer: int) -> bool:
        """Whether `begin_snapshot` of that member holds: no acceptance has shown yet that it got further."""
        return self._leadership is not None and self._leadership.takes_snapshot(peer)

    def end_snapshot(self, peer: int, installed_index: int = 0) -> None:
        """The member says that it installed the snapshot at this index; 0: it was not sent to its end."""
        if self._leadership is not None:
            self._leadership.end_snapshot(peer, installed_index)

    def begin_restore(self, index: int, term: int) -> bool:
        """A snapshot that stands for all up to (index, term) is whole: may the driver flip to it? (M-61)

        If so, nothing is handed out to apply and no append is taken in until `restore` or `give_up_restore`. Not if the
        log holds that entry: what was accepted behind it is a promise, so the state gets there by the log.
        """
        if self.role is not Role.FOLLOWER or self._restore is not None or index <= self.commit_index:
            return False
        if self.log.holds(index, term):
            self._commit_to(index)
            return False
        self._restore = Restore(index, term, self._handed_index)
        self._handed_index = self.commit_index
        return True

    def restore(self, index: int, term: int, configuration: Configuration) -> None:
        """The driver flipped to the snapshot, and flushed it: the log starts behind it."""
        begun = self._restore
        must(begun is not None and (begun.index, begun.term) == (index, term), "restored what was not begun", at=index)
        must(term <= self.term, "restored what a later term wrote", term=term, now=self.term)
        self._restore = None
        self.log.restart(index, term, self.term)
        self.commit_index = self.applied_index = self._handed_index = index
        self._configurations = Configurations(index, configuration)
        self._use_configuration()
        self._check()

    def give_up_restore(self) -> None:
        """The driver did not flip: everything is as before."""
        begun = self._restore if self._restore is not None else broken("gave up a restore that was not begun")
        self._handed_index, self._restore = begun.handed_index, None

    def transfer_leadership(self, target: int) -> None:
        """Hand over to `target` once it holds the whole log (Raft thesis 3.10); given up after an election timeout.

        Until then the request is repeated with each heartbeat, and nothing is proposed. A second call names another
        target. Raises NotLeader, and ValueError for one that is not another voter.
        """
        leadership = self._lead()
        if target == self.node_id or not self.configuration.is_voter(target):
            raise ValueError(f"leadership cannot go to {target}")
        self.rests = False
        leadership.transfer_to(target)

    def wake(self, silent_ticks: int) -> None:
        """It sleeps no longer (`quiet`). silent_ticks: how long its leader's process has been silent meanwhile; from an
        election timeout on it knows no leader any more, and is as ready to vote as one that ticked."""
        self.rests = False
        if self._leadership is not None:
            self._leadership.quiet.take_back()  # who agreed may be awake too, and waits to hear from it
        else:
            self._elapsed_ticks = min(silent_ticks, self._settings.election_ticks)
            if silent_ticks >= self._settings.election_ticks:
                self.leader = 0

    @property
    def leader_silent_ticks(self) -> int:
        """Ticks since this member last heard its leader, or began to stand; 0 for a leader."""
        return 0 if self._leadership is not None else self._elapsed_ticks

    @property
    def membership_index(self) -> int:
        """Index of the entry that named the present members; for those of the state, of one at or behind it."""
        return self._configurations.latest_index

    @property
    def is_voter(self) -> bool:
        """Whether the present configuration gives this member a vote: it, and not a disk before it under its id."""
        configuration = self.configuration
        return configuration.is_voter(self.node_id) and configuration.is_member_by(self.node_id, self._directory_id)

    def configuration_at(self, index: int) -> Configuration:
        """Who the members were once the entry at `index`, not before the applied one, was appended."""
        return self._configurations.at(index)

    def membership_view(self, max_silent_ticks: int, also_live: Collection[int] = ()) -> View:
        """What this leader knows of the members, for `membership` to check a change against.

        also_live: nodes of which the driver knows that they run and answer, as a learner-to-be (CL-104). Raises
        NotLeader.
        """
        return self._lead().view(max_silent_ticks, also_live)

    def found(self, configuration: Configuration) -> None:
        """These are the founding members, as is known only now; nothing has happened in this group yet."""
        is_untouched = not self.log.last_index and not self.term and not self.applied_index
        must(is_untouched, "founded a group that has a past", term=self.term, last_index=self.log.last_index)
        self._configurations = Configurations(0, configuration)
        self._use_configuration()

    def change_membership(self, before: Configuration, after: Configuration) -> int:
        """Begin to change who the members are; returns the index of the first of its entries.

        Of voters, that entry is a joint configuration, and the leader appends the final one by itself once the joint
        one is committed; so does any later leader. before: the configuration that the change was checked against
        (`membership`). after: names the directories of those whom the present one does not name. Raises NotLeader,
        TransferInProgress, MembershipRefused, and ValueError for what is no change.
        """
        index = changes.begin(self, self._lead(), before, after)
        self._check()
        return index

    def campaign(self, *, skip_pre_vote: bool = False) -> None:
        """Stand for election now; a leader and a member without a vote stay what they are.

        Who is left out by a configuration that is not known to be committed stands too (Raft thesis 4.2.2).

        skip_pre_vote: for the first leader of a new group, who can disturb nobody (M-70).
        """
        self.rests = False
        if self.role is Role.LEADER or not self._may_stand():
            return
        if skip_pre_vote or not self._settings.pre_vote:
            self._stand(transfer=False)
        else:
            self._ask_for_pre_votes()

    # Membership (Raft paper §6, thesis 4); how a change goes on is in `changes`

    def _may_stand(self) -> bool:
        """Not while the state flips to a snapshot: it would be ahead of the log."""
        known = self._configurations
        return self._restore is None and known.may_stand(self.node_id, self._directory_id, self.commit_index)

    def _must_go(self, leadership: Leadership) -> bool:
        """A leader whom no majority answers may be one that cannot hear: its heartbeats keep the others quiet. One that
        the last change of members left out has done its work.
        """
        settings = self._settings
        if settings.check_quorum and leadership.is_silent_for(settings.quorum_ticks):
            return True
        return self._is_unsettled and changes.is_removed(self, leadership)

    def _use_configuration(self) -> None:
        configuration = self._configurations.latest
        self.configuration = configuration
        # Something is left to do once this is committed, by whoever leads then; a flag, as each commit asks.
        self._is_unsettled = bool(configuration.outgoing) or self.node_id not in configuration.voters

    # Entries and commitment (Raft paper §5.3, §5.4.2)

    def _open_term(self, leadership: Leadership) -> None:
        if not leadership.term_start_index:
            leadership.term_start_index = self.log.append(self.term, EntryKind.BLANK, (self.blank_data,))

    def _advance_commit(self, leadership: Leadership) -> None:
        index = leadership.agreed_match_index()
        # One of an earlier term on a majority can be overwritten still; one of this term commits them all (§5.4.2).
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self._commit_to(index)
            if self._is_unsettled and self._configurations.latest_index <= index:
                changes.go_on(self, leadership)

    def _commit_to(self, index: int) -> None:
        if index > self.commit_index and self._restore is None:
            must(index <= self.log.last_index, "committed what is not held", index=index, last=self.log.last_index)
            self.commit_index = index

    def _take_applicable(self) -> tuple[Entry, ...]:
        """Committed and on the own disk: else a crash could leave the state ahead of the log (M-3)."""
        last_index = min(self.commit_index, self.log.flushed_index)
        if last_index <= self._handed_index:
            return ()
        entries = self.log.entries(self._handed_index + 1, last_index, self._settings.max_apply_bytes)
        self._handed_index = entries[-1].index
        return entries

    def _check(self) -> None:
        """What holds between any two calls. One comparison when all is well: this runs after each of them."""
        log = self.log
        if (
            self.applied_index <= self._handed_index <= self.commit_index <= log.last_index
            and log.flushed_index <= log.submitted_index <= log.last_index
            and log.last_term <= self.term >= self._promises.handed.term
            and (self.role is Role.LEADER) == (self._leadership is not None) == (self.leader == self.node_id)
        ):
            return
        facts = {name: getattr(self, name) for name in ("role", "leader", "term", "commit_index", "applied_index")}
        facts |= {name: getattr(log, name) for name in ("last_index", "last_term", "submitted_index", "flushed_index")}
        broken("indexes, terms and role do not fit together", handed_index=self._handed_index, **facts)

