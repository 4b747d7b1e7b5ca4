"""Spread: below a row that is the median of its copies, how many of all copies are at work.

The height of the area is the share of copies that compute, in each narrow part of the time::

    F0 ██████   F1 ██████      the median copy
       ▟████▙      ▟████▙      all copies: steep where they are together, flat where they are not
"""

from __future__ import annotations

import drawsvg
import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Width of a part of the time, units of the page.
_PART = 1.5


def draw_spread(page: Page, report: Report, selection: Selection, layout: Layout) -> bool:
    """Draw the areas below the rows of a selection, and return whether there is any."""
    rows = [row for row, own in enumerate(selection.rows) if own.spread]
    if not rows or not layout.strip:
        return False
    shares = _Shares(report, selection, max(1, int(layout.width / _PART)))
    for row in rows:
        bottom = layout.tops[row] + layout.row + 1 + layout.strip
        path = _area(shares.of(selection.rows[row].replicas), layout, bottom)
        page.elements.append(drawsvg.Path(path, fill=LIGHT.quiet, class_="bv-quiet"))
    return True


class _Shares:
    """Shares of ranks at work, of the time that a selection spans."""

    def __init__(self, report: Report, selection: Selection, parts: int) -> None:
        operations, busy = report.operations, report.busy
        start_ns, end_ns = selection.start_ns, selection.end_ns
        shown = np.isin(operations.phase, COMPUTE)[busy.operation]
        shown &= (busy.end_ns > start_ns) & (busy.start_ns < end_ns)
        self._rank: Ints = operations.rank[busy.operation[shown]]
        self._start_ns, self._end_ns = busy.start_ns[shown], busy.end_ns[shown]
        self._edges_ns = np.linspace(start_ns, end_ns, parts + 1)
        self._ranks = len(report.ranks)

    def of(self, ranks: tuple[int, ...]) -> Floats:
        """Return the share of some ranks at work in each part of the time."""
        among: Bools = np.zeros(self._ranks, bool)
        among[list(ranks)] = True
        own = among[self._rank]
        worked_ns = _until(self._edges_ns, self._start_ns[own]) - _until(
            self._edges_ns, self._end_ns[own]
        )
        return np.asarray(np.diff(worked_ns) / np.diff(self._edges_ns) / len(ranks), np.float64)


def _until(edges_ns: Floats, times_ns: Ints) -> Floats:
    """Return, for each edge, the sum of how long before it each of some times lies."""
    times = np.sort(times_ns)
    sums = np.concatenate((np.zeros(1), np.cumsum(times, dtype=np.float64)))
    before = np.searchsorted(times, edges_ns)
    return np.asarray(before * edges_ns - sums[before], np.float64)


def _area(shares: Floats, layout: Layout, bottom: float) -> str:
    """Return the path of an area over a line, its height to a tenth of a unit."""
    heights = np.round(np.clip(shares, 0, 1) * layout.strip, 1).tolist()
    width = layout.width / len(heights)
    path = [f"M{px(layout.left)} {px(bottom)}"]
    last = 0.0
    for part, height in enumerate(heights):
        if height != last:
            path.append(f"H{px(layout.left + part * width)}V{px(bottom - height)}")
        last = height
    return f"{''.join(path)}H{px(layout.right)}V{px(bottom)}z"
