"""Draws how many replicas of a stage compute at each time, as an area below the median replica.

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

#: Width of a step in the stepped area, in px.
_STEP = 1.5


def draw_spread(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw an area below each row that shows the spread of its replicas.

    The height of the area shows the share of replicas that are computing at each time. Only compute
    attributed to an operation counts.
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
    """Return the SVG path of a stepped area that is as wide as the plot.

    Args:
        layout: Layout of the rows.
        heights: Height of each step, shape (steps,). All steps have the same width.
        bottom: The y coordinate of the lower edge of the area.
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
    """Measure the share of each row's replicas that are computing over time, shape (rows, steps).

    Compute not attributed to any operation is ignored. Overlapping operations on a replica are
    added up, so a share can exceed 1.

    Args:
        report: The report.
        selection: The part of the report to draw.
        rows: Rows that represent several replicas.
        width: Width of the plot, in px.
        steps: Number of equally wide steps into which the plot is divided.
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
