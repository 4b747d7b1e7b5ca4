"""The page that a picture is drawn on: lettering, rounding, fills, and the document itself.

Presentation attributes hold the colours of paper, so that converters without CSS are right; a
style sheet changes the classes ``bv-*`` on a dark screen. drawsvg does not escape attributes, so
text from profiles goes through :func:`clean` into text nodes only.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from xml.sax.saxutils import escape

import drawsvg

from bubbleviz.errors import UsageError
from bubbleviz.model.choices import style_settings
from bubbleviz.model.pointers import millimetres
from bubbleviz.render.document import fitting, round_step, wrapped
from bubbleviz.render.palette import CAUSE_HATCHES, CAUSES, DARK, LIGHT, Paint, luminance
from bubbleviz.report.view import View

# Lettering: how wide a text is, before any program has set it, and what of it fits.


#: Advances of characters as shares of the font size: of DejaVu Sans or Arial, the wider one.
_ADVANCES = {
    character: advance
    for advance, characters in (
        (0.32, "'ijlI ,.·\u00a0"),
        (0.36, "/:;\\|-f"),
        (0.42, "()[]!tr"),
        (0.53, '"*`Jsz'),
        (0.58, "cL?_\u2013k"),
        (0.64, "vxyaeoFT$0123456789bdghnpqu{}µ"),
        (0.69, "EKPSVYABXZ"),
        (0.79, "CRUNHDG&OQ"),
        (0.87, "w#+<=>^~±→\u00d7M"),
        (1.02, "%mW@…"),
    )
    for character in characters
}
#: Bold letters are so much wider.
BOLD = 1.12


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return an upper estimate of the width of ``text``, for the usual sans-serif fonts."""
    return size * sum(map(_advance, text)) * (BOLD if bold else 1.0)


def _advance(character: str) -> float:
    known = _ADVANCES.get(character)
    if known is not None:
        return known
    if unicodedata.east_asian_width(character) in "WF":
        return 1.3
    return 0.8 if character.isupper() else 0.7


def fitted(text: str, size: float, width: float) -> str:
    """Return ``text``, cut so that it is at most ``width`` px wide."""
    return fitting(text, width, lambda shown: text_width(shown, size))


FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

# Styles: how a picture is set, on a screen or at the width of a column of a paper.
#
# A unit of the page is a px on a screen. At a physical width it is 0.7 pt, so that letters of 10
# units are 7 pt on paper::
#
#     89 mm   =  252.3 pt  =  360.4 units     one column
#     183 mm  =  518.7 pt  =  741.1 units     two columns


#: Letters of a picture at a physical width, pt; and of numbers in narrow boxes at least.
POINTS, LEAST_POINTS = 7.0, 6.0
#: Height of these letters in units of the page.
LETTERS = 10.0
#: Width of a paper's two columns, mm: that of ``--style paper`` alone.
TWO_COLUMNS_MM = 183.0
_POINTS_PER_MM, _PX_PER_MM = 72 / 25.4, 96 / 25.4
# Rows of a picture have the height of the first line that has room for them all:
# (rows at most, height of a row, gap below it), units.
_SCREEN_ROWS = ((4, 30.0, 7.0), (8, 26.0, 6.0), (16, 21.0, 5.0), (32, 16.0, 4.0), (64, 11.0, 3.0))
_PAPER_ROWS = ((4, 17.0, 4.0), (8, 14.0, 3.0), (16, 11.0, 2.0), (32, 7.0, 2.0), (64, 5.0, 1.5))
_SMALLEST_ROW = (7.0, 2.0)
_SMALLEST_PAPER_ROW = (3.5, 1.0)


@dataclass(frozen=True)
class Lettering:
    """Font sizes, units of the page.

    Attributes:
        heading: of the title, in bold.
        beside: of what the title is of.
        panel: of the title of a panel, in bold.
        label: beside rows, at most; ``least_label`` at least.
        axis: of ticks and brackets.
        legend: of the legend.
        note: of notes.
        number: of the numbers in boxes, at most; ``least_number`` at least.
    """

    heading: float
    beside: float
    panel: float
    label: float
    least_label: float
    axis: float
    legend: float
    note: float
    number: float
    least_number: float


_SCREEN_LETTERS = Lettering(16, 11.5, 12.5, 11, 8, 10, 10.5, 9.5, 11, 8)
_PAPER_LETTERS = replace(Lettering(*[LETTERS] * 10), least_number=LETTERS * LEAST_POINTS / POINTS)


@dataclass(frozen=True)
class PictureStyle:
    """How a picture is set.

    Attributes:
        width: of the page, units.
        millimetres: its width on paper; None where a unit is a px.
        margin: around everything, units.
        letters: font sizes.
        rows: heights by number of rows, as (rows at most, height, gap); the last for any number.
        line: width of the frames of boxes, as a share of that on a screen.
        titled: whether a title, and a bracket over a single iteration, are drawn.
        notes: whether notes, limitations and marks of uncertain clocks are.
        names: whether rows have the names of their ranks beside their stages.
        dark: whether it is dark on a dark screen.
        font: families of its letters.
        legend: whether it has a legend.
        height: of the page, units; None for as high as its rows need.
    """

    width: float = 1200.0
    millimetres: float | None = None
    margin: float = 16.0
    letters: Lettering = _SCREEN_LETTERS
    rows: tuple[tuple[float, float, float], ...] = (*_SCREEN_ROWS, (float("inf"), *_SMALLEST_ROW))
    line: float = 1.0
    titled: bool = True
    notes: bool = True
    names: bool = True
    dark: bool = True
    font: str = FONT
    legend: bool = True
    height: float | None = None

    def name_size(self, size: float) -> float:
        """Return the font size of a rank's name beside its stage of a font size."""
        return size if self.millimetres else 0.9 * size

    def row_height(self, rows: int) -> tuple[float, float]:
        """Return the height of each of so many rows, and of the gap below it, units."""
        return next((height, gap) for most, height, gap in self.rows if rows <= most)

    def with_rows(self, row: float) -> PictureStyle:
        """Return this style with rows of a height, units, however many there are."""
        return replace(self, rows=((math.inf, row, max(row / 5, 1.0)),))


#: A picture for a screen.
SCREEN = PictureStyle()


def style_of(view: View) -> PictureStyle:
    """Return the style that a view names, at its width, with what is set otherwise."""
    name, settings = style_settings(view.style)
    style = _named_style(name, view.width_mm)
    if "row" in settings:
        style = style.with_rows(float(settings["row"]))
    if "height" in settings:
        per_mm = style.width / style.millimetres if style.millimetres else _PX_PER_MM
        height = per_mm * millimetres(settings["height"], "--style height", 1.0)
        style = replace(style, height=height)
    return replace(
        style,
        font=f"{settings['font']}, {FONT}" if "font" in settings else FONT,
        legend=settings.get("legend") != "no",
        names=settings["labels"] == "yes" if "labels" in settings else style.names,
    )


def _named_style(name: str, width_mm: float | None) -> PictureStyle:
    if name == "paper":
        width_mm = width_mm or TWO_COLUMNS_MM
    if width_mm is None:
        return SCREEN
    sized = PictureStyle(
        width=round(width_mm * _POINTS_PER_MM / POINTS * LETTERS, 2),
        millimetres=width_mm,
        margin=2.0,
        letters=_PAPER_LETTERS,
        rows=(*_PAPER_ROWS, (float("inf"), *_SMALLEST_PAPER_ROW)),
        line=0.6,
        dark=False,
    )
    if name == "paper":
        return replace(sized, titled=False, notes=False, names=False)
    return sized


#: In place of an unknown number.
UNKNOWN = "\u2013"

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


# Numbers


def percent(fraction: float | None) -> str:
    """Return a fraction of 1 as the pictures print it; a dash for None."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f}\u00a0%"


def duration(ns: float) -> str:
    """Return a duration with the unit that suits it and four significant digits."""
    unit_ns, unit = next(((n, u) for n, u in _UNITS if abs(ns) >= n), _UNITS[-1])
    value = ns / unit_ns
    digits = 0 if unit == "ns" else max(0, 3 - int(math.log10(max(abs(value), 1))))
    return f"{value:.{digits}f}\u00a0{unit}"


def ticks(span_ns: int, most: int) -> tuple[list[tuple[int, str]], str]:
    """Return at most ``most`` + 1 round times from 0 to ``span_ns``, as printed, and their unit."""
    least = span_ns / max(most, 1)
    step = int(round_step(max(least, 1)))
    unit_ns, unit = next((n, u) for n, u in _UNITS if span_ns >= 2 * n or n == 1)
    digits = max(0, math.ceil(math.log10(unit_ns / step)))
    times = range(0, span_ns + 1, step)
    return [(time, f"{time / unit_ns:.{digits}f}") for time in times], unit


def px(value: float) -> float | int:
    """Return ``value`` rounded to 0.01, without a needless fraction."""
    rounded = round(float(value), 2)
    return int(rounded) if rounded == int(rounded) else rounded


def box(left: float, top: float, right: float, bottom: float) -> str:
    """Return the path of a box; boxes that share an edge do so after rounding, too."""
    x, y = px(left), px(top)
    width, height = px(round(right, 2) - round(left, 2)), px(bottom - top)
    return f"M{x} {y}h{width}v{height}h{px(-width)}z"


# The page


#: The colours of a dark screen.
_DARK_SHEET = (
    "@media screen and (prefers-color-scheme:dark){"
    f".bv-paper{{fill:{DARK.paper}}}.bv-text{{fill:{DARK.text}}}.bv-quiet{{fill:{DARK.quiet}}}"
    f".bv-frame{{stroke:{DARK.frame}}}.bv-band{{fill:{DARK.band}}}"
    f".bv-hatch{{stroke:{DARK.hatch}}}.bv-gap{{fill:{DARK.gap}}}.bv-grid{{stroke:{DARK.grid}}}"
    f".bv-rule{{stroke:{DARK.quiet}}}.bv-mark{{stroke:{DARK.text}}}.bv-pale{{fill-opacity:0.25}}"
    "}"
)
#: Colours of idle time that are lighter than this would shine on a dark screen.
_PALE = 0.48


class Page:
    """The document: a stack of elements, definitions by id, and a cursor that moves down.

    Args:
        ids: what the ids of definitions begin with; those of several pictures in one HTML document
            must differ.
        style: how it is set.
    """

    def __init__(self, ids: str = "bv-", style: PictureStyle = SCREEN) -> None:
        self.ids = ids
        self.style = style
        self.y = style.margin
        self.elements: list[Any] = []
        self.definitions: dict[str, Any] = {}
        self.title = "bubbleviz"
        self.description = ""

    @property
    def left(self) -> float:
        """Left edge of what is drawn."""
        return self.style.margin

    @property
    def right(self) -> float:
        """Right edge of what is drawn."""
        return self.style.width - self.style.margin

    def text(
        self,
        text: str,
        x: float,
        y: float,
        size: float | None = 11,
        *,
        into: Any = None,
        ink: str | None = "text",
        **attributes: Any,
    ) -> None:
        """Write one line with its baseline at ``y``."""
        if ink is not None:
            attributes |= {"class_": f"bv-{ink}", "fill": getattr(LIGHT, ink)}
        size = None if size is None else px(size)
        element = drawsvg.Text(text, size, px(x), px(y), **attributes)
        (self.elements if into is None else into).append(element)

    def heading(self, text: str) -> None:
        """Write a heading below the cursor, which moves to its baseline."""
        size = self.style.letters.heading
        self.y += 0.875 * size
        shown = fitted(text, size * BOLD, self.right - self.left)
        self.text(shown, self.left, self.y, size, font_weight="bold")

    def path(self, path: str, **look: Any) -> None:
        """Draw a path, if there is any."""
        if path:
            self.elements.append(drawsvg.Path(path, **look))

    def rule(self, path: str) -> None:
        """Draw a thin line along a path."""
        self.path(path, fill="none", stroke=LIGHT.quiet, stroke_width=0.8, class_="bv-rule")

    def line(self, path: str, ink: str, width: float = 1, **look: Any) -> None:
        """Draw a line of a graph in an ink: ``grid``, or ``mark`` in that of texts."""
        colour = LIGHT.grid if ink == "grid" else LIGHT.text
        stroke = {"stroke": colour, "stroke_width": width, "fill": "none", "class_": f"bv-{ink}"}
        self.path(path, **stroke, **look)

    def paragraph(self, text: str, size: float, *, ink: str = "quiet", lines: int = 2) -> None:
        """Write a text over the width of the page, on at most ``lines`` lines."""
        width = self.right - self.left
        for line in wrapped(text, width, most=lines, measure=lambda shown: text_width(shown, size)):
            self.y += size * 1.35
            self.text(line, self.left, self.y - size * 0.3, size, ink=ink)

    def fill(self, paint: Paint) -> str:
        """Return the ``fill`` of a paint, defining it where it has several bands."""
        if len(paint.bands) == 1:
            return paint.main
        name = f"{self.ids}{paint.name}"
        if name not in self.definitions:
            gradient = drawsvg.LinearGradient(
                0, 0, 0, 1, gradientUnits="objectBoundingBox", id=name
            )
            offset = 0.0
            for share, colour in paint.bands:
                gradient.add_stop(px(offset), colour)
                offset += share
                gradient.add_stop(px(offset), colour)
            self.definitions[name] = gradient
        return f"url(#{name}) {paint.main}"

    def length(self, units: float) -> str:
        """Return a length on the page with its unit."""
        if self.style.millimetres is None:
            return f"{units:g} px"
        return f"{units / self.style.width * self.style.millimetres:.2g} mm"

    def cause_boxes(self, path: str, label: str) -> None:
        """Draw idle time of a cause: boxes of its colour, and its hatch on them."""
        name, colour = f"{self.ids}cause-{label}", CAUSES[label]
        if name not in self.definitions:
            # A square tile that is turned.
            hatch = CAUSE_HATCHES[label]
            ink, tile, middle = hatch.ink(colour), hatch.spacing, hatch.spacing / 2
            pattern = drawsvg.Pattern(
                tile, tile, patternTransform=f"rotate({hatch.angle})", id=name
            )
            lines = f"M{middle} 0V{tile}" if hatch.line else ""
            lines += f"M0 {middle}H{tile}" if hatch.crossed else ""
            if hatch.dots:
                pattern.append(drawsvg.Circle(middle, middle, hatch.line, fill=ink))
            elif lines:
                look = {"stroke": ink, "stroke_width": hatch.line, "fill": "none"}
                pattern.append(drawsvg.Path(lines, **look))
            self.definitions[name] = pattern
        pale = "bv-pale" if luminance(colour) > _PALE else None
        self.elements += [
            drawsvg.Path(path, fill=colour, class_=pale),
            drawsvg.Path(path, fill=f"url(#{name})"),
        ]

    def hatch(self) -> str:
        """Return the ``fill`` of bubbles."""
        name = f"{self.ids}bubble"
        if name not in self.definitions:
            pattern = drawsvg.Pattern(5, 5, patternTransform="rotate(45)", id=name)
            pattern.append(drawsvg.Rectangle(0, 0, 5, 5, fill=LIGHT.band, class_="bv-band"))
            line = {"stroke": LIGHT.hatch, "stroke_width": 0.8, "class_": "bv-hatch"}
            pattern.append(drawsvg.Line(2.5, 0, 2.5, 5, **line))
            self.definitions[name] = pattern
        return f"url(#{name}) {LIGHT.band}"

    @property
    def height(self) -> float:
        """Height of what is on the page, with the margin below it, units."""
        return math.ceil(self.y + max(self.style.margin * 0.75, 1))

    def svg(self) -> str:
        """Return the document."""
        style = self.style
        width, height = style.width, px(style.height or self.height)
        look: dict[str, Any] = {"class_": "bubbleviz", "role": "img", "font_family": style.font}
        drawing = drawsvg.Drawing(px(width), height, **look)
        if style.millimetres is not None:
            drawing.set_render_size(
                f"{px(style.millimetres)}mm", f"{px(height / width * style.millimetres)}mm"
            )
        if style.dark:
            drawing.append_css(_DARK_SHEET)
        drawing.append_title(self.title)
        drawing.append(drawsvg.Raw(f"<desc>{escape(self.description)}</desc>"))
        for _, definition in sorted(self.definitions.items()):
            drawing.append_def(definition)
        paper = drawsvg.Rectangle(0, 0, px(width), height, fill=LIGHT.paper, class_="bv-paper")
        drawing.append(paper)
        drawing.extend(self.elements)
        return str(drawing.as_svg())


def page_of_height(style: PictureStyle, draw: Callable[[PictureStyle], Page]) -> Page:
    """Return the page that is drawn in a style, with rows that give it the style's height.

    Raises:
        UsageError: the names of rows would be smaller than 6 pt, or stand beside some rows alone.
    """
    wanted = style.height
    if wanted is None:
        return draw(style)
    least = LETTERS * LEAST_POINTS / POINTS if style.millimetres else style.letters.least_label
    style = replace(style, letters=replace(style.letters, least_label=least))
    # What is beside rows is as high whatever their height.
    row = 0.8 * least
    lowest, higher = (draw(style.with_rows(height)) for height in (row, 2 * row))
    if lowest.height > wanted:
        mm = style.millimetres / style.width if style.millimetres else 1 / _PX_PER_MM
        raise UsageError(
            f"--style height={wanted * mm:.4g}mm: with letters of {LEAST_POINTS:g} pt beside "
            f"all rows the least height is {math.ceil(lowest.height * mm)}mm; give that, or draw "
            "fewer rows with --stages or --rows stage"
        )
    row *= 1 + (wanted - lowest.height) / max(higher.height - lowest.height, 1)
    page = draw(style.with_rows(row))
    while page.height > wanted:
        row -= 0.25
        page = draw(style.with_rows(row))
    return page
