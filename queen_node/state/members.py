"""Which nodes the cell has, where they are, and the change of them that is under way: a row of group 0 (M-71, CL-100).

Who votes in a group stands in that group's own log; what is here says where its members are to be found, and what each
group is to be brought to.
"""

from __future__ import annotations

from typing import Any

import msgspec

from queen_node.state.keys import CELL, MEMBERS
from queen_node.state.rows import CellRow, MemberRow, MembersJobRow, MembersRow
from queen_node.state.step import Step
from queen_node.state.store import CommittedStore

CHANGED_MEANWHILE = 0  # the answer in place of a change's number


def apply_know(step: Step, command: list[Any]) -> int:
    """Add members; of those that are known only a directory that was not heard of yet is filled in. How many there are.
    """
    _kind, _request_id, said = command
    row = _row(step)
    known = {member.node_id: member for member in row.members}
    since_life = (step.store.row(CELL, CellRow) or CellRow()).next_life
    for node_id, raft, http, directory_id in said:
        member = known.get(node_id)
        if member is None:
            known[node_id] = MemberRow(node_id, raft, http, directory_id, since_life)
        elif not member.directory_id:
            known[node_id] = MemberRow(node_id, member.raft, member.http, directory_id, since_life)
    members = [known[node_id] for node_id in sorted(known)]
    step.store.put_row(MEMBERS, MembersRow(members, row.job, row.cluster_version))
    return len(members)


def apply_change(step: Step, command: list[Any]) -> int:
    """The number of the change that begins; CHANGED_MEANWHILE when another one began since this was checked.

    A change that stands is replaced: each says where all groups are to be brought, from wherever they are.
    """
    number: int
    _kind, _request_id, number, voters, learners, force, before_voters, before_learners = command
    row = _row(step)
    if number != next_number(row):
        return CHANGED_MEANWHILE
    job = MembersJobRow(number, voters, learners, force, before_voters, before_learners)
    step.store.put_row(MEMBERS, MembersRow(row.members, job, row.cluster_version))
    return number


def apply_changed(step: Step, command: list[Any]) -> bool:
    """The change is through: who is no member any more is forgotten. Whether it was this change that stood."""
    _kind, _request_id, number = command
    row = _row(step)
    job = row.job
    if job is None or job.number != number or job.done:
        return False
    kept = [member for member in row.members if member.node_id in job.voters or member.node_id in job.learners]
    done = MembersJobRow(
        job.number, job.voters, job.learners, job.force, job.before_voters, job.before_learners, done=True)
    step.store.put_row(MEMBERS, MembersRow(kept, done, row.cluster_version))
    return True


def apply_raise_version(step: Step, command: list[Any]) -> int:
    """The cluster's version from now on; it never falls (CL-132)."""
    _kind, _request_id, version = command
    row = _row(step)
    raised: int = max(version, row.cluster_version)
    step.store.put_row(MEMBERS, MembersRow(row.members, row.job, raised))
    return raised


def was_known(row: MembersRow, node_id: int, directory_id: bytes, life: int) -> bool:
    """Whether the node had that data directory already when the group of that life was made, and is a member still."""
    return any(
        member.node_id == node_id and member.directory_id == directory_id and member.since_life <= life
        for member in row.members)


def next_number(row: MembersRow) -> int:
    """Of the next change of members."""
    return row.job.number + 1 if row.job is not None else 1


def members_of(view: CommittedStore) -> MembersRow:
    """The row as it is; empty before group 0's first leader has said who there is."""
    stored = view.get(MEMBERS)
    return MembersRow([]) if stored is None else msgspec.msgpack.decode(stored, type=MembersRow)


def _row(step: Step) -> MembersRow:
    return step.store.row(MEMBERS, MembersRow) or MembersRow([])
