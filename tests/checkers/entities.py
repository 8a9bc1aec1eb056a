"""State machines whose moves are transactions: each move whole or not at all, its timer with it (W13).

Every row names the attempt that wrote it, and every attempt the row that it replaced: read backwards from the last row
these are all moves that ever committed, in their order, whatever was answered.
"""

from __future__ import annotations

from collections import Counter

from tests.checkers.history import History, Move, Outcome, Violation


def check_moves(history: History) -> list[Violation]:
    """G-T1, G-T5, G-K1: a move that committed stands in the line of its entity's states, one that was refused does not,
    and the last row is what the last move wrote."""
    found: list[Violation] = []
    moves = {move.attempt: move for move in _moves(history)}
    for entity, (state, last) in history.entities.items():
        if last and last not in moves:
            found.append(Violation("G-T1", f"{entity} was moved by {last}, which nobody made"))
        elif last and moves[last].state != state:
            found.append(Violation("G-T1", f"{entity} is {state}", (moves[last],)))
    in_line = {move.attempt for line in _lines(history).values() for move in line}
    for move in moves.values():
        if (move.outcome is Outcome.OK and move.attempt not in in_line) or (
            move.outcome is Outcome.FAIL and move.attempt in in_line
        ):
            where = "is" if move.attempt in in_line else "is not"
            found.append(Violation("G-T1", f"{move.attempt} {where} in the line of {move.entity}", (move,)))
    return found


def check_inputs(history: History) -> list[Violation]:
    """G-T1, G-T2: what happened moved its entity once."""
    if not history.drained or not history.entities:
        return []
    used = Counter((move.source, move.input_txn) for line in _lines(history).values() for move in line)
    return [
        Violation("G-T1", f"{message.txn} of {message.queue} moved its entity {used[message.queue, message.txn]} times")
        for message in history.log
        if message.partition in history.entities and used[message.queue, message.txn] != 1]


def check_timers(history: History) -> list[Violation]:
    """G-T4: a move's timer exists exactly if the move committed, until the next one cancels or replaces it; it fires
    exactly if that one does not come before."""
    if not history.drained:
        return []
    fired = {message.txn for message in history.log}
    found: list[Violation] = []
    in_line: set[str] = set()
    for line in _lines(history).values():
        pending: Move | None = None
        for move in line:
            in_line.add(move.attempt)
            if move.timer:
                found += _joins(pending, move, fired)
                pending = move if move.timer == "schedule" else None
        if pending is not None and pending.attempt not in fired:
            found.append(Violation("G-T4", f"the timer of {pending.attempt} did not fire", (pending,)))
    return found + [
        Violation("G-T4", f"the timer of {move.attempt} fired, which did not commit", (move,))
        for move in _moves(history) if move.attempt in fired and move.attempt not in in_line]


def _joins(pending: Move | None, move: Move, fired: set[str]) -> list[Violation]:
    """Whether a move found of the timer before it what there must have been; nobody knows if it was not answered."""
    if move.outcome is not Outcome.OK:
        return []
    met = move.status in ("cancelled", "rescheduled")
    if met != (pending is not None and pending.attempt not in fired):
        shown = (move,) if pending is None else (pending, move)
        return [Violation("G-T4", f"{move.attempt} answered {move.status}", shown)]
    return []


def _moves(history: History) -> list[Move]:
    return [call for call in history.calls if isinstance(call, Move)]


def _lines(history: History) -> dict[str, list[Move]]:
    """Every entity's moves that committed, in their order."""
    moves = {move.attempt: move for move in _moves(history)}
    lines: dict[str, list[Move]] = {}
    for entity, (_state, last) in history.entities.items():
        line: list[Move] = []
        seen: set[str] = set()
        while last in moves and last not in seen:
            seen.add(last)
            line.append(moves[last])
            last = moves[last].before
        lines[entity] = line[::-1]
    return lines
