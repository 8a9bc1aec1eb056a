"""A tenant's group: what it decides. Who gets which call, which commands become an entry, who rides behind whom, who
hears what.

Plain code: events and the time go in, effects wait to be taken out; nothing awaits. The actor (`group_actor.py`)
carries out; a simulation drives the same code. Consensus itself is `raft.group.RaftGroup`, the state
`state.machine.Machine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from queen_node import commands
from queen_node.answers import NOTHING, pack
from queen_node.broker import Lane, Unavailable
from queen_node.calls import POP_PATIENCE_S, Calls, NobodyWaits, Pending, PendingRead
from queen_node.chores import ChoreList
from queen_node.commands import Kind
from queen_node.draft import RIDERS_MAX, Draft, Waiting
from queen_node.guests import Guest, Guests, pop_of
from queen_node.parked_pops import WOKEN_BY_TIME_MAX, ParkedPops, Reader, WaitingPop
from queen_node.peer_calls import AskRead, Forward, ForwardPop, Nothing, NotTaken, PeerCall, ReadAt, Withdraw
from queen_node.reads import Reads
from queen_node.state import consume, leases, timers
from queen_node.state.machine import REPEATED, Answer, Application, Machine
from queen_node.state.step import Tally
from raft.core import Role
from raft.group import RaftGroup

ENTRIES_UNWRITTEN_MAX = 1  # while one write is under way the next batch gathers: more would only make entries smaller
HAND_BACK_TRIED_S = 60.0  # by then the lease has mostly run out by itself
_POP = int(Kind.POP)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a group needs to know of the node's settings.

    fire, forget_ids, sweep_kv: the commands that it proposes by itself, each of them short (M-50); sweep_every_us,
    sweep_pause_us: see `ChoreList`. hold_ticks: of a majority's silence, after which nothing is proposed until
    it answers again (CL-52).
    """

    batch_max_commands: int
    batch_max_bytes: int
    firing: bool
    fire: bytes
    forget_ids: bytes
    sweep_kv: bytes
    sweep_every_us: int
    sweep_pause_us: int
    hold_ticks: int = 15


class Group:
    """Decisions of one group on this node."""

    def __init__(self, raft: RaftGroup, machine: Machine, settings: GroupSettings) -> None:
        self.raft, self.machine, self.settings = raft, machine, settings
        self.pops = ParkedPops()
        self.calls = Calls()
        self.guests = Guests()
        self.reads = Reads()
        self.outgoing: list[tuple[int, PeerCall]] = []  # (node, what to tell it); taken by the actor
        self.tallies: list[Tally] = []  # for the actor to count; taken by it
        self.unavailable: str | None = None  # why nothing is taken any more: "retry" after a stop or a poisoned entry
        self._lanes: tuple[deque[Waiting], ...] = (deque(), deque())
        self._chores = ChoreList(
            firing=settings.firing, sweep_every_us=settings.sweep_every_us, sweep_pause_us=settings.sweep_pause_us)
        self._routed = (0, 0)  # term and leader to whom the calls were given
        self._leaderless_since_s: float | None = 0.0
        self.now_s = 0.0  # of the monotonic clock; the driver sets it before events, and again with `tell_the_time`
        self.look_at_deadlines()

    def look_at_deadlines(self) -> None:
        """Read from the state when something is due next."""
        self._chores.look(self.machine.store)

    @property
    def deadline_us(self) -> int | None:
        """When the wheel must tell us, on the group clock; None: nothing is pending."""
        return self._chores.deadline_us

    # --- what comes in

    def submit(self, pending: Pending, lane: Lane) -> None:
        """A command to propose, here or where the leader is."""
        if self.unavailable is not None:
            pending.slot.answer(Unavailable(self.unavailable))
            return
        pending.lane, pending.came_at_s = lane, self.now_s
        self.calls.writes[pending.request_id] = pending
        self._give(pending)

    def pop(self, pop: WaitingPop, now_us: int) -> None:
        """A pop of this node's client."""
        if self.unavailable is not None:
            pop.slot.answer(Unavailable(self.unavailable))
            return
        self.calls.pops[pop.request_id] = pop
        self._give_pop(pop, now_us)

    def withdraw(self, pop: WaitingPop) -> None:
        """The client of a pop has gone: it claims nothing, or hands back what a leader claims for it yet (PA-23)."""
        pop.gone = True
        pop.slot.answer(NOTHING)
        if self.pops.withdraw(pop.lease_id) or not (pop.sent_term or self._leads):
            self._nothing(pop)
        elif leader := self._leader_elsewhere:
            self._tell(leader, Withdraw(pop.request_id))

    def hand_back(self, lease_id: bytes) -> None:
        """An answer could not be delivered (PA-23)."""
        command = commands.hand_back(lease_id)
        self.submit(Pending(command, NobodyWaits(), give_up_at_s=self.now_s + HAND_BACK_TRIED_S), Lane.DRAINING)

    def read(self, read: PendingRead) -> None:
        """A read: served when a majority has confirmed who leads, from a state that is at least as new (M-40)."""
        if self.unavailable is not None:
            read.slot.answer(Unavailable(self.unavailable))
            return
        self.reads.add(read)

    def hear(self, node: int, call: PeerCall, now_us: int) -> None:
        """What the same group says on another node."""
        match call:
            case Forward() | ForwardPop():
                self._take_guest(node, call, now_us)
            case Withdraw(request_id):
                pop = self.guests.pops.get(request_id)
                if pop is not None:
                    pop.gone = True
                    if self.pops.withdraw(pop.lease_id):
                        self._nothing(pop)
            case AskRead(number):
                if self._leads and self.unavailable is None:
                    self.guests.reads[self.reads.number_for_guest()] = node, number
            case NotTaken(request_id):
                given = self.calls.writes.get(request_id) or self.calls.pops.get(request_id)
                if given is not None:
                    given.sent_at_s = 0.0  # it goes again with the next look at silent calls
            case Nothing(request_id):
                pop = self.calls.pops.get(request_id)
                if pop is not None and node == self._leader_elsewhere:  # an earlier leader knows nothing of this one's
                    self._nothing(pop)
            case ReadAt(number, index, leader_now_us):
                self.reads.confirmed(number, index, leader_now_us)

    def due(self) -> None:
        """The wheel says that a deadline may have passed."""
        self._chores.want_fire()

    def hand_over(self, max_silent_ticks: int) -> None:
        """Let another voter lead, if this one does (CL-54). What is proposed meanwhile waits for whoever it is."""
        core = self.raft.core
        if core.role is Role.LEADER and not core.transfer_target:
            successor = core.best_successor(max_silent_ticks, turn=self.raft.life)
            if successor:
                core.transfer_leadership(successor)

    def let_pops_go(self) -> None:
        """Answer every pop of this node's clients that waits empty."""
        for pop in list(self.calls.pops.values()):
            if pop.parked or not self._leads:
                self.withdraw(pop)

    def stop(self, reason: str) -> None:
        """Take nothing more and answer everyone who waits: what was proposed may yet apply."""
        self.unavailable = reason
        refusal = Unavailable(reason)
        self._dismiss_guests()
        for slot in [*self.calls.take_all(), *self.reads.take_all()]:
            slot.answer(refusal)

    # --- when it sleeps (`raft.quiet`)

    def tick(self, live: Collection[int], now_us: int, periods: int = 1) -> None:
        """Raft's unit of time has passed. live, periods: as of `RaftGroup.tick`."""
        self.guests.tick()
        self.raft.core.is_wanted = bool(live) and self.is_wanted(now_us)
        self.raft.tick(live, periods)

    def is_wanted(self, now_us: int) -> bool:
        """Whether anything waits here for the group: then it does not sleep. A pop that waits is watched by its leader,
        and asks again when it changes, so it counts too."""
        guests, due_us = self.guests, self.deadline_us
        return bool(
            self.calls or self.reads or guests.writes or guests.pops or guests.reads
            or any(self._lanes) or len(self.pops) or self.unavailable is not None
            or (due_us is not None and due_us <= now_us))

    # --- whose calls go where

    @property
    def _leads(self) -> bool:
        return self._routed[1] == self.raft.core.node_id

    @property
    def _leader_elsewhere(self) -> int:
        leader = self._routed[1]
        return 0 if leader == self.raft.core.node_id else leader

    def route(self, now_us: int) -> None:
        """Notice who leads. When that has changed, every call goes to whoever it is now; without a leader they wait."""
        core = self.raft.core
        routed = core.term, core.leader
        if routed == self._routed:
            return
        self._routed = routed
        self._leaderless_since_s = None if core.leader else self.now_s
        self._chores.forget_flights()
        self._dismiss_guests()
        self.reads.ask_again()
        if self.unavailable is None:
            for call in self.calls.writes.values():
                self._give(call)
            for pop in list(self.calls.pops.values()):
                if not pop.gone:
                    self._give_pop(pop, now_us)

    def _dismiss_guests(self) -> None:
        """Nothing that waits here goes into the log by this node any more."""
        self.pops.take_all()
        for lane in self._lanes:
            for waiting in lane:
                if isinstance(waiting, WaitingPop):
                    waiting.in_lane = False
            lane.clear()
        for guest in self.guests.writes.values():
            self._tell(guest.node, NotTaken(guest.request_id))
        for pop in self.guests.pops.values():
            pop.slot.answer(Unavailable("retry"))
        self.guests.clear()

    def _give(self, call: Pending) -> None:
        if self._leads:
            self._lanes[call.lane].append(call)
        elif leader := self._leader_elsewhere:
            self._tell(leader, Forward(call.request_id, call.lane, call.sent_term > 0, call.places, call.command))
            call.sent_term, call.sent_at_s = self._routed[0], self.now_s

    def _give_pop(self, pop: WaitingPop, now_us: int) -> None:
        """Where we lead it is proposed if it can be served, parked if it may wait, else answered empty once that is
        confirmed."""
        if leader := self._leader_elsewhere:
            wait_ms = max(0, round((pop.answer_by_s - self.now_s) * 1000))
            group, partition = pop.reader
            self._tell(leader, ForwardPop(
                pop.request_id, pop.lease_id, pop.sent_term > 0, wait_ms, pop.waits, pop.queue, group, partition,
                pop.command))
            pop.sent_term, pop.sent_at_s = self._routed[0], self.now_s
        elif self._leads:
            chance = self._look(pop.queue, pop.reader, now_us)
            if chance is True or pop.sent_term:  # a repeat may have claimed: only applying it tells
                self._enqueue((pop,))
            elif pop.waits:
                self.pops.park(pop, chance)
            else:
                self.reads.add(PendingRead(b"", pop.slot, give_up_at_s=pop.answer_by_s, pop=pop))

    def _enqueue(self, pops: Iterable[WaitingPop]) -> None:
        """Propose these pops next."""
        for pop in pops:
            if not pop.in_lane:
                pop.in_lane = True
                self._lanes[Lane.DRAINING].append(pop)

    def _take_guest(self, node: int, call: Forward | ForwardPop, now_us: int) -> None:
        if not self._leads or self.unavailable is not None:
            self._tell(node, NotTaken(call.request_id))
        elif self.guests.is_late(call):
            return
        elif call.repeat and self.was_applied(call.request_id, call.command, now_us):
            # Its node answers once it gets that far, by the log or by a snapshot. One that lags asks again all the
            # time: with an entry for each repeat the log would grow as long as it lags, and it lag as long as it grows.
            return
        elif isinstance(call, ForwardPop):
            if call.request_id not in self.guests.pops:
                pop = self.guests.pops[call.request_id] = pop_of(node, call, self.now_s, self._tell)
                self._give_pop(pop, now_us)
        elif call.request_id not in self.guests.writes:
            guest = self.guests.writes[call.request_id] = Guest(node, call)
            self._lanes[call.lane].append(guest)

    def was_applied(self, request_id: bytes, command: bytes, now_us: int) -> bool:
        """Whether the state shows that this call of another node, or of this one before a snapshot, was applied."""
        if commands.is_hand_back(command):  # is remembered nowhere, but leaves no lease
            return not leases.is_held(self.machine.store, request_id)
        return self.machine.outcomes.holds(request_id, now_us)

    def _tell(self, node: int, call: PeerCall) -> None:
        self.outgoing.append((node, call))

    def _nothing(self, pop: WaitingPop) -> None:
        """A pop has come to its end without a claim."""
        self._pops_of(pop).pop(pop.request_id, None)
        pop.slot.answer(NOTHING)

    def _pops_of(self, pop: WaitingPop) -> dict[bytes, WaitingPop]:
        """Where it is known as long as it waits."""
        return self.guests.pops if pop.is_guest else self.calls.pops

    # --- what time does

    def tell_the_time(self, now_s: float, now_us: int) -> None:
        """Answer those whose time is over, try those for whom time itself made something deliverable."""
        self.now_s = now_s
        for pop in self.pops.take_expired(now_s):  # empty only if a majority still takes us for the leader (PA-7)
            self.reads.add(PendingRead(b"", pop.slot, give_up_at_s=pop.answer_by_s + POP_PATIENCE_S, pop=pop))
        for queue, reader in self.pops.take_chances(now_us):
            if not self.pops.count(queue, reader):
                continue  # served or gone before its time came: an alarm for nobody would ring for ever
            chance = self._look(queue, reader, now_us)
            if chance is True:
                self._enqueue(self.pops.take(queue, reader, WOKEN_BY_TIME_MAX))
                self.pops.expect(queue, reader, now_us)  # more than these may wait: look again after them
            elif chance is not None:
                self.pops.expect(queue, reader, chance)

    def give_up_late_calls(self, now_s: float, now_us: int) -> None:
        """Answer calls whose deadline has passed; send those again that a leader elsewhere may not have heard of."""
        self.now_s = now_s
        self.calls.give_up(now_s, self._leaderless_since_s)
        for pop in self.reads.give_up(now_s):
            self.guests.pops.pop(pop.request_id, None)
        if self._leader_elsewhere:
            for call in list(self.calls.silent(now_s)):
                if isinstance(call, Pending):
                    self._give(call)
                else:
                    self._give_pop(call, now_us)
            self.reads.ask_silent_again(now_s)

    @property
    def has_calls(self) -> bool:
        """Whether `give_up_late_calls` may have something to do before long."""
        return bool(self.calls.writes or self.reads or len(self.calls.pops) > self.pops.own_count)

    def next_alarm(self, now_s: float, now_us: int) -> float | None:
        """When `tell_the_time` has something to do, in seconds of the monotonic clock; None: not before an event."""
        alarm = self.pops.next_deadline_s()
        for moment_us in (self.pops.next_chance_us(), self._chores.next_sweep_us(now_us)):
            if moment_us is not None:
                moment_s = now_s + max(0, moment_us - now_us) / 1_000_000
                alarm = moment_s if alarm is None else min(alarm, moment_s)
        return alarm

    # --- proposing

    def propose(self, now_us: int) -> None:
        """Make one entry of what waits, if none of ours is still on its way to the disk."""
        self.route(now_us)
        raft = self.raft
        if not raft.may_propose or raft.unwritten_count >= ENTRIES_UNWRITTEN_MAX:
            return
        chores = self._chores.take_due(now_us)
        if not (any(chores) or any(self._lanes)):
            return
        alone = raft.core.configuration.is_alone(raft.core.node_id)
        if not alone and raft.core.is_silent_for(self.settings.hold_ticks):
            if chores.fires:
                self._chores.want_fire()
            return
        draft = Draft(raft.core.term, self.settings.batch_max_commands, self.settings.batch_max_bytes)
        if chores.fires:
            if len(self.pops):
                for place, count in timers.due_places(self.machine.store, now_us, RIDERS_MAX).items():
                    draft.places[place] = draft.places.get(place, 0) + count
            draft.add(self.settings.fire)
        if chores.forgets:
            draft.add(self.settings.forget_ids)
        if chores.sweeps:
            draft.add(self.settings.sweep_kv)
        for lane in self._lanes:
            self._fill(draft, lane)
        if draft.places and len(self.pops):
            draft.add_riders(self.pops)
        if not draft.batch:
            return
        draft.tell_how_many_share(self.pops)
        stamp = raft.clock.stamp()
        data = commands.entry(stamp, draft.batch) if alone else commands.entry_kept(stamp, draft.batch, draft.repeats)
        index, _term = raft.propose(data)
        self._chores.proposed(index, chores, now_us)

    def _fill(self, draft: Draft, lane: deque[Waiting]) -> None:
        """Move what fits from a lane into the draft."""
        while lane and draft.room > 0:
            waiting = lane[0]
            if len(waiting.command) > draft.room_bytes and draft.batch:
                return  # it goes first into the next entry; alone, however large (M-50)
            lane.popleft()
            if isinstance(waiting, WaitingPop):
                waiting.in_lane = False
                if waiting.gone:
                    self._nothing(waiting)
                if waiting.request_id not in self._pops_of(waiting):
                    continue  # an earlier copy of it has claimed
            else:
                if isinstance(waiting, Pending) and waiting.slot.answered:
                    continue  # given up as surely not applied
                for place in waiting.places:
                    draft.places[place] = draft.places.get(place, 0) + 1
            draft.take(waiting)

    # --- applying

    def applied(self, application: Application, results: Sequence[tuple[bytes, int, Answer]], now_us: int) -> None:
        """An entry was applied: answer the callers of this node, serve those whom it made servable."""
        step = application.step
        self.tallies.append(step.tally)
        self.look_at_deadlines()
        self._chores.applied(application.index)
        writes, guests = self.calls.writes, self.guests.writes
        for request_id, kind, answer in results:
            if kind == _POP:
                self._pop_applied(request_id, answer, now_us)
                continue
            call = writes.pop(request_id, None)
            if call is not None:
                # That it was applied before is news only to a node that got the first copy in a snapshot.
                call.slot.answer(Unavailable("timeout") if answer is REPEATED else pack(answer))
            elif guests:
                guests.pop(request_id, None)
        if self._leads:
            for queue, count in step.wakes.items():
                self._wake(queue, count, now_us)

    def _pop_applied(self, request_id: bytes, answer: Answer, now_us: int) -> None:
        pop = self.calls.pops.get(request_id) or self.guests.pops.get(request_id)
        if pop is None:
            return
        if not consume.claimed(answer):
            if self._leads:  # what was tried did nothing; a leader elsewhere may have tried again
                pop.sent_term = 0
            if pop.gone:
                self._nothing(pop)
            elif self._leads and not (pop.parked or pop.in_lane):  # else another copy of it waits already
                self._give_pop(pop, now_us)
            return
        del self._pops_of(pop)[request_id]
        if pop.parked:  # here as well as in the log, after a change of leader
            self.pops.withdraw(pop.lease_id)
        if pop.is_guest:
            return
        if answer is REPEATED:
            self.hand_back(pop.lease_id)
            pop.slot.answer(Unavailable("timeout"))
        elif pop.gone:
            self.hand_back(pop.lease_id)
        else:
            pop.slot.answer(pack(answer))

    def _wake(self, queue: bytes, count: int, now_us: int) -> None:
        for reader in self.pops.readers(queue):
            chance = self._look(queue, reader, now_us)
            if chance is True:
                self._enqueue(self.pops.take(queue, reader, count))
            elif chance is not None:
                self.pops.expect(queue, reader, chance)

    def _look(self, queue: bytes, reader: Reader, now_us: int) -> bool | int | None:
        """True: worth proposing; a time: not before then; None: not before something happens."""
        group, partition = reader
        return consume.can_serve(self.machine.store, queue=queue, group=group, partition=partition, now_us=now_us)

    # --- reading

    def ask_for_read_indexes(self) -> None:
        """Start the rounds of the reads that wait for one; all that wait share it."""
        if not self.reads.has_unasked:
            return
        if self.raft.may_propose:
            for number in self.reads.take_unasked(self.now_s):
                self.raft.read_index(number)
        elif leader := self._leader_elsewhere:
            for number in self.reads.take_unasked(self.now_s):
                self._tell(leader, AskRead(number))

    def read_confirmed(self, number: int, index: int) -> None:
        """A majority answered: this read may be served once the state has reached `index`."""
        guest = self.guests.reads.pop(number, None)
        now_us = self.raft.clock.now_us()
        if guest is None:
            self.reads.confirmed(number, index, now_us)
        else:
            node, their_number = guest
            self._tell(node, ReadAt(their_number, index, now_us))

    def take_servable_reads(self, now_us: int) -> list[PendingRead]:
        """Reads that may be served from the state as it is now. Empty pops among them are dealt with here."""
        servable = []
        for read in self.reads.take_servable(self.machine.applied_index):
            if read.pop is None:
                servable.append(read)
            elif not read.pop.waits and self._look(read.pop.queue, read.pop.reader, now_us) is True:
                self._enqueue((read.pop,))
            else:
                self._nothing(read.pop)
        return servable
