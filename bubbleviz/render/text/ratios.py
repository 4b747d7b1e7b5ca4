"""Bubble ratios over the averaged iterations, a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.text.cells import between, in_percent, milliseconds, titled
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.report.report import Report

#: Columns that go first where a terminal is narrow.
_GIVING_WAY = (
    *("window\nSD ms", "bubble /\ncompute", "min", "max", "n", "window", "lower\nbound"),
    *("SD", "window\nms", "clock\nbounds"),
)


def ratios(report: Report) -> Iterator[RenderableType]:
    """Yield the table of bubble ratios."""
    rows = ratio_cells(report)
    table = Table(*rows[0], left=("ratio", "window"), wrap=("window",), giving_way=_GIVING_WAY)
    for row in rows:
        table.add_row(*row.values())
    yield from titled("Bubble ratios over the averaged iterations, in %", table)


def ratio_cells(report: Report) -> list[dict[str, str]]:
    """Return a row of cells by column for each ratio, without columns that are empty."""
    from bubbleviz.count.ratios import ratio_definitions

    summary = report.summary
    rows = []
    for definition in ratio_definitions():
        ratio, low = summary.bubble_ratio[definition.name], summary.bubble_low[definition.name]
        window = summary.window_ns[definition.name]
        mark = " !" if report.contradicted(definition.name) else ""
        rows.append(
            {
                "ratio": definition.name,
                "mean": in_percent(ratio.mean) + mark,
                "lower\nbound": in_percent(low.mean) if low.mean != ratio.mean else "",
                "clock\nbounds": between(summary.bubble_interval[definition.name])
                if definition.common_clock
                else "not needed",
                "SD": in_percent(ratio.std),
                "min": in_percent(ratio.min),
                "max": in_percent(ratio.max),
                "n": str(ratio.n),
                "bubble /\ncompute": in_percent(summary.bubble_overhead[definition.name].mean),
                "window\nms": milliseconds(window.mean),
                "window\nSD ms": milliseconds(window.std),
                "window": definition.summary,
            }
        )
    nothing = {"lower\nbound": ("",), "clock\nbounds": ("", "not needed")}
    columns = [c for c in rows[0] if any(row[c] not in nothing.get(c, ()) for row in rows)]
    return [{column: row[column] for column in columns} for row in rows]
