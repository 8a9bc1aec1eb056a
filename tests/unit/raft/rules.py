"""What must hold in a group at every moment, whatever breaks: the five properties of the Raft paper (figure 3), and
what this core promises beyond them. One observer for the whole group, told of everything that happens.
"""

from __future__ import annotations

from collections.abc import Iterable

from raft.core import Core, Ready, Role
from raft.messages import AppendAccepted, Entry, Message, Vote, VoteGranted
from tests.unit.raft.cluster import Member


class RuleBroken(AssertionError):
    """Not caught by what drives a run: the run is over."""


def _rule(holds: bool, what: str, **facts: object) -> None:
    if not holds:
        raise RuleBroken(f"{what}: {facts}")


class Rules:
    """Everything seen so far, reduced to what the rules need."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self._led_to: dict[int, tuple[int, int]] = {}
        self._entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self._committed: list[tuple[int, int]] = []
        self._applied: list[Entry] = []
        self._reads: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._accepted: dict[int, tuple[int, int]] = {}

    @property
    def committed_index(self) -> int:
        return len(self._committed)

    def look(self, core: Core, members: Iterable[Member]) -> None:
        """After each call of a core."""
        if core.role is Role.LEADER:
            self._election_safety(core)
            self._leader_append_only(core)
            self._record_commits(core, members)
        else:
            self._led_to.pop(core.node_id, None)
        if core.commit_index:
            _rule(
                core.commit_index <= self.committed_index
                and core.log.term_at(core.commit_index) == self._committed[core.commit_index - 1][0],
                "§5.3: a member commits what no leader committed", node=core.node_id, index=core.commit_index,
            )  # fmt: skip
        term, index = self._accepted.get(core.node_id, (0, 0))
        _rule(core.term != term or core.log.last_index >= index, "§5.3: what was accepted is cut in the same term")

    def forget_leader(self, node_id: int) -> None:
        """The member crashed: what its disk did not hold of the log that it led is gone, and may be."""
        self._led_to.pop(node_id, None)

    def _election_safety(self, core: Core) -> None:
        """At most one leader a term (§5.2). A new one holds all that was committed in earlier terms (§5.4)."""
        if core.term in self.leaders:
            _rule(self.leaders[core.term] == core.node_id, "election safety (§5.2)", term=core.term)
            return
        self.leaders[core.term] = core.node_id
        for index, (term, in_term) in enumerate(self._committed, 1):
            if in_term < core.term and index >= core.log.first_index - 1:
                _rule(
                    index <= core.log.last_index and core.log.term_at(index) == term,
                    "leader completeness (§5.4)", leader=core.node_id, term=core.term, misses=(term, index),
                )  # fmt: skip

    def _leader_append_only(self, core: Core) -> None:
        """A leader never overwrites or drops an entry of its log (§5.3)."""
        last_index, last_term = self._led_to.get(core.node_id, (core.log.last_index, core.log.last_term))
        _rule(
            core.log.last_index >= last_index and core.log.term_at(last_index) == last_term,
            "leader append-only (§5.3)", leader=core.node_id, term=core.term,
        )  # fmt: skip
        self._led_to[core.node_id] = core.log.last_index, core.log.last_term

    def _record_commits(self, core: Core, members: Iterable[Member]) -> None:
        """Committed is what a majority has on disk, whatever the leader believes (CL-30)."""
        if self.committed_index >= core.commit_index:
            return
        while self.committed_index < core.commit_index:
            self._committed.append((core.log.term_at(self.committed_index + 1), core.term))
        index, term = core.commit_index, core.log.term_at(core.commit_index)
        holds = {m.node_id: int(_holds_on_disk(m, index, term)) for m in members}
        _rule(core.configuration.agreed(holds) == 1, "CL-30: committed without a majority on disk", disks=holds)

    def handed_out(self, ready: Ready) -> None:
        """Log matching (§5.3): one term and index is one entry, and one entry before it; so by induction one log."""
        previous_term = ready.previous_term
        for entry in ready.entries:
            known = self._entries.setdefault((entry.term, entry.index), (previous_term, entry))
            _rule(known == (previous_term, entry), "log matching (§5.3)", entry=entry, known=known)
            previous_term = entry.term
        for request, index in ready.reads:
            _rule(index >= self._reads[request], "read index (thesis 6.4): a read misses what was committed before it")

    def read_asked(self, request: int) -> None:
        self._reads[request] = self.committed_index

    def applies(self, member: Member, entry: Entry) -> None:
        """State machine safety (§5.4.3): at one index all apply one entry, without gaps, and from their disk (M-3)."""
        _rule(entry.index == len(member.applied) + 1, "applied out of order", node=member.node_id, entry=entry)
        if entry.index > len(self._applied):
            self._applied.append(entry)
        _rule(self._applied[entry.index - 1] == entry, "state machine safety (§5.4.3)", entry=entry)
        on_disk = member.disk.entries[entry.index - 1 : entry.index]
        _rule(on_disk == [entry], "M-3: applied past the own disk", node=member.node_id, entry=entry, disk=on_disk)

    def sends(self, member: Member, messages: Iterable[Message]) -> None:
        """A promise is kept by the disk before it leaves (figure 2: updated on stable storage before responding)."""
        hard_state = member.disk.hard_state
        for message in messages:
            if isinstance(message, AppendAccepted | VoteGranted | Vote):
                _rule(hard_state.term >= message.term, "promised before the term was on disk", message=message)
            if isinstance(message, AppendAccepted):
                _rule(len(member.disk.entries) >= message.index, "accepted before it was on disk", message=message)
                self._accepted[member.node_id] = max(
                    self._accepted.get(member.node_id, (0, 0)), (message.term, message.index)
                )
            if isinstance(message, VoteGranted):
                candidate = self._votes.setdefault((message.sender, message.term), message.receiver)
                _rule(candidate == message.receiver, "voted twice in one term (§5.2)", message=message)
                kept = hard_state.term > message.term or hard_state.voted_for == message.receiver
                _rule(kept, "voted before it was on disk", message=message)


def _holds_on_disk(member: Member, index: int, term: int) -> bool:
    entries = member.disk.entries
    return len(entries) >= index and entries[index - 1].term == term
