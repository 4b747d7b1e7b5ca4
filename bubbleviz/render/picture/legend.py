"""Draws the legend, with a swatch and a name for each kind of mark in the picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.render import palette
from bubbleviz.render.marks import OTHER_ITERATION, UNATTRIBUTED_KIND
from bubbleviz.render.picture.drawing import box, px
from bubbleviz.render.picture.extra_pieces import PIECE_LINE, PIECE_LOOK
from bubbleviz.render.picture.lettering import text_width, truncate_text
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.rows import DOTS, DOTS_BELOW, RowPainter
from bubbleviz.render.picture.timeline import TimelinePainter

_FRAME = {"stroke": palette.LIGHT.frame, "class_": "bv-frame"}
#: Width of the frame around a swatch in the screen style, in page units.
_LINE = 0.7
#: Maximum number of swatches per phase. Each swatch shows one shade.
_MAX_SHADES = 8
#: Maximum number of colors that can share the width of one swatch.
_MAX_IN_ONE = 4
#: Distance between a swatch and its name, in page units.
_GAP = 6.0
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
    """A small box in the legend that shows a fill.

    Attributes:
        width: Width of the box in page units.
        look: Attributes of the SVG element, such as its fill.
        number: Number in the box, or "" for none.
        ink: Color of the number.
        dotted: Whether to draw a dotted line below the box, like the one below merged operations.
        cause: Label of the idle-time cause whose fill the box shows, or "" to use ``look``.
    """

    width: float
    look: dict[str, Any]
    number: str = ""
    ink: str = ""
    dotted: bool = False
    cause: str = ""


def draw_legend(page: Page, timelines: Sequence[TimelinePainter]) -> None:
    """Draw a shared legend for all timelines below the page's cursor.

    Entries are laid out from left to right, and an entry that does not fit starts a new line. The
    cursor moves below the legend. Nothing is drawn if the style has no legend.
    """
    style = page.style
    if not style.legend:
        return
    size = style.letters.legend
    x, height = page.left, round((0.9 if style.millimeters else 1.24) * size, 1)
    line_gap = 3 if style.millimeters else 7
    page.y += 4
    for swatches, name in _list_entries(page, timelines):
        swatches_width = sum(swatch.width for swatch in swatches)
        max_width = page.right - page.left - swatches_width - _GAP
        text = truncate_text(name, size, max_width)
        width = swatches_width + _GAP + text_width(text, size)
        if x + width > page.right and x > page.left:
            x, page.y = page.left, page.y + max(height, size) + line_gap
        for swatch in swatches:
            _draw_swatch(page, swatch, x, height)
            x += swatch.width
        page.text(text, x + _GAP, page.y + height / 2 + 0.36 * size, size)
        x += _GAP + text_width(text, size) + 1.3 * size
    page.y += height + 6


def _draw_swatch(page: Page, swatch: _Swatch, x: float, height: float) -> None:
    """Draw a swatch whose upper left corner is at (``x``, ``page.y``).

    Args:
        page: The page.
        swatch: The swatch.
        x: Left edge of the box.
        height: Height of the box.
    """
    right, bottom = x + swatch.width, page.y + height
    path = box(x, page.y, right, bottom)
    if swatch.cause:
        page.cause_boxes(path, swatch.cause)
    else:
        has_frame = "stroke" in swatch.look
        frame = {"stroke_width": px(_LINE * page.style.line)} if has_frame else {}
        page.path(path, **(frame | swatch.look))
    if swatch.dotted:
        dots = f"M{px(x)} {px(bottom + DOTS_BELOW)}h{px(swatch.width)}"
        page.path(dots, fill="none", **DOTS)
    if swatch.number:
        size = page.style.letters.legend - 1
        middle, baseline = x + swatch.width / 2, page.y + height / 2 + 0.36 * size
        look = {"fill": swatch.ink, "text_anchor": "middle"}
        page.text(swatch.number, middle, baseline, size, ink=None, **look)


def _list_entries(
    page: Page, timelines: Sequence[TimelinePainter]
) -> Iterator[tuple[list[_Swatch], str]]:
    """Yield (swatches, text) for each legend entry.

    The entries are, in this order: phases, idle time, extra work, unattributed compute,
    communication, other iterations, and merged operations. An entry is left out if no timeline
    contains marks of its kind.
    """
    rows = [timeline.rows for timeline in timelines]
    kinds = {kind for painter in rows for kind in painter.kinds}
    width = 1.5 * page.style.letters.legend if page.style.millimeters else 22
    for phase in COMPUTE:
        if swatches := list(_list_shades(page, rows, phase, width)):
            yield swatches, _LONG_NAMES[phase]
    yield from _list_idle_entries(page, timelines, width)
    if any(timeline.pieces for timeline in timelines):
        thin = {**PIECE_LOOK, "stroke_width": PIECE_LINE * page.style.line}
        yield [_Swatch(width, thin)], "extra work that fits"
    if UNATTRIBUTED_KIND in kinds:
        yield [_Swatch(width, {"fill": palette.UNATTRIBUTED})], "unattributed compute"
    if any(painter.has_communication for painter in rows):
        thin = {"fill": palette.COMMUNICATION, **_FRAME, "stroke_width": 0.3}
        yield [_Swatch(width, thin)], "communication (thin lane)"
    if OTHER_ITERATION in kinds:
        yield [_Swatch(width, {"fill": palette.OTHER_ITERATION, **_FRAME})], "other iteration"
    if merging := [painter for painter in rows if painter.merged_words]:
        narrower = max(painter.max_merged_width for painter in merging)
        words = "; ".join(painter.merged_words for painter in merging)
        colors = dict.fromkeys(color for painter in merging for color in painter.merged_colors)
        entry = max(width / len(colors), width / _MAX_IN_ONE)
        dotted = [_Swatch(entry, {"fill": color}, dotted=True) for color in colors]
        yield dotted, f"merged: narrower than {page.length(narrower)} ({words})"


def _list_idle_entries(
    page: Page, timelines: Sequence[TimelinePainter], width: float
) -> Iterator[tuple[list[_Swatch], str]]:
    """Yield (swatches, text) for idle time, and for any gaps between iterations.

    Idle time has one entry for each drawn cause, or the entry "bubble" if causes are not drawn.
    """
    causes = sorted({cause for timeline in timelines for cause in timeline.causes})
    if not causes:
        yield [_Swatch(width, {"fill": page.hatch()})], "bubble"
    for cause in causes:
        yield [_Swatch(width, {}, cause=cause.label)], f"idle: {cause.label}"
    if any(timeline.gaps for timeline in timelines):
        gap = {"fill": palette.LIGHT.gap, "class_": "bv-gap"}
        yield [_Swatch(width, gap)], "between iterations"


def _list_shades(
    page: Page, rows: Sequence[RowPainter], phase: Phase, width: float
) -> Iterator[_Swatch]:
    """Yield a swatch for each of a phase's shades.

    No swatches are yielded for a phase that is not drawn.

    Each shade represents a model chunk, and the swatch contains the number of the chunk. If there
    are more than ``_MAX_SHADES`` shades, only every n-th shade has a swatch. The optimizer has a
    single shade.

    Args:
        page: The page, which defines the fills.
        rows: Row painters of all timelines.
        phase: The phase.
        width: Width of a swatch in page units. Swatches that contain numbers can be narrower or
            wider.
    """
    # Timelines with the same number of chunks use the same shades.
    chunks_drawn = {
        max(len(painter.chunks), 1): painter.chunks for painter in rows if phase in painter.kinds
    }
    if phase is Phase.OPTIMIZER and chunks_drawn:
        chunks_drawn = {1: []}
    for shades, chunks in sorted(chunks_drawn.items()):
        for shade in range(0, shades, -(-shades // _MAX_SHADES)):
            if shades == 1:
                paint, number, chunk = palette.make_paint(phase), "", float(width)
            else:
                second = shade if phase is Phase.FB else -1
                paint, number = palette.make_paint(phase, shade, second, shades), str(chunks[shade])
                number_width = text_width(number, page.style.letters.legend - 1)
                chunk = max(0.7 * width, number_width + 4)
            yield _Swatch(chunk, {"fill": page.fill(paint), **_FRAME}, number, paint.number)
