"""Draws heat maps of one iteration's busy times by stage and microbatch.

There is one map per phase, each as wide as the timeline. Each cell shows an operation's busy time
(the mean over the replicas of its stage), relative to the median of all cells::

    F   stage 0  ░░░░▓░░░  1.00 x     a dark cell is a straggler, a dark column a slow microbatch,
        stage 1  ▒▒▒▒▓▒▒▒  1.30 x     a dark row a slow stage: its median is on the right
                 0   2   4
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COUNTED
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import truncate_text
from bubbleviz.render.picture.numbers import duration
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.plots import draw_cells, draw_names
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Busy times at either end of the color scale, relative to the median.
_FASTEST, _SLOWEST = 0.5, 1.5
#: Text that explains the shades, shown below the maps.
_SCALE = (
    f"Light: {_FASTEST:g} times the phase's median over all stages, or less. "
    f"Dark: {_SLOWEST:g} times, or more. Replicas are averaged."
)
#: Minimum width of a cell, in page units. If necessary, several microbatches share a cell.
_MIN_CELL_WIDTH = 2.0
#: Maximum height of a map, and minimum height of a cell, in page units.
_MAX_MAP_HEIGHT, _MIN_CELL_HEIGHT = 190.0, 3.0


class _PhaseTimes(NamedTuple):
    """Busy times of the operations in one phase.

    Attributes:
        stages: Indices of the virtual stages, ascending.
        first_microbatch: Number of the first microbatch.
        relative: Busy time (mean over replicas) divided by ``median_ns``, shape (stages,
            microbatches). NaN if there is no operation.
        median_ns: Median busy time over all stages and microbatches, in ns.
    """

    stages: Ints
    first_microbatch: int
    relative: Floats
    median_ns: float


def draw_heat_maps(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw a heat map for each phase of the first drawn iteration, and a note about the shades.

    Operations are ignored if they have no busy time or if their microbatch or virtual stage is
    unknown. If all operations in a phase are ignored, no map is drawn for the phase.
    """
    operations, iteration = report.operations, selection.iterations[0]
    word = "v-stage" if (operations.chunk > 0).any() else "stage"
    is_timed = (operations.iteration == iteration.index) & (operations.busy_ns > 0)
    is_timed &= (operations.microbatch >= 0) & (operations.virtual_stage >= 0)
    has_map = False
    for phase in COUNTED:
        rows = np.flatnonzero(is_timed & (operations.phase == phase))
        if not len(rows):
            continue
        has_map = True
        times = _measure_busy_times(operations.take(rows))
        title = f"{phase.label} by microbatch, median {duration(times.median_ns)}"
        names = [f"{word} {stage}" for stage in times.stages.tolist()]
        _draw_map(page, layout, title, names, times)
    if has_map:
        page.paragraph(_SCALE, page.style.letters.axis)


def _measure_busy_times(operations: Operations) -> _PhaseTimes:
    """Return the busy times of one phase by virtual stage and microbatch, relative to the median.

    Busy times are first averaged over all operations with the same virtual stage and microbatch.
    The median is then taken over the resulting means.

    Args:
        operations: Operations in the phase, all with a known virtual stage and a known microbatch.
            Must not be empty.
    """
    stages, first = find_distinct(operations.virtual_stage), int(operations.microbatch.min())
    shape = len(stages), int(operations.microbatch.max()) - first + 1
    stage_index = np.searchsorted(stages, operations.virtual_stage)
    cell = np.ravel_multi_index((stage_index, operations.microbatch - first), shape)
    count = np.bincount(cell, minlength=math.prod(shape))
    total = np.bincount(cell, operations.busy_ns.astype(np.float64), math.prod(shape))
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
    median_ns = float(np.nanmedian(mean))
    return _PhaseTimes(stages, first, mean / max(median_ns, 1.0), median_ns)


def _draw_map(
    page: Page, layout: Layout, title: str, names: Sequence[str], times: _PhaseTimes
) -> None:
    """Draw the heat map of one phase below the page's cursor, and move the cursor below the map.

    If there are too many microbatches, each cell shows the longest busy time of several consecutive
    microbatches.

    Args:
        page: The page.
        layout: Layout of the timeline. The map has the same left edge and width as its plot.
        title: Title above the map.
        names: Name of each virtual stage.
        times: Busy times of the phase.
    """
    size = page.style.letters.axis
    stages, microbatches = times.relative.shape
    per_cell = max(1, math.ceil(microbatches * _MIN_CELL_WIDTH / layout.width))
    width = layout.width * per_cell / microbatches
    height = max(_MIN_CELL_HEIGHT, min(1.2 * size, _MAX_MAP_HEIGHT / stages))
    baseline = page.y + 1.5 * size
    page.text(truncate_text(title, size, layout.width), layout.left, baseline, size)
    page.text("stage", page.right, baseline, size, ink="quiet", text_anchor="end")
    page.y += 2 * size
    _draw_stages(page, layout, names, times.relative, height)
    starts = np.arange(0, microbatches, per_cell)
    slowest = np.fmax.reduceat(times.relative, starts, axis=1)
    shade = (slowest - _FASTEST) / (_SLOWEST - _FASTEST)
    draw_cells(page, shade, layout.left, width, height)
    numbers = [str(times.first_microbatch + start) for start in starts.tolist()]
    draw_names(page, numbers, layout.left, width, size)


def _draw_stages(
    page: Page, layout: Layout, names: Sequence[str], relative: Floats, height: float
) -> None:
    """Write each stage's name to the left of its row of cells, and its median to the right.

    If rows are not as tall as the letters, only every n-th row has a name and a median.

    Args:
        page: The page, with its cursor at the upper edge of the first row.
        layout: Layout of the timeline. Names end before the left edge of its plot.
        names: Name of each stage.
        relative: Busy times relative to the median of the phase, shape (stages, microbatches).
        height: Height of a cell row.
    """
    size = page.style.letters.axis
    medians = np.nanmedian(relative, axis=1)
    step = max(1, math.ceil(1.05 * size / height))
    for row in range(0, len(names), step):
        baseline = page.y + (row + 0.5) * height + 0.36 * size
        label = truncate_text(names[row], size, layout.left - page.left - 4)
        page.text(label, page.left, baseline, size)
        page.text(f"{medians[row]:.2f} x", page.right, baseline, size, text_anchor="end")
