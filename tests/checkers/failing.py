"""Timers whose fires fail: for good, for a while, or until another node leads (G-M9; W14 of guarantees.md)."""

from __future__ import annotations

from collections import Counter

from tests.checkers.history import Doomed, History, Outcome, Violation

ATTEMPTS_MAX = 5
BACKOFF_MS = 100  # after the first failure; it doubles
TIMER_GROUP = "__timer__"
LEAST_US = 1000 * BACKOFF_MS * sum(2**failure for failure in range(ATTEMPTS_MAX - 1))  # from the first to the last


def check_fates(history: History) -> list[Violation]:
    """G-M9, G-M1, G-M3: a version fires once or dies once; not both, and neither when it was cancelled or replaced."""
    ends = Counter([letter.txn for letter in history.letters] + [message.txn for message in history.mended])
    found = []
    for calls in _by_key(history).values():
        for call, following in zip(calls, [*calls[1:], None], strict=True):
            if call.kind != "schedule":
                continue
            count, (least, most) = ends.pop(call.txn, 0), _fates(call, following)
            if not least <= count <= most:
                shown = (call,) if following is None else (call, following)
                found.append(Violation("G-M9", f"{call.txn} came to {count} ends", shown))
    refused = {call.txn: call for call in _of(history) if call.kind == "schedule" and call.outcome is Outcome.FAIL}
    found += [
        Violation("G-M9", f"{txn} was refused, and came to an end", (refused[txn],)) for txn in ends if txn in refused]
    ends -= Counter(dict.fromkeys(refused, 2))
    return found + [Violation("G-M9", f"{txn}, which nobody scheduled, came to an end") for txn in ends]


def _fates(call: Doomed, following: Doomed | None) -> tuple[int, int]:
    """How many ends a version may come to: at least, at most. following: what was done about its key next."""
    if following is not None and following.outcome is Outcome.OK and (
        following.status == "rescheduled" if following.kind == "schedule" else bool(following.txn)
    ):
        return 0, 0
    sure = call.outcome is Outcome.OK and (following is None or following.outcome is not Outcome.INFO)
    return int(sure), 1


def check_what_is_removed(history: History) -> list[Violation]:
    """G-M3, TM-31: in backoff too, a cancel removes the version that was scheduled last, and no other."""
    return [
        Violation("G-M3", f"{calls[at].txn} was removed, {call.txn} was scheduled last", (call, calls[at]))
        for calls in _by_key(history).values() for at, call in enumerate(calls[:-1], 1)
        if call.kind == "schedule" and call.outcome is Outcome.OK and calls[at].kind == "cancel"
        and calls[at].txn not in ("", call.txn)]


def check_letters(history: History) -> list[Violation]:
    """TM-54, TM-55: whole, after the last attempt, and not before the waits between the attempts have passed; those of
    a version count from its own deadline, whatever the one that it replaced had failed."""
    versions = {call.txn: call for call in _of(history) if call.kind == "schedule"}
    found = []
    for letter in history.letters:
        call = versions.get(letter.txn)
        if call is None:
            continue  # told of by `check_fates`
        if (letter.group, letter.offset, letter.attempts) != (TIMER_GROUP, -1, ATTEMPTS_MAX):
            found.append(Violation("G-M9", f"a dead letter is {letter}", (call,)))
        if letter.payload != {"version": letter.txn}:
            found.append(Violation("G-M9", f"a dead letter holds {letter.payload}", (call,)))
        early_us = call.deliver_at_us + LEAST_US - letter.failed_at_us
        if call.outcome is Outcome.OK and early_us > 0:
            found.append(Violation("G-M9", f"{letter.txn} was given up {early_us} µs too soon", (call,)))
    return found


def check_mended(history: History) -> list[Violation]:
    """G-M2, G-M8: what fired after all is what was scheduled, and not before its time."""
    versions = {call.txn: call for call in _of(history) if call.kind == "schedule"}
    found = []
    for message in history.mended:
        call = versions.get(message.txn)
        if call is not None and (
            message.payload != {"version": message.txn} or message.created_at_us < call.deliver_at_us
        ):
            found.append(Violation("G-M8", f"{message} for {call.txn}", (call,)))
    return found


def check_peeks(history: History) -> list[Violation]:
    """G-M9: what is pending has failed less than the last time."""
    return [
        Violation("G-M9", f"{call.txn} is pending after {call.attempts} failures", (call,))
        for call in _of(history) if call.kind == "peek" and call.attempts >= ATTEMPTS_MAX]


def _of(history: History) -> list[Doomed]:
    return [call for call in history.calls if isinstance(call, Doomed)]


def _by_key(history: History) -> dict[str, list[Doomed]]:
    """What may have changed each key, in order."""
    found: dict[str, list[Doomed]] = {}
    for call in _of(history):
        if call.kind != "peek" and call.outcome is not Outcome.FAIL:
            found.setdefault(call.key, []).append(call)
    return found
