"""Tables of bubble ratios: one for the averaged iterations, and one for all other iterations."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.count.ratios import RatioDefinition, list_ratios
from bubbleviz.model.texts import format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.report.report import Report

#: Columns dropped first on a narrow terminal, least important first.
_DROP_ORDER = (
    *("window\nSD ms", "bubble /\ncompute", "min", "max", "n", "window", "lower\nbound"),
    *("SD", "window\nms", "clock\nbounds"),
)


def make_ratio_table(report: Report) -> doc.Table:
    """Return the table of bubble ratios over the averaged iterations, with one row per ratio.

    The lower-bound column is left out if every ratio's lower bound equals its mean. The clock-bound
    column is left out if no ratio has clock bounds.
    """
    rows = [_make_ratio_row(report, definition) for definition in list_ratios()]
    empty = {"lower\nbound": ("",), "clock\nbounds": ("", "not needed")}
    columns = [c for c in rows[0] if any(row[c] not in empty.get(c, ()) for row in rows)]
    return doc.Table(
        "Bubble ratios over the averaged iterations, in %",
        [{column: row[column] for column in columns} for row in rows],
        left=("ratio", "window"),
        wrap=("window",),
        drop_order=_DROP_ORDER,
    )


def _make_ratio_row(report: Report, definition: RatioDefinition) -> dict[str, str]:
    """Return the table cells for a bubble ratio: its statistics over the averaged iterations.

    Ratios are in percent, and windows in ms. The mean is marked with ``!`` if the ratio depends on
    clocks that contradict each other.

    Returns:
        The text of each cell, keyed by column header.
    """
    name, summary = definition.name, report.summary
    ratio, low = summary.bubble_ratio[name], summary.bubble_low[name]
    window = summary.window_ns[name]
    clock_bounds = "not needed"
    if definition.common_clock:
        clock_bounds = doc.format_interval(summary.bubble_interval[name])
    mark = " !" if report.contradicted(name) else ""
    return {
        "ratio": name,
        "mean": doc.format_percent_cell(ratio.mean) + mark,
        "lower\nbound": doc.format_percent_cell(low.mean) if low.mean != ratio.mean else "",
        "clock\nbounds": clock_bounds,
        "SD": doc.format_percent_cell(ratio.std),
        "min": doc.format_percent_cell(ratio.min),
        "max": doc.format_percent_cell(ratio.max),
        "n": str(ratio.n),
        "bubble /\ncompute": doc.format_percent_cell(summary.bubble_overhead[name].mean),
        "window\nms": doc.format_ms(window.mean),
        "window\nSD ms": doc.format_ms(window.std),
        "window": definition.summary,
    }


#: Maximum number of iterations in the table of non-averaged iterations.
_MAX_ITERATIONS = 12


def list_not_averaged(report: Report) -> Iterator[doc.Block]:
    """Yield a table of the first ``_MAX_ITERATIONS`` iterations that are not averaged.

    Yields nothing if all iterations are averaged.
    """
    skipped = [i for i in report.iterations if not i.averaged]
    if not skipped:
        return
    rows = [
        {
            "iteration": to_one_line(iteration.name, 60),
            "kind": iteration.kind,
            "complete": "yes" if iteration.complete else "no",
            "microbatches": doc.format_index(iteration.microbatches),
            report.headline: format_percent(iteration.ratios[report.headline].value),
        }
        for iteration in skipped
    ]
    yield doc.Table(
        "Iterations not averaged",
        doc.truncate_rows(rows, "iteration", max_rows=_MAX_ITERATIONS, joint=""),
        left=("iteration", "kind", "complete"),
    )
