"""Tables of bubble ratios: over averaged iterations, and of each iteration not averaged."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.count.ratios import RatioDefinition, list_ratios
from bubbleviz.model.texts import format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.report.report import Report

#: Columns that are left out first if a terminal is narrow.
_GIVING_WAY = (
    *("window\nSD ms", "bubble /\ncompute", "min", "max", "n", "window", "lower\nbound"),
    *("SD", "window\nms", "clock\nbounds"),
)


def ratios(report: Report) -> doc.Table:
    """Return the table of bubble ratios, without columns that are empty."""
    rows = [_make_ratio_row(report, definition) for definition in list_ratios()]
    empty = {"lower\nbound": ("",), "clock\nbounds": ("", "not needed")}
    columns = [c for c in rows[0] if any(row[c] not in empty.get(c, ()) for row in rows)]
    return doc.Table(
        "Bubble ratios over the averaged iterations, in %",
        [{column: row[column] for column in columns} for row in rows],
        left=("ratio", "window"),
        wrap=("window",),
        giving_way=_GIVING_WAY,
    )


def _make_ratio_row(report: Report, definition: RatioDefinition) -> dict[str, str]:
    """Return a ratio over the averaged iterations, keyed by column."""
    name, summary = definition.name, report.summary
    ratio, low = summary.bubble_ratio[name], summary.bubble_low[name]
    window = summary.window_ns[name]
    clock_bounds = "not needed"
    if definition.common_clock:
        clock_bounds = doc.between(summary.bubble_interval[name])
    mark = " !" if report.contradicted(name) else ""
    return {
        "ratio": name,
        "mean": doc.in_percent(ratio.mean) + mark,
        "lower\nbound": doc.in_percent(low.mean) if low.mean != ratio.mean else "",
        "clock\nbounds": clock_bounds,
        "SD": doc.in_percent(ratio.std),
        "min": doc.in_percent(ratio.min),
        "max": doc.in_percent(ratio.max),
        "n": str(ratio.n),
        "bubble /\ncompute": doc.in_percent(summary.bubble_overhead[name].mean),
        "window\nms": doc.milliseconds(window.mean),
        "window\nSD ms": doc.milliseconds(window.std),
        "window": definition.summary,
    }


#: Maximum number of iterations that are listed.
_MAX_ITERATIONS = 12


def not_averaged(report: Report) -> Iterator[doc.Block]:
    """Yield the iterations that are not averaged, if any."""
    others = [i for i in report.iterations if not i.averaged]
    if not others:
        return
    rows = [
        {
            "iteration": to_one_line(iteration.name, 60),
            "kind": iteration.kind,
            "complete": "yes" if iteration.complete else "no",
            "microbatches": doc.numbered(iteration.microbatches),
            report.headline: format_percent(iteration.ratios[report.headline].value),
        }
        for iteration in others
    ]
    yield doc.Table(
        "Iterations not averaged",
        doc.first_rows(rows, "iteration", most=_MAX_ITERATIONS, joint=""),
        left=("iteration", "kind", "complete"),
    )
