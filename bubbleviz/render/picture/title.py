"""The title: the headline bubble ratio, what it is of, and why it is the headline."""

from __future__ import annotations

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.picture.page import (
    HEADING,
    MARGIN,
    UNKNOWN,
    WIDTH,
    Page,
    duration,
    fitted,
    percent,
    text_width,
)
from bubbleviz.render.picture.ratios import iteration_ratio
from bubbleviz.render.picture.selection import Selection
from bubbleviz.report.kernel_time import kernel_time_of
from bubbleviz.report.measure import measure_of
from bubbleviz.report.report import Report


def headings(report: Report, selection: Selection) -> tuple[str, str]:
    """Return the ratio as a heading, and what it is of."""
    drawn = selection.iterations
    measure = f"{one_line(report.headline, 40)} bubble ratio"
    head = f"{measure if report.no_pipeline is None else measure_of(report)} "
    parts = []
    value = percent(None)
    if len(drawn) == 1:
        value = iteration_ratio(report, drawn[0])
        parts.append(f"iteration {one_line(drawn[0].name, 40)}")
    spread = report.summary.bubble_ratio.get(report.headline)
    if spread is not None and spread.mean is not None and spread.n > 0:
        bounds = f" ± {percent(spread.ci95)} (95 % CI)" if spread.ci95 is not None else ""
        over = counted(spread.n, "iteration")
        if value == UNKNOWN:
            value = percent(spread.mean) + bounds
            parts = [f"mean over {over}", *(f"drawn: {part}" for part in parts)]
        elif spread.n > 1:
            parts.append(f"mean {percent(spread.mean)}{bounds} over {over}")
    parts[:0] = [restriction.text for restriction in report.restrictions]
    kernels = kernel_time_of(report).sentence
    if kernels is not None:
        parts.append(kernels)
    head += "unknown" if value == UNKNOWN else value
    return head, " · ".join(parts)


def draw_title(page: Page, report: Report, selection: Selection) -> None:
    """Draw the title below the page's cursor, and name and describe the document."""
    head, rest = headings(report, selection)
    page.title = f"{head}, {rest}" if rest else head
    ranks = len(selection.ranks)
    reason = one_line(report.headline_reason, 300)
    page.description = (
        f"Timeline of {counted(ranks, 'GPU')}, one row each, over "
        f"{duration(selection.span_ns)}. {reason}"
    )
    page.heading(head)
    x = MARGIN + text_width(head, HEADING) * 1.06 + 14
    page.text(fitted(rest, 11.5, WIDTH - MARGIN - x), x, page.y, 11.5, ink="quiet")
    page.y += 4
    if reason:
        page.paragraph(reason, 10)
    page.y += 4
