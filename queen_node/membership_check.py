"""Whether what an operator asks of the cell's members may be begun, and to which members it leads (cluster.md 10).

Plain code. All checks run before anything is written (CL-100); a change that took effect already is none (CL-101).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from queen_node.operator_calls import AddLearner, Change, OperatorRefused, Promote, Remove, SetVoters
from queen_node.peers import parse_address
from queen_node.state.rows import MemberRow, MembersJobRow, MembersRow
from queen_node.versions import NAMED
from raft.membership import MembershipRefused, View, with_learner, with_promoted, with_voters, without
from raft.quorum import Configuration


class Refusals(NamedTuple):
    """What a change is checked against: what group 0's leader knows, its state, where members are, how many entries a
    learner may lack that is promoted."""

    view: View
    row: MembersRow
    addresses: Mapping[int, MemberRow]
    lag_max: int


def job_target(job: MembersJobRow) -> Configuration:
    """Where a change brings every group."""
    return Configuration(tuple(job.voters), (), tuple(job.learners))


def named_target(target: Configuration, row: MembersRow) -> Configuration:
    """The same, each member by the data directory that group 0 knows of it, if that may be written already (CL-132)."""
    if row.cluster_version < NAMED:
        return target
    return target.named({member.node_id: member.directory_id for member in row.members})


def drops_members(job: MembersJobRow) -> bool:
    """Whether it leaves somebody out who was a member."""
    return bool({*job.before_voters, *job.before_learners} - {*job.voters, *job.learners})


def check(question: Change, against: Refusals, *, connected: bool = False) -> Configuration | None:
    """The members that it leads to; None: they are that already, or a change that stands brings them there.

    connected: whoever is to be added has been seen to answer, or not. Raises OperatorRefused.
    """
    if isinstance(question, AddLearner):
        _check_addresses(question, against)
    job = against.row.job
    try:
        if job is not None and not job.done:
            return _check_beside(question, job)
        view = against.view
        if isinstance(question, AddLearner) and not connected:
            view = View(
                view.configuration, view.last_index, view.match_indexes, {*view.live, question.node_id})
        target = _target(question, view, job, against.lag_max)
    except MembershipRefused as refused:
        raise OperatorRefused(refused.why.value, str(refused)) from refused
    return None if target == view.configuration else target


def _target(question: Change, view: View, job: MembersJobRow | None, lag_max: int) -> Configuration:
    match question:
        case AddLearner(node_id):
            return with_learner(view, node_id)
        case Promote(ids, force):
            return with_promoted(view, ids, force=force, lag_max=lag_max)
        case SetVoters(voters, force):
            return with_voters(view, voters, force=force, lag_max=lag_max)
        case Remove(node_id):
            was_there = job is not None and node_id in (*job.before_voters, *job.before_learners)
            if was_there and node_id not in view.configuration.members:
                return view.configuration  # the last change removed it (CL-101)
            return without(view, node_id)


def _check_beside(question: Change, job: MembersJobRow) -> Configuration | None:
    """While a change stands, the same may be asked again, and whoever it adds or promotes may be removed: else a node
    that fails on its way in would hold everything up for ever."""
    goal = job_target(job)
    asked: Configuration | None = None
    match question:
        case AddLearner(node_id):
            if node_id in goal.learners:
                asked = goal
        case Promote(ids):
            if all(node_id in goal.voters for node_id in ids):
                asked = goal
        case SetVoters(voters):
            if tuple(sorted(set(voters))) == goal.voters:
                asked = goal
        case Remove(node_id):
            if node_id not in goal.members:
                asked = goal
            elif node_id not in job.before_voters and goal.voters != (node_id,):
                return Configuration(
                    tuple(node for node in goal.voters if node != node_id), (),
                    tuple(node for node in goal.learners if node != node_id))
    if asked is not None:
        return None
    arriving = [node for node in goal.members if node not in job.before_voters]
    way_out = f"; DELETE /api/v1/system/raft/membership/members/{arriving[0]} ends it" if arriving else ""
    raise OperatorRefused(
        "in_flight", f"change {job.number} to voters {job.voters} and learners {job.learners} is not finished{way_out}")


def _check_addresses(question: AddLearner, against: Refusals) -> None:
    for address in (question.raft, question.http):
        try:
            parse_address(address)
        except ValueError as error:
            raise OperatorRefused("bad_request", str(error)) from error
    for node_id, member in against.addresses.items():
        same = [member.raft == question.raft, member.http == question.http]
        if node_id == question.node_id and not all(same):
            raise OperatorRefused(
                "address_mismatch", f"node {node_id} is known at raft {member.raft} and http {member.http}")
        if node_id != question.node_id and any(same):
            raise OperatorRefused("address_mismatch", f"that is an address of node {node_id}")
