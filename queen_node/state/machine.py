"""Applies entries: decodes each once, hands its commands to the rooms that know them, writes one batch.

A client's mistake is an answer, never an exception in here. An exception means that this node cannot follow the log:
the group is poisoned (README 22) and whoever drives it stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cbor2
import msgspec

from queen_node import packed
from queen_node.commands import ENTRY_VERSION, ENTRY_VERSION_KEPT, Kind
from queen_node.state import consume, kv, locks, members, push, queues, tenants, timers, transactions
from queen_node.state.outcomes import Outcomes
from queen_node.state.step import Step
from queen_node.state.store import Store

Command = list[Any]
Answer = Any  # what the renderer of the command's kind takes (queen_node/answers)
Handler = Callable[[Step, Command], Answer]

HANDLERS: dict[int, Handler] = {
    Kind.PUSH: push.apply_push,
    Kind.TIMERS: timers.apply_timers,
    Kind.FIRE: timers.apply_fire,
    Kind.POP: consume.apply_pop,
    Kind.ACK: consume.apply_ack,
    Kind.EXTEND: consume.apply_extend,
    Kind.HAND_BACK: consume.apply_hand_back,
    Kind.CONFIGURE: queues.apply_configure,
    Kind.FORGET_IDS: push.apply_forget_ids,
    Kind.CREATE_TENANT: tenants.apply_create,
    Kind.KV: kv.apply_kv,
    Kind.SWEEP_KV: kv.apply_sweep,
    Kind.LOCKS: locks.apply_locks,
    Kind.TRANSACTION: transactions.apply_transaction,
    Kind.KNOW_MEMBERS: members.apply_know,
    Kind.CHANGE_MEMBERS: members.apply_change,
    Kind.MEMBERS_CHANGED: members.apply_changed,
    Kind.RAISE_VERSION: members.apply_raise_version,
}


class Repeated:
    """The answer to a command whose request was applied before: it changed nothing."""


REPEATED = Repeated()


class UnknownEntry(Exception):
    """The log holds what this release cannot apply (CL-29): the node stops rather than skip it."""


class Application:
    """An entry on its way into the store, one command at a time, so that the loop can breathe in between (M-50)."""

    __slots__ = (
        "_next", "_outcomes", "commands", "configuration", "index", "offset", "repeats", "requests", "step", "term",
    )

    def __init__(
        self, step: Step, commands: list[Command], *, index: int, term: int, outcomes: Outcomes | None = None,
        repeats: Sequence[int] = (),
    ) -> None:
        """outcomes: where the requests are remembered, None: nowhere; repeats: places of commands that may have been
        applied before."""
        self.step, self.commands, self.index, self.term = step, commands, index, term
        self.repeats = repeats
        self.requests: list[bytes] = []  # applied by this entry, as far as they are to be remembered
        self.offset: tuple[int, int] | None = None  # see Store.commit
        self.configuration: bytes | None = None
        self._outcomes = outcomes
        self._next = 0

    @property
    def finished(self) -> bool:
        """Whether every command was applied; then `Machine.commit` is due."""
        return self._next == len(self.commands)

    def apply_next(self) -> tuple[bytes, int, Answer]:
        """Apply one command: (request id, kind, answer). Raises UnknownEntry for a kind that is not known."""
        place = self._next
        command = self.commands[place]
        self._next = place + 1
        kind, request_id = command[0], command[1]
        handler = HANDLERS.get(kind)
        if handler is None:
            raise UnknownEntry(f"entry {self.index} holds a command of kind {kind!r}")
        if place in self.repeats and self._was_applied(request_id):
            return request_id, kind, REPEATED
        answer = handler(self.step, command)
        if self.step.touched:
            consume.settle(self.step)
        # A pop that found nothing did nothing: it will be tried again under its id.
        if self._outcomes is not None and request_id and answer is not None:
            self.requests.append(request_id)
        return request_id, kind, answer

    def _was_applied(self, request_id: bytes) -> bool:
        return request_id in self.requests or (
            self._outcomes is not None and self._outcomes.holds(request_id, self.step.now_us))

    def remember_requests(self) -> None:
        """Write which requests this entry applied, if that is wanted; once, when all commands were applied."""
        if self._outcomes is not None and self.requests:
            self._outcomes.record(self.index, self.step.now_us, self.requests)
            self.requests = []


class Machine:
    """The state of one group and the only way to change it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.outcomes = Outcomes(store)

    @property
    def applied_index(self) -> int:
        """Index of the last entry whose batch was written."""
        return self.store.meta.applied_index

    def reopen(self, incarnation: int) -> None:
        """The group's state is another one now (M-61): as if opened anew."""
        self.store.reopen(incarnation)
        self.outcomes.forget_memory()

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        """Decode an entry. A blank one (no data) has no commands. Raises UnknownEntry."""
        if not data:
            step = Step(self.store, now_us=self.store.meta.stamp_us, index=index)
            return Application(step, [], index=index, term=term)
        try:
            version, stamp_us, written, *more = cbor2.loads(data)
            commands = [packed.read(each) if type(each) is bytes else each for each in written]
        except (cbor2.CBORDecodeError, msgspec.DecodeError, ValueError, TypeError) as error:
            raise UnknownEntry(f"entry {index} is not an entry: {error}") from error
        if version not in (ENTRY_VERSION, ENTRY_VERSION_KEPT):
            raise UnknownEntry(f"entry {index} is of version {version}, this release applies {ENTRY_VERSION_KEPT}")
        # A stamp below the last one counts as the last one: the group clock never runs backwards (M-20).
        step = Step(self.store, now_us=max(stamp_us, self.store.meta.stamp_us), index=index)
        if version == ENTRY_VERSION:
            return Application(step, commands, index=index, term=term)
        return Application(step, commands, index=index, term=term, outcomes=self.outcomes, repeats=more[0])

    def begin_bare(
        self, *, index: int, term: int, offset: tuple[int, int] | None = None, configuration: bytes | None = None,
    ) -> Application:
        """An entry of Raft's own: one that opens a term, with (term, clock offset), or one that names the members."""
        application = self.begin(index=index, term=term, data=b"")
        application.offset, application.configuration = offset, configuration
        return application

    def discard(self) -> None:
        """Take back what the entry that is being applied has changed."""
        self.store.discard()
        self.outcomes.forget_memory()

    def commit(self, application: Application) -> None:
        """Write the entry's batch. Raises StoreBusy: nothing was written, call again (M-4)."""
        application.remember_requests()
        self.store.commit(
            index=application.index, term=application.term, stamp_us=application.step.now_us,
            offset=application.offset, configuration=application.configuration)

    def apply_entry(self, *, index: int, term: int, data: bytes) -> list[tuple[bytes, int, Answer]]:
        """Apply a whole entry at once: for replay and for tests."""
        application = self.begin(index=index, term=term, data=data)
        answers = []
        while not application.finished:
            answers.append(application.apply_next())
        self.commit(application)
        return answers
