"""The heat map: which microbatch took long on which stage, phase by phase, of one iteration.

A cell is the operation's busy time against the median of its kind::

    F   stage 0  ░░░░▓░░░     one column a microbatch: a dark one is a straggler,
        stage 1  ░░░░▓░░░     a dark column a slow microbatch
"""

from __future__ import annotations

import drawsvg
import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.render.picture.page import MARGIN, WIDTH, Page, box, px
from bubbleviz.render.picture.palette import heat
from bubbleviz.render.picture.selection import Selection
from bubbleviz.report.report import Report

#: Shades of the scale, and the times of the median at its two ends.
SHADES, FASTEST, SLOWEST = 11, 0.5, 1.5
_LABEL, _TITLE = 70.0, 16.0
#: Where microbatches would be narrower, several share a cell, which shows the slowest of them.
_NARROWEST_CELL = 2.0


def draw_heat_maps(page: Page, report: Report, selection: Selection) -> None:
    """Draw a map for each phase of the first drawn iteration, and the scale below."""
    operations, iteration = report.operations, selection.iterations[0]
    times = report.explanation.phase_times.times_median
    timed = (operations.iteration == iteration.index) & (times > 0)
    timed &= (operations.microbatch >= 0) & (operations.virtual_stage >= 0)
    drawn = False
    for phase in COUNTED:
        rows = np.flatnonzero(timed & (operations.phase == phase))
        if len(rows):
            _draw(
                page,
                phase,
                operations.virtual_stage[rows],
                operations.microbatch[rows],
                times[rows],
                several=bool((operations.chunk > 0).any()),
            )
            drawn = True
    if drawn:
        _draw_scale(page)


def _draw(
    page: Page,
    phase: Phase,
    stage: Ints,
    microbatch: Ints,
    times: npt.NDArray[np.float64],
    *,
    several: bool,
) -> None:
    """Draw one map below what is on the page; rows are virtual stages where ranks have several."""
    stages, first = distinct(stage), int(microbatch.min())
    count = int(microbatch.max()) - first + 1
    room = WIDTH - 2 * MARGIN - _LABEL
    share = max(1, int(np.ceil(count * _NARROWEST_CELL / room)))
    columns = -(-count // share)
    width = min(room / columns, 24.0)
    height = max(5.0, min(14.0, 160.0 / len(stages)))
    slowest = np.zeros((len(stages), columns))
    # Copies of a stage, and microbatches that share a cell: the slowest of them.
    np.maximum.at(slowest, (np.searchsorted(stages, stage), (microbatch - first) // share), times)
    page.y += 6
    page.text(
        f"{phase.label}: time of each microbatch ({first} to {first + count - 1}) "
        "against the median of its stage",
        MARGIN,
        page.y + 9,
        10.5,
        font_weight="bold",
    )
    page.y += _TITLE
    shade = np.clip((slowest - FASTEST) / (SLOWEST - FASTEST), 0, 1) * (SHADES - 1)
    shade = np.where(slowest > 0, np.rint(shade), -1).astype(np.int64)
    for number in range(SHADES):
        boxes = [
            box(x, y, x + width, y + height)
            for row, column in np.argwhere(shade == number).tolist()
            for x, y in [(MARGIN + _LABEL + column * width, page.y + row * height)]
        ]
        if boxes:
            fill = heat(number / (SHADES - 1))
            page.elements.append(drawsvg.Path("".join(boxes), fill=fill))
    step = max(1, int(np.ceil(9.0 / height)))
    word = "v-stage" if several else "stage"
    for row in range(0, len(stages), step):
        label = f"{word} {int(stages[row])}"
        page.text(label, MARGIN, page.y + row * height + min(height, 9.0), min(9.5, height + 3))
    page.y += len(stages) * height + 4


def _draw_scale(page: Page) -> None:
    """Draw what the shades mean."""
    x, width = MARGIN + _LABEL, 18.0
    page.y += 4
    for number in range(SHADES):
        path = box(x + number * width, page.y, x + (number + 1) * width, page.y + 8)
        page.elements.append(drawsvg.Path(path, fill=heat(number / (SHADES - 1))))
    ends = (
        (0.0, f"{FASTEST:g} x or less"),
        (SHADES / 2, "median"),
        (SHADES, f"{SLOWEST:g} x or more"),
    )
    for (at, text), anchor in zip(ends, ("start", "middle", "end"), strict=True):
        page.text(text, float(px(x + at * width)), page.y + 19, 9.5, text_anchor=anchor)
    page.y += 28
