"""All checkers over one history, and the report that a person reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.checkers import (
    delivery,
    entities,
    failing,
    kv,
    leases,
    log,
    permits,
    pipeline,
    timer_books,
    timer_fires,
    timer_lives,
)
from tests.checkers.history import History, Violation, counts

Checker = Callable[[History], list[Violation]]

CHECKERS: Sequence[Checker] = (
    log.check_acknowledged_pushes,
    log.check_one_value_an_offset,
    log.check_no_gap,
    log.check_stored_once,
    log.check_stamps,
    log.check_nothing_invented,
    delivery.check_delivered,
    delivery.check_not_again_after_ack,
    delivery.check_acked_once,
    delivery.check_no_skip,
    leases.check_exclusive,
    leases.check_fenced,
    timer_fires.check_fires_once,
    timer_fires.check_not_early,
    timer_fires.check_cancelled_stays_away,
    timer_fires.check_replaced_stays_away,
    timer_fires.check_lands_as_promised,
    timer_fires.check_fire_order,
    timer_books.check_books,
    timer_books.check_none_left,
    timer_books.check_not_late,
    timer_lives.check_lives,
    kv.check_registers,
    kv.check_no_value_from_nowhere,
    kv.check_counters,
    kv.check_pairs,
    pipeline.check_inputs,
    pipeline.check_steps,
    pipeline.check_parts,
    entities.check_moves,
    entities.check_inputs,
    entities.check_timers,
    permits.check_tokens,
    permits.check_exclusive,
    permits.check_guards,
    permits.check_work,
    permits.check_holders,
    failing.check_fates,
    failing.check_what_is_removed,
    failing.check_letters,
    failing.check_mended,
    failing.check_peeks,
)

SHOWN_MAX = 5  # violations shown in full; the first one is what matters


def judge(history: History) -> list[Violation]:
    """Every violation that any checker finds."""
    return [violation for checker in CHECKERS for violation in checker(history)]


def report(history: History, violations: Sequence[Violation], *, again: str = "") -> str:
    """Counts of ok, fail and info by operation, lateness of fires, and the first anomalies with their calls."""
    lines = [f"COUNTS   {name:<10} {_row(row)}" for name, row in sorted(counts(history.calls).items())]
    late = timer_books.lateness_us(history)
    if late:
        middle, high = late[len(late) // 2], late[min(len(late) - 1, len(late) * 99 // 100)]
        figures = f"p50 {middle / 1000:.1f} ms, p99 {high / 1000:.1f}, max {late[-1] / 1000:.1f}"
        lines.append(f"LATENESS {figures} of {len(late)}")
    if history.letters or history.mended:
        lines.append(f"FAILING  {len(history.letters)} dead letters, {len(history.mended)} fired after all")
    outages = [(end - start) / 1e9 for start, end in history.outages]
    if outages:
        lines.append(f"OUTAGES  {len(outages)}, longest {max(outages):.2f} s")
    lines += [str(violation) for violation in violations[:SHOWN_MAX]]
    if len(violations) > SHOWN_MAX:
        lines.append(f"… and {len(violations) - SHOWN_MAX} more")
    if again:
        lines.append(f"AGAIN    {again}")
    return "\n".join(lines)


def _row(row: dict[str, int]) -> str:
    return "  ".join(f"{name} {count}" for name, count in row.items())
