"""Cause bands: idle time behind the operations of a picture, coloured by why it is there."""

from __future__ import annotations

from collections.abc import Iterator

import drawsvg
import numpy as np
import numpy.typing as npt

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import CRITICAL, LIGHT, heat
from bubbleviz.render.picture.labels import Layout
from bubbleviz.render.picture.page import Page, box, duration, fitted, px, text_width
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

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


#: Shades of the scale, and the times of the median at its two ends.
SHADES, FASTEST, SLOWEST = 11, 0.5, 1.5
#: Where microbatches would be narrower, several share a cell, which shows the slowest of them.
_NARROWEST_CELL = 2.0
#: Height of the cells of a map together at most, and of a cell at least, units of the page.
_MAP, _LOWEST_CELL = 190.0, 3.0
#: Width of a shade in the scale, and of the line between cells.
_SWATCH = 9.0
_GAP = 0.6


@frozen
class _Map:
    """The times of a phase.

    Attributes:
        phase: the phase.
        stages: the virtual stages, ascending.
        first: the first microbatch.
        times: of each (stage, microbatch), against the median; NaN where there is none.
        median_ns: the median over all stages and microbatches.
    """

    phase: Phase
    stages: Ints
    first: int
    times: npt.NDArray[np.float64]
    median_ns: float


def draw_heat_maps(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw a map for each phase of the first drawn iteration, and the scale below."""
    several = bool((report.operations.chunk > 0).any())
    maps = list(_maps(report, selection))
    titles = [_titles(each) for each in maps]
    room = layout.right - layout.left
    # All have the same words.
    full = all(text_width(long, page.style.letters.axis) <= room for long, _ in titles)
    for each, (long, short) in zip(maps, titles, strict=True):
        _draw(page, each, layout, long if full else short, "v-stage" if several else "stage")
    if maps:
        _draw_scale(page, layout)


def _maps(report: Report, selection: Selection) -> Iterator[_Map]:
    operations, iteration = report.operations, selection.iterations[0]
    timed = (operations.iteration == iteration.index) & (operations.busy_ns > 0)
    timed &= (operations.microbatch >= 0) & (operations.virtual_stage >= 0)
    for phase in COUNTED:
        rows = np.flatnonzero(timed & (operations.phase == phase))
        if not len(rows):
            continue
        stage, microbatch = operations.virtual_stage[rows], operations.microbatch[rows]
        stages, first = distinct(stage), int(microbatch.min())
        shape = len(stages), int(microbatch.max()) - first + 1
        place = np.searchsorted(stages, stage) * shape[1] + microbatch - first
        size = shape[0] * shape[1]
        # Replicas of a stage: their mean.
        count = np.bincount(place, minlength=size)
        total = np.bincount(place, operations.busy_ns[rows].astype(np.float64), size)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
        median_ns = float(np.nanmedian(mean))
        yield _Map(phase, stages, first, mean / max(median_ns, 1.0), median_ns)


def _titles(each: _Map) -> tuple[str, str]:
    """Return a long and a short title of a map."""
    median, label = f"median {duration(each.median_ns)}", each.phase.label
    return f"{label} by microbatch, {median} over all stages", f"{label}: {median}"


def _draw(page: Page, each: _Map, layout: Layout, title: str, word: str) -> None:
    """Draw one map below what is on the page; rows are virtual stages where ranks have several."""
    size = page.style.letters.axis
    stages, count = each.times.shape
    share = max(1, int(np.ceil(count * _NARROWEST_CELL / layout.width)))
    width = layout.width * share / count
    height = max(_LOWEST_CELL, min(1.2 * size, _MAP / stages))
    page.y += 0.6 * size
    baseline = page.y + 0.9 * size
    page.text(fitted(title, size, layout.right - layout.left), layout.left, baseline, size)
    page.text("stage", page.right, baseline, size, ink="quiet", text_anchor="end")
    page.y += 1.4 * size
    # Where cells are large enough, a line of paper divides them.
    gap = _GAP if min(width, height) > 12 * _GAP else 0.0
    shade = _shades(each.times, share)
    for number in range(SHADES):
        boxes = [
            box(x, y, min(x + width, layout.right) - gap, y + height - gap)
            for row, column in np.argwhere(shade == number).tolist()
            for x, y in [(layout.left + column * width, page.y + row * height)]
        ]
        if boxes:
            fill = heat(number / (SHADES - 1))
            page.path("".join(boxes), fill=fill)
    step = max(1, int(np.ceil(1.05 * size / height)))
    medians = np.nanmedian(each.times, axis=1)
    for row in range(0, stages, step):
        baseline = page.y + (row + 0.5) * height + 0.36 * size
        label = f"{word} {int(each.stages[row])}"
        page.text(fitted(label, size, layout.left - page.left - 4), page.left, baseline, size)
        page.text(f"{medians[row]:.2f} x", page.right, baseline, size, text_anchor="end")
    page.y += stages * height
    _draw_microbatches(page, each, layout)


def _shades(times: npt.NDArray[np.float64], share: int) -> npt.NDArray[np.int64]:
    """Return the shade of each cell, of ``share`` microbatches; -1 where there is no operation."""
    slowest = np.nan_to_num(times, nan=-1.0)
    slowest = np.maximum.reduceat(slowest, np.arange(0, slowest.shape[1], share), axis=1)
    shade = np.clip((slowest - FASTEST) / (SLOWEST - FASTEST), 0, 1) * (SHADES - 1)
    return np.where(slowest > 0, np.rint(shade), -1).astype(np.int64)


def _draw_microbatches(page: Page, each: _Map, layout: Layout) -> None:
    """Draw a tick and a number below the middle of every so many cells."""
    size, count = page.style.letters.axis, each.times.shape[1]
    room = text_width(str(each.first + count - 1), size) + 0.7 * size
    least = room * count / layout.width
    step = next(
        power * n
        for power in (1, 10, 100, 1_000, 10_000, 10**5, 10**6)
        for n in (1, 2, 5)
        if power * n >= least
    )
    group = drawsvg.Group(font_size=size, text_anchor="middle", fill=LIGHT.quiet, class_="bv-quiet")
    path = ""
    for number in range(-(-each.first // step) * step, each.first + count, step):
        x = layout.left + layout.width * (number - each.first + 0.5) / count
        path += f"M{px(x)} {px(page.y + 1)}v3"
        page.text(str(number), x, page.y + 4 + 0.9 * size, None, into=group, ink=None)
    page.rule(path)
    page.elements.append(group)
    page.y += 4 + 1.2 * size


def _draw_scale(page: Page, layout: Layout) -> None:
    """Draw what the shades mean: times the median of the phase."""
    size = page.style.letters.axis
    ends = f"{FASTEST:g} x or less", f"{SLOWEST:g} x or more"
    page.y += 0.6 * size
    baseline = page.y + 0.85 * size
    x = layout.left
    page.text(ends[0], x, baseline, size)
    x += text_width(ends[0], size) + 4
    for number in range(SHADES):
        path = box(x, page.y, x + _SWATCH, page.y + size)
        page.path(path, fill=heat(number / (SHADES - 1)))
        x += _SWATCH
    page.text(ends[1], x + 4, baseline, size)
    x += text_width(ends[1], size) + 4 + 1.3 * size
    what = "of the median of the phase over all stages; replicas: their mean"
    if x + text_width(what, size) <= page.right:
        page.text(what, x, baseline, size, ink="quiet")
    page.y += 1.6 * size
