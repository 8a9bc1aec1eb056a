"""What a person sees of a run: tables on the terminal, and one picture."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.axes import Axes
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from bench.results import Cell, Results, Run, Table, Verdict

TROUBLE_LINES_MAX = 20
BUSY_SHARE = 0.25  # load average, of the cores, from which a run is no judgement
MARGIN_SHOWN = (0.1, 10.0)  # of the goals' picture, in times better than the bound
GOOD, BAD, AIM = "#2f7d4f", "#b4443c", "#8a8a8a"


def show_run(console: Console, run: Run) -> None:
    machine = run.machine
    console.print(
        f"{machine.cores} cores ({machine.processor}), {machine.memory_bytes / 2**30:.0f} GiB, Linux {machine.kernel}, "
        f"Python {machine.python}; load average before: {machine.load_average:.2f}",
        highlight=False,
    )
    if machine.load_average > BUSY_SHARE * machine.cores:
        console.print("[yellow]Others are using this machine: no figure below says what it can do.[/yellow]")
    settings = " ".join(f"{name}={value}" for name, value in run.settings.items())
    console.print(f"Single calls come from {run.generator}.", highlight=False)
    console.print(f"Set for every node, so that no rate answers 429: {settings}", highlight=False)


def show(console: Console, results: Results) -> None:
    """One subject: its tables, its goals, how it was measured, and what went wrong."""
    console.rule(f"{results.subject} ({results.seconds:.0f} s)")
    for table in results.tables:
        if table.rows:
            console.print(_grid(table))
    if results.yardsticks:
        measured = "; ".join(
            f"echo {yard.echo_per_s:,.0f}/s (load {yard.echo_load_cores:.2f} cores), "
            f"fdatasync {yard.fdatasync_per_s:,.0f}/s"
            for yard in results.yardsticks
        )
        console.print(f"In the same minutes: {measured}", highlight=False)
    for note in results.notes:
        console.print(f"[dim]{escape(note)}[/dim]", highlight=False)
    if results.verdicts:
        console.print(_goals(results.verdicts))
    for line in results.trouble[:TROUBLE_LINES_MAX]:
        console.print(f"[red]{escape(line)}[/red]", highlight=False)
    if len(results.trouble) > TROUBLE_LINES_MAX:
        console.print(f"[red]and {len(results.trouble) - TROUBLE_LINES_MAX} more lines, see the JSON[/red]")


def shown(cell: Cell) -> str:
    """A number with the digits that mean something."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    return f"{cell:.3g}" if abs(cell) < 1 else f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.2f}"


def _grid(table: Table) -> Grid:
    grid = Grid(title=table.title, title_justify="left")
    for at, name in enumerate(table.columns):
        is_text = any(isinstance(row[at], str) for row in table.rows)
        grid.add_column(name, justify="left" if is_text else "right")
    for row in table.rows:
        grid.add_row(*map(shown, row))
    return grid


def _goals(verdicts: list[Verdict]) -> Grid:
    grid = Grid(title="Goals", title_justify="left")
    for name in ("what", "measured", "goal", "aim", "unit", ""):
        grid.add_column(name, justify="left" if name in ("what", "unit", "") else "right")
    for verdict in verdicts:
        goal = verdict.goal
        bound = f"{'≤' if goal.most else '≥'} {shown(goal.bound)}"
        verdict_text = "[green]met[/green]" if verdict.met else "[red]missed[/red]"
        grid.add_row(goal.what, shown(verdict.value), bound, shown(goal.aim), goal.unit, verdict_text)
    return grid


def draw(run: Run, path: Path) -> bool:
    """Draws how far each goal was reached, and the fires' lateness, to a PNG; False when there is nothing to draw."""
    verdicts = [verdict for results in run.results for verdict in results.verdicts]
    fires = next((results.tables[0] for results in run.results if results.subject == "fire_latency"), None)
    rates = [table for results in run.results for table in results.tables if "items/s" in table.columns and table.rows]
    panels = [bool(verdicts), bool(fires and fires.rows), bool(rates)]
    if not any(panels):
        return False
    mpl.use("Agg")
    size = (7.5 * sum(panels), 6.5)
    figure, axes = pyplot.subplots(1, sum(panels), figsize=size, squeeze=False, layout="constrained")
    free = iter(axes[0])
    if verdicts:
        _draw_goals(next(free), verdicts)
    if fires and fires.rows:
        _draw_fires(next(free), fires)
    if rates:
        _draw_rates(next(free), rates)
    kind = " (quick)" if run.quick else ""
    figure.suptitle(f"{run.started}{kind}: {run.machine.cores} cores, {run.machine.processor}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _draw_goals(axes: Axes, verdicts: list[Verdict]) -> None:
    low, high = MARGIN_SHOWN
    margins = [min(max(verdict.margin, low), high) for verdict in verdicts]
    colors = [GOOD if verdict.met else BAD for verdict in verdicts]
    axes.barh(range(len(verdicts)), [margin - low for margin in margins], left=low, color=colors)
    labels = [f"{verdict.goal.what}\n{shown(verdict.value)} {verdict.goal.unit}" for verdict in verdicts]
    axes.set_yticks(range(len(verdicts)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["0.1", "0.2", "0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.axvline(1, color=AIM, linewidth=1)
    axes.set_title("times better than the goal asks (1 = just met)")


def _draw_fires(axes: Axes, fires: Table) -> None:
    at = {name: fires.columns.index(name) for name in fires.columns}
    labels = [f"{row[at['tick ms']]} ms, {row[at['pending']]:,}, {row[at['fires/s']]:,}/s" for row in fires.rows]
    for name, marker in (("p50 ms", "o"), ("p99 ms", "s"), ("max ms", "x")):
        values = [_number(row[at[name]]) for row in fires.rows]
        axes.plot(values, range(len(labels)), marker, label=name.removesuffix(" ms"))
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    axes.set_title("fires: readable − deliverAt in ms (tick, pending, rate)")


def _draw_rates(axes: Axes, tables: list[Table]) -> None:
    rates: dict[str, list[float]] = {}
    for table in tables:
        what_at = table.columns.index("what") if "what" in table.columns else 0
        rate_at = table.columns.index("items/s")
        for row in table.rows:
            rates.setdefault(str(row[what_at]), []).append(_number(row[rate_at]))
    for place, (_, values) in enumerate(rates.items()):
        axes.plot(values, [place] * len(values), "o", color=GOOD)
    axes.set_yticks(range(len(rates)), list(rates), fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.set_title("timers or messages a second, a dot a round")


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else math.nan
