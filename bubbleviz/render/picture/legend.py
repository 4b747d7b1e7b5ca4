"""The legend: a swatch and a name for everything in the picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.render import marks, palette
from bubbleviz.render.marks import UNATTRIBUTED_KIND
from bubbleviz.render.picture.page import (
    Page,
    box,
    fitted,
    px,
    text_width,
)
from bubbleviz.render.picture.rows import DOTS, DOTS_BELOW, RowPainter
from bubbleviz.render.picture.timeline import TimelinePainter

_FRAME = {"stroke": palette.LIGHT.frame, "class_": "bv-frame"}
#: Width of the frame of a swatch on a screen.
_LINE = 0.7
#: Maximum number of shades of a phase that have a swatch.
_MOST_SHADES = 8
#: Maximum number of colours that share the width of one swatch.
_MOST_IN_ONE = 4
#: Distance between a swatch and its name.
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


class _Swatch(NamedTuple):
    """A box of the legend.

    Attributes:
        width: Width of the box.
        look: Presentation attributes.
        number: Number in the box, or "".
        ink: Colour of the number.
        dotted: Whether there is a dotted line below it, as below merged operations.
        cause: Label of the cause of idle time that it is filled like, or "".
    """

    width: float
    look: dict[str, Any]
    number: str = ""
    ink: str = ""
    dotted: bool = False
    cause: str = ""


def draw_legend(page: Page, timelines: Sequence[TimelinePainter]) -> None:
    """Draw the legend of one or more timelines below the cursor of the page, line by line."""
    letters = page.style.letters
    if not page.style.legend:
        return
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
                framed = "stroke" in swatch.look
                line = {"stroke_width": px(_LINE * page.style.line)} if framed else {}
                page.path(path, **(line | swatch.look))
            if swatch.dotted:
                dots = f"M{px(x)} {px(page.y + height + DOTS_BELOW)}h{px(swatch.width)}"
                page.path(dots, fill="none", **DOTS)
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
    page: Page, timelines: Sequence[TimelinePainter]
) -> Iterator[tuple[list[_Swatch], str]]:
    """Yield swatches and their text for everything in the picture."""
    rows = [timeline.rows for timeline in timelines]
    width = 1.5 * page.style.letters.legend if page.style.millimetres else 22
    for phase in COMPUTE:
        if swatches := list(_phase_swatches(page, rows, phase, width)):
            yield swatches, _LONG_NAMES[phase]
    causes = sorted({cause for timeline in timelines for cause in timeline.causes})
    if not causes:
        yield [_Swatch(width, {"fill": page.hatch()})], "bubble"
    for cause in causes:
        yield [_Swatch(width, {}, cause=cause.label)], f"idle: {cause.label}"
    if any(timeline.gaps for timeline in timelines):
        yield (
            [_Swatch(width, {"fill": palette.LIGHT.gap, "class_": "bv-gap"})],
            "between iterations",
        )
    if any(UNATTRIBUTED_KIND in painter.kinds for painter in rows):
        yield [_Swatch(width, {"fill": palette.UNATTRIBUTED})], "unattributed compute"
    if any(painter.communication for painter in rows):
        thin = {"fill": palette.COMMUNICATION, **_FRAME, "stroke_width": 0.3}
        yield [_Swatch(width, thin)], "communication (thin lane)"
    if any(marks.OTHER_ITERATION in painter.kinds for painter in rows):
        yield [_Swatch(width, {"fill": palette.OTHER_ITERATION, **_FRAME})], "other iteration"
    if merging := [painter for painter in rows if painter.merged_words]:
        narrower = max(painter.narrower for painter in merging)
        words = "; ".join(painter.merged_words for painter in merging)
        colours = dict.fromkeys(colour for painter in merging for colour in painter.merged_colours)
        each = max(width / len(colours), width / _MOST_IN_ONE)
        dotted = [_Swatch(each, {"fill": colour}, dotted=True) for colour in colours]
        yield dotted, f"merged: narrower than {page.length(narrower)} ({words})"


def _phase_swatches(
    page: Page, rows: Sequence[RowPainter], phase: Phase, width: float
) -> Iterator[_Swatch]:
    """Yield a swatch for each shade of a phase that is drawn."""
    # Timelines with the same number of chunks have the same shades.
    drawn = {max(len(own.chunks), 1): own.chunks for own in rows if phase in own.kinds}
    if phase is Phase.OPTIMIZER and drawn:
        drawn = {1: []}
    for shades, chunks in sorted(drawn.items()):
        for shade in range(0, shades, -(-shades // _MOST_SHADES)):
            place = shade if shades > 1 else -1
            look = palette.paint(phase, place, place if phase is Phase.FB else -1, shades)
            number = str(chunks[shade]) if shades > 1 else ""
            each = max(0.7 * width, text_width(number, page.style.letters.legend - 1) + 4)
            fill = {"fill": page.fill(look), **_FRAME}
            yield _Swatch(each if shades > 1 else width, fill, number, look.number)
