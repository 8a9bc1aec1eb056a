"""A majority is lost for good: a survivor makes itself the only voter of every group (CL-108, CL-134).

Done at boot, before anything else runs, when QUEEN_RAFT_FORCE_RECOVER names this node. In each group an entry of a new
term, behind all that this node's log holds, says that it votes alone. What was acknowledged and only the lost nodes had
is lost; what this node had is kept, committed or not.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

import msgspec
import structlog

from queen_node import commands
from queen_node.applier import begin
from queen_node.config import Settings
from queen_node.layout import CannotStart, write_layout
from queen_node.opening import CELL_LIFE, REPLAY_READ_BYTES, Opened, founding_members, open_machine, untold_flip
from queen_node.peers import own, parse_force_recover, parse_peers
from queen_node.state.machine import Machine
from queen_node.state.members import members_of, next_number
from queen_node.state.store import StoreBusy
from queen_node.state.tenants import tenants
from raft.clock import ClockReading
from raft.configurations import decode_configuration, encode_configuration
from raft.messages import Entry, EntryKind, HardState
from raft.quorum import Configuration
from raft.snapshot_start import start_behind_flip
from raft.wal import GroupWrite

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BUSY_PAUSE_S: Final = 0.005  # before a batch that the store refused is tried again (M-4)


class _End(NamedTuple):
    """Where a group's log ends. restart_after: it does not know yet of the snapshot that its state came from."""

    last_index: int
    term: int
    hard_state: HardState
    restart_after: int | None


def recover_alone(opened: Opened, settings: Settings, reading: ClockReading) -> None:
    """Make this node the only voter of all its groups, as far as it is not that already: a crash may have come between.

    What was opened must be opened anew after it. Raises CannotStart where that would undo a change of members that came
    after an earlier recovery (CL-108).
    """
    alone = Configuration((settings.node_id,))
    _node, allowed_index = parse_force_recover(settings.raft_force_recover)
    cell = open_machine(opened, CELL_LIFE)
    end = _end_of(opened, CELL_LIFE, cell)
    members = _latest(opened, cell, end)
    if members != alone:
        if opened.layout.recovered_at and allowed_index != end.last_index:
            raise CannotStart(
                "QUEEN_RAFT_FORCE_RECOVER: members were added since this node recovered; it would lose them. Unset it, "
                f"or, to do just that, set it to {settings.node_id}@{end.last_index}")
        end = _write_alone(opened, CELL_LIFE, end, alone, reading)
    _catch_up(opened, CELL_LIFE, cell, end.last_index)
    if [member.node_id for member in members_of(cell.store.committed()).members] != [settings.node_id]:
        end = _forget_the_others(opened, settings, cell, end, reading)
    lives = [tenant.life for tenant in tenants(cell.store.committed())]
    for life in lives:
        machine = open_machine(opened, life)
        its_end = _end_of(opened, life, machine)
        if _latest(opened, machine, its_end) != alone:
            _write_alone(opened, life, its_end, alone, reading)
    if members != alone or not opened.layout.recovered_at:
        write_layout(opened.places, msgspec.structs.replace(opened.layout, recovered_at=end.last_index))
    log.warning(
        "forced recovery: this node is the only voter of all its groups. Writes that were acknowledged and that only "
        "the lost nodes had are lost. Never start those with their data again: they would go on as a cluster of their "
        "own. Empty ones are added again, started with QUEEN_RAFT_JOIN=1. Unset QUEEN_RAFT_FORCE_RECOVER now",
        groups=len(lives) + 1, voters_before=members.voters)


def _end_of(opened: Opened, life: int, machine: Machine) -> _End:
    group, flipped = opened.recovered.groups.get(life), untold_flip(opened, life)
    if flipped is not None:
        _log, hard_state = start_behind_flip(group, *flipped)
        return _End(*flipped, hard_state, flipped[0])
    if group is None:
        return _End(0, 0, HardState(), None)
    return _End(group.last_index, group.terms[-1][1], group.hard_state, None)


def _latest(opened: Opened, machine: Machine, end: _End) -> Configuration:
    """The members that a group's log names last."""
    meta = machine.store.meta
    latest = meta.configuration
    if end.restart_after is None:
        for entry in _entries(opened, machine.store.life, meta.applied_index + 1, end.last_index):
            latest = entry.data if entry.kind is EntryKind.CONFIGURATION else latest
    return decode_configuration(latest) if latest else founding_members(opened.layout, opened.listed)


def _write_alone(opened: Opened, life: int, end: _End, alone: Configuration, reading: ClockReading) -> _End:
    """The entry by which this node votes alone, durably. Where the log ends then."""
    term = max(end.hard_state.term, end.term) + 1
    entry = Entry(term, end.last_index + 1, EntryKind.CONFIGURATION, encode_configuration(alone))
    hard_state = HardState(term, alone.voters[0], entry.index)
    opened.wal.write([GroupWrite(
        life, hard_state, previous_term=end.term, entries=(entry,), restart_after=end.restart_after)], reading)
    return _End(entry.index, term, hard_state, None)


def _forget_the_others(
    opened: Opened, settings: Settings, cell: Machine, end: _End, reading: ClockReading,
) -> _End:
    """Group 0's state knows this node alone: a lost one that comes back with its data is let in by nobody here."""
    me = own(parse_peers(settings.raft_peers), settings.node_id)
    row = members_of(cell.store.committed())
    number = next_number(row)
    before = tuple(sorted(member.node_id for member in row.members))
    data = commands.entry(cell.store.meta.stamp_us, [
        commands.know_members(os.urandom(16), [
            (me.node_id, str(me.raft), str(me.http), bytes.fromhex(opened.layout.directory_id))]),
        commands.change_members(os.urandom(16), number, (me.node_id,), (), force=True, before=(before, ())),
        commands.members_changed(os.urandom(16), number),
    ])
    entry = Entry(end.term, end.last_index + 1, EntryKind.COMMANDS, data)
    hard_state = HardState(end.term, me.node_id, entry.index)
    opened.wal.write([GroupWrite(CELL_LIFE, hard_state, previous_term=end.term, entries=(entry,))], reading)
    _catch_up(opened, CELL_LIFE, cell, entry.index)
    return _End(entry.index, end.term, hard_state, None)


def _catch_up(opened: Opened, life: int, machine: Machine, last_index: int) -> None:
    """Apply what the log holds: it is committed now, and may name tenants whose groups are to be recovered too."""
    for entry in _entries(opened, life, machine.applied_index + 1, last_index):
        application = begin(machine, entry)
        while not application.finished:
            application.apply_next()
        while True:
            try:
                machine.commit(application)
                break
            except StoreBusy:
                time.sleep(BUSY_PAUSE_S)


def _entries(opened: Opened, life: int, first_index: int, last_index: int) -> list[Entry]:
    entries: list[Entry] = []
    while first_index + len(entries) <= last_index:
        entries += opened.wal.read(life, first_index + len(entries), last_index, REPLAY_READ_BYTES)
    return entries
