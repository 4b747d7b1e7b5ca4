"""Renders bubble ratios as a LaTeX table for a paper, with the methods sentence as a comment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bubbleviz.count.ratios import list_ratios
from bubbleviz.model.texts import capitalize, format_count, format_percent_bounds
from bubbleviz.render.latex import (
    PREAMBLE_COMMENT,
    LatexTable,
    escape_latex,
    format_cell,
    format_half_width,
    join_lines,
    list_figure_comments,
    list_table_lines,
    truncate_latex,
)
from bubbleviz.render.picture.picture import draw_picture
from bubbleviz.render.selection import select
from bubbleviz.report.measure import is_idle_elsewhere
from bubbleviz.report.methods import format_definition, write_methods
from bubbleviz.report.published_paths import make_paths_relative
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Maximum number of listed profiles.
_MAX_PROFILES = 16


def render(report: Report, view: View) -> str:
    """Return the LaTeX table of the bubble ratios over the averaged iterations.

    The view only affects the figure caption, which is a comment above the table.
    """
    report = make_paths_relative(report)
    # Idle time is called "bubble" only if the run has a pipeline.
    where = "between operations" if is_idle_elsewhere(report) else "in iterations"
    measure = "Bubble ratios" if report.no_pipeline is None else f"Idle time {where}"
    table = _make_table(report, measure)
    return join_lines((*_list_comments(report, view, measure), *list_table_lines(table)))


def _list_comments(report: Report, view: View, measure: str) -> Iterator[str]:
    """Yield the LaTeX comment lines above the table.

    The comments list the profiles, the methods sentence, a figure environment to copy, and the
    limitations of the measurement. The figure environment is left out if the view selects nothing.

    Args:
        report: The report.
        view: The iterations and ranks of the figure.
        measure: Name of the measured quantity.
    """
    yield f"% {measure} by bubbleviz {escape_latex(report.version)}."
    yield PREAMBLE_COMMENT
    for profile in report.profiles[:_MAX_PROFILES]:
        yield f"% Profile: {truncate_latex(Path(profile.path).name)}"
    if len(report.profiles) > _MAX_PROFILES:
        yield f"% and {format_count(len(report.profiles) - _MAX_PROFILES, 'more profile')}"
    yield "% Methods, ready to paste:"
    yield f"%   {escape_latex(report.derive(write_methods))}"
    if select(report, view) is not None:
        yield from list_figure_comments(
            view, "bubbles.pdf", lambda drawn: draw_picture(report, drawn)
        )
    if report.limitations:
        yield "% Limitations:"
    for limitation in report.limitations:
        yield f"%   {truncate_latex(limitation.what)}: {truncate_latex(limitation.reason)}"


def _make_table(report: Report, measure: str) -> LatexTable:
    """Return the LaTeX table, with one row per bubble ratio and a note below.

    The primary ratio is the first row.

    Args:
        report: The report.
        measure: Name of the measured quantity, for the caption.
    """
    names = [s.name for s in list_ratios()]
    ordered = sorted(names, key=lambda name: name != report.headline)
    over = format_count(report.summary.iterations, report.iteration_noun)
    ranks = format_count(len(report.ranks), "rank")
    return LatexTable(
        caption=rf"{measure} in \% over {over} on {ranks}.",
        label="bubble-ratios",
        columns="lrrrrrr",
        header=("Ratio", "Mean", "SD", r"95\,\% CI", "$n$", "ms", "B/C"),
        rows=[_list_cells(report, name) for name in ordered],
        note=_make_note(report, ordered),
    )


def _list_cells(report: Report, name: str) -> tuple[str, ...]:
    """Return the LaTeX cells for a bubble ratio, in column order.

    The primary ratio's name is in bold. The mean is marked with ``!`` if the ratio depends on
    clocks that contradict each other. Unknown values are ``--``.
    """
    summary = report.summary
    ratio = summary.bubble_ratio[name]
    mark = r"\,!" if report.contradicted(name) else ""
    return (
        rf"\textbf{{{escape_latex(name)}}}" if name == report.headline else escape_latex(name),
        format_cell(ratio.mean, 100) + mark,
        format_cell(ratio.std, 100),
        format_half_width(ratio.ci95, 100),
        str(ratio.n),
        format_cell(summary.window_ns[name].mean, 1e-6),
        format_cell(summary.bubble_overhead[name].mean, 100),
    )


def _format_formula(definition: str) -> str:
    """Return a ratio's definition in LaTeX, with proper minus and multiplication signs."""
    text = escape_latex(format_definition(definition))
    return text.replace(" - ", " $-$ ").replace(" x ", r" $\times$ ")


def _make_note(report: Report, ordered: list[str]) -> str:
    """Return the note below the table, which defines the rows and columns.

    The note also contains the report's restrictions, and the primary ratio's clock bounds if they
    are known and differ. If any ratio is marked with ``!``, the note explains the mark.

    Args:
        report: The report.
        ordered: Names of the ratios, in row order.
    """
    definitions = {ratio.name: ratio.definition for ratio in list_ratios()}
    primary = {report.headline: " (primary)"}
    formulas = {name: _format_formula(definition) for name, definition in definitions.items()}
    meanings = "; ".join(
        rf"\emph{{{escape_latex(name)}}}{primary.get(name, '')} is {formulas[name]}"
        for name in ordered
    )
    note = (
        rf"{meanings}. SD: standard deviation. CI: confidence interval of the mean "
        r"(Student's $t$, half width). ms: mean length of the window. B/C: bubble / compute."
    )
    for restriction in report.restrictions:
        note += f" {escape_latex(capitalize(restriction.text))}."
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        low, high = format_percent_bounds(interval, 2, 4)
        note += rf" Clock bounds of \emph{{{escape_latex(report.headline)}}}: {low} to {high}\,\%."
    if any(report.contradicted(name) for name in report.summary.bubble_ratio):
        note += " A ratio marked ! depends on clocks that contradict each other."
    return note
