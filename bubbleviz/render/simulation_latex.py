"""Renders simulated schedules as a LaTeX table for a paper, with the figure as a comment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bubbleviz.model.restrictions import Restriction
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
from bubbleviz.schedules.choices import Choice


def render(
    choices: Sequence[Choice],
    restrictions: Iterable[Restriction],
    figure_comments: Iterable[str],
    left_out: str = "",
) -> str:
    """Return a LaTeX table with one row per schedule and size, in the given order.

    If a schedule cannot be simulated, its numbers are dashes, and a comment gives the reason.

    Args:
        choices: The predictions. Must not be empty.
        restrictions: Reasons why the measured times behind the predictions may be wrong.
        figure_comments: Comment lines that contain the figure, or nothing if there is no figure.
        left_out: Sentence that names the slow iterations that the measured times leave out, or "".
    """
    lines = (
        *_list_comments(choices),
        *figure_comments,
        *list_table_lines(_make_table(choices, restrictions, left_out)),
    )
    return join_lines(lines)


def _list_comments(choices: Sequence[Choice]) -> Iterator[str]:
    """Yield comment lines that name the package to load and the schedules without numbers."""
    yield PREAMBLE_COMMENT
    for choice in choices:
        if choice.reason:
            yield f"% {truncate_latex(choice.schedule)}: {truncate_latex(choice.reason)}"


def _make_table(
    choices: Sequence[Choice], restrictions: Iterable[Restriction], left_out: str
) -> LatexTable:
    """Return the table. The column with intervals is left out if no prediction has an interval."""
    has_errors = any(choice.error_ns is not None for choice in choices)
    header = ["Schedule", "$p$", "$m$", "$v$", "ms", r"Bubble \%", "Act."]
    is_simulated = any(choice.makespan_ns is not None for choice in choices)
    time = "time from the first start to the last end of an iteration"
    if not is_simulated:
        time = "longest time from the first start to the last end on a stage"
    note = (
        f"$p$: stages. $m$: microbatches. $v$: model chunks per stage. ms: {time}. Bubble: idle "
        "share of this time. Act.: maximum number of microbatches whose activations a stage stores "
        "at once."
    )
    if has_errors:
        header.insert(5, r"95\,\% CI")
        note += " CI: interval of the predicted time, half width."
    for restriction in restrictions:
        note += f" Measured times: {escape_latex(capitalize(restriction.text))}."
    if left_out:
        note += f" {escape_latex(left_out)}."
    return LatexTable(
        caption="Simulated pipeline schedules.",
        label="simulation",
        columns="l" + "r" * (len(header) - 1),
        header=header,
        rows=[_list_cells(choice, has_errors=has_errors) for choice in choices],
        note=note,
    )


def _list_cells(choice: Choice, *, has_errors: bool) -> list[str]:
    """Return the LaTeX cells of a prediction.

    Args:
        choice: The prediction.
        has_errors: Whether the table has a column with intervals.
    """
    peak = choice.peak_activations
    cells = [escape_latex(choice.schedule), str(choice.stages), str(choice.microbatches)]
    time_ns = choice.cost_ns if choice.makespan_ns is None else choice.makespan_ns
    cells += [str(choice.chunks), format_cell(time_ns, 1e-6)]
    cells += [format_half_width(choice.error_ns, 1e-6)] if has_errors else []
    return [*cells, format_cell(choice.bubble_ratio, 100), "--" if peak is None else f"{peak:g}"]
