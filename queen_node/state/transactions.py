"""Transactions: acks, pushes, positions, key/value writes and timers in one command, all or nothing (transactions.md).

Everything is judged before anything is written, in the order of TX-20, each kind by the functions of its own room, on
the state as the entry has it so far; the first refusal is the answer, and then not a row is left behind. What was
judged is then carried out in the order of TX-21. Whatever is fenced, is fenced here for real: an ack that an earlier
one released the lease of is refused (TX-33), which is what makes a repeated transaction harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec

from queen_node.commands import RulesOfFire
from queen_node.state import acks, kv, positions, push, timers
from queen_node.state.rows import CursorRow
from queen_node.state.step import Step
from queen_node.state.timers import CONTRACT_RULES
from queen_node.state.verdicts import DONE


class Part(IntEnum):
    """Which list of the command an index is in; `results` has them in this order, but acks and pushes as they came."""

    ACK = 0
    PUSH = 1
    KV = 2
    TIMER = 3
    POSITION = 4


class Cause(IntEnum):
    """Why nothing was done (TX-53)."""

    KEY_MISSING = 0  # the queue wants encrypted payloads (PU-71)
    REJECTED_ACK = 1
    NAMED_TOO_OFTEN = 2  # an id, with another status than before (TX-36)
    DUPLICATE = 3
    KV_QUOTA = 4  # more rows or bytes than the tenant may hold (KV-62)
    KV_PRECONDITION = 5  # a required operation lost (KV-33)
    QUEUE_NOT_FOUND = 6  # of a position


class RolledBack(msgspec.Struct, array_like=True, tag=0):
    """Nothing was done. part, index: the element that caused it; index -1: no single one.

    verdict: of an ack, flags of `verdicts.py`. offset, message_id: of the message that a push repeats. lost: of a
    required KV operation.
    """

    cause: Cause
    part: Part
    index: int
    verdict: int = 0
    offset: int = 0
    message_id: bytes = b""
    lost: kv.Lost | None = None


class Committed(msgspec.Struct, array_like=True, tag=1):
    """Everything was done: the verdict on each ack, and what the rooms of the others answer."""

    verdicts: list[int]
    placed: list[push.Placed]
    elements: list[kv.Element]
    timer_results: list[timers.OperationResult]


TransactionAnswer = Committed | RolledBack
Ack = Sequence[Any]  # [consumer group, commands.AckItem]
# A part of the acks with the places of its items among all of them
JudgedAcks = list[tuple[list[int], acks.Part]]


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """The fields of the command, as `commands.transaction` packs them."""

    acks: Sequence[Ack]
    pushes: Sequence[push.Item]
    positions: Sequence[positions.Position]
    kv: Sequence[kv.Operation]
    timers: Sequence[timers.Operation]
    firing: bool
    caps: Sequence[int]
    rules: Sequence[Any] = CONTRACT_RULES


class Judged(msgspec.Struct, frozen=True, gc=False):
    """A transaction that will be carried out."""

    acks: JudgedAcks
    kv: kv.Judged
    appender: push.Appender  # which has looked where the pushes go


def apply_transaction(step: Step, command: Sequence[Any]) -> TransactionAnswer:
    """Apply a transaction (TX-2). The door has checked what does not depend on the state."""
    _kind, _request_id, *fields = command
    wanted = Wanted(*fields)
    judged = _judge(step, wanted)
    return judged if isinstance(judged, RolledBack) else _carry_out(step, wanted, judged)


def _carry_out(step: Step, wanted: Wanted, judged: Judged) -> Committed:
    verdicts = [0] * len(wanted.acks)
    for places, part in judged.acks:
        for place, verdict in zip(places, acks.carry_out(step, part)[0], strict=True):
            verdicts[place] = verdict
    # One appender for both: a due timer whose id one of the pushes has appends nothing (TM-62).
    appender = judged.appender
    placed = appender.append_all(wanted.pushes)
    # Behind the messages themselves, which they look at; what `finish` writes they do not need.
    positions.carry_out(step, wanted.positions)
    elements = kv.carry_out(step, wanted.kv, judged.kv)
    rules = RulesOfFire(*wanted.rules) if wanted.firing else None
    results = timers.carry_out(step, appender, wanted.timers, rules)
    appender.finish()
    return Committed(verdicts, placed, elements, results)


def _judge(step: Step, wanted: Wanted) -> Judged | RolledBack:
    """What is to be carried out, or the first refusal (TX-20). Writes nothing."""
    store = step.store
    in_clear = push.first_in_clear(store, wanted.pushes)
    if in_clear is not None:
        return RolledBack(Cause.KEY_MISSING, Part.PUSH, in_clear)
    in_clear = timers.first_in_clear(store, wanted.timers)
    if in_clear is not None:
        return RolledBack(Cause.KEY_MISSING, Part.TIMER, in_clear)
    judged_kv = kv.judge(store, step.now_us, wanted.kv)
    if kv.exceeds(store, judged_kv.changes, wanted.caps):
        return RolledBack(Cause.KV_QUOTA, Part.KV, -1)
    judged_acks = _judge_acks(step, wanted.acks)
    if isinstance(judged_acks, RolledBack):
        return judged_acks
    appender = push.Appender(step)
    stored = appender.first_stored(wanted.pushes)
    if stored is not None:
        index, original = stored
        return RolledBack(
            Cause.DUPLICATE, Part.PUSH, index, offset=original.offset, message_id=original.message_id)
    without_queue = positions.first_without_queue(store, wanted.positions)
    if without_queue is not None:
        return RolledBack(Cause.QUEUE_NOT_FOUND, Part.POSITION, without_queue)
    if judged_kv.lost is not None:
        return RolledBack(Cause.KV_PRECONDITION, Part.KV, judged_kv.lost.failed_index, lost=judged_kv.lost)
    return Judged(judged_acks, judged_kv, appender)


def _judge_acks(step: Step, named_acks: Sequence[Ack]) -> JudgedAcks | RolledBack:
    """All parts, one per (partition, group, lease) (TX-30), in the order in which they begin."""
    places_of: dict[tuple[int, bytes, bytes], list[int]] = {}
    for place, (group, item) in enumerate(named_acks):
        places_of.setdefault((item[1], group, item[3]), []).append(place)
    judged: JudgedAcks = []
    refusals: list[RolledBack] = []
    standing: dict[tuple[int, bytes], tuple[acks.Place, CursorRow]] = {}  # the place, and its cursor after that part
    for (partition_id, group, lease_id), places in places_of.items():
        found = acks.find_place(step, group, partition_id, lease_id)
        if not isinstance(found, acks.Place):
            refusals.append(RolledBack(Cause.REJECTED_ACK, Part.ACK, places[0], verdict=found))
            continue
        # Acks with a lease and acks without one may meet on one cursor: the later part begins where the earlier ends.
        place_found, cursor = standing.get((partition_id, group), (found, found.cursor))
        part = acks.judge(step, place_found, cursor, acks.in_columns([named_acks[place][1] for place in places]))
        refused = _refused_in(part, cursor.committed)
        if refused is not None:
            nth, cause, verdict = refused
            refusals.append(RolledBack(cause, Part.ACK, places[nth], verdict=verdict))
        if len(places_of) > 1:
            standing[partition_id, group] = place_found, msgspec.structs.replace(
                cursor, committed=part.ruling.reached, retries=part.ruling.retries)
        judged.append((places, part))
    return min(refusals, key=_index_of) if refusals else judged


def _refused_in(part: acks.Part, committed: int) -> tuple[int, Cause, int] | None:
    """The first item of a part that refuses the transaction: (which, why, the ack route's verdict on it)."""
    if part.all_done:
        return None
    statuses: dict[int, int] = {}
    for nth, (status, offset) in enumerate(zip(part.said.statuses, part.offsets, strict=True)):
        verdict = acks.verdict_on(status, offset, committed, part.ruling, {})
        if not verdict & DONE:
            return nth, Cause.REJECTED_ACK, verdict
        if offset is not None and statuses.setdefault(offset, status) != status:
            return nth, Cause.NAMED_TOO_OFTEN, verdict
    return None


def _index_of(refusal: RolledBack) -> int:
    return refusal.index
