"""The legend: a swatch and a name for everything in the picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import drawsvg

from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.marks import UNATTRIBUTED_KIND
from bubbleviz.render.picture.page import MARGIN, WIDTH, Page, box, px, text_width
from bubbleviz.render.picture.palette import CAUSES, COMMUNICATION, LIGHT, UNATTRIBUTED, paint
from bubbleviz.render.picture.rows.merged import DOTS, DOTS_BELOW
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.rows import RowPainter
from bubbleviz.render.picture.timeline import TimelineContents

_FRAME = {"stroke": LIGHT.frame, "stroke_width": 0.7, "class_": "bv-frame"}
_LONG_NAMES = {
    Phase.F: "F  forward",
    Phase.B: "B  backward, input",
    Phase.W: "W  backward, weights",
    Phase.BW: "BW  backward",
    Phase.R: "R  recompute",
    Phase.FB: "FB  forward and backward",
    Phase.OPTIMIZER: "Optimizer",
}


@frozen
class _Swatch:
    """A box of the legend: width, presentation attributes, and its number and the colour of it.

    ``dotted`` is whether it is dotted below, as merged operations are.
    """

    width: float
    look: dict[str, Any]
    number: str = ""
    ink: str = ""
    dotted: bool = False


def draw_legend(page: Page, timelines: Sequence[TimelineContents]) -> None:
    """Draw the legend of one or more timelines below what is on the page, line by line."""
    x, height = float(MARGIN), 13.0
    page.y += 4
    for swatches, text in _entries(page, timelines):
        width = sum(swatch.width for swatch in swatches) + 6 + text_width(text, 10.5)
        if x + width > WIDTH - MARGIN and x > MARGIN:
            x, page.y = float(MARGIN), page.y + height + 7
        for swatch in swatches:
            path = box(x, page.y, x + swatch.width, page.y + height)
            page.elements.append(drawsvg.Path(path, **swatch.look))
            if swatch.dotted:
                dots = f"M{px(x)} {px(page.y + height + DOTS_BELOW)}h{px(swatch.width)}"
                page.elements.append(drawsvg.Path(dots, fill="none", **DOTS))
            if swatch.number:
                page.text(
                    swatch.number,
                    x + swatch.width / 2,
                    page.y + 10,
                    9.5,
                    ink=None,
                    fill=swatch.ink,
                    text_anchor="middle",
                )
            x += swatch.width
        page.text(text, x + 6, page.y + 10.2, 10.5)
        x += 6 + text_width(text, 10.5) + 14
    page.y += height + 6


def _entries(
    page: Page, timelines: Sequence[TimelineContents]
) -> Iterable[tuple[list[_Swatch], str]]:
    """Yield swatches and their text for whatever is in the picture."""
    rows = [timeline.rows for timeline in timelines]
    yield from _phase_entries(page, rows)
    causes = sorted({cause for timeline in timelines for cause in timeline.causes})
    if not causes:
        yield [_Swatch(22, {"fill": page.hatch()})], "bubble"
    for cause in causes:
        yield [_Swatch(22, {"fill": CAUSES[cause.label]})], f"idle: {cause.label}"
    if any(timeline.gaps.drawn for timeline in timelines):
        yield [_Swatch(22, {"fill": LIGHT.gap, "class_": "bv-gap"})], "between iterations"
    if any(UNATTRIBUTED_KIND in painter.boxes.kinds for painter in rows):
        yield [_Swatch(22, {"fill": UNATTRIBUTED})], "unattributed compute"
    if any(painter.lane is not None and not painter.lane.empty for painter in rows):
        thin = {"fill": COMMUNICATION, **_FRAME, "stroke_width": 0.3}
        yield [_Swatch(22, thin)], "communication (thin lane)"
    if merging := [painter for painter in rows if painter.merged_words]:
        halves = [_Swatch(11, {"fill": fill}, dotted=True) for fill in merging[0].merged_colours]
        narrower = max(painter.narrower for painter in merging)
        words = "; ".join(painter.merged_words for painter in merging)
        yield halves, f"merged: narrower than {narrower:g} px ({words})"


def _phase_entries(page: Page, rows: Sequence[RowPainter]) -> Iterable[tuple[list[_Swatch], str]]:
    """Yield swatches of the phases that are drawn."""
    for phase in COMPUTE:
        # Timelines with as many chunks have the same shades.
        paints = {max(r.paints.shades, 1): r.paints for r in rows if phase in r.boxes.kinds}
        if phase is Phase.OPTIMIZER:
            paints = dict(list(paints.items())[:1])
        if swatches := [_phase_swatches(page, paints[n], phase) for n in sorted(paints)]:
            yield [swatch for some in swatches for swatch in some], _LONG_NAMES[phase]


def _phase_swatches(page: Page, paints: OperationPaints, phase: Phase) -> list[_Swatch]:
    if phase is Phase.OPTIMIZER or paints.shades <= 1:
        return [_Swatch(22, {"fill": page.fill(paint(phase)), **_FRAME})]
    swatches = []
    for shade in range(paints.shades):
        look = paint(phase, shade, shade if phase is Phase.FB else -1, paints.shades)
        number = str(paints.chunks[shade]) if paints.shades == len(paints.chunks) else ""
        width = max(15, text_width(number, 9.5) + 6)
        swatches.append(_Swatch(width, {"fill": page.fill(look), **_FRAME}, number, look.number))
    return swatches
