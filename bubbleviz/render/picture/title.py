"""The title: the headline bubble ratio, what it is of, and why it is the headline."""

from __future__ import annotations

from bubbleviz.count.summary import Spread
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.picture.lettering import fitted, text_width
from bubbleviz.render.picture.page import UNKNOWN, Page, percent
from bubbleviz.render.picture.ratios import iteration_ratio
from bubbleviz.render.selection import Selection
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
        bounds = _bounds(spread)
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


def _bounds(spread: Spread) -> str:
    """Return what stands behind a mean: its two values, its confidence interval, or nothing."""
    if spread.pair is not None:
        return " ({} and {})".format(*map(percent, spread.pair))
    return "" if spread.ci95 is None else f" ± {percent(spread.ci95)} (95 % CI)"


def draw_title(page: Page, report: Report, selection: Selection) -> None:
    """Draw the title below the page's cursor."""
    head, rest = headings(report, selection)
    letters = page.style.letters
    page.heading(head)
    x = page.left + text_width(head, letters.heading, bold=True) + 14
    if not page.style.millimetres or x + text_width(rest, letters.beside) <= page.right:
        shown = fitted(rest, letters.beside, page.right - x)
        page.text(shown, x, page.y, letters.beside, ink="quiet")
        page.y += 4
    elif rest:
        page.y += 4
        page.paragraph(rest, letters.beside, lines=3)
    if reason := one_line(report.headline_reason, 300):
        page.paragraph(reason, letters.axis)
    page.y += 4
