"""Marks for the clock uncertainty: a note beside the first row of each clock, and error bars."""

from __future__ import annotations

from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import (
    Page,
    duration,
    px,
)
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

#: Minimum length of an error bar to each side, in page units.
_SMALLEST_ERROR_BAR = 1.5


def clock_notes(report: Report, selection: Selection) -> list[str]:
    """Return the uncertainty of the clock of each row, or empty texts if all rows share a clock."""
    notes = []
    for rank in selection.ranks:
        uncertainty_ns = report.clock_uncertainty_ns(rank)
        known = f"clock ± {duration(uncertainty_ns)}" if uncertainty_ns else "clock ± 0"
        notes.append("clock ± ?" if uncertainty_ns is None else known)
    several = len({report.clock(rank.profile) for rank in selection.ranks}) > 1
    return notes if several else [""] * len(notes)


def draw_error_bars(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the clock uncertainty of each row around its first start, if it is visible."""
    first_ns = {entry.rank: entry.first_ns for entry in selection.iterations[0].ranks}
    notes = clock_notes(report, selection)
    path = ""
    for rank, note, top in zip(selection.ranks, notes, layout.tops, strict=True):
        if not note or rank.index not in first_ns:
            continue
        reach = layout.width * (report.clock_uncertainty_ns(rank) or 0) / layout.span_ns
        if reach < _SMALLEST_ERROR_BAR:
            continue
        middle = layout.x(first_ns[rank.index])
        left, right = max(middle - reach, layout.left), min(middle + reach, layout.right)
        tick = layout.row / 10
        y = top + layout.row - tick - 1
        path += f"M{px(left)} {px(y)}H{px(right)}"
        path += "".join(f"M{px(x)} {px(y - tick)}V{px(y + tick)}" for x in (left, right))
    page.path(path, fill="none", stroke=LIGHT.text, stroke_width=1, class_="bv-mark")
