"""Which groups of this node sleep, under whose process, and what wakes them (M-30 to M-32).

One for all groups. It stands in for their ticks: it watches the processes of the other nodes by the frames that these
send, so that a group whose leader's process is gone has no leader from then on; it says in its own frames, as a count
and a hash, which groups it leads asleep with whom, so that a lost word shows; and it wakes groups without a leader in
an order and at a pace that two cores can carry. What a group itself needs to sleep safely is in `raft.quiet`.

Plain code, in ticks: a process that was itself stopped for a while has not seen the others silent meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol

from queen_node.events import AskAlso, Wake
from queen_node.peer_calls import NotQuiet, QuietCall, QuietHeld
from raft.clock import elapsed_at_least_us
from raft.messages import NUMBER_MAX

WAKES_PER_S: Final = 500  # groups without a leader, on all live nodes together (M-32)
STIRRED_MAX: Final = 128
"""Groups that this node stirred, for want of a leader or for a node that is back, and that do not sleep again yet.
Without this bound 3,000 were awake at once: more than two cores can tick, so none of them came to sleep again."""
STIRRED_TICKS_MAX: Final = 50  # one that is used meanwhile stays awake, and makes room
ASKS_AFTER_TICKS: Final = 3  # of a node's return: by then it has heard this one, under whose process it is to sleep
STARTS_AFTER_TICKS: Final = 2  # of a leader's silence: by then the others have noticed it too, and grant their votes
OTHERS_AFTER_TICKS: Final = 30  # a group whose chosen candidate does not stand is woken by the others
OTHERS_WHEN_DUE_AFTER_TICKS: Final = 10  # the same where something is due
ASKED_LATELY_TICKS: Final = 10  # after a start: while leaders still ask this node to sleep, more may come
MISMATCHES_MAX: Final = 3  # frames, so 300 ms (M-30)
COMPARED_EVERY_FRAMES: Final = 20  # where hundreds wake and sleep at every moment the sums hardly ever match
COMPARED_FROM_TICKS: Final = 20
"""So long a group must sleep before a difference counts: a member sleeps when it agrees, its leader once all did, and
where both nodes are busy a second lies between. Without this each comparison woke what had just come to sleep."""
PAIRS_A_WORD: Final = 4096
MIX: Final = 0x9E3779B97F4A7C15
MASK: Final = 2**63 - 1


def pair_hash(life: int, term: int) -> int:
    """63 bits that nodes of one release mix alike: of a set of pairs, the hashes of its members by exclusive or."""
    mixed = ((life << 20) ^ term) * MIX
    return (mixed ^ mixed >> 29) * MIX >> 17 & MASK


class Pairs:
    """(life, term) of groups, with their hash."""

    __slots__ = ("hash", "terms")

    def __init__(self) -> None:
        self.terms: dict[int, int] = {}
        self.hash = 0

    def add(self, life: int, term: int) -> None:
        self.drop(life)
        self.terms[life] = term
        self.hash ^= pair_hash(life, term)

    def drop(self, life: int) -> None:
        term = self.terms.pop(life, None)
        if term is not None:
            self.hash ^= pair_hash(life, term)

    @property
    def summary(self) -> tuple[int, int]:
        """Count and hash, as node frames carry them."""
        return len(self.terms), self.hash


class Sample(NamedTuple):
    """What a node's BOOTTIME was, at which of ours: µs."""

    node: int
    boottime_us: int
    heard_at_us: int


class Woken(NamedTuple):
    """What a group must know that slept. silent_ticks: of its leader's process. clock: the node that leads, or did, and
    what its BOOTTIME is at least by now, µs (M-21)."""

    silent_ticks: int
    clock: tuple[int, int] | None


class Lives(Protocol):
    """The groups as they are seen here: when one has something due next, on its clock; who votes in it. are_open:
    whether all of them are that."""

    @property
    def are_open(self) -> bool: ...

    def deadline_us(self, life: int) -> int | None: ...

    def voters(self, life: int) -> Collection[int]: ...


class _Process:
    """Another node's process, as its frames show it."""

    __slots__ = ("mismatches", "number", "sample", "silent_ticks", "under", "with_it")

    def __init__(self, silent_ticks: int) -> None:
        self.number = -1
        self.silent_ticks = silent_ticks
        self.sample: Sample | None = None
        self.under = Pairs()  # they sleep here, led there
        self.with_it = Pairs()  # they sleep here and there, led here
        self.mismatches = 0


class Sleepers:
    """See the module. tell: sends a word to a node; boottime_us: this machine's; put: gives a group an event."""

    def __init__(
        self, node_id: int, lives: Lives, *, election_ticks: int, tick_s: float, boottime_us: Callable[[], int],
        tell: Callable[[int, QuietCall], None], put: Callable[[int, Wake | AskAlso], None],
        pairs_a_word: int = PAIRS_A_WORD,
    ) -> None:
        self._node_id, self._lives, self._election_ticks = node_id, lives, election_ticks
        self._boottime_us, self._tell, self._put = boottime_us, tell, put
        self._pairs_a_word = pairs_a_word
        self._wakes_a_tick = WAKES_PER_S * tick_s
        self._processes: dict[int, _Process] = {}
        self._leaders: dict[int, int] = {}  # of every group that sleeps; 0: none
        self._since: dict[int, int] = {}  # of the same, the tick
        self._led: dict[int, frozenset[int]] = {}  # asleep under this node, and with whom
        self._orphans: dict[int, Sample | None] = {}  # asleep without a leader; of whose clock the last one ran on
        self._to_wake: deque[int] = deque()
        self._late: dict[int, int] = {}  # for the others, at that tick
        self._late_due: dict[int, int] = {}  # the same where something is due: these wait for no room
        self._to_ask: deque[tuple[int, int]] = deque()
        self._stirred: dict[int, int] = {}  # at which tick; the oldest first
        self._tick = self._asks_from_tick = 0
        self._others_stop_asking_tick = 0
        self._wakes_from_tick = 3 * election_ticks  # after a start: by then who leads has asked this node to sleep
        self._wakes_owed = 0.0
        self._works = True
        self.live: frozenset[int] = frozenset((node_id,))

    def __len__(self) -> int:
        return len(self._leaders)

    @property
    def led_count(self) -> int:
        """Groups that sleep under this node."""
        return len(self._led)

    # --- what groups do

    def fell_asleep(self, life: int, term: int, leader: int, agreed: frozenset[int]) -> None:
        """A group sleeps, or sleeps on under other terms. leader: 0 where none is known; agreed: with a leader here."""
        if leader and life in self._orphans and self._orphans[life] is None:
            self._others_stop_asking_tick = self._tick + ASKED_LATELY_TICKS
        self._forget(life)
        self._stirred.pop(life, None)
        self._leaders[life], self._since[life] = leader, self._tick
        if leader == self._node_id:
            self._led[life] = agreed
            for node in agreed:
                self._process(node).with_it.add(life, term)
        elif leader in self.live:
            self._process(leader).under.add(life, term)
        else:
            self._orphans[life] = self._processes[leader].sample if leader in self._processes else None
            self._to_wake.append(life)

    def wake(self, life: int) -> Woken:
        """A group wakes."""
        leader = self._leaders.get(life, 0)
        silent_ticks, sample = self._election_ticks, self._orphans.get(life)
        if life not in self._orphans and leader in self._processes:
            process = self._processes[leader]
            silent_ticks, sample = process.silent_ticks, process.sample
        self._forget(life)
        if sample is None:
            return Woken(silent_ticks, None)
        gone_us = elapsed_at_least_us(self._boottime_us() - sample.heard_at_us)
        return Woken(silent_ticks, (sample.node, sample.boottime_us + gone_us))

    def _forget(self, life: int) -> None:
        leader = self._leaders.pop(life, None)
        if leader is None:
            return
        del self._since[life]
        for node in self._led.pop(life, ()):
            self._process(node).with_it.drop(life)
        if leader in self._processes:
            self._processes[leader].under.drop(life)
        self._orphans.pop(life, None)
        self._late.pop(life, None)
        self._late_due.pop(life, None)

    def takes_due(self, life: int) -> bool:
        """A deadline of this group has passed: whether the group is to hear of it now. One that sleeps under another
        node's process is that leader's; one that has no leader is woken at once where this node is to stand, else
        if nobody else does (M-32)."""
        if life in self._orphans:
            chosen = self._chosen(life) if self._tick >= self._wakes_from_tick else 0
            if chosen == self._node_id:
                self._put(life, Wake(stands=True))
            elif chosen:
                self._late_due.setdefault(life, self._tick + OTHERS_WHEN_DUE_AFTER_TICKS)
            return False
        return self._leaders.get(life, self._node_id) == self._node_id

    # --- what other nodes say

    def summary_for(self, node: int) -> tuple[int, int]:
        """Count and hash of what this node leads asleep with that one."""
        process = self._processes.get(node)
        return process.with_it.summary if process is not None and self._works else (0, 0)

    def hear_frame(self, node: int, number: int, boottime_us: int, summary: tuple[int, int]) -> None:
        """A node frame: whose process it is, what it leads asleep with this one."""
        process = self._process(node)
        if process.number not in (number, -1):
            self._gone(node)
        was_silent = process.silent_ticks >= self._election_ticks or process.number != number
        process.number, process.silent_ticks = number, 0
        process.sample = Sample(node, boottime_us, self._boottime_us())
        if was_silent:
            self._came(node)
        if process.under.summary == summary:
            process.mismatches = 0
            return
        process.mismatches += 1
        if process.mismatches >= MISMATCHES_MAX:
            process.mismatches = MISMATCHES_MAX - COMPARED_EVERY_FRAMES
            held = {life: term for life, term in process.under.terms.items() if self._sleeps_long(life)}
            for word in _held(held, self._pairs_a_word):
                self._tell(node, word)

    def hear(self, node: int, call: QuietCall) -> None:
        """What is compared when the sums differ. A group that sleeps only there wakes; about one that sleeps only here
        that node is asked again."""
        process = self._process(node)
        match call:
            case QuietHeld(first, last, pairs):
                theirs, ours = dict(pairs), process.with_it.terms if self._works else {}
                wrong = [life for life, term in theirs.items() if ours.get(life) != term]
                if wrong:
                    self._tell(node, NotQuiet(tuple(wrong)))
                for life in [
                    life for life in ours
                    if first <= life <= last and ours[life] != theirs.get(life) and self._sleeps_long(life)
                ]:
                    self._led[life] -= {node}
                    process.with_it.drop(life)
                    self._to_ask.append((life, node))
            case NotQuiet(lives):
                for life in lives:
                    if life in process.under.terms and self._sleeps_long(life):
                        self._put(life, Wake())

    def _sleeps_long(self, life: int) -> bool:
        return self._tick - self._since[life] >= COMPARED_FROM_TICKS

    def stop(self) -> None:
        """This node's work has ended, but not its process: it leads nothing, asleep or awake (CL-126)."""
        self._works = False

    # --- time

    def tick(self) -> None:
        """Raft's unit of time has passed."""
        self._tick += 1
        for node, process in self._processes.items():
            process.silent_ticks += 1
            if process.silent_ticks == self._election_ticks:
                self._gone(node)
        self._make_room()
        if self._tick >= self._wakes_from_tick:
            self._wake_orphans()
        if self._tick >= self._asks_from_tick:
            self._ask_returned()

    def _make_room(self) -> None:
        for life, tick in list(self._stirred.items()):
            if tick + STIRRED_TICKS_MAX > self._tick:
                return
            del self._stirred[life]

    def _stir(self, life: int, event: Wake | AskAlso) -> None:
        self._stirred.pop(life, None)
        self._stirred[life] = self._tick
        self._put(life, event)

    def _ask_returned(self) -> None:
        while self._to_ask and len(self._stirred) < STIRRED_MAX:
            life, node = self._to_ask.popleft()
            if node not in self._led.get(life, (node,)):
                self._stir(life, AskAlso(node))

    def _wake_orphans(self) -> None:
        """Those whom this node is to lead; of the others it makes sure that somebody does."""
        self._wakes_owed = min(self._wakes_owed, self._wakes_a_tick) + self._wakes_a_tick
        for life in [life for life, tick in self._late_due.items() if tick <= self._tick]:
            del self._late_due[life]
            self._rouse(life)
        if not self._lives.are_open:
            return  # first that, which a machine with thousands has to do as well; calls and deadlines wake meanwhile
        for life in [life for life, tick in self._late.items() if tick <= self._tick]:
            if not self._may_wake:
                return
            del self._late[life]
            self._rouse(life)
        while self._to_wake and self._may_wake and self._tick >= self._others_stop_asking_tick:
            life = self._to_wake[0]
            chosen = self._chosen(life) if life in self._orphans else self._node_id
            if not chosen:
                return  # without a majority nobody would be elected
            self._to_wake.popleft()
            if chosen == self._node_id:
                self._rouse(life)
            else:  # all nodes go through one order at about one pace, so its turn is there now too
                self._wakes_owed -= 1
                self._late.setdefault(life, self._tick + OTHERS_AFTER_TICKS)

    @property
    def _may_wake(self) -> bool:
        return self._wakes_owed >= 1 and len(self._stirred) < STIRRED_MAX

    def _rouse(self, life: int) -> None:
        if life in self._orphans:
            self._wakes_owed -= 1
            self._stir(life, Wake(stands=True))

    def _chosen(self, life: int) -> int:
        """Which live voter is to stand first, so that leaders stay spread; 0: there is no majority of them."""
        voters = self._lives.voters(life)
        live = [node for node in voters if node in self.live]
        return live[life % len(live)] if len(live) > len(voters) // 2 else 0

    def _came(self, node: int) -> None:
        """A process is there, again or anew: it is asked about every group that sleeps here without it."""
        self.live |= {node}
        self._asks_from_tick = self._tick + ASKS_AFTER_TICKS
        self._to_ask.extend((life, node) for life, agreed in self._led.items() if node not in agreed)

    def _gone(self, node: int) -> None:
        """A process is silent, or another is in its place: what slept under it has no leader (M-31)."""
        process = self._process(node)
        self.live -= {node}
        self._to_ask = deque(asked for asked in self._to_ask if asked[1] != node)
        for life in process.with_it.terms:
            self._led[life] -= {node}
        process.with_it = Pairs()
        lost, process.under = process.under.terms, Pairs()
        for life in lost:
            self._orphans[life] = process.sample
        self._to_wake = deque(self._by_deadline({*self._to_wake, *lost}))
        self._wakes_from_tick = max(self._wakes_from_tick, self._tick + STARTS_AFTER_TICKS)

    def _by_deadline(self, lives: Iterable[int]) -> list[int]:
        def key(life: int) -> tuple[float, int]:
            deadline_us = self._lives.deadline_us(life)
            return inf if deadline_us is None else deadline_us, life

        return sorted((life for life in lives if life in self._orphans), key=key)

    def _process(self, node: int) -> _Process:
        process = self._processes.get(node)
        if process is None:
            process = self._processes[node] = _Process(self._election_ticks)
        return process


def _held(terms: Mapping[int, int], at_most: int) -> list[QuietHeld]:
    """All of them, in words that cover every life there may be."""
    rows = sorted(terms.items())
    parts = [rows[at : at + at_most] for at in range(0, len(rows), at_most)] or [[]]
    firsts = [0, *(part[0][0] for part in parts[1:])]
    lasts = [*(first - 1 for first in firsts[1:]), NUMBER_MAX]
    return [QuietHeld(first, last, tuple(part)) for first, last, part in zip(firsts, lasts, parts, strict=True)]
