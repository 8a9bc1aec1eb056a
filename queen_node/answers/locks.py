"""Answers of the locks route (locks.md 2, 3)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from queen_node import errors
from queen_node.answers import NOTHING, Rendered, pack
from queen_node.answers.kv import end_text, untold
from queen_node.commands import LockOp
from queen_node.state import locks
from queen_node.state.locks import Holder, LockResult, LocksAnswer
from queen_node.state.store import CommittedStore
from queen_node.times import micros_text

Reader = Generator[None, None, bytes]

_WORDS = {op: op.name.lower() for op in LockOp}
_encode = msgspec.json.encode
_decode_answer = msgspec.msgpack.Decoder(LocksAnswer).decode


class _Guard(msgspec.Struct):
    """The check that a transaction carries (locks.md 3): clients hand it on as it is."""

    op: str
    ns: str
    key: str
    expect: int
    required: bool


class _Holder(msgspec.Struct):
    slot: int
    owner: str | None
    token: int
    since: str
    renewedAt: str
    expiresAt: str | None


class _Element(msgspec.Struct):
    """What is answered for one operation: the fields that its kind has, in this order."""

    index: int
    op: str
    name: str
    acquired: bool | UnsetType = UNSET
    renewed: bool | UnsetType = UNSET
    released: bool | UnsetType = UNSET
    held: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    slot: int | UnsetType = UNSET
    token: int | UnsetType = UNSET
    owner: str | UnsetType | None = UNSET
    already: bool | UnsetType = UNSET
    expiresAt: str | UnsetType | None = UNSET
    guard: _Guard | UnsetType = UNSET
    holders: list[_Holder] | UnsetType = UNSET


def render_locks(raw: bytes) -> Rendered:
    """Of a LOCKS command, and of a read that could answer in its place."""
    exceeds, results = _decode_answer(raw)
    if exceeds:
        refused = errors.Refused(errors.KV_QUOTA)
        return refused.refusal.status, refused.body()
    return 200, b'{"results":' + _encode([_element(*each) for each in enumerate(results)]) + b"}"


def read_locks(view: CommittedStore, fields: Sequence[Any]) -> Reader:
    """The answer of gets and acquires if it needs no entry, else NOTHING: operations."""
    yield from ()
    judged = locks.judge(view, view.now_us, 0, fields[0])
    return pack((False, judged.results)) if judged.settled and not untold(view, judged.ended_us) else NOTHING


def _element(index: int, result: LockResult) -> _Element:
    op, done = LockOp(result.op), result.done
    made = _Element(index, _WORDS[op], result.name.decode())
    if op is LockOp.GET:
        made.held = done
    elif op is LockOp.ACQUIRE:
        made.acquired = done
        if not done:
            made.reason = "held"
    else:
        if op is LockOp.RENEW:
            made.renewed = done
        else:
            made.released = done
        made.slot = result.slot
        if not done:
            made.reason = "lost"
    if op is LockOp.GET or not done:
        made.holders = [_shown(holder) for holder in result.holders]
    elif op is not LockOp.RELEASE:
        made.slot, made.token, made.expiresAt = result.slot, result.token, end_text(result.expires_us)
        key = locks.lock_key(result.name, result.slot).decode()
        made.guard = _Guard("check", locks.NAMESPACE.decode(), key, result.token, True)
        if op is LockOp.ACQUIRE:
            made.owner = result.owner
            if result.already:
                made.already = True
    return made


def _shown(holder: Holder) -> _Holder:
    return _Holder(
        holder.slot, holder.owner, holder.token, holder.since, micros_text(holder.renewed_us),
        end_text(holder.expires_us))
