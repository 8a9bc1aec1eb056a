"""How a change of members goes on in a core, whoever leads: the second half of `Core.change_membership`.

Which change is legal is in `membership`, which configurations the log holds in `configurations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raft.configurations import decode_configuration, encode_configuration
from raft.leadership import Leadership
from raft.membership import MembershipRefused, Why, first_step
from raft.messages import Entry, EntryKind
from raft.quorum import Configuration
from raft.ready import TransferInProgress

if TYPE_CHECKING:
    from raft.core import Core


def begin(core: Core, leadership: Leadership, before: Configuration, after: Configuration) -> int:
    """Append the first entry of a change; returns its index. Raises as `Core.change_membership`."""
    if leadership.transfer_target:
        raise TransferInProgress(leadership.transfer_target)
    if core.configuration.outgoing or core._configurations.latest_index > core.commit_index:
        raise MembershipRefused(Why.IN_FLIGHT, "another change of the members is not finished")
    if not 0 < leadership.term_start_index <= core.commit_index:
        raise MembershipRefused(Why.TERM_NOT_COMMITTED, "nothing of this term is committed yet")
    if before != core.configuration:
        raise MembershipRefused(Why.CHANGED, f"the members are {core.configuration}")
    known = {**dict(after.directories), **dict(core.configuration.directories)}
    return append(core, leadership, first_step(before, after).named(known))


def append(core: Core, leadership: Leadership, configuration: Configuration) -> int:
    """Append a configuration as the leader; it rules at once."""
    leadership.reconfigure(configuration)  # first, so that this entry is what a new member is asked by
    index = core.log.append(core.term, EntryKind.CONFIGURATION, (encode_configuration(configuration),))
    core._configurations.add(index, core.term, configuration, applied_index=core.applied_index)
    core._use_configuration()
    return index


def follow(core: Core, entries: Sequence[Entry]) -> None:
    """Entries were written after what agrees: the configurations in them rule now, those that they cut no longer."""
    known = core._configurations
    known.cut(core.log.holds, core.commit_index)
    for entry in entries:
        if entry.kind is EntryKind.CONFIGURATION and entry.index > known.latest_index:
            known.add(entry.index, entry.term, decode_configuration(entry.data), applied_index=core.applied_index)
    if known.latest is not core.configuration:
        core._use_configuration()


def go_on(core: Core, leadership: Leadership) -> None:
    """The latest configuration is committed, and it is a joint one, or this leader does not vote in it."""
    if core.configuration.outgoing:
        append(core, leadership, core.configuration.settled)
    elif successor := leadership.best_successor(core._settings.election_ticks):
        leadership.transfer_to(successor)


def is_removed(core: Core, leadership: Leadership) -> bool:
    """Whether a leader that does not vote has nothing left to do: it led on until that was committed, and tried to hand
    over.
    """
    is_committed = max(core._configurations.latest_index, leadership.term_start_index) <= core.commit_index
    return is_committed and not core.configuration.outgoing and not leadership.transfer_target
