"""What a leader keeps for the length of its term: its followers, its read rounds, a hand-over under way.

It says what to send; whether to lead, and what is committed, is decided in the core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from raft.invariants import must
from raft.log import Log, parts, size_bytes
from raft.membership import View
from raft.messages import (
    Append,
    AppendAccepted,
    AppendRejected,
    Committed,
    Entry,
    Heartbeat,
    HeartbeatAnswered,
    Message,
    TimeoutNow,
)
from raft.progress import Mode, Progress
from raft.quiet import QuietAsk
from raft.quorum import Configuration
from raft.reads import ReadRounds
from raft.settings import Settings


class Leadership:
    """One term of one leader; gone when it steps down. Messages go to `send`, in order."""

    __slots__ = (
        "_configuration", "_left_behind", "_log", "_node_id", "_send", "_settings", "_term", "_ticks_since_heartbeat",
        "_transfer_ticks", "progress", "quiet", "reads", "replicate_due", "term_start_index", "transfer_target",
    )  # fmt: skip

    def __init__(
        self,
        *,
        node_id: int,
        term: int,
        configuration: Configuration,
        log: Log,
        settings: Settings,
        send: list[Message],
    ) -> None:
        self._node_id, self._term = node_id, term
        self._log, self._settings, self._send = log, settings, send
        self.progress: dict[int, Progress] = {}
        self.reads = ReadRounds()
        self.quiet = QuietAsk()
        self.term_start_index = 0
        self.transfer_target = 0
        self._left_behind: list[int] = []
        self._ticks_since_heartbeat = 0
        self._transfer_ticks = 0
        self.reconfigure(configuration)

    def reconfigure(self, configuration: Configuration) -> None:
        """These are the members from now on. Of a new one nothing is known; the next entry will show what it holds."""
        self._configuration = configuration
        self.progress = {
            peer: self.progress.get(peer) or Progress(self._log.last_index + 1, self._settings.max_inflight_bytes)
            for peer in configuration.members
            if peer != self._node_id
        }
        if self.transfer_target not in configuration.voters:
            self.transfer_target = 0
        self.replicate_due = True
        self._confirm_reads()

    # What a majority has reached

    def agreed_match_index(self) -> int:
        """Highest index that a majority has on disk. The leader's own counts once it is flushed, not before (CL-30)."""
        return self._agreed(self._log.flushed_index, lambda progress: progress.match_index)

    def quorum_silent_ticks(self) -> int:
        """Ticks since a majority, the leader included, had answered."""
        return -self._agreed(0, lambda progress: -progress.silent_ticks)

    def is_silent_for(self, ticks: int) -> bool:
        """Whether no majority has answered for so long. Asked at each tick and each proposal: mostly all have."""
        for progress in self.progress.values():
            if progress.silent_ticks >= ticks:
                return self.quorum_silent_ticks() >= ticks
        return False

    def best_successor(self, max_silent_ticks: int, turn: int = 0) -> int:
        """The voter that holds most of the log, of those who answered of late if any did; 0 for a lone voter. turn:
        which of several that are as good, so that the groups of a node that goes are spread."""
        others = [peer for peer in self._configuration.electors if peer != self._node_id]
        first = turn % len(others) if others else 0

        def merit(peer: int) -> tuple[bool, int]:
            progress = self.progress[peer]
            return progress.silent_ticks <= max_silent_ticks, progress.match_index

        return max(others[first:] + others[:first], key=merit, default=0)

    def view(self, max_silent_ticks: int, also_live: Collection[int]) -> View:
        """What a change of members is checked against; live are this leader and who answered within so many ticks."""
        answered = [peer for peer, progress in self.progress.items() if progress.silent_ticks <= max_silent_ticks]
        return View(
            self._configuration, self._log.last_index,
            {peer: progress.match_index for peer, progress in self.progress.items()},
            {self._node_id, *answered, *also_live},
            {peer: progress.silent_ticks for peer, progress in self.progress.items()},
        )  # fmt: skip

    def _agreed(self, own: int, reached: Callable[[Progress], int]) -> int:
        if not self.progress:
            return own
        values = {peer: reached(progress) for peer, progress in self.progress.items()}
        values[self._node_id] = own
        return self._configuration.agreed(values)

    # What follows from it

    def has_ready(self, commit_index: int) -> bool:
        return (
            self.replicate_due
            or self.term_start_index == 0
            or self.reads.has_answers
            or (self.reads.may_begin and self.term_start_index <= commit_index)
        )

    def take_ready(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Answered reads, and who needs which entries that are no longer in memory; each is handed out once."""
        if not self._left_behind:
            return self.reads.take_answers(), ()
        named = [(peer, self.progress.get(peer)) for peer in dict.fromkeys(self._left_behind)]
        self._left_behind.clear()
        return self.reads.take_answers(), tuple(
            (peer, progress.next_index) for peer, progress in named if progress and progress.mode is Mode.LEFT_BEHIND
        )

    # Time

    def tick(self, commit_index: int) -> None:
        for progress in self.progress.values():
            progress.silent_ticks += 1
        if self.transfer_target:
            self._transfer_ticks += 1
            if self._transfer_ticks >= self._settings.election_ticks:
                self.transfer_target = 0
        self._ticks_since_heartbeat += 1
        self.quiet.tick()
        if self.quiet.waits:
            return
        if self._ticks_since_heartbeat >= self._settings.heartbeat_ticks:
            self._send_heartbeats(commit_index, spares=self._settings.spares_heartbeats)
            self.hand_over_if_level()

    def _send_heartbeats(self, commit_index: int, *, spares: bool) -> None:
        """To all, or spare those who took and answered an append since the last ones: it carried what a heartbeat does,
        and reset both sides' timers. Of busy groups these were a quarter of all messages. Only a commit index can be
        newer; it went alone, and if it was lost the next append or heartbeat, a period later, repeats it.
        """
        self._ticks_since_heartbeat = 0
        self.quiet.take_back()
        for peer, progress in self.progress.items():
            if progress.took_since_heartbeat() and spares:
                continue
            progress.told_commit = min(progress.match_index, commit_index)
            self._send.append(Heartbeat(self._node_id, peer, self._term, progress.told_commit, self.reads.round))

    # Hand-over (Raft thesis 3.10)

    def transfer_to(self, target: int) -> None:
        self.transfer_target, self._transfer_ticks = target, 0
        self.hand_over_if_level()

    def hand_over_if_level(self) -> None:
        """Tell the target to stand, once it holds the whole log; each heartbeat repeats it while nobody took over."""
        if self.transfer_target and self.progress[self.transfer_target].match_index == self._log.last_index:
            self.tell_to_stand(self.transfer_target)

    def tell_to_stand(self, peer: int) -> None:
        self._send.append(TimeoutNow(self._node_id, peer, self._term))

    # Reads (Raft thesis 6.4)

    def begin_reads(self, commit_index: int) -> None:
        """Start a round for the reads that were asked for, unless nothing of this term is committed yet.

        Until then the leader does not know which of the earlier entries are committed.
        """
        if not self.reads.may_begin or self.term_start_index > commit_index:
            return
        self.reads.begin(commit_index)
        self._send_heartbeats(commit_index, spares=False)
        self._confirm_reads()

    def _confirm_reads(self) -> None:
        if self.reads.waiting:
            self.reads.confirmed(self._agreed(self.reads.round, lambda progress: progress.answered_round))

    # Replication (Raft paper §5.3)

    def replicate(self, commit_index: int) -> None:
        """Send each follower what it can be sent now; the commit index goes alone when there is nothing to carry it."""
        self.replicate_due = False
        last_index = self._log.last_index
        for peer, progress in self.progress.items():
            while progress.may_send and progress.next_index <= last_index:
                self._append_to(peer, progress, commit_index)
            known_commit_index = min(progress.match_index, commit_index)
            if progress.told_commit < known_commit_index:
                progress.told_commit = known_commit_index
                self._send.append(Committed(self._node_id, peer, self._term, known_commit_index))
            progress.check()

    def _append_to(self, peer: int, progress: Progress, commit_index: int) -> None:
        log, first = self._log, progress.next_index
        if first < log.first_index:
            progress.leave_behind()
            self._name_if_wanted(peer, progress)
            return
        entries = log.entries(first, log.last_index, self._settings.max_append_bytes)
        last_index = entries[-1].index
        self._send.append(self._append(peer, first - 1, commit_index, entries))
        progress.sent(last_index, size_bytes(entries))
        progress.told_commit = max(progress.told_commit, min(commit_index, last_index))

    def _name_if_wanted(self, peer: int, progress: Progress) -> None:
        if progress.wants_naming:
            progress.wants_naming = False
            self._left_behind.append(peer)

    def _ask_what_it_holds(self, peer: int, progress: Progress, commit_index: int) -> None:
        previous_index = max(progress.next_index, self._log.first_index) - 1
        self._send.append(self._append(peer, previous_index, commit_index, ()))

    def _append(self, peer: int, previous_index: int, commit_index: int, entries: tuple[Entry, ...]) -> Append:
        previous_term = self._log.term_at(previous_index)
        self.quiet.take_back()
        return Append(
            self._node_id, peer, self._term, previous_index, previous_term, commit_index, self.reads.round, entries
        )

    # Who is left behind (M-10, M-61)

    def lowest_needed_index(self) -> int:
        """The entries after it are needed in memory, for members that are sent their appends from there."""
        behind = (Mode.LEFT_BEHIND, Mode.SNAPSHOT)
        matches = [progress.match_index for progress in self.progress.values() if progress.mode not in behind]
        return min(matches, default=self._log.last_index)

    def supply(self, peer: int, previous: tuple[int, int], entries: Sequence[Entry], commit_index: int) -> bool:
        """Send entries that were read back from disk. Returns whether the member still needs just these."""
        progress = self.progress.get(peer)
        if progress is None or progress.mode is not Mode.LEFT_BEHIND or progress.next_index != previous[0] + 1:
            return False
        last_index = previous[0] + len(entries)
        must(len(entries) > 0 and last_index <= self._log.last_index, "supplied what the log does not hold", peer=peer)
        for part in parts(entries, self._settings.max_append_bytes):
            self._send.append(Append(self._node_id, peer, self._term, *previous, commit_index, self.reads.round, part))
            previous = part[-1].index, part[-1].term
        progress.supplied(last_index)
        return True

    def begin_snapshot(self, peer: int) -> bool:
        """The member is sent a snapshot instead. Returns whether it was left behind."""
        progress = self.progress.get(peer)
        if progress is None or progress.mode is not Mode.LEFT_BEHIND:
            return False
        progress.begin_snapshot()
        return True

    def takes_snapshot(self, peer: int) -> bool:
        """Whether the member is sent one."""
        progress = self.progress.get(peer)
        return progress is not None and progress.mode is Mode.SNAPSHOT

    def end_snapshot(self, peer: int, installed_index: int) -> None:
        """The member installed it, or not (0). If it needs more than memory holds it is named again."""
        progress = self.progress.get(peer)
        if progress is None or progress.mode is not Mode.SNAPSHOT:
            return
        must(installed_index <= self._log.last_index, "installed what was never sent", peer=peer, index=installed_index)
        progress.end_snapshot(installed_index)
        if progress.next_index >= self._log.first_index:
            progress.probe()
        self._name_if_wanted(peer, progress)
        self.replicate_due = True

    # Answers. One from a node that is no member any more tells nothing.

    def accepted(self, message: AppendAccepted) -> bool:
        """Whether the follower got further."""
        progress = self.progress.get(message.sender)
        if progress is None:
            return False
        must(message.index <= self._log.last_index, "accepted what was never sent", message=message)
        self._heard(progress, message.round)
        news = progress.accepted(message.index)
        self.replicate_due = True
        if news and message.sender == self.transfer_target:
            self.hand_over_if_level()
        return news

    def rejected(self, message: AppendRejected) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        self._heard(progress, message.round)
        agreeing_index, _ = self._log.agreeing_place(message.hint_index, message.hint_term)
        progress.rejected(message.rejected_index, min(agreeing_index, message.hint_index))
        self._name_if_wanted(message.sender, progress)
        self.replicate_due = True

    def heartbeat_answered(self, message: HeartbeatAnswered, commit_index: int) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        self._heard(progress, message.round)
        if progress.nudge() or progress.shows_nothing(self._log.last_index):
            self._ask_what_it_holds(message.sender, progress, commit_index)
        self._name_if_wanted(message.sender, progress)
        if progress.next_index <= self._log.last_index:
            self.replicate_due = True

    def _heard(self, progress: Progress, round: int) -> None:
        must(round <= self.reads.round, "answered a round that was not begun", round=round, begun=self.reads.round)
        progress.answered(round)
        self._confirm_reads()
