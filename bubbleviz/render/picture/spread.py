"""Spread: below a row that is the median of its copies, how many of all copies are at work.

The height of the area is the share of copies that compute, in each narrow part of the time::

    F0 ██████   F1 ██████      the median copy
       ▟████▙      ▟████▙      all copies: steep where they are together, flat where they are not
"""

from __future__ import annotations

import numpy as np

from bubbleviz.count.count import Spread
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.chunk_costs import iteration_ratio
from bubbleviz.render.picture.lettering import fitted, text_width
from bubbleviz.render.picture.page import UNKNOWN, Page, percent, px
from bubbleviz.render.picture.rows import LANE_GAP
from bubbleviz.render.rows import Selection
from bubbleviz.report.kernel_time import kernel_time_of
from bubbleviz.report.rank_means import measure_of
from bubbleviz.report.report import Report

# Layout: where rows, labels and brackets are on the page, and where times are on the axis.


@frozen
class Layout:
    """Positions on the page, in its units.

    Attributes:
        stage_x: left edge of the column of stages.
        name_x: left edge of the column of rank labels.
        left: left edge of the plot.
        right: right edge of the plot.
        brackets: top of the brackets.
        row: height of a row.
        pitch: height of a row and the gap below it.
        lane: height of the communication lane below it, 0 for none.
        size: font size of the labels beside a row.
        step: one row in so many has labels; the rows between are lower than letters.
        tops: top of every row.
        start_ns: the time at the left edge of the plot.
        span_ns: the time from the left edge to the right edge.
        strip: height of the area below a row of many copies, 0 where there is none.
    """

    stage_x: float
    name_x: float
    left: float
    right: float
    brackets: float
    row: float
    pitch: float
    lane: float
    size: float
    step: int
    tops: tuple[float, ...]
    start_ns: int
    span_ns: int
    strip: float = 0.0

    @property
    def width(self) -> float:
        """Width of the plot."""
        return self.right - self.left

    @property
    def bottom(self) -> float:
        """Lower edge of the last row."""
        below = (self.lane + LANE_GAP if self.lane else 0) + (self.strip + 2 if self.strip else 0)
        return self.tops[-1] + self.row + below

    def x(self, time_ns: int) -> float:
        """Return the x of a time; times outside the plot are at its edges."""
        share = (time_ns - self.start_ns) / self.span_ns
        return self.left + self.width * min(max(share, 0.0), 1.0)


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
        page.path(path, fill=LIGHT.quiet, class_="bv-quiet")
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


# The title: the headline bubble ratio, what it is of, and why it is the headline.


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
