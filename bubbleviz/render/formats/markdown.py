"""Markdown: the ratios and causes of a report as tables, for a pull request or a wiki."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the headline, the ratios and the causes of a report, whatever the view."""
    del view
    from bubbleviz.render.markdown import table, text
    from bubbleviz.render.text.headline import headline_lines
    from bubbleviz.render.text.report import cause_cells, causes_title
    from bubbleviz.render.text.sections import ratio_cells
    from bubbleviz.report.advice import first_thing

    value, bounds, run, why = headline_lines(report)
    ratios, causes, first = ratio_cells(report), cause_cells(report), first_thing(report)
    blank = " " if bounds.startswith(" ") else ""
    parts = [f"**{text(value)}**{blank}{text(bounds)}\n", f"{text(run)}; {text(why)}\n"]
    if first is not None:
        parts.append(f"What to do first: {text(first)}\n")
    for title, cells in (("Bubble ratios, in %", ratios), (causes_title(report), causes)):
        if cells:
            rows = [[text(cell) for cell in row.values()] for row in cells]
            parts += [f"{title}\n", table([text(column) for column in cells[0]], rows)]
    return "\n".join(parts)


RENDERER = Renderer(
    name="markdown",
    summary="ratios and causes as Markdown, for a wiki",
    suffixes=(".md", ".markdown"),
    render=render,
    order=4,
)
