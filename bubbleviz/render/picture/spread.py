"""Spread: an area below the median replica of a stage, showing how many of its replicas compute.

::

    F0 ██████   F1 ██████      the median replica
       ▟████▙      ▟████▙      all replicas: steep edges if they run in step, flat ones if not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Floats
from bubbleviz.render.marks import UNATTRIBUTED_KIND, make_compute_marks, measure_coverage
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.drawing import px
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page
from bubbleviz.render.rows import RankRow
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Width of a step of an area, px.
_STEP = 1.5


def draw_spread(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw an area below each row that is the median of its replicas.

    Its height at a time is the share of the replicas that run attributed compute.
    """
    steps = max(1, int(layout.width / _STEP))
    rows = [row for row in selection.rows if row.spread]
    tops = [top for row, top in zip(selection.rows, layout.tops, strict=True) if row.spread]
    shares = _measure_computing_share(report, selection, rows, layout.width, steps)
    for top, fraction in zip(tops, shares, strict=True):
        bottom = top + layout.row + 1 + layout.strip
        heights = np.round(np.clip(fraction, 0, 1) * layout.strip, 1)
        page.path(_make_area(layout, heights, bottom), fill=LIGHT.quiet, class_="bv-quiet")


def _make_area(layout: Layout, heights: Floats, bottom: float) -> str:
    """Return the path of a stepped area over the width of the plot.

    Args:
        layout: Layout of the rows.
        heights: Height of the area in each of the equally wide steps.
        bottom: Lower edge of the area.
    """
    width = layout.width / len(heights)
    path = f"M{px(layout.left)} {px(bottom)}"
    for step in np.flatnonzero(np.diff(heights, prepend=0.0)).tolist():
        x, y = layout.left + step * width, bottom - heights[step]
        path += f"H{px(x)}V{px(y)}"
    return f"{path}H{px(layout.right)}V{px(bottom)}z"


def _measure_computing_share(
    report: Report, selection: Selection, rows: Sequence[RankRow], width: float, steps: int
) -> Floats:
    """Return the share of the replicas of each row that compute, shape (rows, steps).

    Unattributed compute does not count. Overlapping operations count twice, so a share can be more
    than 1.

    Args:
        report: Any report.
        selection: The part of the report that is drawn.
        rows: Rows with replicas.
        width: Width of the plot, px.
        steps: Number of steps in the plot.
    """
    n_replicas = np.array([len(row.replicas) for row in rows])
    replicas = [RankRow(report.ranks[rank], (rank,)) for row in rows for rank in row.replicas]
    of_replicas = replace(selection, rows=tuple(replicas))
    row_of_replica = np.repeat(np.arange(len(rows)), n_replicas)
    covered = np.zeros((len(rows), steps))
    for marks in make_compute_marks(report, of_replicas, width):
        attributed = marks.take(marks.kind != UNATTRIBUTED_KIND)
        on_rows = replace(attributed, row=row_of_replica[attributed.row])
        covered += measure_coverage(on_rows, len(rows), steps, width / steps)
    shares: Floats = covered / n_replicas[:, np.newaxis]
    return shares
