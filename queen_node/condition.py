"""A node's condition in the words of `/health` (AD-7): group 0 speaks for the cell, and all groups must be ready."""

from __future__ import annotations

from collections.abc import Sequence

from queen_node import commands
from queen_node.applier import Poison
from queen_node.group_actor import GroupActor
from queen_node.host import Host
from queen_node.http.handlers.operations import ApplyFailure, Groups, Health, ReadyLimits
from queen_node.membership_view import role_shown
from queen_node.readiness import lag_ms


def condition(
    host: Host, *, stopped: bool, is_damaged: bool, quorum_silent_ms: int | None, limits: ReadyLimits,
    caught_up_entries: int, skipped: Sequence[str], cluster_version: int = 1,
) -> Health:
    """How the node is.

    stopped: its disk failed; is_damaged: what is on it has changed; quorum_silent_ms: as of `QuorumWatch`, for group 0;
    limits: of each group; caught_up_entries: a smaller gap is no lag; skipped: entries stepped over.

    Groups that sleep are level and wanted by nobody, and a failed one does not sleep: only those awake are looked at.
    With 10,000 asleep it kept the loop for 100 ms to look at all, at each question.
    """
    actors, unreplayed = host.awake(), host.unreplayed()
    core = host.cell.group.raft.core
    leading = 0 if stopped else host.asleep_leading + sum(map(leads, actors))
    failed = {actor.group.raft.life: actor.poison for actor in actors if actor.poison is not None}
    leads_cell, follows_cell = not stopped and leads(host.cell), _follows(host.cell)
    # Through an election calls are held and answered: who knew of a majority just now may be sent some.
    elects = quorum_silent_ms is not None and quorum_silent_ms <= limits.quorum_ms
    return Health(
        role="stopped" if stopped else role_shown(core, leads=leads_cell),
        leader_known=leads_cell or follows_cell or elects, leads_others=leading > leads_cell, term=core.term,
        applied=core.applied_index, commit=core.commit_index,
        lag_ms=0 if leads_cell else _lag_ms(host.cell, caught_up_entries), quorum_ack_ms=quorum_silent_ms,
        storage_ready=not is_damaged and not unreplayed and not host.groups.unreplayed_closed,
        cluster_version=cluster_version, kinds=len(commands.Kind),
        groups=Groups(
            hosted=len(host.groups), leading=leading, quiet=host.quiet_count, behind=sum(
                _is_behind(actor) or _lags(actor, caught_up_entries, limits.lag_ms) for actor in actors
            ) + sum(actor.sleeper.sleeps for actor in unreplayed) + host.groups.unreplayed_closed,
            failed=tuple(failed)),
        failure=next(map(_failure_shown, failed.values()), None),
        skipped=tuple(skipped))


def leads(actor: GroupActor) -> bool:
    """Whether this node serves as the group's leader (CL-24)."""
    return actor.group.raft.may_propose and actor.poison is None


def _follows(actor: GroupActor) -> bool:
    core = actor.group.raft.core
    return core.leader not in (0, core.node_id)


def _gap(actor: GroupActor) -> int:
    """Entries that the group's leader knows to be committed and this node has not applied."""
    core = actor.group.raft.core
    return max(core.commit_index, core.leader_commit_index) - core.applied_index


def _lag_ms(actor: GroupActor, caught_up_entries: int) -> int:
    raft, meta = actor.group.raft, actor.group.machine.store.meta
    return lag_ms(
        applied_index=raft.core.applied_index, gap_entries=_gap(actor), stamp_us=meta.stamp_us,
        now_us=raft.clock.now_us(), caught_up_entries=caught_up_entries)


def _lags(actor: GroupActor, caught_up_entries: int, lag_max_ms: int) -> bool:
    """A tenant's group that begins has applied nothing, and is no reason to send clients elsewhere."""
    return (
        _gap(actor) > caught_up_entries and not leads(actor) and _lag_ms(actor, caught_up_entries) > lag_max_ms)


def _is_behind(actor: GroupActor) -> bool:
    """A group without a leader is not behind while nobody wants anything of it (README 23)."""
    if not actor.is_replayed:
        return True
    if leads(actor) or _follows(actor):
        return False
    group = actor.group
    return group.has_calls or (group.deadline_us is not None and group.deadline_us <= group.raft.clock.now_us())


def _failure_shown(poison: Poison) -> ApplyFailure:
    return ApplyFailure(
        "deterministic" if poison.digest else "node-local", poison.log_index, poison.term, poison.digest,
        poison.command, None, poison.error)
