"""The legend: a swatch and a name for everything in the picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import drawsvg

from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import COMMUNICATION, FORWARD, LIGHT, UNATTRIBUTED, paint
from bubbleviz.render.picture.lettering import fitted, text_width
from bubbleviz.render.picture.marks import UNATTRIBUTED_KIND
from bubbleviz.render.picture.page import Page, box, px
from bubbleviz.render.picture.rows.merged import DOTS, DOTS_BELOW
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.rows import RowPainter
from bubbleviz.render.picture.timeline import TimelineContents

_FRAME = {"stroke": LIGHT.frame, "class_": "bv-frame"}
#: Width of the frame of a swatch on a screen.
_LINE = 0.7
#: Between a swatch and its name.
_BESIDE = 6.0
_LONG_NAMES = {
    Phase.F: "F forward",
    Phase.B: "B backward, input",
    Phase.W: "W backward, weights",
    Phase.BW: "BW backward",
    Phase.R: "R recompute",
    Phase.FB: "FB forward and backward",
    Phase.OPTIMIZER: "Optimizer",
}


@frozen
class _Swatch:
    """A box of the legend: width, presentation attributes, and its number and the colour of it.

    ``dotted`` is whether it is dotted below, as merged operations are; ``cause`` is that of idle
    time, which looks as it does in the rows.
    """

    width: float
    look: dict[str, Any]
    number: str = ""
    ink: str = ""
    dotted: bool = False
    cause: str = ""


def draw_legend(page: Page, timelines: Sequence[TimelineContents]) -> None:
    """Draw the legend of one or more timelines below what is on the page, line by line."""
    letters = page.style.letters
    size, inner = letters.legend, letters.legend - 1
    x, height = page.left, round((0.9 if page.style.millimetres else 1.24) * size, 1)
    page.y += 4
    for swatches, name in _entries(page, timelines):
        swatches_width = sum(swatch.width for swatch in swatches)
        text = fitted(name, size, page.right - page.left - swatches_width - _BESIDE)
        width = swatches_width + _BESIDE + text_width(text, size)
        if x + width > page.right and x > page.left:
            x, page.y = page.left, page.y + max(height, size) + (3 if page.style.millimetres else 7)
        for swatch in swatches:
            path = box(x, page.y, x + swatch.width, page.y + height)
            if swatch.cause:
                page.cause_boxes(path, swatch.cause)
            else:
                line = (
                    {"stroke_width": px(_LINE * page.style.line)} if "stroke" in swatch.look else {}
                )
                page.elements.append(drawsvg.Path(path, **(line | swatch.look)))
            if swatch.dotted:
                dots = f"M{px(x)} {px(page.y + height + DOTS_BELOW)}h{px(swatch.width)}"
                page.elements.append(drawsvg.Path(dots, fill="none", **DOTS))
            if swatch.number:
                page.text(
                    swatch.number,
                    x + swatch.width / 2,
                    page.y + height / 2 + 0.36 * inner,
                    inner,
                    ink=None,
                    fill=swatch.ink,
                    text_anchor="middle",
                )
            x += swatch.width
        page.text(text, x + _BESIDE, page.y + height / 2 + 0.36 * size, size)
        x += _BESIDE + text_width(text, size) + 1.3 * size
    page.y += height + 6


def _entries(
    page: Page, timelines: Sequence[TimelineContents]
) -> Iterable[tuple[list[_Swatch], str]]:
    """Yield swatches and their text for whatever is in the picture."""
    rows = [timeline.rows for timeline in timelines]
    swatch = 1.5 * page.style.letters.legend if page.style.millimetres else 22
    yield from _phase_entries(page, rows, swatch)
    causes = sorted({cause for timeline in timelines for cause in timeline.causes})
    if not causes:
        yield [_Swatch(swatch, {"fill": page.hatch()})], "bubble"
    for cause in causes:
        yield [_Swatch(swatch, {}, cause=cause.label)], f"idle: {cause.label}"
    if any(timeline.gaps.drawn for timeline in timelines):
        yield [_Swatch(swatch, {"fill": LIGHT.gap, "class_": "bv-gap"})], "between iterations"
    if any(UNATTRIBUTED_KIND in painter.boxes.kinds for painter in rows):
        yield [_Swatch(swatch, {"fill": UNATTRIBUTED})], "unattributed compute"
    if any(painter.lane is not None and not painter.lane.empty for painter in rows):
        thin = {"fill": COMMUNICATION, **_FRAME, "stroke_width": 0.3}
        yield [_Swatch(swatch, thin)], "communication (thin lane)"
    if not page.style.notes and any(painter.boxes.others for painter in rows):
        faded = {"fill": FORWARD, "fill_opacity": 0.3, **_FRAME, "stroke_opacity": 0.45}
        yield [_Swatch(swatch, faded)], "neighbouring iterations"
    if merging := [painter for painter in rows if painter.merged_words]:
        halves = [
            _Swatch(swatch / 2, {"fill": fill}, dotted=True) for fill in merging[0].merged_colours
        ]
        narrower = max(painter.narrower for painter in merging)
        words = "; ".join(painter.merged_words for painter in merging)
        yield halves, f"merged: narrower than {page.length(narrower)} ({words})"


def _phase_entries(
    page: Page, rows: Sequence[RowPainter], width: float
) -> Iterable[tuple[list[_Swatch], str]]:
    """Yield swatches of the phases that are drawn."""
    for phase in COMPUTE:
        # Timelines with as many chunks have the same shades.
        paints = {max(r.paints.shades, 1): r.paints for r in rows if phase in r.boxes.kinds}
        if phase is Phase.OPTIMIZER:
            paints = dict(list(paints.items())[:1])
        if swatches := [_phase_swatches(page, paints[n], phase, width) for n in sorted(paints)]:
            yield [swatch for some in swatches for swatch in some], _LONG_NAMES[phase]


def _phase_swatches(
    page: Page, paints: OperationPaints, phase: Phase, width: float
) -> list[_Swatch]:
    if phase is Phase.OPTIMIZER or paints.shades <= 1:
        return [_Swatch(width, {"fill": page.fill(paint(phase)), **_FRAME})]
    swatches = []
    for shade in range(paints.shades):
        look = paint(phase, shade, shade if phase is Phase.FB else -1, paints.shades)
        number = str(paints.chunks[shade]) if paints.shades == len(paints.chunks) else ""
        inner = page.style.letters.legend - 1
        each = max(0.7 * width, text_width(number, inner) + 4)
        swatches.append(_Swatch(each, {"fill": page.fill(look), **_FRAME}, number, look.number))
    return swatches
