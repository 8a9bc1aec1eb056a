"""A tenant's group: what it decides. Which commands become an entry, who rides behind whom, who hears what.

Plain code: events and the time go in, effects wait to be taken out; nothing awaits. The actor (`group_actor.py`)
carries out; a simulation drives the same code. Consensus itself is `raft.group.RaftGroup`, the state
`state.machine.Machine`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queen_node import answers, commands
from queen_node.answers import consume as consume_answers
from queen_node.answers import push as push_answers
from queen_node.answers import timers as timer_answers
from queen_node.broker import Lane, Unavailable
from queen_node.commands import Kind
from queen_node.parked_pops import WOKEN_BY_TIME_MAX, ParkedPops, Reader, WaitingPop
from queen_node.places import queue_and_partition
from queen_node.slots import ResultSlot
from queen_node.state import consume, push, timers
from queen_node.state.machine import Answer, Application, Machine
from queen_node.state.step import Tally
from raft.group import RaftGroup
from raft.invariants import must

ENTRIES_UNWRITTEN_MAX = 1  # while one write is under way the next batch gathers: more would only make entries smaller
RIDERS_MAX = 64  # pops that ride behind the pushes of one entry (M-41)
NOTHING = answers.result(204)

RENDERERS: dict[int, Callable[[Any], bytes]] = {
    Kind.PUSH: push_answers.render_push,
    Kind.CONFIGURE: push_answers.render_configure,
    Kind.TIMERS: timer_answers.render_timers,
    Kind.ACK: consume_answers.render_ack,
    Kind.EXTEND: consume_answers.render_extend,
}


class Pending:
    """A command that waits to be proposed, or for its entry to be applied."""

    __slots__ = ("command", "give_up_at_s", "places", "slot")

    def __init__(
        self, command: bytes, slot: ResultSlot, *, give_up_at_s: float, places: tuple[bytes, ...] = (),
    ) -> None:
        self.command = command
        self.slot = slot
        self.give_up_at_s = give_up_at_s  # monotonic clock
        self.places = places  # where it may append, once a message


class PendingRead:
    """A linearizable read: waits for its read index, then for the state to reach it. `pop`: an empty answer to confirm.
    """

    __slots__ = ("give_up_at_s", "pop", "query", "read_index", "slot")

    def __init__(self, query: bytes, slot: ResultSlot, *, give_up_at_s: float, pop: WaitingPop | None = None) -> None:
        self.query = query
        self.slot = slot
        self.give_up_at_s = give_up_at_s
        self.pop = pop
        self.read_index: int | None = None


Waiter = Pending | WaitingPop | None


class Flight:
    """An entry of ours on its way: who waits for which of its commands."""

    __slots__ = ("fires", "forgets", "index", "term", "waiters")

    def __init__(self, index: int, term: int, waiters: list[Waiter], *, fires: bool, forgets: bool) -> None:
        self.index, self.term, self.waiters = index, term, waiters
        self.fires, self.forgets = fires, forgets


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a group needs to know of the node's settings. `fire`, `forget_ids`: the commands it proposes by itself."""

    batch_max_commands: int
    batch_max_bytes: int
    firing: bool
    fire: bytes
    forget_ids: bytes


class Group:
    """Decisions of one group on this node."""

    def __init__(self, raft: RaftGroup, machine: Machine, settings: GroupSettings) -> None:
        self.raft, self.machine, self.settings = raft, machine, settings
        self.pops = ParkedPops()
        self.tallies: list[Tally] = []  # for the actor to count; taken by it
        self.unavailable: str | None = None  # why nothing is taken any more: "retry" after a stop or a poisoned entry
        self._lanes: tuple[deque[Pending | WaitingPop], ...] = (deque(), deque())
        self._hand_backs: deque[bytes] = deque()
        self._flights: deque[Flight] = deque()  # the log's unapplied tail, as far as it is ours
        self._reads: dict[int, PendingRead] = {}
        self._confirmed: list[PendingRead] = []
        self._next_read = 0
        self._fire_wanted = False
        # Read from the state after each entry: hints that spare a look; the commands look for themselves.
        self._fire_at_us: int | None = None
        self._forget_at_us: int | None = None
        self.look_at_deadlines()

    def look_at_deadlines(self) -> None:
        """Read from the state when something is due next."""
        self._fire_at_us = self.machine.next_deadline_us()
        self._forget_at_us = push.next_ids_deadline_us(self.machine.store)

    @property
    def deadline_us(self) -> int | None:
        """When the wheel must tell us, on the group clock; None: nothing is pending."""
        if self._fire_at_us is None or not self.settings.firing:
            return self._forget_at_us
        return self._fire_at_us if self._forget_at_us is None else min(self._fire_at_us, self._forget_at_us)

    # --- what comes in

    def submit(self, pending: Pending, lane: Lane) -> None:
        """A command to propose."""
        if self.unavailable is not None:
            pending.slot.answer(Unavailable(self.unavailable))
            return
        self._lanes[lane].append(pending)

    def pop(self, pop: WaitingPop, now_us: int) -> None:
        """A pop: proposed if it can be served, parked if it may wait, else answered empty once that is confirmed."""
        if self.unavailable is not None:
            pop.slot.answer(Unavailable(self.unavailable))
            return
        chance = self._look(pop.queue, pop.reader, now_us)
        if chance is True:
            self._lanes[Lane.DRAINING].append(pop)
        elif pop.waits:
            self.pops.park(pop, chance)
        else:
            self.read(PendingRead(b"", pop.slot, give_up_at_s=pop.answer_by_s, pop=pop))

    def withdraw(self, pop: WaitingPop) -> None:
        """The client of a pop has gone: it claims nothing, or hands back what it just claimed (PA-23)."""
        pop.gone = True
        if self.pops.withdraw(pop.lease_id):
            pop.slot.answer(NOTHING)

    def hand_back(self, lease_id: bytes) -> None:
        """An answer could not be delivered (PA-23)."""
        self._hand_backs.append(lease_id)

    def read(self, read: PendingRead) -> None:
        """A read: served when a majority has confirmed that we lead, from a state that is at least as new (M-40)."""
        if self.unavailable is not None:
            read.slot.answer(Unavailable(self.unavailable))
            return
        self._next_read += 1
        self._reads[self._next_read] = read

    def due(self) -> None:
        """The wheel says that a deadline may have passed."""
        self._fire_wanted = True

    def let_pops_go(self) -> None:
        """Answer every parked pop empty."""
        for pop in self.pops.take_all():
            pop.slot.answer(NOTHING)

    def stop(self, reason: str) -> None:
        """Take nothing more and answer everyone who waits: what was proposed may yet apply."""
        self.unavailable = reason
        refusal = Unavailable(reason)
        for pop in self.pops.take_all():
            pop.slot.answer(refusal)
        for lane in self._lanes:
            for waiting in lane:
                waiting.slot.answer(refusal)
            lane.clear()
        for flight in self._flights:
            for waiter in flight.waiters:
                if waiter is not None:
                    waiter.slot.answer(refusal)
        for read in [*self._reads.values(), *self._confirmed]:
            read.slot.answer(refusal)
        self._reads.clear()
        self._confirmed.clear()

    # --- what time does

    def tell_the_time(self, now_s: float, now_us: int) -> None:
        """Answer those whose time is over, try those for whom time itself made something deliverable."""
        for pop in self.pops.take_expired(now_s):
            pop.slot.answer(NOTHING)
        for queue, reader in self.pops.take_chances(now_us):
            if not self.pops.count(queue, reader):
                continue  # served or gone before its time came: an alarm for nobody would ring for ever
            chance = self._look(queue, reader, now_us)
            if chance is True:
                self._lanes[Lane.DRAINING].extend(self.pops.take(queue, reader, WOKEN_BY_TIME_MAX))
                self.pops.expect(queue, reader, now_us)  # more than these may wait: look again after them
            elif chance is not None:
                self.pops.expect(queue, reader, chance)

    def give_up_late_calls(self, now_s: float) -> None:
        """Answer calls whose deadline has passed: what was never proposed surely did not happen."""
        for lane in self._lanes:
            for _ in range(len(lane)):
                waiting = lane.popleft()
                late = isinstance(waiting, Pending) and waiting.give_up_at_s <= now_s
                if late:
                    waiting.slot.answer(Unavailable("no_leader"))
                else:
                    lane.append(waiting)
        for flight in self._flights:
            for waiter in flight.waiters:
                if isinstance(waiter, Pending) and waiter.give_up_at_s <= now_s:
                    waiter.slot.answer(Unavailable("timeout"))
        for key, read in list(self._reads.items()):
            if read.give_up_at_s <= now_s:
                del self._reads[key]
                read.slot.answer(Unavailable("no_leader"))

    @property
    def has_calls(self) -> bool:
        """Whether a call waits for its fate, parked pops apart."""
        return bool(self._flights or self._reads or any(self._lanes))

    def next_alarm(self, now_s: float, now_us: int) -> float | None:
        """When `tell_the_time` has something to do, in seconds of the monotonic clock; None: not before an event."""
        alarm = self.pops.next_deadline_s()
        chance_us = self.pops.next_chance_us()
        if chance_us is not None:
            chance_s = now_s + max(0, chance_us - now_us) / 1_000_000
            alarm = chance_s if alarm is None else min(alarm, chance_s)
        return alarm

    # --- proposing

    def propose(self, now_us: int) -> None:
        """Make one entry of what waits, if none of ours is still on its way to the disk."""
        raft = self.raft
        if not raft.may_propose or raft.unwritten_count >= ENTRIES_UNWRITTEN_MAX:
            return
        self._forget_overwritten(raft.core.term)
        fires = self._fire_is_due(now_us)
        forgets = self._forget_is_due(now_us)
        draining, pushes = self._lanes
        if not (fires or forgets or draining or pushes or self._hand_backs):
            return
        batch: list[bytes] = []
        waiters: list[Waiter] = []
        room_bytes, room = self.settings.batch_max_bytes, self.settings.batch_max_commands
        places: dict[bytes, int] = {}  # appended to by this entry -> messages
        while self._hand_backs and room > 0:
            batch.append(commands.hand_back(self._hand_backs.popleft()))
            waiters.append(None)
            room -= 1
        if fires:
            if len(self.pops):
                for place, count in timers.due_places(self.machine.store, now_us, RIDERS_MAX).items():
                    places[place] = places.get(place, 0) + count
            batch.append(self.settings.fire)
            waiters.append(None)
        if forgets:
            batch.append(self.settings.forget_ids)
            waiters.append(None)
        for lane in (draining, pushes):
            while lane and room > 0:
                waiting = lane[0]
                size = len(waiting.command)
                if size > room_bytes and batch:
                    break  # it goes first into the next entry; alone, however large (M-50)
                lane.popleft()
                if isinstance(waiting, WaitingPop) and waiting.gone:
                    waiting.slot.answer(NOTHING)
                    continue
                if isinstance(waiting, Pending):
                    for place in waiting.places:
                        places[place] = places.get(place, 0) + 1
                waiters.append(waiting)
                batch.append(waiting.command)
                room_bytes -= size
                room -= 1
        if places and len(self.pops):
            self._add_riders(places, batch, waiters)
        self._tell_how_many_share(batch, waiters)
        data = commands.entry(raft.clock.stamp(), batch)
        index, term = raft.propose(data)
        self._flights.append(Flight(index, term, waiters, fires=fires, forgets=forgets))

    def _add_riders(self, places: dict[bytes, int], batch: list[bytes], waiters: list[Waiter]) -> None:
        """Parked pops of the places that this entry appends to, behind the appends: one commit serves both (M-41)."""
        riders = 0
        for packed, count in places.items():
            queue, partition = queue_and_partition(packed)
            for reader in self.pops.readers(queue):
                if reader[1] is None or reader[1] == partition:
                    for pop in self.pops.take(queue, reader, min(count, RIDERS_MAX - riders)):
                        batch.append(pop.command)
                        waiters.append(pop)
                        riders += 1
            if riders >= RIDERS_MAX:
                return

    def _tell_how_many_share(self, batch: list[bytes], waiters: list[Waiter]) -> None:
        """Pops that leave their size to the broker are told with how many they share what is ready (PA-41)."""
        pops = [(place, waiter) for place, waiter in enumerate(waiters) if isinstance(waiter, WaitingPop)]
        if len(pops) + len(self.pops) < 2:
            return
        batched = Counter((pop.queue, pop.reader) for _, pop in pops)
        for place, pop in pops:
            sharing = batched[pop.queue, pop.reader] + self.pops.count(pop.queue, pop.reader)
            batch[place] = consume.shared_among(pop.command, sharing)

    def _forget_overwritten(self, term: int) -> None:
        """Answer for what an earlier term of ours proposed and another leader's entries replaced.

        Our own log has nothing of earlier terms behind the blank entry that this term has applied. Left here, a fire
        among them would hold back all fires, and the index of one be taken for that of a new entry.
        """
        while self._flights and self._flights[0].term != term:
            for waiter in self._flights.popleft().waiters:
                if waiter is not None:
                    waiter.slot.answer(Unavailable("retry"))

    def _fire_is_due(self, now_us: int) -> bool:
        if not self._fire_wanted or not self.settings.firing or any(flight.fires for flight in self._flights):
            return False
        self._fire_wanted = False
        return self._fire_at_us is not None and self._fire_at_us <= now_us

    def _forget_is_due(self, now_us: int) -> bool:
        if self._forget_at_us is None or self._forget_at_us > now_us:
            return False
        return not any(flight.forgets for flight in self._flights)

    # --- applying

    def applied(self, application: Application, results: list[tuple[bytes, int, Answer]], now_us: int) -> None:
        """An entry was applied: answer its callers, serve those whom it made servable."""
        step = application.step
        self.tallies.append(step.tally)
        self.look_at_deadlines()
        flights = self._flights
        flight = None
        if flights and flights[0].index <= application.index:
            flight = flights.popleft()
            must(flight.index == application.index, "an entry of ours was never applied", ours=flight.index)
        if flight is not None and flight.term == application.term:
            for (_, kind, answer), waiter in zip(results, flight.waiters, strict=True):
                if isinstance(waiter, Pending):
                    if not waiter.slot.answered:
                        waiter.slot.answer(RENDERERS[kind](answer))
                elif waiter is not None:
                    self._answer_pop(waiter, answer, now_us)
            if flight.fires:
                self._fire_wanted = True  # carries on at once while more are due; asked of the calendar, not assumed
        elif flight is not None:
            for waiter in flight.waiters:  # another leader's entry stands where ours would have: it never applied
                if waiter is not None:
                    waiter.slot.answer(Unavailable("retry"))
        for queue, count in step.wakes.items():
            self._wake(queue, count, now_us)

    def _wake(self, queue: bytes, count: int, now_us: int) -> None:
        draining = self._lanes[Lane.DRAINING]
        for reader in self.pops.readers(queue):
            chance = self._look(queue, reader, now_us)
            if chance is True:
                draining.extend(self.pops.take(queue, reader, count))
            elif chance is not None:
                self.pops.expect(queue, reader, chance)

    def _answer_pop(self, pop: WaitingPop, answer: Answer, now_us: int) -> None:
        if consume.claimed(answer):
            if pop.gone:
                self._hand_backs.append(pop.lease_id)
                pop.slot.answer(NOTHING)
            else:
                pop.slot.answer(consume_answers.render_pop(answer))
            return
        if pop.gone:
            pop.slot.answer(NOTHING)
        else:
            self.pop(pop, now_us)

    def _look(self, queue: bytes, reader: Reader, now_us: int) -> bool | int | None:
        """True: worth proposing; a time: not before then; None: not before something happens."""
        group, partition = reader
        return consume.can_serve(self.machine.store, queue=queue, group=group, partition=partition, now_us=now_us)

    # --- reading

    def ask_for_read_indexes(self) -> None:
        """Start the rounds of the reads that wait for one; all that wait share it."""
        if self._reads and self.raft.may_propose:
            for key, read in self._reads.items():
                if read.read_index is None:
                    read.read_index = -1
                    self.raft.read_index(key)

    def read_confirmed(self, key: int, index: int) -> None:
        """A majority answered: this read may be served once the state has reached `index`."""
        read = self._reads.pop(key, None)
        if read is not None:
            read.read_index = index
            self._confirmed.append(read)

    def take_servable_reads(self, now_us: int) -> list[PendingRead]:
        """Reads that may be served from the state as it is now. Empty pops among them are dealt with here."""
        if not self._confirmed:
            return []
        applied_index = self.machine.applied_index
        servable = []
        waiting = []
        for read in self._confirmed:
            must(read.read_index is not None, "a read without an index was confirmed")
            if read.read_index is not None and read.read_index > applied_index:
                waiting.append(read)
            elif read.pop is None:
                servable.append(read)
            elif self._look(read.pop.queue, read.pop.reader, now_us) is True:
                self._lanes[Lane.DRAINING].append(read.pop)
            else:
                read.slot.answer(NOTHING)
        self._confirmed = waiting
        return servable

