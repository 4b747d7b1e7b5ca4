"""Merged marks: layers as high as their shares of time, with a dotted line below."""

from __future__ import annotations

from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.marks import UNATTRIBUTED_KIND
from bubbleviz.render.picture.merging import MergedMarks, runs, silhouette
from bubbleviz.render.picture.page import box, px
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.tooltips import merged_tooltip

#: The dotted line below merged marks: its distance, width and pattern, px.
DOTS = {"stroke": LIGHT.quiet, "stroke_width": 0.7, "stroke_dasharray": "1 1", "class_": "bv-rule"}
DOTS_BELOW = 0.8
#: Gaps of so many px in it are bridged.
_DOTS_BRIDGE = 3


def draw_merged(
    group: Any,
    merged: MergedMarks,
    row: int,
    paints: OperationPaints,
    *,
    width: float,
    height: float,
) -> None:
    """Draw the merged marks of a row as layers, each on top of the one before.

    Args:
        group: the row, with its upper left corner as origin.
        merged: the merged marks of all rows.
        row: its number.
        paints: of the operations.
        width: of the plot, px.
        height: of the row, px.
    """
    share = merged.share[row]
    steps = np.cumsum(np.round(share * height, 1), axis=0)
    for layer in reversed(range(len(merged.kinds))):
        kind, other = merged.kinds[layer]
        heights = np.where(share[layer] > 0, steps[layer], 0.0)
        if not (path := silhouette(heights, height, merged.column, width)):
            continue
        if other:
            group.append(drawsvg.Path(path, fill=LIGHT.paper, class_="bv-paper"))
        colour, opacity = paints.of(kind, NONE).main, 0.3 if other else None
        group.append(drawsvg.Path(path, fill=colour, fill_opacity=opacity, class_="bv-merged"))
    mark_merged(group, merged, row, width=width, top=0.0, bottom=height)


def mark_merged(
    group: Any, merged: MergedMarks, row: int, *, width: float, top: float, bottom: float
) -> None:
    """Dot the lower edge of merged marks, and describe them stretch by stretch in tooltips."""
    y = px(bottom + DOTS_BELOW)
    dots = "".join(
        f"M{first} {y}H{px(min(end, width))}"
        for first, end in runs(merged.there[row], _DOTS_BRIDGE)
    )
    if not dots:
        return
    group.append(drawsvg.Path(dots, fill="none", **DOTS))
    stretches = drawsvg.Group(fill="none", pointer_events="all", class_="bv-merged")
    for stretch in np.flatnonzero(merged.counts[row].sum(axis=0)).tolist():
        left, counts = stretch * merged.stretch, merged.counts[row, :, stretch]
        places = np.flatnonzero(merged.there[row, left : left + merged.stretch])
        if not len(places):  # half a pixel before the stretch that holds its middle
            continue
        right = min(left + int(places[-1]) + 1, width)
        path = box(left + int(places[0]), top, right, bottom)
        element = drawsvg.Path(path, data_operations=_operations(merged, counts))
        element.append_title(merged_tooltip(merged, counts))
        stretches.append(element)
    group.append(stretches)


def _operations(merged: MergedMarks, counts: Ints) -> int:
    attributed = [kind != UNATTRIBUTED_KIND for kind, _ in merged.kinds]
    return int(counts[attributed].sum())
