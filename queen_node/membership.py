"""The desk for the cell's members: what operators ask goes to the leader and is begun there, changes are carried on,
whoever leads (contract/cluster.md, section 10; M-71).

An actor: one task looks at group 0's state and does a step of the change that stands; each question has a task of its
own. What a group changes next is in `membership_job`, what may be asked in `operator_calls`, what is shown of it all in
`membership_view`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
import trio

from queen_node import commands, operator_calls, queries
from queen_node.acquaintances import Acquaintances, Others
from queen_node.broker import Lane, Unavailable
from queen_node.calls import NobodyWaits, Pending, PendingRead
from queen_node.events import ChangeMembers, Found, TransferLeadership
from queen_node.group_on_node import GroupOnNode
from queen_node.layout import Layout
from queen_node.membership_check import Refusals, check, drops_members, job_target, named_target
from queen_node.membership_job import CELL, STEP_S, Confirmation, MembershipJob, Standing
from queen_node.operator_calls import (
    AddLearner,
    Begun,
    Change,
    OperatorRefused,
    Promote,
    Question,
    SetVoters,
    Told,
    Transfer,
)
from queen_node.peer_calls import AskOperator, Known, Members, OperatorCall, OperatorTold, Removed
from queen_node.peers import Member, parse_address
from queen_node.slots import Slot
from queen_node.state.members import CHANGED_MEANWHILE, members_of, next_number
from queen_node.state.rows import MemberRow, MembersRow
from queen_node.versions import held_back_by, raised_version
from raft.core import Role
from raft.membership import View
from raft.messages import NodeId
from raft.peer_frames import Hello
from raft.transport import Peer
from raft.waiting import next_multiple_s

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LEADERLESS_MAX_S: Final = 8.0  # CL-140
LEADER_ANSWERS_WITHIN_S: Final = 12.0  # longer than a candidate may take to be connected
CANDIDATE_WITHIN_S: Final = 10.0
WRITE_WITHIN_S: Final = 10.0
KNOW_WITHIN_S: Final = 5.0
REST_S: Final = 0.3  # between two looks while nothing is under way: twenty of them a second cost 0.65 % of a core
REST_ALONE_S: Final = 1.0  # the same on a node that has no others
ASKED_MAX: Final = 64  # of other nodes' questions at once


class _Watched:
    """Something that tasks wait for to change."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def tell(self) -> None:
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self, within_s: float) -> None:
        """Until the next change, or the next multiple of that long."""
        with trio.move_on_at(next_multiple_s(within_s)):
            await self._event.wait()


class MembershipDesk:
    """One a node.

    layout, keep_layout: of the data directory. listed: the nodes of the settings' list (`acquaintances`). heartbeat_s,
    election_s, lag_max, version_every_s (0: never), reads (the latest format that this node reads): of the settings.
    on_version: told the cluster's version when the row was looked at. on_removed: this node is a member no longer.
    others: None for a node that was started as a single one. are_open: whether all groups are that: a change looks at
    all of them, and must not have them opened in one step.
    """

    def __init__(
        self, *, layout: Layout, keep_layout: Callable[[Layout], object], listed: tuple[Member, ...],
        groups: Callable[[], Mapping[int, GroupOnNode]], others: Others | None, heartbeat_s: float,
        election_s: float, lag_max: int, version_every_s: float, reads: int, on_version: Callable[[int], None],
        on_removed: Callable[[], None], are_open: Callable[[], bool],
    ) -> None:
        self.node_id, self._listed = layout.node_id, listed
        self._acquaintances = None if others is None else Acquaintances(
            others, layout=layout, keep_layout=keep_layout, listed=listed,
            on_founded=lambda members: groups()[CELL].inbox.put(Found(members)))
        self.groups, self._others, self.are_open = groups, others, are_open
        self._reads, self._on_version, self._on_removed = reads, on_version, on_removed
        self.live_within_s = max(2 * election_s, 1.0)
        self.heartbeat_s, self.lag_max = heartbeat_s, lag_max
        self._version_every_s, self._version_again_s = version_every_s, 0.0
        self._version_waits_for: tuple[int, ...] = ()  # as it was logged last
        self.row = MembersRow([])
        self.job: MembershipJob | None = None
        self._seen_index = -1
        self._know_again_s = 0.0
        self._done_told, self._done_again_s = 0, 0.0
        self._removed_by = 0  # the change that took this node out, once it is told so: it hears no more of the log
        self._changed = _Watched()
        self._asked: dict[int, Slot] = {}
        self._last_ask = 0
        self._answering = 0
        self._nursery: trio.Nursery | None = None

    # --- what is known

    @property
    def max_silent_ticks(self) -> int:
        """Of a member that counts as live."""
        return max(1, round(self.live_within_s / self.heartbeat_s))

    def live(self) -> frozenset[int]:
        """Nodes that answer: this one, and those connected, who say something ten times a second."""
        if self._others is None:
            return frozenset((self.node_id,))
        return frozenset((self.node_id, *(node for node in self._others.peers if self._others.hello_of(node))))

    def hello_of(self, node: NodeId) -> Hello | None:
        """What that node said of itself; None while it is not connected."""
        return None if self._others is None else self._others.hello_of(node)

    def view_of(self, life: int) -> View | None:
        """What a leader knows of a group's members; None where this node does not lead."""
        core = self.groups()[life].group.raft.core
        return core.membership_view(self.max_silent_ticks, self.live()) if core.role is Role.LEADER else None

    def addresses(self) -> Mapping[int, MemberRow]:
        """Where members are, by their ids: as group 0 says, else as the settings do."""
        listed = [MemberRow(member.node_id, str(member.raft), str(member.http)) for member in self._listed]
        return {member.node_id: member for member in self.row.members or listed}

    # --- the task

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                self.step(trio.current_time())
                await self._changed.wait(self._rest_s)

    @property
    def _rest_s(self) -> float:
        """How long the next look may wait, if nobody tells of a change before."""
        if self._acquaintances is None:
            return REST_ALONE_S
        return STEP_S if self.job is not None or self._acquaintances.is_busy else REST_S

    def step(self, now_s: float) -> None:
        """Look at group 0, keep to the peers that it names, carry on the change that stands."""
        cell = self.groups()[CELL].group
        self._see(now_s)
        if self._acquaintances is not None:
            self._acquaintances.step(self.row, now_s)
        if self.job is not None and self.are_open():
            self._carry_on(self.job)
        if cell.raft.may_propose:
            self._lead(now_s)

    def _see(self, now_s: float) -> None:
        machine = self.groups()[CELL].group.machine
        if machine.applied_index != self._seen_index:
            self._seen_index = machine.applied_index
            self._look(members_of(machine.store.committed()), now_s)

    def _look(self, row: MembersRow, now_s: float) -> None:
        before, self.row = self.row, row
        if row == before:
            return
        self._on_version(row.cluster_version)
        job = row.job
        if job is None or job.done:
            self.job = None
        elif self.job is None or self.job.number != job.number:
            self.job = MembershipJob(job.number, named_target(job_target(job), row), drops=drops_members(job))
            log.info("the members change", number=job.number, voters=job.voters, learners=job.learners)
        else:
            self.job.target = named_target(job_target(job), row)
        here = {self.node_id, *(member.node_id for member in row.members)}
        if self._acquaintances is not None and job is not None:
            for member in before.members:
                if member.node_id not in here:
                    self._acquaintances.removed(member.node_id, job.number, now_s)
        self._changed.tell()

    def _carry_on(self, job: MembershipJob) -> None:
        row_job = self.row.job
        groups = self.groups()
        lives = job.take_step({life: actor.group for life, actor in groups.items()})
        if job.may_act(has_to=bool(lives)) and row_job is not None:
            event = ChangeMembers(job.target, row_job.force, self.live(), self.max_silent_ticks, self.lag_max)
            for life in lives:
                groups[life].inbox.put(event)
        if lives and not job.is_asked:
            give_up_at_s = trio.current_time() + KNOW_WITHIN_S
            groups[CELL].inbox.put(PendingRead(Confirmation.QUERY, Standing(job), give_up_at_s=give_up_at_s))

    def _lead(self, now_s: float) -> None:
        """What only group 0's leader says."""
        job, groups = self.job, self.groups()
        told = job is not None and job.number == self._done_told and now_s < self._done_again_s
        if job is not None:
            self._confirm(job, now_s)
        if job is not None and not told and self.are_open() and job.is_through(
            {life: actor.group for life, actor in groups.items()}
        ):
            self._done_told, self._done_again_s = job.number, now_s + KNOW_WITHIN_S  # it is lost with a leadership
            self._propose(commands.members_changed(os.urandom(16), job.number))
        if self._version_every_s and now_s >= self._version_again_s:
            self._version_again_s = now_s + self._version_every_s
            self._raise_version()
        unknown = self._unknown_members() if now_s >= self._know_again_s else []
        if unknown:
            self._know_again_s = now_s + KNOW_WITHIN_S
            self._propose(commands.know_members(os.urandom(16), unknown))

    def _confirm(self, job: MembershipJob, now_s: float) -> None:
        groups = self.groups()
        for life in job.to_confirm():
            slot = Confirmation(job, life, groups[life].group)
            groups[life].inbox.put(PendingRead(Confirmation.QUERY, slot, give_up_at_s=now_s + KNOW_WITHIN_S))

    def _raise_version(self) -> None:
        members = self.groups()[CELL].group.raft.core.configuration.members
        hellos = {node: self.hello_of(node) for node in members}
        highest = {node: hello.highest_format for node, hello in hellos.items() if hello is not None}
        highest[self.node_id] = self._reads
        now = self.row.cluster_version
        version = raised_version(now, members, highest)
        if version is not None:
            log.info("every member reads a later format: it is written from now on", version=version)
            self._propose(commands.raise_version(os.urandom(16), version))
        waits_for = held_back_by(now, members, highest) if self._reads > now else ()
        if waits_for != self._version_waits_for and waits_for:
            log.info("a later format waits for members that do not read it", version=now, members=waits_for)
        self._version_waits_for = waits_for

    def _unknown_members(self) -> list[tuple[int, str, str, bytes]]:
        """Members of the settings' list of which group 0 does not say where they are, or which directory they have."""
        known = {member.node_id: member for member in self.row.members}
        members = self.groups()[CELL].group.raft.core.configuration.members
        unknown = []
        for founder in self._listed:
            row, directory = known.get(founder.node_id), b""
            if self._acquaintances is not None:
                directory = self._acquaintances.directory_of(founder.node_id)
            if founder.node_id in members and (row is None or (directory and not row.directory_id)):
                unknown.append((founder.node_id, str(founder.raft), str(founder.http), directory))
        return unknown

    def _propose(self, command: bytes) -> None:
        """Nobody waits: what is lost is proposed again by whoever leads then."""
        give_up_at_s = trio.current_time() + KNOW_WITHIN_S
        self.groups()[CELL].inbox.put((Lane.DRAINING, Pending(command, NobodyWaits(), give_up_at_s=give_up_at_s)))

    # --- questions

    async def ask(self, question: Question, timeout_s: float) -> Begun:
        """Have it begun by the leader, and wait until this node's state shows that it is done.

        Raises OperatorRefused; with `timeout` it may be done yet.
        """
        with trio.move_on_after(timeout_s):
            begun = await self._begin_at_leader(question)
            if begun.number:
                await self._wait_until_done(begun.number)
            return begun
        raise OperatorRefused("timeout", "the deadline passed; the change goes on: look before repeating it")

    async def _begin_at_leader(self, question: Question) -> Begun:
        life = question.group if isinstance(question, Transfer) else CELL
        leaderless_until_s = trio.current_time() + LEADERLESS_MAX_S
        while True:
            actor = self.groups().get(life)
            if actor is None:
                raise OperatorRefused("bad_request", f"there is no group {life}")
            core = actor.group.raft.core
            if core.leader == self.node_id and actor.group.raft.may_propose:
                return await self._begin(question)
            if core.leader not in (0, self.node_id):
                begun = await self._forward(core.leader, question)
                if begun is not None:
                    return begun
            if trio.current_time() >= leaderless_until_s:
                raise OperatorRefused("no_leader", "no leader is known")
            await self._changed.wait(STEP_S)

    async def _forward(self, leader: NodeId, question: Question) -> Begun | None:
        """The leader's answer; None: it leads no longer. Raises OperatorRefused."""
        if self._others is None or self.hello_of(leader) is None:
            raise OperatorRefused("leader_unreachable", f"node {leader}, which leads, is not connected")
        self._last_ask = number = self._last_ask + 1
        slot = self._asked[number] = Slot()
        self._others.tell(CELL, leader, AskOperator(number, operator_calls.encode(question)))
        try:
            with trio.move_on_after(LEADER_ANSWERS_WITHIN_S):
                told = Told(*msgspec.msgpack.decode(await slot.wait(), type=tuple[int, bytes]))
                if told.status == 200:
                    return msgspec.msgpack.decode(told.document, type=Begun)
                code, text = msgspec.msgpack.decode(told.document, type=tuple[str, str])
                if code == "retry":
                    return None
                raise OperatorRefused(code, text)
        finally:
            del self._asked[number]
        raise OperatorRefused("leader_unreachable", f"node {leader}, which leads, has not answered")

    async def _wait_until_done(self, number: int) -> None:
        while True:
            self._see(trio.current_time())
            job = self.row.job
            if job is not None and job.number > number:
                raise OperatorRefused("membership_changed", "another change has taken this one's place")
            if (job is not None and job.number == number and job.done) or self._removed_by >= number:
                return
            await self._changed.wait(STEP_S)

    # --- what the leader begins

    async def _begin(self, question: Question) -> Begun:
        if isinstance(question, Transfer):
            return await self._transfer(question)
        if self._acquaintances is None:
            raise OperatorRefused(
                "bad_request", "this node was started as a single one (QUEEN_RAFT_REPLICATOR): it has no raft port")
        try:
            await self._read(queries.query(queries.Query.NOTHING))  # what others answered before is seen here
            self._see(trio.current_time())
            if isinstance(question, AddLearner):
                await self._connect(question, self._acquaintances)
            return await self._begin_change(question)
        finally:
            if isinstance(question, AddLearner):
                self._acquaintances.candidates.pop(question.node_id, None)

    async def _connect(self, question: AddLearner, acquaintances: Acquaintances) -> None:
        """Who is to be added is connected first: it must run and answer (CL-104)."""
        if check(question, self._checked()) is None:
            return
        with trio.move_on_after(CANDIDATE_WITHIN_S):
            while self.hello_of(question.node_id) is None or acquaintances.is_going(question.node_id):
                if not acquaintances.is_going(question.node_id):
                    acquaintances.candidates[question.node_id] = Peer(parse_address(question.raft))
                await self._changed.wait(STEP_S)
            return
        raise OperatorRefused(
            "no_quorum", f"node {question.node_id} does not answer at {question.raft}: start it with QUEEN_RAFT_JOIN=1")

    def _checked(self) -> Refusals:
        """What a change is checked against. Raises OperatorRefused where this node leads no longer."""
        view = self.view_of(CELL)
        if view is None:
            raise OperatorRefused("retry", "this node leads no longer")
        return Refusals(view, self.row, self.addresses(), self.lag_max)

    async def _begin_change(self, question: Change) -> Begun:
        against = self._checked()
        target = check(question, against, connected=True)
        job = self.row.job
        if target is None:
            return Begun(0 if job is None or job.done else job.number)
        if isinstance(question, AddLearner):
            hello = self.hello_of(question.node_id)
            if hello is None:
                raise OperatorRefused("no_quorum", f"node {question.node_id} does not answer any more")
            if hello.highest_format < self.row.cluster_version:
                raise OperatorRefused(
                    "no_quorum", f"node {question.node_id} reads formats up to {hello.highest_format}, the cluster "
                    f"writes {self.row.cluster_version}")
            await self._write(commands.know_members(
                os.urandom(16), [(question.node_id, question.raft, question.http, hello.directory_id)]))
        now = against.view.configuration
        number = await self._write(commands.change_members(
            os.urandom(16), next_number(against.row), target.voters, target.learners,
            force=isinstance(question, Promote | SetVoters) and question.force, before=(now.voters, now.learners)))
        if number == CHANGED_MEANWHILE:
            raise OperatorRefused("membership_changed", "somebody else's change came in between")
        return Begun(number)

    async def _read(self, query: bytes) -> bytes:
        slot = Slot()
        read = PendingRead(query, slot, give_up_at_s=trio.current_time() + WRITE_WITHIN_S)
        self.groups()[CELL].inbox.put(read)
        try:
            return await slot.wait()
        except Unavailable as error:
            raise OperatorRefused("retry", f"no majority answers ({error.code})") from error

    async def _write(self, command: bytes) -> int:
        slot = Slot()
        pending = Pending(command, slot, give_up_at_s=trio.current_time() + WRITE_WITHIN_S)
        self.groups()[CELL].inbox.put((Lane.DRAINING, pending))
        try:
            return msgspec.msgpack.decode(await slot.wait(), type=int)
        except Unavailable as error:
            raise OperatorRefused("leader_changed", f"an election came in between ({error.code})") from error

    async def _transfer(self, question: Transfer) -> Begun:
        actor = self.groups()[question.group]
        core = actor.group.raft.core
        to = question.to or core.best_successor(self.max_silent_ticks)
        if to == self.node_id:
            return Begun(leader=self.node_id)
        if not core.configuration.is_voter(to):
            raise OperatorRefused("not_a_member" if to else "last_voter", f"no other voter {to or ''} in this group")
        if to not in self.live():
            raise OperatorRefused("no_quorum", f"node {to} does not answer")
        while core.leader in (0, self.node_id):
            if core.role is Role.LEADER and not core.transfer_target:
                actor.inbox.put(TransferLeadership(to))
            await trio.sleep(STEP_S)
        return Begun(leader=core.leader)

    # --- what other nodes say; none of it waits

    def hear(self, node: NodeId, call: OperatorCall) -> None:
        """See `OperatorCall`."""
        match call:
            case AskOperator(number, question):
                if self._nursery is not None and self._answering < ASKED_MAX:
                    self._nursery.start_soon(self._answer, node, number, question)
            case OperatorTold(number, status, document):
                slot = self._asked.get(number)
                if slot is not None:
                    slot.answer(msgspec.msgpack.encode((status, document)))
            case Members(row) if self._acquaintances is not None:
                self._acquaintances.hear_members(node, row)
            case Known() if self._acquaintances is not None:
                self._acquaintances.hear_known(node, call)
            case Removed(number):
                if number >= next_number(self.row) - 1:
                    self._removed_by = number
                    self._on_removed()

    async def _answer(self, node: NodeId, number: int, raw: bytes) -> None:
        self._answering += 1
        try:
            with trio.move_on_after(LEADER_ANSWERS_WITHIN_S):
                told = await self._begun_for(raw)
                if self._others is not None:
                    self._others.tell(CELL, node, OperatorTold(number, told.status, told.document))
        finally:
            self._answering -= 1

    async def _begun_for(self, raw: bytes) -> Told:
        try:
            question = operator_calls.decode(raw)
            life = question.group if isinstance(question, Transfer) else CELL
            actor = self.groups().get(life)
            if actor is None or not actor.group.raft.may_propose:
                raise OperatorRefused("retry", "this node does not lead")
            return Told(200, msgspec.msgpack.encode(await self._begin(question)))
        except msgspec.MsgspecError as error:
            refused = OperatorRefused("bad_request", str(error))
        except OperatorRefused as error:
            refused = error
        return Told(operator_calls.STATUS_OF[refused.code], msgspec.msgpack.encode((refused.code, refused.text)))
