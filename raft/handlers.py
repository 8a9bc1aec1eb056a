"""What a member does with each message of its own term, role by role.

These are the half of `Core` that hears; each is called by `Core.step`, which has dealt with terms before. A test proves
the table complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from raft import changes, quiet
from raft.invariants import broken
from raft.messages import (
    Append,
    AppendAccepted,
    AppendRejected,
    AskQuiet,
    Committed,
    Denial,
    Heartbeat,
    HeartbeatAnswered,
    Message,
    PreVote,
    PreVoteDenied,
    PreVoteGranted,
    QuietAgreed,
    QuietRefused,
    StaleTerm,
    TimeoutNow,
    Vote,
    VoteDenied,
    VoteGranted,
)
from raft.ready import Role

if TYPE_CHECKING:
    from raft.core import Core


def answer_pre_vote(core: Core, message: PreVote) -> None:
    if core._hears_leader():
        core._deny(message, Denial.HEARS_LEADER)
    elif core._is_behind(message):
        core._deny(message, Denial.LOG_BEHIND)
    else:
        core._send.append(PreVoteGranted(core.node_id, message.sender, core.term))


def answer_vote(core: Core, message: Vote) -> None:
    if core.voted_for not in (0, message.sender):
        core._deny(message, Denial.VOTED_FOR_OTHER)
    elif core._is_behind(message):
        core._deny(message, Denial.LOG_BEHIND)
    else:
        core.voted_for = message.sender
        core._elapsed_ticks = 0
        core._promises.add(VoteGranted(core.node_id, message.sender, core.term, *core.own_clock))


def take_grant(core: Core, message: PreVoteGranted | VoteGranted) -> None:
    if type(message) is VoteGranted:
        core.vote_clocks[message.sender] = message.clock_us, message.is_weak
    core._count_vote(message.sender, granted=True)


def take_denial(core: Core, message: PreVoteDenied | VoteDenied) -> None:
    core._count_vote(message.sender, granted=False)


def take_over(core: Core, _message: TimeoutNow) -> None:
    if core._may_stand():
        core._stand(transfer=True)


def take_append(core: Core, message: Append) -> None:
    core._hear_from_leader(message.sender)
    core.leader_commit_index = max(core.leader_commit_index, message.commit_index)
    if core._restore is not None:
        return  # the log is about to start anew; the leader asks again
    log, previous_index = core.log, message.previous_index
    if previous_index < core.commit_index:
        # Overtaken by a later one. What is committed agrees with every leader's log, so that much is accepted.
        accept(core, message, core.commit_index)
    elif log.holds(previous_index, message.previous_term):
        commit_index = core.commit_index
        last_index = log.write_after(previous_index, message.entries, commit_index=commit_index, in_term=core.term)
        changes.follow(core, message.entries)
        # Only what this message proves to agree may commit: past it this log can hold another leader's entries.
        core._commit_to(min(message.commit_index, last_index))
        accept(core, message, last_index)
    else:
        hint_index, hint_term = log.agreeing_place(previous_index, message.previous_term)
        core._send.append(
            AppendRejected(
                core.node_id, message.sender, core.term, previous_index, hint_index, hint_term, message.round
            )
        )


def accept(core: Core, message: Append, index: int) -> None:
    # A promise about the own disk: it leaves after the write, never before.
    core._promises.add(AppendAccepted(core.node_id, message.sender, core.term, index, message.round))


def take_heartbeat(core: Core, message: Heartbeat) -> None:
    if take_commit(core, message):
        core._send.append(HeartbeatAnswered(core.node_id, message.sender, core.term, message.round))


def take_commit(core: Core, message: Heartbeat | Committed) -> bool:
    """Whether it was heard.

    Not by a node that only learns and does not hold what it is to commit: that speaks of the disk which the node had
    before it was replaced. Who says so is deposed and does not know; an answer would count as that of a voter (CL-105).
    A voter whose log is short has lost what it acknowledged, which stops it.
    """
    if message.commit_index > core.log.last_index and not core.is_voter:
        return False
    core._hear_from_leader(message.sender)
    core._commit_to(message.commit_index)
    return True


def take_acceptance(core: Core, message: AppendAccepted) -> None:
    leadership = core._lead()
    if leadership.accepted(message):
        core._advance_commit(leadership)


def take_rejection(core: Core, message: AppendRejected) -> None:
    core._lead().rejected(message)


def take_heartbeat_answer(core: Core, message: HeartbeatAnswered) -> None:
    core._lead().heartbeat_answered(message, core.commit_index)


def ignore(core: Core, message: Message) -> None:
    """An answer that came too late for the role that asked, or told all by its term."""


def meet_second_leader(core: Core, message: Append | Heartbeat | Committed | TimeoutNow | AskQuiet) -> None:
    broken("two leaders in one term", term=core.term, leaders=(core.node_id, message.sender))


Handler = Callable[["Core", Any], object]  # what one returns is for those that call it by name

_ANSWERS: Final = (
    AppendAccepted, AppendRejected, HeartbeatAnswered, PreVoteDenied, PreVoteGranted, QuietAgreed,
    QuietRefused, StaleTerm, VoteDenied, VoteGranted,
)  # fmt: skip
_IN_EVERY_ROLE: Final[Mapping[type, Handler]] = {
    **dict.fromkeys(_ANSWERS, ignore),
    PreVote: answer_pre_vote,
    Vote: answer_vote,
}
_UNLESS_LEADER: Final[Mapping[type, Handler]] = {
    **_IN_EVERY_ROLE,
    Append: take_append,
    Heartbeat: take_heartbeat,
    Committed: take_commit,
    TimeoutNow: take_over,
    AskQuiet: quiet.answer,
}
HANDLERS: Final[Mapping[Role, Mapping[type, Handler]]] = {
    Role.FOLLOWER: _UNLESS_LEADER,
    Role.PRE_CANDIDATE: {**_UNLESS_LEADER, PreVoteGranted: take_grant, PreVoteDenied: take_denial},
    Role.CANDIDATE: {**_UNLESS_LEADER, VoteGranted: take_grant, VoteDenied: take_denial},
    Role.LEADER: {
        **_IN_EVERY_ROLE,
        **dict.fromkeys((Append, Heartbeat, Committed, TimeoutNow, AskQuiet), meet_second_leader),
        AppendAccepted: take_acceptance,
        AppendRejected: take_rejection,
        HeartbeatAnswered: take_heartbeat_answer,
        QuietAgreed: quiet.take_agreement,
        QuietRefused: quiet.take_refusal,
    },
}
"""What each role does with each message of its own term."""
