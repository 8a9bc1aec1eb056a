"""One core, and what a driver does with it at once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from raft.core import Core, Ready, Role, Settings
from raft.log import Log
from raft.messages import (
    Entry,
    EntryKind,
    HardState,
    VoteGranted,
)
from raft.quorum import Configuration


def core_of(
    voters: Sequence[int] = (1,),
    *,
    log: Log | None = None,
    hard_state: HardState | None = None,
    applied_index: int = 0,
    random: Random | None = None,
    **settings: Any,
) -> Core:
    return Core(
        node_id=1,
        configuration=Configuration(tuple(voters)),
        log=log or Log(),
        hard_state=hard_state or HardState(),
        applied_index=applied_index,
        settings=Settings(**settings),
        random=random or Random(0),
    )


def write(core: Core) -> Ready:
    """Take a Ready, and carry it out at once."""
    ready = core.ready()
    if ready.must_write:
        core.written(core.log.last_term, core.log.last_index, ready.hard_state)
    if ready.to_apply:
        core.applied(ready.to_apply[-1].index)
    return ready


def lead(core: Core) -> Core:
    """Make it leader of term 1, its blank entry on its own disk."""
    core.campaign(skip_pre_vote=True)
    write(core)
    for voter in core.configuration.electors:
        if voter != core.node_id and core.role is Role.CANDIDATE:
            core.step(VoteGranted(voter, core.node_id, core.term, 0, True))
    assert core.role is Role.LEADER
    while core.has_ready():
        write(core)
    return core


def entries_of_term(term: int, *indexes: int) -> tuple[Entry, ...]:
    return tuple(Entry(term, index, EntryKind.COMMANDS, b"") for index in indexes)
