"""Runs a scene: a script of commands to a small cluster, each with what was seen to follow from it.

A scene file is blocks, parted by empty lines: comments (#), commands, `----`, then what is expected. Entries are named
term:index. `settle` and most commands tell of roles, applied entries and reads; `deliver` tells of each message too.
Timeouts are not random here: node n's is the election timeout + n - 1 ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from raft.configurations import decode_configuration
from raft.core import Core, NotLeader, Ready, Role, Settings
from raft.membership import MembershipRefused
from raft.messages import (
    Append,
    AppendAccepted,
    AppendRejected,
    Committed,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswered,
    Message,
    PreVote,
    PreVoteDenied,
    Vote,
    VoteDenied,
)
from raft.quorum import Configuration
from tests.unit.raft.cluster import Cluster, Member, Write

SEPARATOR = "----"


def run_scene(text: str, new_core: Callable[..., Core] = Core) -> str:
    """The scene with what really followed in place of what was expected."""
    scene = Scene(new_core)
    blocks = []
    for block in text.strip().split("\n\n"):
        script = block.split("\n" + SEPARATOR, 1)[0]
        lines = [line for line in script.splitlines() if not line.startswith("#")]
        if not lines:
            blocks.append(script)
            continue
        for line in lines:
            scene.run(line)
        blocks.append("\n".join([script, SEPARATOR, *scene.take_story()]))
    return "\n\n".join(blocks) + "\n"


class SteadyRandom(Random):
    """Draws the lower bound plus a fixed number, so that a scene can count ticks."""

    def __init__(self, offset: int) -> None:
        super().__init__(0)
        self._offset = offset

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start + self._offset


class ToldCluster(Cluster):
    """A cluster that tells what happens in it."""

    def __init__(
        self, configuration: Configuration, settings: Settings, others: Iterable[int], new_core: Callable[..., Core]
    ) -> None:
        self.new_core = new_core
        self.story: list[str] = []
        self.tells_writes = False
        self._roles: dict[int, str] = {}
        super().__init__(configuration, settings, others)

    def random_of(self, node_id: int) -> Random:
        return SteadyRandom(node_id - 1)

    def look(self, member: Member) -> None:
        role = _role(member)
        if self._roles.get(member.node_id, "follows nobody in term 0") != role:
            self._roles[member.node_id] = role
            self.story.append(f"{member.node_id} {role}")

    def handed_out(self, member: Member, ready: Ready) -> None:
        for request, index in ready.reads:
            self.story.append(f"{member.node_id} may serve read {request} from index {index}")
        for peer, index in ready.left_behind:
            self.story.append(f"{member.node_id} has no more in memory what {peer} needs, from {index} on")

    def applies(self, member: Member, entry: Entry) -> None:
        if self.story and self.story[-1].startswith(f"{member.node_id} applies "):
            self.story[-1] += f", {_entry(entry)}"
        else:
            self.story.append(f"{member.node_id} applies {_entry(entry)}")

    def wrote(self, member: Member, write: Write) -> None:
        if self.tells_writes:
            hard = write.hard_state
            entries = _entries(write.entries) or "no entries"
            self.story.append(f"{member.node_id} wrote term {hard.term}, vote {hard.voted_for}, {entries}")


class Scene:
    """The commands. Each is a method; words with = are options."""

    def __init__(self, new_core: Callable[..., Core]) -> None:
        self._new_core = new_core
        self._cluster: ToldCluster | None = None
        self._delayed: list[Message] = []

    def run(self, line: str) -> None:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{verb}")(*[word for word in words if "=" not in word], **options)

    def take_story(self) -> list[str]:
        story, self.cluster.story = self.cluster.story, []
        return story

    @property
    def cluster(self) -> ToldCluster:
        if self._cluster is None:
            raise AssertionError("a scene begins with `cluster`")
        return self._cluster

    # Who is there

    def do_cluster(
        self, voters: str, outgoing: str = "", learners: str = "", others: str = "", **settings: str
    ) -> None:
        """cluster 1,2,3 [outgoing=3,4] [learners=5] [others=6] [any setting=number or yes or no]"""
        numbers = {name: int(value) for name, value in settings.items() if value not in ("yes", "no")}
        switches = {name: value == "yes" for name, value in settings.items() if value in ("yes", "no")}
        base = Settings(election_ticks=10, heartbeat_ticks=2)
        self._cluster = ToldCluster(
            Configuration(_ids(voters), _ids(outgoing), _ids(learners)),
            replace(base, **numbers, **switches),  # type: ignore[arg-type]
            _ids(others),
            self._new_core,
        )

    def do_disk(self, node: str, log: str = "", term: str = "0", vote: str = "0", commit: str = "0") -> None:
        """disk 2 log=1,1,4 term=5 vote=1 commit=1: begin from a disk that holds this; log gives the entries' terms."""
        member = self._member(node)
        terms = _ids(log)
        member.disk.hard_state = HardState(int(term), int(vote), int(commit))
        member.disk.entries = [
            Entry(term, index, EntryKind.COMMANDS, b"") for index, term in enumerate(terms, 1)
        ]
        member.applied = member.disk.entries[: int(commit)]
        member.start()
        self.cluster._roles[member.node_id] = _role(member)

    def do_crash(self, node: str, lucky: str = "0") -> None:
        self._member(node).crash(lucky_writes=int(lucky))

    def do_restart(self, node: str) -> None:
        member = self._member(node)
        member.start()
        self.cluster.look(member)
        member.carry_out()

    # What the driver does

    def do_tick(self, who: str, times: str = "1") -> None:
        for _ in range(int(times)):
            for member in self._members(who):
                member.call(lambda core: core.tick())

    def do_campaign(self, node: str, skip_pre_vote: str = "no") -> None:
        self._call(node, lambda member: member.call(lambda core: core.campaign(skip_pre_vote=skip_pre_vote == "yes")))

    def do_propose(self, node: str, *payloads: str) -> None:
        self._call(node, lambda member: member.call(lambda core: core.propose([p.encode() for p in payloads])))

    def do_read(self, node: str, *requests: str) -> None:
        """read 1 7 8: two requests that share a round."""

        def ask(core: Core) -> None:
            for request in requests:
                core.read_index(int(request))

        self._call(node, lambda member: member.call(ask))

    def do_transfer(self, node: str, target: str) -> None:
        self._call(node, lambda member: member.call(lambda core: core.transfer_leadership(int(target))))

    def do_supply(self, node: str, peer: str, first: str, last: str) -> None:
        """supply 1 3 2 4: from the disk of 1, entries 2 to 4 for 3."""
        member = self._member(node)
        entries = member.disk.entries[int(first) - 1 : int(last)]
        previous = member.disk.entries[int(first) - 2] if int(first) > 1 else None
        place = (previous.index, previous.term) if previous else (0, 0)

        def supply(core: Core) -> None:
            if not core.supply(int(peer), place, entries):
                self.cluster.story.append(f"{node} does not send {peer} these")

        member.call(supply)

    def do_snapshot(self, node: str, peer: str, installed: str = "") -> None:
        """snapshot 1 3: 1 begins to send 3 a snapshot. installed=4: 3 says that it has the one at 4; 0: given up."""
        if installed:
            self._member(node).call(lambda core: core.end_snapshot(int(peer), int(installed)))
        else:
            self._member(node).call(lambda core: core.begin_snapshot(int(peer)))

    def do_change(self, node: str, voters: str, learners: str = "", seen: str = "") -> None:
        """change 1 1,2,4 [learners=5] [seen=1,2,3]: from the members as the node has them, or from voters once seen."""

        def change(core: Core) -> None:
            before = Configuration(_ids(seen)) if seen else core.configuration
            core.change_membership(before, Configuration(_ids(voters), (), _ids(learners)))

        self._call(node, lambda member: member.call(change))

    def do_forget(self, node: str, index: str) -> None:
        self._member(node).call(lambda core: core.log.forget_through(int(index)))

    def do_clock(self, node: str, clock_us: str) -> None:
        self._member(node).call(lambda core: setattr(core, "own_clock", (int(clock_us), False)))

    # The disk

    def do_hold(self, node: str, what: str = "writes") -> None:
        """hold 2 [writes|reports]: the disk takes writes in but finishes none; or nobody hears that it did."""
        setattr(self._member(node), f"holds_{what}", True)

    def do_flush(self, node: str, times: str = "1") -> None:
        """flush 2: the disk finishes its next write, and the member hears of it unless reports are held."""
        member = self._member(node)
        self.cluster.tells_writes = True
        for _ in range(int(times)):
            member.complete_write()
            if not member.holds_reports:
                member.hear_report()
        self.cluster.tells_writes = False

    def do_report(self, node: str) -> None:
        """report 2: the member hears the oldest report that was held."""
        member = self._member(node)
        term, index, _ = member.reports[0]
        self.cluster.story.append(f"{node} hears that {term}:{index} is on disk")
        member.hear_report()

    def do_unhold(self, node: str) -> None:
        member = self._member(node)
        member.holds_writes = member.holds_reports = False

    # The network

    def do_deliver(self, **filters: str) -> None:
        """deliver [from=1] [to=2] [type=Append]: what is on its way now, told one by one, not what follows from it.

        Disks that are not held finish their writes first.
        """
        for message in self._take(filters):
            self.cluster.story.append(describe(message))
            self.cluster.deliver(message)

    def do_lose(self, **filters: str) -> None:
        for message in self._take(filters):
            self.cluster.story.append(f"lost: {describe(message)}")

    def do_repeat(self, **filters: str) -> None:
        """repeat ...: the network makes a second copy of what is on its way, behind everything else."""
        messages = self._take(filters)
        self.cluster.network += messages + messages

    def do_delay(self, **filters: str) -> None:
        """delay ...: what is on its way waits until `overtaken`."""
        self._delayed = self._take(filters)

    def do_copy(self, **filters: str) -> None:
        """copy ...: a second copy of what is on its way waits until `overtaken`."""
        self._delayed = [message for message in self.cluster.network if _matches(message, filters)]

    def do_overtaken(self) -> None:
        self.cluster.network += self._delayed

    def do_settle(self) -> None:
        self.cluster.settle()

    def do_settle_disks(self) -> None:
        self.cluster.settle_disks()

    def do_cut(self, node: str, direction: str = "both") -> None:
        """cut 3 [to|from]: lose what goes to 3, what comes from it, or both."""
        one, all_nodes = [int(node)], tuple(self.cluster.members)
        if direction in ("both", "to"):
            self.cluster.cut(all_nodes, one)
        if direction in ("both", "from"):
            self.cluster.cut(one, all_nodes)

    def do_heal(self) -> None:
        self.cluster.cut_links.clear()

    # Looking

    def do_show(self, who: str = "all") -> None:
        """One line a member: role, indexes, and the terms of its log's entries."""
        for member in self._members(who):
            core = member.core
            if core is None:
                self.cluster.story.append(f"{member.node_id} is down; disk term {member.disk.hard_state.term}")
                continue
            log = core.log
            terms = " ".join(str(log.term_at(index)) for index in range(log.first_index, log.last_index + 1))
            self.cluster.story.append(
                f"{member.node_id} {_role(member)}: commit {core.commit_index}, applied {core.applied_index},"
                f" flushed {log.flushed_index}, log {terms or 'empty'}"
            )

    def do_members(self, who: str = "all") -> None:
        """By which configuration each member goes."""
        for member in self._members(who):
            if member.core is not None:
                self.cluster.story.append(f"{member.node_id} goes by {_configuration(member.core.configuration)}")

    def do_clocks(self, node: str) -> None:
        self._member(node).call(lambda core: self.cluster.story.append(f"{node} heard clocks {core.vote_clocks}"))

    def do_silence(self, node: str) -> None:
        """silence 1: for how long no majority answered."""

        def tell(core: Core) -> None:
            self.cluster.story.append(f"{node} has no majority for {core.quorum_silent_ticks()} ticks")

        self._call(node, lambda member: member.call(tell))

    # Helpers

    def _member(self, node: str) -> Member:
        return self.cluster.members[int(node)]

    def _members(self, who: str) -> list[Member]:
        return list(self.cluster.members.values()) if who == "all" else [self._member(node) for node in who.split(",")]

    def _call(self, node: str, what: Callable[[Member], None]) -> None:
        try:
            what(self._member(node))
        except (NotLeader, MembershipRefused, ValueError) as refusal:
            self.cluster.story.append(f"{node} refuses: {type(refusal).__name__}, {refusal}")

    def _take(self, filters: dict[str, str]) -> list[Message]:
        """What is on its way, once the disks that are not held have finished their writes."""
        self.cluster.settle_disks()
        taken = [message for message in self.cluster.network if _matches(message, filters)]
        self.cluster.network = [message for message in self.cluster.network if not _matches(message, filters)]
        return taken


def describe(message: Message) -> str:
    """A message as a person would tell it."""
    told = f"{message.sender} > {message.receiver} {type(message).__name__}"
    match message:
        case Append():
            after = f"after {message.previous_term}:{message.previous_index}"
            told += f" {after}: {_entries(message.entries) or 'nothing'}; commit {message.commit_index}"
        case AppendAccepted():
            told += f" up to {message.index}"
        case AppendRejected():
            told += f" after {message.rejected_index}, perhaps after {message.hint_term}:{message.hint_index}"
        case Heartbeat() | Committed():
            told += f", commit {message.commit_index}"
        case PreVote() | Vote():
            told += f" with last entry {message.last_term}:{message.last_index}"
            told += ", on transfer" if isinstance(message, Vote) and message.transfer else ""
        case PreVoteDenied() | VoteDenied():
            told += f", {message.reason.name.lower().replace('_', ' ')}"
    if isinstance(message, Append | Heartbeat | AppendAccepted | HeartbeatAnswered) and message.round:
        told += f", round {message.round}"
    return f"{told} (term {message.term})"


def _matches(message: Message, filters: dict[str, str]) -> bool:
    seen = {"from": str(message.sender), "to": str(message.receiver), "type": type(message).__name__}
    return all(seen[name] in wanted.split(",") for name, wanted in filters.items())


def _role(member: Member) -> str:
    core = member.core
    if core is None:
        return "is down"
    match core.role:
        case Role.FOLLOWER:
            return f"follows {core.leader or 'nobody'} in term {core.term}"
        case Role.PRE_CANDIDATE:
            return f"asks for pre-votes in term {core.term}"
        case Role.CANDIDATE:
            return f"stands in term {core.term}"
        case Role.LEADER:
            return f"leads term {core.term}"


def _entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.BLANK:
            data = "blank"
        case EntryKind.CONFIGURATION:
            data = _configuration(decode_configuration(entry.data))
        case EntryKind.COMMANDS:
            data = entry.data.decode()
    return f"{entry.term}:{entry.index} {data}".rstrip()


def _configuration(configuration: Configuration) -> str:
    told = f"voters {_list(configuration.voters)}"
    if configuration.outgoing:
        told += f" and {_list(configuration.outgoing)}"
    return f"{told} with learners {_list(configuration.learners)}" if configuration.learners else told


def _list(ids: Iterable[int]) -> str:
    return "+".join(str(node_id) for node_id in ids)


def _entries(entries: Iterable[Entry]) -> str:
    return " ".join(f"{entry.term}:{entry.index}" for entry in entries)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)
