"""Key/value calls: linearizability of each key, one winner a claim, counters, calls on two keys (W3, W3b, W3c, W4).

A version names a state of its key, and later states have higher ones (KV-30). So nothing has to be searched: every
call that showed a version is placed by it, and only four things can be wrong: one version with two values, an order
that contradicts the clock of the observer, a condition that held although another state lay in between, and a row that
was dead before its time. A row that is gone comes after the last version that was known before: it never comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.checkers.history import History, Kv, Outcome, Violation

ABSENT = 0  # the version of a key without a row
ENDS = ("delete", "release")  # kinds of calls that end a row's life when they apply
FOR_EVER_NS = 1 << 62


class Sighting(NamedTuple):
    """A call that showed the state of a key: it was so at some moment between the call's start and its end."""

    version: int
    value: object
    wrote: bool  # the call made this state
    ended: bool  # the call ended this state
    call: Kv


def check_registers(history: History) -> list[Violation]:
    """G-K1, G-K3: each key by itself."""
    found: list[Violation] = []
    calls_on: dict[str, list[Kv]] = {}
    for call in _calls(history):
        for key in call.keys if call.outcome is not Outcome.FAIL else ():
            calls_on.setdefault(key, []).append(call)
    for key, sightings in _by_key(history).items():
        dies = any(call.kind in ENDS or call.ttl_s for call in calls_on[key])
        found += _one_value_a_version(key, sightings)
        found += _against_the_clock(key, sightings, dies=dies)
        found += _conditions(key, sightings, dies=dies)
        found += _dead_before_its_time(key, sightings, calls_on[key], history) if dies else ()
    return found


def check_no_value_from_nowhere(history: History) -> list[Violation]:
    """G-K1: a value that was seen was written by a call that may have applied."""
    written = {
        (key, call.wrote) for call in _calls(history) for key in call.keys
        if call.wrote is not None and (call.outcome is Outcome.INFO or call.applied)}
    return [
        Violation("G-K1", f"{key} holds {sighting.value!r}, which nobody wrote", (sighting.call,))
        for key, sightings in _by_key(history).items()
        for sighting in sightings
        if sighting.call.kind != "incr" and sighting.version != ABSENT and not isinstance(sighting.value, int)
        and (key, sighting.value) not in written]


def check_counters(history: History) -> list[Violation]:
    """G-K4: every increment that was answered counts once, one whose outcome is unknown at most once."""
    found: list[Violation] = []
    counted: dict[str, list[Kv]] = {}
    for call in _calls(history):
        if call.kind == "incr" and call.outcome is not Outcome.FAIL:
            counted.setdefault(call.keys[0], []).append(call)
    shown = _by_key(history)
    for key, calls in counted.items():
        sure = sum(call.outcome is Outcome.OK for call in calls)
        last = max(shown.get(key, ()), key=lambda sighting: sighting.version, default=None)
        total = 0 if last is None or last.version == ABSENT else last.value
        if not isinstance(total, int) or not sure <= total <= len(calls):
            found.append(Violation("G-K4", f"{key} is {total} after {sure} increments and {len(calls) - sure} unknown"))
    return found


def check_pairs(history: History) -> list[Violation]:
    """G-K2: what one call writes into two keys is seen whole or not at all, and in one order."""
    found: list[Violation] = []
    states: dict[tuple[int, int], Kv] = {}
    for call in _calls(history):
        if call.kind not in ("write pair", "read pair") or call.outcome is not Outcome.OK:
            continue
        (first, first_version), (second, second_version) = call.seen
        if first != second:
            found.append(Violation("G-K2", f"{call.keys} hold {first!r} and {second!r}", (call,)))
        states[first_version, second_version] = call
    ordered = sorted(states)
    for before, after in pairwise(ordered):
        if not (before[0] < after[0] and before[1] < after[1]):
            calls = states[before], states[after]
            found.append(Violation("G-K2", f"versions {before} and {after} of two keys cross", calls))
    return found


def _calls(history: History) -> Iterator[Kv]:
    return (call for call in history.calls if isinstance(call, Kv))


def _by_key(history: History) -> dict[str, list[Sighting]]:
    found: dict[str, list[Sighting]] = {}
    for call in _calls(history):
        if call.outcome is Outcome.OK:
            for key, (value, version) in zip(call.keys, call.seen, strict=True):
                ends = call.kind in ENDS
                found.setdefault(key, []).append(
                    Sighting(version, value, call.applied and not ends, call.applied and ends, call))
    return found


def _one_value_a_version(key: str, sightings: Iterable[Sighting]) -> Iterator[Violation]:
    known: dict[int, Sighting] = {}
    for sighting in sightings:
        first = known.setdefault(sighting.version, sighting)
        if first.value != sighting.value or (first is not sighting and first.wrote and sighting.wrote):
            yield Violation(
                "G-K1", f"version {sighting.version} of {key} is {first.value!r} and {sighting.value!r}",
                (first.call, sighting.call))
        if sighting.wrote and not first.wrote:
            known[sighting.version] = sighting


def _against_the_clock(key: str, sightings: Sequence[Sighting], *, dies: bool) -> Iterator[Violation]:
    """A call that began after another had ended shows no earlier state; a write makes a later one than any before.

    A state's rank is twice its version. One more is that of the row's end, whenever it was: where a row can die, who
    finds none is behind the last version that was known when it began. dies: whether it can.
    """
    by_end = sorted(range(len(sightings)), key=lambda place: sightings[place].call.end_ns)
    left_at = [0] * len(sightings)  # the rank that each left behind
    latest: int | None = None
    at = 0
    for place in sorted(range(len(sightings)), key=lambda place: sightings[place].call.start_ns):
        sighting = sightings[place]
        while at < len(by_end) and sightings[by_end[at]].call.end_ns < sighting.call.start_ns:
            if latest is None or left_at[by_end[at]] > left_at[latest]:
                latest = by_end[at]
            at += 1
        floor = 0 if latest is None else left_at[latest]
        found_at = floor | 1 if dies and sighting.version == ABSENT else 2 * sighting.version
        left_at[place] = found_at + sighting.ended
        if latest is not None and found_at < floor + sighting.wrote:
            was = f"at version {floor // 2}" + (", which had ended" if floor % 2 else "")
            yield Violation(
                "G-K1", f"{key} was {was}, then at {sighting.version}", (sightings[latest].call, sighting.call))


def _conditions(key: str, sightings: Sequence[Sighting], *, dies: bool) -> Iterator[Violation]:
    """A write with `expect` follows the state that it names, with none in between. Where rows die, one that expects
    none may follow any: see `_dead_before_its_time`."""
    versions = sorted({sighting.version for sighting in sightings if sighting.version})
    before = dict(zip(versions, [ABSENT, *versions], strict=False))
    for sighting in sightings:
        expect = sighting.call.expect
        if not sighting.wrote or expect is None or (dies and expect == ABSENT):
            continue
        if before[sighting.version] > expect:
            promise = "G-K3" if expect == ABSENT else "G-K1"
            yield Violation(
                promise, f"{key}: a write that expected version {expect} follows {before[sighting.version]}",
                (sighting.call,))


def _dead_before_its_time(
    key: str, sightings: Sequence[Sighting], calls: Sequence[Kv], history: History,
) -> Iterator[Violation]:
    """G-K1, G-K3: who finds no row, or writes where there must be none, came when no life surely went on (KV-22).

    A life that a call began goes on for its lifetime, counted from that call's start, unless something may have ended
    it. Who wrote over it meanwhile began another that ends later: a key's rows all live equally long.
    """
    births = [sighting for sighting in sightings if sighting.wrote]
    ends = [call for call in calls if call.kind in ENDS and (call.applied or call.outcome is Outcome.INFO)]
    for sighting in sightings:
        call = sighting.call
        if not (sighting.version == ABSENT or (sighting.wrote and call.expect == ABSENT)):
            continue
        for birth in births:
            began = birth.call
            until_ns = began.start_ns + history.at_least_ns(began.ttl_s * 1000) if began.ttl_s else FOR_EVER_NS
            if began.end_ns < call.start_ns and call.end_ns < until_ns and not any(
                end.start_ns < call.end_ns and (end.outcome is Outcome.INFO or end.end_ns > began.start_ns)
                for end in ends
            ):
                promise = "G-K3" if sighting.wrote else "G-K1"
                yield Violation(promise, f"{key} was dead before its time", (began, call))
                break
