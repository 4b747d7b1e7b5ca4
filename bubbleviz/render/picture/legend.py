"""The legend: a swatch and a word for whatever is in the picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import drawsvg

from bubbleviz.explain.idle import Cause
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.render.picture.boxes import DOTS, DOTS_BELOW, Boxes
from bubbleviz.render.picture.page import MARGIN, WIDTH, Page, box, px, text_width
from bubbleviz.render.picture.palette import CAUSES, COMMUNICATION, LIGHT, UNATTRIBUTED, paint
from bubbleviz.render.picture.scene import UNATTRIBUTED as UNATTRIBUTED_KIND

_LONG_NAMES = {
    Phase.F: "F  forward",
    Phase.B: "B  backward, input",
    Phase.W: "W  backward, weights",
    Phase.BW: "BW  backward",
    Phase.R: "R  recompute",
    Phase.FB: "FB  forward and backward",
    Phase.OPTIMIZER: "Optimizer",
}


@dataclass(frozen=True)
class _Swatch:
    """A box of the legend: width, presentation attributes, and its number and the colour of it.

    ``dotted`` tells whether it is dotted below, as what is merged.
    """

    width: float
    look: dict[str, Any]
    number: str = ""
    ink: str = ""
    dotted: bool = False


def draw_legend(
    page: Page, panels: Sequence[Boxes], *, gaps: bool, causes: Sequence[Cause] = ()
) -> None:
    """Draw the legend below what is on the page, on as many lines as it needs.

    Args:
        page: the page.
        panels: what the rows hold, of one or more pictures on the page.
        gaps: whether there are gaps between the windows of a row.
        causes: those that idle time is coloured by; empty where it is hatched alone.
    """
    x, height = float(MARGIN), 13.0
    page.y += 4
    for swatches, text in _entries(page, panels, gaps, causes):
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
    page: Page, panels: Sequence[Boxes], gaps: bool, causes: Sequence[Cause]
) -> Iterable[tuple[list[_Swatch], str]]:
    """Yield swatches and their text for whatever is in the picture."""
    frame = {"stroke": LIGHT.frame, "stroke_width": 0.7, "class_": "bv-frame"}
    for phase in COMPUTE:
        # Panels with as many chunks have the same shades.
        own = {max(boxes.shades, 1): boxes for boxes in panels if phase in boxes.kinds}
        if phase is Phase.OPTIMIZER:
            own = dict(list(own.items())[:1])
        if swatches := [_phase_swatches(page, own[n], phase, frame) for n in sorted(own)]:
            yield [swatch for some in swatches for swatch in some], _LONG_NAMES[phase]
    if not causes:
        yield [_Swatch(22, {"fill": page.hatch()})], "bubble"
    for cause in causes:
        yield [_Swatch(22, {"fill": CAUSES[cause.label]})], f"idle: {cause.label}"
    if gaps:
        yield [_Swatch(22, {"fill": LIGHT.gap, "class_": "bv-gap"})], "between iterations"
    if any(UNATTRIBUTED_KIND in boxes.kinds for boxes in panels):
        yield [_Swatch(22, {"fill": UNATTRIBUTED})], "unattributed compute"
    if any(boxes.communicates for boxes in panels):
        thin = {"fill": COMMUNICATION, **frame, "stroke_width": 0.3}
        yield [_Swatch(22, thin)], "communication (thin lane)"
    if merging := [boxes for boxes in panels if boxes.merged_words]:
        halves = [_Swatch(11, {"fill": fill}, dotted=True) for fill in merging[0].merged_colours]
        narrower = max(boxes.narrower for boxes in merging)
        words = "; ".join(boxes.merged_words for boxes in merging)
        yield halves, f"merged: narrower than {narrower:g} px ({words})"


def _phase_swatches(page: Page, boxes: Boxes, phase: Phase, frame: dict[str, Any]) -> list[_Swatch]:
    if phase is Phase.OPTIMIZER or boxes.shades <= 1:
        return [_Swatch(22, {"fill": page.fill(paint(phase)), **frame})]
    swatches = []
    for shade in range(boxes.shades):
        look = paint(phase, shade, shade if phase is Phase.FB else -1, boxes.shades)
        number = str(boxes.chunks[shade]) if boxes.shades == len(boxes.chunks) else ""
        width = max(15, text_width(number, 9.5) + 6)
        swatches.append(_Swatch(width, {"fill": page.fill(look), **frame}, number, look.number))
    return swatches
