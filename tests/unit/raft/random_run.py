"""A group under faults drawn from a seed: messages lost, doubled, out of order; links cut; disks slow and their reports
late; crashes that lose what was not flushed. Then all faults end, and the group must agree and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from raft.core import Core, NotLeader, Ready, Role, Settings
from raft.membership import MembershipRefused
from raft.messages import AppendRejected, Entry, Message
from raft.quorum import Configuration
from tests.unit.raft.cluster import Cluster, Member, Write
from tests.unit.raft.rules import RuleBroken, Rules

FAULTY_STEPS = 2000
LIVENESS_ROUNDS_MAX = 200
CONFIGURATIONS = (
    Configuration((1, 2, 3)),
    Configuration((1, 2, 3)),
    Configuration((1, 2, 3, 4, 5)),
    Configuration((1, 2, 3, 4, 5)),
    Configuration((3, 4, 5), outgoing=(1, 2, 3)),
)
NODES = range(1, 6)
CHANGING_SHARE = 0.5
"""Of the runs in which members come and go."""
HOPS_A_TICK = 4
NETWORK_MAX = 60


class RandomRun(Cluster):
    """`run` raises RuleBroken or InvariantBroken if anything is wrong. marks: rare things that this run reached."""

    def __init__(self, seed: int, new_core: Callable[..., Core] = Core) -> None:
        self._draw = Random(seed)
        self.rules = Rules()
        self.marks: set[str] = set()
        self.new_core = new_core
        self._request = 0
        self._handed_to: dict[int, int] = {}
        self._configured_by: dict[int, int] = {}
        self._left_behind: list[tuple[int, int, int]] = []
        draw = self._draw
        self._loss, self._doubling = draw.choice((0.0, 0.05, 0.2)), draw.choice((0.0, 0.1))
        self._trouble = draw.choice((0.5, 1.5, 4.0))
        settings = Settings(
            election_ticks=6,
            heartbeat_ticks=2,
            quorum_ticks=draw.choice((6, 12)),
            max_append_bytes=draw.choice((1, 80, 4096)),
            max_inflight_bytes=draw.choice((1, 100, 4096)),
            max_apply_bytes=draw.choice((1, 4096)),
            kept_bytes=draw.choice((0, 200)),
            kept_for_followers_bytes=draw.choice((200, 4096)),
            pre_vote=draw.random() < 0.7,
            check_quorum=draw.random() < 0.7,
        )
        configuration = draw.choice(CONFIGURATIONS)
        self._changes = draw.random() < CHANGING_SHARE
        others = set(NODES) - set(configuration.members) if self._changes else ()
        super().__init__(configuration, settings, sorted(others))

    def run(self) -> None:
        self._run_with_faults()
        self._run_until_agreed()

    # What is watched

    def random_of(self, node_id: int) -> Random:
        return Random(self._draw.random())

    def look(self, member: Member) -> None:
        core = member.core
        if core is None:
            return
        self.rules.look(core, self.members.values())
        latest_index = core._configurations.latest_index
        if latest_index < self._configured_by.get(member.node_id, 0):
            self.marks.add("configuration taken back")
        self._configured_by[member.node_id] = latest_index
        if core.role is not Role.FOLLOWER and not core.configuration.is_voter(core.node_id):
            self.marks.add("leads though left out" if core.role is Role.LEADER else "stands though left out")

    def handed_out(self, member: Member, ready: Ready) -> None:
        self.rules.handed_out(ready)
        if ready.reads:
            self.marks.add("read served")
        self._left_behind += [(member.node_id, peer, index) for peer, index in ready.left_behind]
        if ready.entries:
            if ready.entries[0].index <= self._handed_to.get(member.node_id, 0):
                self.marks.add("tail cut that was handed to the disk")
            self._handed_to[member.node_id] = ready.entries[-1].index

    def applies(self, member: Member, entry: Entry) -> None:
        self.rules.applies(member, entry)

    def send(self, messages: Iterable[Message]) -> None:
        messages = tuple(messages)
        if messages:
            self.rules.sends(self.members[messages[0].sender], messages)
            if any(isinstance(message, AppendRejected) for message in messages):
                self.marks.add("append rejected")
        super().send(messages)

    # Faults

    def _run_with_faults(self) -> None:
        trouble = self._trouble
        actions: list[tuple[Callable[[], None], float]] = [
            (self._deliver_some, 30),
            (self._tick_one, 30),
            (self._write_one, 20),
            (self._report_one, 20),
            (self._propose, 5),
            (self._supply, 5),
            (self._read, 2),
            (self._transfer, 0.5),
            (self._change, 3.0 * self._changes),
            (self._crash, 0.5 * trouble),
            (self._restart, 1.0 * trouble),
            (self._cut, 0.5 * trouble),
            (self._heal, 0.8 * trouble),
        ]
        chosen = self._draw.choices([a for a, _ in actions], [weight for _, weight in actions], k=FAULTY_STEPS)
        for action in chosen:
            action()

    def _any_member(self) -> Member:
        return self._draw.choice(list(self.members.values()))

    def _deliver_some(self) -> None:
        for _ in range(3):
            if not self.network:
                return
            message = self.network.pop(self._draw.randrange(len(self.network)))
            if self._draw.random() < self._loss or len(self.network) > NETWORK_MAX:
                continue
            if self._draw.random() < self._doubling:
                self.network.append(message)
                self.marks.add("message doubled")
            self.deliver(message)

    def _tick_one(self) -> None:
        self._any_member().call(lambda core: core.tick())

    def _write_one(self) -> None:
        if waiting := [member for member in self.members.values() if member.writes]:
            self._draw.choice(waiting).complete_write()

    def _report_one(self) -> None:
        if waiting := [member for member in self.members.values() if member.reports]:
            member = self._draw.choice(waiting)
            if len(member.reports) > 1 and self._draw.random() < 0.3:
                # One report stands for several.
                member.reports.popleft()
            term, index, _ = member.reports[0]
            if member.core is not None and not member.core.log.holds(index, term):
                self.marks.add("report out of date")
            member.hear_report()

    def _propose(self) -> None:
        for core in self.leaders:
            self._request += 1
            payloads = [b"%d/%d" % (self._request, part) for part in range(self._draw.randint(1, 3))]
            if core.transfer_target == 0:
                self.members[core.node_id].call(lambda core, payloads=payloads: core.propose(payloads))  # type: ignore[misc]

    def _read(self) -> None:
        for core in self.leaders:
            self._request += 1
            self.rules.read_asked(self._request)
            self.members[core.node_id].call(lambda core: core.read_index(self._request))

    def _supply(self) -> None:
        """Read back from disk for whoever was left behind; a few at a time, or all."""
        if not self._left_behind:
            return
        node_id, peer, index = self._left_behind.pop(self._draw.randrange(len(self._left_behind)))
        member = self.members[node_id]
        entries = member.disk.entries[index - 1 :][: self._draw.choice((1, 5, 1000))]
        previous = (index - 1, member.disk.entries[index - 2].term if index > 1 else 0)
        if entries:
            member.call(lambda core: self._note_supply(core.supply(peer, previous, entries)))

    def _note_supply(self, went: bool) -> None:
        self.marks.add("supplied from disk" if went else "supplied too late")

    def _transfer(self) -> None:
        for core in self.leaders:
            targets = [peer for peer in core.configuration.electors if peer != core.node_id]
            if targets:
                target = self._draw.choice(targets)
                self.members[core.node_id].call(lambda core, target=target: core.transfer_leadership(target))  # type: ignore[misc]
                self.marks.add("hand-over begun")

    def _change(self) -> None:
        """To any other members, all voters at once included: the joint step is what makes that safe (§6)."""
        for core in self.leaders:
            before = core.configuration
            nodes = [node_id for node_id in NODES if node_id != core.node_id or self._draw.random() < 0.5]
            voters = self._draw.sample(nodes, self._draw.choice((1, 1, 2, 3, len(nodes))))
            learners = [node_id for node_id in NODES if node_id not in {*voters, *before.voters}]
            after = Configuration(tuple(voters), (), tuple(learners[: self._draw.randint(0, 2)]))
            if after == before:
                continue
            try:
                self.members[core.node_id].call(lambda core, to=after: core.change_membership(core.configuration, to))  # type: ignore[misc]
            except (NotLeader, MembershipRefused, ValueError):
                continue
            self.marks.add("members changed")

    def _crash(self) -> None:
        leading = [self.members[core.node_id] for core in self.leaders]
        member = leading[0] if leading and self._draw.random() < 0.3 else self._any_member()
        if member.core is not None:
            lucky = self._draw.randint(0, len(member.writes))
            if len(member.writes) > lucky:
                self.marks.add("crash that lost a write")
            durable_index = max(len(member.applied) - self._draw.choice((0, 0, 1, 5)), 0)
            member.crash(lucky_writes=lucky, durable_index=durable_index)
            self._configured_by.pop(member.node_id, None)
            self.rules.forget_leader(member.node_id)

    def _restart(self) -> None:
        for member in self.members.values():
            if member.core is None:
                member.start()
                self._handed_to[member.node_id] = len(member.disk.entries)
                member.carry_out()
                return

    def _cut(self) -> None:
        some = self._draw.sample(list(self.members), self._draw.randint(1, len(self.members) // 2))
        some += [core.node_id for core in self.leaders if self._draw.random() < 0.3]
        direction = self._draw.choice(("both", "both", "to", "from"))
        if direction != "from":
            self.cut(self.members, some)
        if direction != "to":
            self.cut(some, self.members)

    def _heal(self) -> None:
        self.cut_links.clear()

    # Liveness

    def _run_until_agreed(self) -> None:
        self.cut_links.clear()
        for member in self.members.values():
            if member.core is None:
                member.start()
                member.carry_out()
        proposed: bytes | None = None
        for round_ in range(LIVENESS_ROUNDS_MAX):
            for _ in range(HOPS_A_TICK):
                self.settle_disks()
                for message in self._drain_network():
                    self.deliver(message)
                self._supply()
            for member in self.members.values():
                member.call(lambda core: core.tick())
            if proposed is not None and self._all_applied(proposed):
                self._agree()
                return
            if proposed is None or round_ % 20 == 19:
                proposed = self._propose_last(round_) or proposed
        raise RuleBroken(f"liveness: no agreement {LIVENESS_ROUNDS_MAX} ticks after the last fault")

    def _drain_network(self) -> list[Message]:
        messages, self.network = self.network, []
        return messages

    def _propose_last(self, round_: int) -> bytes | None:
        payload = b"last %d" % round_
        for core in self.leaders:
            try:
                self.members[core.node_id].call(lambda core: core.propose([payload]))
            except NotLeader:
                continue
            return payload
        return None

    def _all_applied(self, proposed: bytes) -> bool:
        """Who is no member by then has what it has: the rules watch that it is what the others have too."""
        if len(self.leaders) != 1:
            return False
        leader = self.leaders[0]
        members = [self.members[node_id] for node_id in leader.configuration.members]
        everywhere = all(len(member.applied) == leader.log.last_index for member in members)
        return everywhere and any(entry.data == proposed for entry in members[0].applied[-3:])

    def _agree(self) -> None:
        members = [self.members[node_id] for node_id in self.leaders[0].configuration.members]
        if any(member.applied != members[0].applied for member in members):
            raise RuleBroken("the members applied different entries")
        if any(member.configuration() != self.leaders[0].configuration for member in members):
            raise RuleBroken("the members go by different configurations")

    def wrote(self, member: Member, write: Write) -> None:
        if not write.entries:
            self.marks.add("write of a hard state alone")
