"""Renders a comparison of runs as a LaTeX table for a paper, with the figure as a comment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.texts import capitalize
from bubbleviz.render.latex import (
    PREAMBLE_COMMENT,
    LatexTable,
    escape_latex,
    format_cell,
    format_half_width,
    join_lines,
    list_table_lines,
    truncate_latex,
)
from bubbleviz.report.compared.comparison import Cell, Comparison
from bubbleviz.report.compared.pair import count_microbatches
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.methods import format_definition
from bubbleviz.report.restrictions import read_restrictions

if TYPE_CHECKING:
    from bubbleviz.report.compared.significance import MeanDifference


def render(comparison: Comparison, figure_comments: Iterable[str]) -> str:
    """Return a LaTeX table with one row per run.

    A row contains the run's primary ratio, the length of its iterations, and the change in length
    from the first run.

    Args:
        comparison: The comparison.
        figure_comments: Comment lines that contain the figure, or nothing if there is no figure.
    """
    lines = (
        *_list_comments(comparison),
        *figure_comments,
        *list_table_lines(_make_table(comparison)),
    )
    return join_lines(lines)


def _list_comments(comparison: Comparison) -> Iterator[str]:
    """Yield comment lines that name the package to load, the file of each run, and restrictions."""
    yield PREAMBLE_COMMENT
    for run in comparison.runs:
        yield f"% Run {truncate_latex(run.title)}: measured with bubbleviz {run.saved.version}"
    for note in comparison.notes:
        yield f"% {truncate_latex(note)}"


def _make_table(comparison: Comparison) -> LatexTable:
    """Return the table of a comparison.

    The column with the schedules is left out if no run has a known schedule.
    """
    has_schedules = any(run.schedule_name is not None for run in comparison.runs)
    is_idle = isinstance(comparison.runs[0].saved, IdleSummary)
    rows = []
    for index, run in enumerate(comparison.runs):
        names = [truncate_latex(run.title)]
        if has_schedules:
            names.append(escape_latex(run.schedule_name) if run.schedule_name else "--")
        rows.append((*names, *_list_numbers(comparison, index)))
    names_of_columns = ("Run", "Schedule") if has_schedules else ("Run",)
    ratio = "Idle" if is_idle else "Bubble"
    return LatexTable(
        caption=f"{'Idle time' if is_idle else 'Pipeline bubbles'} of {len(rows)} runs.",
        label="comparison",
        columns="l" * len(names_of_columns) + "rrrrrr",
        header=(
            *names_of_columns,
            rf"{ratio} \%",
            r"95\,\% CI",
            "ms",
            r"95\,\% CI",
            r"$\Delta$ \%",
            "$p$",
        ),
        rows=rows,
        note=_write_note(comparison, ratio),
    )


def _list_numbers(comparison: Comparison, index: int) -> tuple[str, ...]:
    """Return the cells with a run's ratio, its iteration time, and the change from the first run.

    Args:
        comparison: The comparison.
        index: Index of the run.
    """
    ratio = comparison.ratios[comparison.headline][index].ratio
    window = comparison.ratios[comparison.longest][index].ratio
    change = _measure_relative_change(comparison, index)
    difference = _get_time_difference(comparison, index)
    return (
        format_cell(None if ratio is None else ratio.bubble.mean, 100),
        format_half_width(None if ratio is None else ratio.bubble.ci95, 100),
        format_cell(None if window is None else window.window_ns.mean, 1e-6),
        format_half_width(None if window is None else window.window_ns.ci95, 1e-6),
        "--" if change is None else f"${100 * change + 0.0:+.2f}$",
        _format_probability(None if difference is None else difference.p),
    )


def _get_time_difference(comparison: Comparison, index: int) -> MeanDifference | None:
    """Return the difference in iteration time from the first run, or None if it is unknown.

    The difference is per microbatch if the runs process different numbers of microbatches.
    """
    cells: tuple[Cell, ...] = comparison.ratios[comparison.longest]
    return cells[index].equal_work_ns


def _measure_relative_change(comparison: Comparison, index: int) -> float | None:
    """Return a run's change in iteration time as a fraction of the first run's iteration time.

    The change is per microbatch if the runs process different numbers of microbatches. The result
    is None for the first run, or if a time is unknown.
    """
    first, cell = (comparison.ratios[comparison.longest][row] for row in (0, index))
    difference = cell.equal_work_ns
    if difference is None or first.ratio is None or not first.ratio.window_ns.mean:
        return None
    first_ns = first.ratio.window_ns.mean
    if cell.microbatch_ns is not None:
        first_ns /= count_microbatches(comparison.runs[0].saved)
    return difference.mean / first_ns


def _format_probability(p: float | None) -> str:
    """Format a p-value with four decimals, or ``--`` if there was no test."""
    if p is None:
        return "--"
    return r"$<$\,0.0001" if p < 0.0001 else f"{p:.4f}"


def _write_note(comparison: Comparison, ratio_heading: str) -> str:
    """Return the note below the table, which defines the columns and names restrictions.

    Args:
        comparison: The comparison.
        ratio_heading: Heading of the column with the ratio.
    """
    definitions = {ratio.name: ratio.definition for ratio in list_ratios()}
    definition = definitions.get(comparison.headline)
    meaning = f"the ratio {comparison.headline}"
    if definition is not None:
        meaning += f", that is {format_definition(definition)}"
    is_per_microbatch = any(
        cell.microbatch_ns is not None for cell in comparison.ratios[comparison.longest]
    )
    per_microbatch = ", per microbatch" if is_per_microbatch else ""
    note = (
        f"{ratio_heading}: {escape_latex(meaning)}. ms: mean length of the window "
        rf"\emph{{{escape_latex(comparison.longest)}}}. CI: confidence interval of the mean "
        rf"(Student's $t$, half width). $\Delta$: change in length from the first "
        f"run{per_microbatch}. $p$: Welch's $t$-test of this change, over iterations."
    )
    for run in comparison.runs:
        for restriction in read_restrictions(run.saved.restrictions):
            note += f" {truncate_latex(run.title)}: {escape_latex(capitalize(restriction.text))}."
    return note
