"""Shows clock uncertainties: as notes in the row labels, and as error bars."""

from __future__ import annotations

from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.drawing import px
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.numbers import duration
from bubbleviz.render.picture.page import Page
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Minimum length of an error bar on each side, in page units. Bars shorter than this are not drawn.
_SMALLEST_ERROR_BAR = 1.5


def list_clock_notes(report: Report, selection: Selection, width: float) -> list[str]:
    """Return a note about the clock uncertainty of each row, such as "clock ± 12 µs".

    All notes are "" if all rows have the same clock, or if all uncertainties are known and too
    small to be visible.

    Args:
        report: The report.
        selection: The rows that are drawn.
        width: Width of the page, in page units.
    """
    clocks = {report.clock(rank.profile) for rank in selection.ranks}
    uncertainties_ns = [report.clock_uncertainty_ns(rank) for rank in selection.ranks]
    min_visible_ns = _SMALLEST_ERROR_BAR / width * selection.span_ns
    is_visible = any(ns is None or ns >= min_visible_ns for ns in uncertainties_ns)
    if len(clocks) <= 1 or not is_visible:
        return [""] * len(selection.ranks)
    return [_format_clock_note(ns) for ns in uncertainties_ns]


def _format_clock_note(uncertainty_ns: float | None) -> str:
    if uncertainty_ns is None:
        return "clock ± ?"
    return f"clock ± {duration(uncertainty_ns)}" if uncertainty_ns else "clock ± 0"


def draw_error_bars(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the clock uncertainty of each row as a horizontal error bar.

    The bar is centered on the time at which the rank starts its work in the first drawn iteration.
    A bar is omitted if the uncertainty is unknown, or if the bar would be shorter than
    ``_SMALLEST_ERROR_BAR`` on each side. There are no bars if all rows have the same clock.
    """
    first_ns = {entry.rank: entry.first_ns for entry in selection.iterations[0].ranks}
    notes = list_clock_notes(report, selection, page.style.width)
    path = ""
    for rank, note, top in zip(selection.ranks, notes, layout.tops, strict=True):
        if not note or rank.index not in first_ns:
            continue
        reach = layout.width * (report.clock_uncertainty_ns(rank) or 0) / layout.span_ns
        if reach >= _SMALLEST_ERROR_BAR:
            path += _make_error_bar(layout, layout.x(first_ns[rank.index]), reach, top)
    page.path(path, fill="none", stroke=LIGHT.text, stroke_width=1, class_="bv-mark")


def _make_error_bar(layout: Layout, middle: float, reach: float, top: float) -> str:
    """Return the SVG path of a horizontal error bar with a tick at each end.

    The bar is at the bottom of its row, and is clipped to the plot.

    Args:
        layout: Layout of the rows.
        middle: The x coordinate of the bar's middle.
        reach: Distance from the middle to each end.
        top: Upper edge of the row.
    """
    left, right = max(middle - reach, layout.left), min(middle + reach, layout.right)
    tick = layout.row / 10
    y = top + layout.row - tick - 1
    upper, lower = px(y - tick), px(y + tick)
    caps = "".join(f"M{px(x)} {upper}V{lower}" for x in (left, right))
    return f"M{px(left)} {px(y)}H{px(right)}{caps}"
