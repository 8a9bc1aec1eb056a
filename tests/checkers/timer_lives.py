"""G-M1 to G-M6 and G-M12 at once: is there an order in which a key's calls and fires could have happened one by one?

For every key a search over the orders that real time allows (Wing and Gong, 1993), with the timer as the object: at
most one version is pending; a schedule replaces it, a cancel removes it, a fire takes it away and shows its message.
A call of unknown fate may have happened, at any time after it was sent, or not at all. Keys see few calls, so the
search is short.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.checkers.history import Call, Cancel, History, Outcome, Peek, Schedule, Violation

NEVER = 1 << 62
STATES_MAX = 200_000  # beyond it the key is reported as not judged, which is no pass


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that takes effect at one moment between `from_ns` and `to_ns`; `surely` False: or never."""

    from_ns: int
    to_ns: int
    surely: bool
    call: Call | None  # None: a fire
    fires: str = ""  # the version that a fire takes away


@dataclass(frozen=True, slots=True)
class _Key:
    events: tuple[_Event, ...]
    expected_at_end: bool | None  # whether a version is pending at the end; None: nobody looked


def check_lives(history: History) -> list[Violation]:
    """G-M1 … G-M6, G-M12: each key's calls and fires have an order that explains every answer."""
    violations = []
    for (queue, key), life in _lives(history).items():
        verdict = _explain(life)
        if verdict is None:
            calls = tuple(event.call for event in life.events if event.call is not None)
            fires = sorted(event.fires for event in life.events if event.fires)
            text = f"no order explains {queue}/{key}; fired: {fires}, pending at the end: {life.expected_at_end}"
            violations.append(Violation("G-M12", text, calls))
        elif not verdict:
            violations.append(Violation("G-M12", f"{queue}/{key} has too many calls to be judged"))
    return violations


def _lives(history: History) -> dict[tuple[str, str], _Key]:
    events: dict[tuple[str, str], list[_Event]] = {}
    pushed = {push.txn for push in history.pushes()}
    seen_by_ns = _seen_by(history)
    for call in history.calls:
        if not isinstance(call, Schedule | Cancel | Peek) or call.outcome is Outcome.FAIL:
            continue
        sure = call.outcome is Outcome.OK
        if isinstance(call, Peek) and not sure:
            continue
        row = events.setdefault((call.queue, call.key), [])
        row.append(_Event(call.start_ns, call.end_ns if sure else NEVER, sure, call))
        if not isinstance(call, Schedule):
            continue
        due_ns = call.start_ns + history.at_least_ns(call.delay_ms)
        if call.txn in seen_by_ns and call.txn not in pushed:
            row.append(_Event(due_ns, seen_by_ns[call.txn], True, None, call.txn))
        elif call.txn in pushed:
            row.append(_Event(due_ns, NEVER, False, None, call.txn))  # fires without a message, or with one: unseen
    pending = set(history.still_pending)
    return {
        place: _Key(tuple(sorted(row, key=_patience)), place in pending if history.drained else None)
        for place, row in events.items()
    }


def _seen_by(history: History) -> dict[str, int]:
    """The moment by which each version surely had fired: the answer that first showed it, or the end of the run."""
    found: dict[str, int] = {message.txn: NEVER for message in history.log}
    for pop in history.pops():
        for message in pop.messages:
            found[message.txn] = min(pop.end_ns, found.get(message.txn, NEVER))
    return found


def _patience(event: _Event) -> tuple[bool, int, int]:
    """The search tries the last first: what surely happened and ended earliest. What perhaps never happened is tried
    when nothing else explains the rest: a dozen calls of unknown fate on one key took seconds the other way round.
    """
    return event.surely, -event.to_ns, -event.from_ns


def _explain(life: _Key) -> bool | None:
    """True when an order exists, None when none does, False when the search was given up."""
    events = life.events
    everything = (1 << len(events)) - 1
    visited: set[tuple[int, str]] = set()
    stack: list[tuple[int, str]] = [(0, "")]
    while stack:
        state = stack.pop()
        if state in visited:
            continue
        visited.add(state)
        if len(visited) > STATES_MAX:
            return False
        done, pending = state
        left = [index for index in range(len(events)) if not done >> index & 1]
        if not any(events[index].surely for index in left) and life.expected_at_end in (None, bool(pending)):
            return True
        if done == everything:
            continue
        # The next event may not begin after some sure one that is still to come has ended.
        latest_ns = min((events[index].to_ns for index in left if events[index].surely), default=NEVER)
        for index in left:
            event = events[index]
            if event.from_ns <= latest_ns:
                after = _after(event, pending)
                if after is not None:
                    stack.append((done | 1 << index, after))
    return None


def _after(event: _Event, pending: str) -> str | None:
    """The version pending after `event`, "" for none; None when the event cannot happen now."""
    call = event.call
    if isinstance(call, Schedule):
        if event.surely and (call.status == "rescheduled") != bool(pending):
            return None
        return call.txn
    if isinstance(call, Cancel):
        if not event.surely:
            return ""
        if call.status == "absent":
            return "" if not pending else None
        return "" if pending and pending == call.removed_txn else None
    if isinstance(call, Peek):
        agrees = (pending == call.txn) if call.found else not pending
        return pending if agrees else None
    return "" if pending == event.fires else None

