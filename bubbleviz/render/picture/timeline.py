"""The timeline: the rows of a selection from back to front, with what belongs to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model import intervals
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COUNTED
from bubbleviz.render.marks import NARROWEST, UNATTRIBUTED_KIND, compute_marks, coverage
from bubbleviz.render.palette import CRITICAL, LIGHT
from bubbleviz.render.picture.brackets import brackets_height, draw_brackets
from bubbleviz.render.picture.clock_marks import draw_error_bars
from bubbleviz.render.picture.labels import WIDEST_NAME, draw_labels, labels_of, ratio_title
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page, box, duration, fitted, px, text_width
from bubbleviz.render.picture.plots import draw_cells, draw_names
from bubbleviz.render.picture.rows import RowPainter, bridged
from bubbleviz.render.rows import RankRow, Selection
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

# Cause bands: idle time behind the operations of a picture, coloured by why it is there.


#: Intervals are laid on a grid of so many lines a px: what is finer cannot be seen.
_GRID = 2


def draw_causes(
    page: Page, report: Report, selection: Selection, layout: Layout
) -> tuple[Cause, ...]:
    """Draw the idle time of the drawn iterations and ranks; return the causes in it."""
    bubbles = report.bubbles.take(selection.drawn(report.bubbles.iteration))
    rows = selection.row_of_rank
    row = np.append(rows, -1)[np.minimum(bubbles.rank, len(rows))]
    scale = _GRID * layout.width / selection.span_ns
    start = np.floor((bubbles.start_ns - selection.start_ns) * scale).astype(np.int64)
    end = np.ceil((bubbles.end_ns - selection.start_ns) * scale).astype(np.int64)
    start, end = (np.clip(column, 0, round(layout.width * _GRID)) for column in (start, end))
    drawn = []
    for cause in Cause:
        boxes: list[str] = []
        for number, top in enumerate(layout.tops):
            members = (row == number) & (bubbles.cause == cause)
            lows, highs = intervals.union(start[members], end[members])
            boxes += [
                box(layout.left + low / _GRID, top, layout.left + high / _GRID, top + layout.row)
                for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
            ]
        if boxes:
            drawn.append(cause)
            page.cause_boxes("".join(boxes), cause.label)
    return tuple(drawn)


# The critical line: along the lower edges of the operations that bound an iteration.
#
# From one rank to the next it goes straight: where it slopes, an input was on its way.


_THICKNESS = 2.4


def draw_critical_path(page: Page, report: Report, selection: Selection, layout: Layout) -> bool:
    """Draw it where its iteration and all of its ranks are drawn; return whether it is."""
    path = report.explanation.path
    drawn = {iteration.index for iteration in selection.iterations}
    if path is None or path.iteration not in drawn or len(path.operations) == 0:
        return False
    operations, rows = report.operations, selection.row_of_rank
    row = np.append(rows, -1)[np.minimum(operations.rank[path.operations], len(rows))]
    if (row < 0).any():
        return False
    scale = layout.width / selection.span_ns
    thickness = px(_THICKNESS * page.style.line)
    starts = layout.left + (operations.start_ns[path.operations] - selection.start_ns) * scale
    ends = layout.left + (operations.end_ns[path.operations] - selection.start_ns) * scale
    edges = np.array(layout.tops)[row] + layout.row - thickness / 2
    steps = [
        f"{px(start)} {px(edge)}H{px(end)}"
        for start, end, edge in zip(starts.tolist(), ends.tolist(), edges.tolist(), strict=True)
    ]
    look = {"stroke": CRITICAL, "stroke_width": thickness, "stroke_linejoin": "round"}
    page.path("M" + "L".join(steps), fill="none", **look)
    return True


# The heat map: which stage, and which microbatch on it, took long, in one iteration.
#
# Each phase has a map, as wide as the timeline. A cell is the operation's busy time, the mean over
# the replicas of its stage, against the median of its phase over all stages::
#
#     F   stage 0  ░░░░▓░░░  1.00 x     a dark cell is a straggler, a dark column a slow microbatch,
#         stage 1  ▒▒▒▒▓▒▒▒  1.30 x     a dark row a slow stage: its median is on the right
#                  0   2   4


#: The times of the median at the two ends of the scale.
_FASTEST, _SLOWEST = 0.5, 1.5
#: What the shades mean.
_SCALE = (
    f"Light: {_FASTEST:g} x or less, dark: {_SLOWEST:g} x or more of the median of the phase over "
    "all stages; replicas: their mean"
)
#: Where microbatches would be narrower, several share a cell, which shows the slowest of them.
_NARROWEST_CELL = 2.0
#: Height of the cells of a map together at most, and of a cell at least, units of the page.
_MAP, _LOWEST_CELL = 190.0, 3.0


def draw_heat_maps(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw a map for each phase of the first drawn iteration, and the scale below."""
    operations, iteration = report.operations, selection.iterations[0]
    word = "v-stage" if (operations.chunk > 0).any() else "stage"
    timed = (operations.iteration == iteration.index) & (operations.busy_ns > 0)
    timed &= (operations.microbatch >= 0) & (operations.virtual_stage >= 0)
    rows_of = {phase: np.flatnonzero(timed & (operations.phase == phase)) for phase in COUNTED}
    maps = [(phase, *_times(operations.take(rows))) for phase, rows in rows_of.items() if len(rows)]
    for phase, stages, first, times, median in maps:
        title = f"{phase.label} by microbatch, median {duration(median)}"
        names = [f"{word} {stage}" for stage in stages.tolist()]
        _draw_map(page, layout, title, names, first, times)
    if maps:
        page.paragraph(_SCALE, page.style.letters.axis)


def _times(operations: Operations) -> tuple[Ints, int, Floats, float]:
    """Return the times of operations of one phase.

    These are the virtual stages, ascending; the first microbatch; the times of each (stage,
    microbatch) against the median over all, NaN where there is none; and this median, ns.
    """
    stages, first = distinct(operations.virtual_stage), int(operations.microbatch.min())
    shape = len(stages), int(operations.microbatch.max()) - first + 1
    place = np.searchsorted(stages, operations.virtual_stage) * shape[1]
    place = place + operations.microbatch - first
    size = shape[0] * shape[1]
    # Replicas of a stage: their mean.
    count = np.bincount(place, minlength=size)
    total = np.bincount(place, operations.busy_ns.astype(np.float64), size)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
    median_ns = float(np.nanmedian(mean))
    return stages, first, mean / max(median_ns, 1.0), median_ns


def _draw_map(
    page: Page, layout: Layout, title: str, names: Sequence[str], first: int, times: Floats
) -> None:
    """Draw one map below what is on the page; rows are virtual stages where ranks have several."""
    size = page.style.letters.axis
    stages, count = times.shape
    share = max(1, int(np.ceil(count * _NARROWEST_CELL / layout.width)))
    width = layout.width * share / count
    height = max(_LOWEST_CELL, min(1.2 * size, _MAP / stages))
    baseline = page.y + 1.5 * size
    page.text(fitted(title, size, layout.width), layout.left, baseline, size)
    page.text("stage", page.right, baseline, size, ink="quiet", text_anchor="end")
    page.y += 2 * size
    medians = np.nanmedian(times, axis=1)
    for row in range(0, stages, max(1, int(np.ceil(1.05 * size / height)))):
        baseline = page.y + (row + 0.5) * height + 0.36 * size
        label = fitted(names[row], size, layout.left - page.left - 4)
        page.text(label, page.left, baseline, size)
        page.text(f"{medians[row]:.2f} x", page.right, baseline, size, text_anchor="end")
    # A cell of several microbatches shows the slowest.
    starts = np.arange(0, count, share)
    slowest = np.fmax.reduceat(times, starts, axis=1)
    draw_cells(page, (slowest - _FASTEST) / (_SLOWEST - _FASTEST), layout.left, width, height)
    draw_names(page, [str(first + start) for start in starts.tolist()], layout.left, width, size)


#: The column of ratios is so wide on a screen at least.
_RATIO_COLUMN = 50
#: Most of the height of a row that its communication lane has, and the lowest lane.
_LANE, _LOWEST_LANE = 0.2, 2.5
#: The height of an area below a row, the lowest one, and the width of a part of the time in it.
_STRIP, _LOWEST_STRIP, _PART = 0.4, 5.0, 1.5
#: In place of a pipeline, where a row is of many.
_COPIES = -1


class TimelinePainter:
    """Draws the rows of one selection of a report.

    Args:
        page: the page.
        report: any report.
        view: the lanes and overlays to draw.
        selection: the ranks and iterations to draw.

    Attributes:
        rows: once it is drawn, their operations.
        gaps: likewise whether any gap between the windows of a row is drawn.
        causes: those that idle time is coloured by; empty where it is hatched alone.
        critical: whether the critical path is drawn.
    """

    rows: RowPainter
    gaps: bool
    causes: tuple[Cause, ...]
    critical: bool

    def __init__(self, page: Page, report: Report, view: View, selection: Selection) -> None:
        self.page, self.report, self.view, self.selection = page, report, view, selection

    def layout(self, *, left: float = 0.0, share: float = 1.0, rows: int = 0) -> Layout:
        """Return the layout from the page's cursor down.

        Args:
            left: the plot begins there, or further right where labels need it.
            share: of the available width, that the plot takes.
            rows: as high as for so many rows, or for its own where these are more.
        """
        page, drawn, style = self.page, self.selection.rows, self.page.style
        letters = style.letters
        row, gap = style.row_height(max(len(drawn), rows))
        lane = max(_LOWEST_LANE, round(row * _LANE)) if self.view.communication else 0.0
        size = max(letters.least_label, min(letters.label, row * 0.68))
        pitch = row + gap + (lane + 2 if lane else 0)
        written = labels_of(self.report, self.selection, style)
        stages, names, ratios = written
        stage_width = max(text_width(stage, size) for stage in stages)
        widest = max(text_width(name, style.name_size(size)) for name in names)
        name_width = min(widest, WIDEST_NAME * style.width)
        name_x = page.left + stage_width + (0.8 * size if stage_width and name_width else 0)
        left = max(left, math.ceil(name_x + name_width + 0.6 * size))
        widths = (text_width(ratio, size) for ratio in ratios)
        title = ratio_title(self.report, self.selection)
        right = page.right - 0.6 * size - max(text_width(title, letters.axis), *widths)
        if not style.millimetres:
            right = min(right, page.right - _RATIO_COLUMN)
        top = page.y + brackets_height(self.selection, style) + 5
        tops = []
        strip = max(_LOWEST_STRIP, row * _STRIP) if any(each.spread for each in drawn) else 0.0
        # Rows of many copies share no pipeline with single ranks.
        groups = [_COPIES if each.spread else each.rank.pipeline for each in drawn]
        for above, group, each in zip((groups[0], *groups), groups, drawn, strict=False):
            top += 0 if above == group else max(gap, 5.0)
            tops.append(top)
            top += pitch + (strip + 2 if each.spread else 0)
        return Layout(
            *written,
            ratio_title=title,
            name_x=name_x,
            left=left,
            right=left + (right - left) * share,
            brackets=page.y,
            row=row,
            lane=lane,
            size=size,
            step=max(1, math.ceil(0.95 * size / pitch)),
            tops=tuple(tops),
            start_ns=self.selection.start_ns,
            span_ns=self.selection.span_ns,
            strip=strip,
        )

    def draw(self, layout: Layout) -> None:
        """Draw the rows and what belongs to them; the page's cursor stays."""
        page, report, selection = self.page, self.report, self.selection
        self.rows = RowPainter(page, report, selection, layout.width, layout.row, layout.lane)
        if layout.strip:
            _draw_spread(page, report, selection, layout)
        self.gaps = _draw_bubbles(page, selection, layout)
        self.causes = draw_causes(page, report, selection, layout) if self.view.causes else ()
        draw_labels(page, layout)
        for row, top in enumerate(layout.tops):
            self.rows.draw(row, layout.left, top)
        self.critical = self.view.critical and draw_critical_path(page, report, selection, layout)
        if page.style.notes:
            draw_error_bars(page, report, selection, layout)
        draw_brackets(page, report, selection, layout)


# Bubbles: the counted windows as hatch, behind the operations that cover the rest of it.


def _draw_bubbles(page: Page, selection: Selection, layout: Layout) -> bool:
    """Hatch the counted windows of every row, and shade the gaps between them, if any.

    Windows are joined that are closer than the narrowest operation is wide. Return whether there
    are gaps.
    """
    hatches, gaps = "", ""
    for rank, top in zip(selection.ranks, layout.tops, strict=True):
        index, bottom = rank.index, top + layout.row
        own = sorted(by_rank[index] for by_rank in selection.windows if index in by_rank)
        edges = bridged([(layout.x(start), layout.x(end)) for start, end in own], NARROWEST)
        hatches += "".join(box(left, top, right, bottom) for left, right in edges)
        between = ((left, right) for (_, left), (right, _) in pairwise(edges))
        gaps += "".join(box(left, top, right, bottom) for left, right in between)
    page.path(gaps, fill=LIGHT.gap, class_="bv-gap")
    if hatches:
        page.path(hatches, fill=page.hatch())
    return bool(gaps)


# Spread: below a row that is the median of its copies, how many of all copies are at work.


def _draw_spread(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw areas whose height is the share of copies that compute, in each part of the time.

    ::

        F0 ██████   F1 ██████      the median copy
           ▟████▙      ▟████▙      all copies: steep where they are together, flat where not
    """
    parts = max(1, int(layout.width / _PART))
    width = layout.width / parts
    spread = [
        (row, top) for row, top in zip(selection.rows, layout.tops, strict=True) if row.spread
    ]
    copies = [RankRow(report.ranks[rank], (rank,)) for row, _ in spread for rank in row.replicas]
    every = replace(selection, rows=tuple(copies))
    of_row = np.repeat(np.arange(len(spread)), [len(row.replicas) for row, _ in spread])
    covered = np.zeros((len(spread), parts))
    for marks in compute_marks(report, every, layout.width):
        own = marks.take(marks.kind != UNATTRIBUTED_KIND)
        covered += coverage(replace(own, row=of_row[own.row]), len(spread), parts, width)
    for (row, top), share in zip(spread, covered, strict=True):
        shares = share / len(row.replicas)
        # To a tenth of a unit.
        heights = np.round(np.clip(shares, 0, 1) * layout.strip, 1).tolist()
        bottom, path, last = top + layout.row + 1 + layout.strip, "", 0.0
        for part, height in enumerate(heights):
            if height != last:
                path += f"H{px(layout.left + part * width)}V{px(bottom - height)}"
            last = height
        start, end = f"M{px(layout.left)} {px(bottom)}", f"H{px(layout.right)}V{px(bottom)}z"
        page.path(f"{start}{path}{end}", fill=LIGHT.quiet, class_="bv-quiet")
