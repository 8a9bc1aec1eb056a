"""Locks and semaphores: tokens, who holds a permit, and what is done under its guard (W11, W11b of guarantees.md).

A token moves on with every grant, so two of one permit tell which was first whatever the moments of their calls say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from tests.checkers.history import Call, Guarded, History, Holders, Outcome, Permit, Violation

T = TypeVar("T", bound=Call)


def check_tokens(history: History) -> list[Violation]:
    """G-K5: a token is of one permit and one owner, and above all that were given for this permit before."""
    found: list[Violation] = []
    first_of: dict[int, Permit] = {}
    for grant in _grants(history):
        first = first_of.setdefault(grant.granted, grant)
        if (first.lock, first.owner) != (grant.lock, grant.owner):
            found.append(Violation("G-K5", f"token {grant.granted} is two owners'", (first, grant)))
    for grants in _by_lock(history).values():
        found += [
            Violation("G-K5", f"{later.lock}: {later.granted} was given after {earlier.granted}", (earlier, later))
            for earlier, later in _before(grants) if later.granted < earlier.granted]
    return found


def check_exclusive(history: History) -> list[Violation]:
    """G-K6, LK-20: a permit goes to another owner only when its lifetime can be over, or its holder let it go.

    No margin: a lifetime begins with an entry stamped after its call left, so it lasts until then plus its length; the
    next owner's was stamped before its answer came. A renewal that nobody knows of may have made it shorter.
    """
    let_go: dict[int, int] = {}  # by token, from when on it may be free, as its holder said
    for call in _of(history, Permit):
        if call.kind == "release" and call.outcome is not Outcome.FAIL:
            let_go[call.token] = min(call.start_ns, let_go.get(call.token, call.start_ns))
        elif call.kind == "renew" and call.outcome is Outcome.INFO:
            over_ns = call.start_ns + history.at_least_ns(call.ttl_ms)
            let_go[call.token] = min(over_ns, let_go.get(call.token, over_ns))
    found = []
    for grants in _by_lock(history).values():
        for held, following in pairwise(sorted(grants, key=lambda grant: (grant.granted, grant.start_ns))):
            if following.owner == held.owner:
                continue
            over_ns = held.start_ns + history.at_least_ns(held.ttl_ms)
            if following.end_ns < min(over_ns, let_go.get(held.granted, over_ns)):
                text = f"{held.lock} went to {following.owner} {over_ns - following.end_ns} ns before its time"
                found.append(Violation("G-K6", text, (held, following)))
    return found


def check_guards(history: History) -> list[Violation]:
    """G-K6: work under a guard commits only while its token is the permit's: not after another was given, or it was
    released; and what it pushed stands in the order of the tokens."""
    found: list[Violation] = []
    grants = _by_lock(history)
    done = [work for work in _of(history, Guarded) if work.outcome is Outcome.OK]
    for work in done:
        for grant in grants.get(work.lock, ()):
            if grant.granted > work.token and grant.end_ns < work.start_ns:
                text = f"committed under {work.token} when {grant.granted} held"
                found.append(Violation("G-K6", text, (grant, work)))
                break
    gone = {call.token: call for call in _of(history, Permit) if call.kind == "release" and call.granted}
    found += [
        Violation("G-K6", f"committed under {work.token}, which was released", (gone[work.token], work))
        for work in done if work.token in gone and gone[work.token].end_ns < work.start_ns]
    token_of = {work.txn: work.token for work in _of(history, Guarded)}
    last: dict[str, int] = {}
    for message in history.guarded:  # those that nobody sent are found below
        token = token_of.get(message.txn, 0)
        if token and token < last.get(message.partition, 0):
            text = f"{message} under {token} stands behind work under {last[message.partition]}"
            found.append(Violation("G-K6", text))
        last[message.partition] = max(token, last.get(message.partition, 0))
    return found


def check_work(history: History) -> list[Violation]:
    """G-T1: work that committed is there once; of work that was rolled back there is nothing."""
    seen = Counter(message.txn for message in history.guarded)
    found = []
    for work in _of(history, Guarded):
        count = seen.pop(work.txn, 0)
        if not int(work.outcome is Outcome.OK) <= count <= int(work.outcome is not Outcome.FAIL):
            found.append(Violation("G-T1", f"work {work.txn} stands there {count} times", (work,)))
    return found + [Violation("G-T1", f"work {txn}, which nobody did") for txn in seen]


def check_holders(history: History) -> list[Violation]:
    """LK-28: who asks sees no holder whom a later one had already followed when the question left."""
    grants = _by_lock(history)
    return [
        Violation("LK-28", f"{lock} was shown under {token}, {grant.granted} had followed", (grant, look))
        for look in _of(history, Holders) if look.outcome is Outcome.OK for lock, token, _owner in look.held
        for grant in grants.get(lock, ()) if grant.granted > token and grant.end_ns < look.start_ns]


def _grants(history: History) -> Iterable[Permit]:
    return (
        call for call in _of(history, Permit)
        if call.kind != "release" and call.outcome is Outcome.OK and call.granted)


def _by_lock(history: History) -> dict[str, list[Permit]]:
    found: dict[str, list[Permit]] = {}
    for grant in _grants(history):
        found.setdefault(grant.lock, []).append(grant)
    return found


def _before(grants: list[Permit]) -> Iterable[tuple[Permit, Permit]]:
    """For each the highest token that was answered before its call left."""
    ended = sorted(grants, key=lambda grant: grant.end_ns)
    highest, at = None, 0
    for grant in sorted(grants, key=lambda grant: grant.start_ns):
        while at < len(ended) and ended[at].end_ns < grant.start_ns:
            if highest is None or ended[at].granted > highest.granted:
                highest = ended[at]
            at += 1
        if highest is not None:
            yield highest, grant


def _of(history: History, kind: type[T]) -> Iterable[T]:
    return (call for call in history.calls if isinstance(call, kind))
