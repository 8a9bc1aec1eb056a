"""Carries committed entries into the state: in slices, waiting out a busy store, and naming what cannot be applied.

An entry that apply cannot carry out is a fault of ours and stops its group on every node (README 22, CL-28). An
operator may name it in QUEEN_RAFT_APPLY_SKIP; then it changes nothing, on every node alike (CL-133).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog
import trio

from queen_node import commands
from queen_node.crash_points import Reached
from queen_node.state.machine import Answer, Application, Machine
from queen_node.state.store import StoreBusy
from raft.group import offset_of
from raft.invariants import InvariantBroken
from raft.messages import Entry, EntryKind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SLICE_S = 0.001  # apply returns to the loop after this long, between two commands (M-50)
BUSY_PAUSE_S = 0.005  # before a batch that the store refused is tried again (M-4)

Results = list[tuple[bytes, int, Answer]]
_SKIP = re.compile(r"(?:g(\d+)/)?(\d+):([0-9a-f]{16})")


class Poison(NamedTuple):
    """The entry that stopped a group. digest: of its bytes, so that a skip names this entry and no other."""

    log_index: int
    term: int
    digest: str
    command: str
    error: str


class Poisoned(Exception):
    """An entry cannot be applied."""

    def __init__(self, poison: Poison) -> None:
        super().__init__(f"entry {poison.log_index} of term {poison.term} cannot be applied: {poison.error}")
        self.poison = poison


def parse_skips(text: str, life: int) -> dict[int, str]:
    """QUEEN_RAFT_APPLY_SKIP for one group: entry's index -> its digest. Raises ValueError for what is no such list."""
    skips = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        named = _SKIP.fullmatch(part)
        if named is None:
            raise ValueError(f"must be [g<group>/]<index>:<digest>,…, not {part!r}")
        if int(named[1] or life) == life:
            skips[int(named[2])] = named[3]
    return skips


def begin(machine: Machine, entry: Entry) -> Application:
    """Decode an entry of any kind. Raises UnknownEntry (CL-29)."""
    if entry.kind is EntryKind.COMMANDS:
        return machine.begin(index=entry.index, term=entry.term, data=entry.data)
    if entry.kind is EntryKind.BLANK:
        offset_us = offset_of(entry.data)
        offset = None if offset_us is None else (entry.term, offset_us)
        return machine.begin_bare(index=entry.index, term=entry.term, offset=offset)
    return machine.begin_bare(index=entry.index, term=entry.term, configuration=entry.data)


class Applier:
    """Applies the entries of one group. slow_command_ms: longer ones are logged and counted.

    skipped: entries stepped over, as QUEEN_RAFT_APPLY_SKIP names them.
    """

    def __init__(
        self, machine: Machine, *, life: int, reached: Reached, count_slow: Callable[[], None], slow_command_ms: int,
        skips: Mapping[int, str],
    ) -> None:
        self._machine, self._life, self._reached, self._count_slow = machine, life, reached, count_slow
        self._slow_command_s = slow_command_ms / 1000
        self._skips = skips
        self.skipped: list[str] = []

    async def apply(self, entry: Entry) -> tuple[Application, Results]:
        """Apply one entry. Raises Poisoned; InvariantBroken goes through, it ends the process."""
        try:
            application = begin(self._machine, entry)
            results = await self._apply_commands(application)
        except (InvariantBroken, trio.Cancelled):
            raise
        except Exception as error:
            application, results = self._step_over(entry, error), []
        self._reached("apply.before_commit")
        await self._commit(application)
        self._reached("apply.after_commit")
        return application, results

    async def _apply_commands(self, application: Application) -> Results:
        results: Results = []
        began_s = slice_began_s = time.perf_counter()
        while not application.finished:
            results.append(application.apply_next())
            now_s = time.perf_counter()
            if now_s - began_s > self._slow_command_s:
                kind = commands.Kind(results[-1][1]).name
                log.warning("slow command", kind=kind, index=application.index, ms=round((now_s - began_s) * 1000, 1))
                self._count_slow()
            if now_s - slice_began_s > SLICE_S:
                await trio.lowlevel.checkpoint()
                slice_began_s = now_s = time.perf_counter()
            began_s = now_s
        return results

    async def _commit(self, application: Application) -> None:
        while True:
            try:
                return self._machine.commit(application)
            except StoreBusy:
                await trio.sleep(BUSY_PAUSE_S)
            except (InvariantBroken, trio.Cancelled):
                raise
            except Exception as error:  # of this node, not of the entry
                log.error(
                    "the store cannot be written: this group does nothing more until a restart", group=self._life,
                    index=application.index, term=application.term, error=repr(error))
                raise Poisoned(Poison(application.index, application.term, "", "", repr(error))) from error

    def _step_over(self, entry: Entry, error: Exception) -> Application:
        """An entry without effect in place of one that an operator named; else raises Poisoned."""
        digest = hashlib.blake2b(entry.data, digest_size=8).hexdigest()
        named = f"g{self._life}/{entry.index}:{digest}"
        self._machine.discard()
        if self._skips.get(entry.index) != digest:
            log.error(
                "entry cannot be applied", group=self._life, index=entry.index, term=entry.term, digest=digest,
                error=repr(error),
                skip=f"QUEEN_RAFT_APPLY_SKIP={named} on every node steps over it", exc_info=error)
            raise Poisoned(Poison(entry.index, entry.term, digest, _command_of(error), repr(error))) from error
        log.warning("entry stepped over, as an operator asked", entry=named, error=repr(error))
        self.skipped.append(named)
        return self._machine.begin(index=entry.index, term=entry.term, data=b"")


def _command_of(error: Exception) -> str:
    """The room that failed, for a person: no payloads, no keys."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame.tb_frame.f_code.co_name if frame is not None else ""
