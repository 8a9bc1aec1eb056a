"""What operators are shown of the cell's members and of this node's groups (cluster.md 10, AD-16)."""

from __future__ import annotations

from collections.abc import Callable

from queen_node.membership import MembershipDesk
from queen_node.membership_job import CELL, groups_left, is_there
from queen_node.processes import usage
from queen_node.state.tenants import tenant_by_life
from queen_node.tenants import tenant_text
from raft.core import Core, Role


class MembershipView:
    """Reads, and waits for nothing. disk_used_percent: of this node's volume, and of each other node's that is known.
    """

    def __init__(self, desk: MembershipDesk, disk_used_percent: Callable[[int], int | None]) -> None:
        self._desk, self._disk_used_percent = desk, disk_used_percent

    def membership(self) -> dict[str, object]:
        """The members of group 0, which speaks for the cell, as its leader or as this node knows them."""
        return self._document(self._members())

    def _document(self, members: list[dict[str, object]]) -> dict[str, object]:
        desk = self._desk
        groups = desk.groups()
        core = groups[CELL].group.raft.core
        leads = core.role is Role.LEADER
        configuration, job = core.configuration, desk.row.job
        heartbeat_ms = desk.heartbeat_s * 1000
        shown_job = None
        if job is not None:
            target = None if desk.job is None else desk.job.target
            shown_job = {
                "number": job.number, "done": job.done,
                "from": {"voters": job.before_voters, "learners": job.before_learners},
                "to": {"voters": job.voters, "learners": job.learners},
                "groups": len(groups),
                "groupsLeft": 0 if target is None else len(groups) if not desk.are_open() else groups_left(
                    (actor.group for actor in groups.values()), target),
            }
        return {
            "nodeId": desk.node_id,
            "source": "leader" if leads else "follower",
            "viewAgeMs": 0 if leads else round(core.leader_silent_ticks * heartbeat_ms),
            "leader": core.leader or None,
            "term": core.term,
            "voters": configuration.voters,
            "learners": configuration.learners,
            "joint": bool(configuration.outgoing),
            "membershipIndex": core.membership_index,
            "membershipCommitted": is_there(groups[CELL].group.raft, configuration),
            "changeInFlight": bool(configuration.outgoing) or (job is not None and not job.done),
            "lastLogIndex": core.log.last_index,
            "committedIndex": core.commit_index,
            "liveWithinMs": round(desk.live_within_s * 1000),
            "promoteMaxLag": desk.lag_max,
            "members": members,
            "job": shown_job,
        }

    def _members(self) -> list[dict[str, object]]:
        desk, addresses, live = self._desk, self._desk.addresses(), self._desk.live()
        core, view = desk.groups()[CELL].group.raft.core, desk.view_of(CELL)
        members: list[dict[str, object]] = []
        for node in core.configuration.members:
            row = addresses.get(node)
            matched = silent_ms = None
            if view is not None:
                matched = view.last_index if node == core.node_id else view.match_indexes.get(node)
                silent_ms = round(view.silent_ticks.get(node, 0) * desk.heartbeat_s * 1000)
            members.append({
                "nodeId": node,
                "voter": core.configuration.is_voter(node),
                "raft": None if row is None else row.raft,
                "http": None if row is None else row.http,
                "matched": matched,
                "lag": None if view is None or matched is None else view.last_index - matched,
                "lastAckMs": silent_ms,
                "live": node in live if view is None else node in view.live,
            })
        return members

    def members(self) -> dict[str, object]:
        """The same with what is known of each node's resources; memory, in bytes, is known of this one."""
        members = self._members()
        for node, member in zip(self._desk.groups()[CELL].group.raft.core.configuration.members, members, strict=True):
            member["rss"] = usage().resident_bytes if node == self._desk.node_id else None
            member["anonBytes"] = None
            member["diskUsedPct"] = self._disk_used_percent(node)
        return {"engine": "raft", "membership": self._document(members)}

    def liveness(self) -> dict[str, object]:
        """For how long each member has been silent, ms, as group 0's leader knows; elsewhere of those connected: 0."""
        desk = self._desk
        view = desk.view_of(CELL)
        if view is None:
            return {"live": {str(node): 0 for node in sorted(desk.live())}}
        silent = {desk.node_id: 0, **view.silent_ticks}
        return {"live": {str(node): round(silent[node] * desk.heartbeat_s * 1000) for node in sorted(silent)}}

    def status(self, only: int | None, limit: int) -> dict[str, object]:
        """The groups of this node, group 0 first. lag: entries that are committed and not applied here; digest: behind
        the index of the entry after which the state has it, the same on every node (M-81, G-D7)."""
        groups = self._desk.groups()
        cell_state = groups[CELL].group.machine.store.committed()
        lives = sorted(groups) if only is None else [life for life in (only,) if life in groups]
        shown = []
        for life in lives[:limit]:
            raft, meta = groups[life].group.raft, groups[life].group.machine.store.meta
            core = raft.core
            tenant = None if life == CELL else tenant_by_life(cell_state, life)
            committed = max(core.commit_index, core.leader_commit_index)
            shown.append({
                "group": life,
                "tenant": None if tenant is None else tenant_text(tenant),
                "role": role_shown(core, leads=raft.may_propose),
                "leader": core.leader or None,
                "term": core.term,
                "commit": core.commit_index,
                "applied": core.applied_index,
                "digest": f"{meta.applied_index}:{meta.digest.hex()}",
                "lag": committed - core.applied_index,
                "voters": core.configuration.voters,
                "learners": core.configuration.learners,
            })
        return {
            "nodeId": self._desk.node_id, "engine": "raft", "groups": shown, "truncated": len(lives) > limit}


def role_shown(core: Core, *, leads: bool) -> str:
    """The words of cluster.md 13. leads: it serves as the leader (CL-24)."""
    if leads:
        return "leader"
    if not core.configuration.is_voter(core.node_id):
        return "learner"
    return "follower" if core.leader not in (0, core.node_id) else "candidate"
