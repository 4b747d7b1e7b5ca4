"""Clock uncertainty: a note beside the first row of each clock, and error bars on the rows."""

from __future__ import annotations

import drawsvg

from bubbleviz.model.operations import Rank
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page, at_most, px
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: An error bar is drawn if it reaches so many px to each side.
_SMALLEST_ERROR_BAR = 1.5


@frozen
class RowClocks:
    """The clocks of the drawn ranks.

    Attributes:
        several: whether the rows are on more than one clock.
        notes: by row, the uncertainty to print; empty where there is one clock.
        first: by row, whether its clock differs from that of the row above.
    """

    several: bool
    notes: tuple[str, ...]
    first: tuple[bool, ...]


def row_clocks(report: Report, selection: Selection, *, shown: bool = True) -> RowClocks:
    """Return the clocks of the drawn ranks; of one clock where they are not ``shown``."""
    ranks = selection.ranks
    clocks = [report.clock(rank.profile) for rank in ranks]
    several = shown and len(set(clocks)) > 1
    return RowClocks(
        several,
        tuple(_note(report, rank) if several else "" for rank in ranks),
        tuple(row == 0 or clocks[row - 1] != clocks[row] for row in range(len(ranks))),
    )


def _note(report: Report, rank: Rank) -> str:
    uncertainty_ns = report.clock_uncertainty_ns(rank)
    if not uncertainty_ns:
        return "± ?" if uncertainty_ns is None else "± 0"
    return f"± {at_most(uncertainty_ns)}"


def draw_error_bars(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the clock uncertainty of each row around its first start, where it is visible."""
    first_ns = {entry.rank: entry.first_ns for entry in selection.iterations[0].ranks}
    notes = row_clocks(report, selection).notes
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
    if path:
        look = {"stroke": LIGHT.text, "stroke_width": 1, "class_": "bv-mark"}
        page.elements.append(drawsvg.Path(path, fill="none", **look))
