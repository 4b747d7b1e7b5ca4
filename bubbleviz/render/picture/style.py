"""Styles: sizes of letters and rows on a screen, or in a picture for a paper.

A page unit is a pixel on a screen. In a picture with a physical width it is 0.7 pt, so that letters
of 10 units are 7 pt on paper::

    89 mm   =  252.3 pt  =  360.4 units     one column
    183 mm  =  518.7 pt  =  741.1 units     two columns
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bubbleviz.model.choices import parse_style
from bubbleviz.model.paper_lengths import parse_millimetres
from bubbleviz.render.picture.lettering import FONT
from bubbleviz.report.view import View

#: Font size of a picture with a physical width, and the minimum size of numbers in narrow boxes and
#: of names next to rows, in pt.
POINTS, MIN_POINTS = 7.0, 6.0
#: Height of these letters in page units.
LETTERS = 10.0
#: Width of a paper's two columns in mm, the width of ``--style paper``.
TWO_COLUMNS_MM = 183.0
PX_PER_MM = 96 / 25.4
_POINTS_PER_MM = 72 / 25.4
# Heights of rows: (maximum number of rows, height of a row, gap below it). The first line with
# enough rows applies.
_SCREEN_ROWS = ((4, 30.0, 7.0), (8, 26.0, 6.0), (16, 21.0, 5.0), (32, 16.0, 4.0), (64, 11.0, 3.0))
_PAPER_ROWS = ((4, 17.0, 4.0), (8, 14.0, 3.0), (16, 11.0, 2.0), (32, 7.0, 2.0), (64, 5.0, 1.5))
_SMALLEST_ROW = (7.0, 2.0)
_SMALLEST_PAPER_ROW = (3.5, 1.0)


@dataclass(frozen=True)
class Lettering:
    """Font sizes in page units.

    Attributes:
        heading: Bold letters of the title.
        beside: Text below the title.
        panel: Bold letters of the title of a panel.
        label: Maximum size of labels next to rows.
        least_label: Minimum size of labels next to rows.
        axis: Ticks and brackets.
        legend: The legend.
        note: Notes below the picture.
        number: Maximum size of the numbers in boxes.
        least_number: Minimum size of the numbers in boxes.
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
_PAPER_LETTERS = replace(Lettering(*[LETTERS] * 10), least_number=LETTERS * MIN_POINTS / POINTS)


@dataclass(frozen=True)
class PictureStyle:
    """Sizes of a picture, and which of its optional parts are drawn.

    Attributes:
        width: Width of the page in page units.
        millimetres: Physical width of the page, or None if a page unit is a pixel.
        margin: Margin on all sides in page units.
        letters: Font sizes.
        rows: (Maximum number of rows, height of a row, gap below it), with increasing numbers of
            rows; the last number is infinite.
        line: Width of the frames of boxes relative to the width on a screen.
        titled: Whether there is a title, and a bracket over a single iteration.
        notes: Whether there are notes, limitations and marks of clock uncertainty.
        names: Whether rows have the names of their ranks next to their stages.
        dark: Whether the picture is dark on a dark screen.
        font: Font families.
        legend: Whether there is a legend.
        height: Height of the page in page units, or None to fit it to the rows.
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

    @property
    def min_label_size(self) -> float:
        """Minimum size of labels that everybody can read: 6 pt on paper."""
        return LETTERS * MIN_POINTS / POINTS if self.millimetres else self.letters.least_label

    @property
    def mm_per_unit(self) -> float:
        """Length of a page unit in mm; on a screen, of a CSS pixel."""
        return self.millimetres / self.width if self.millimetres else 1 / PX_PER_MM

    def label_size(self, row: float) -> float:
        """Return the font size of the labels next to rows of height ``row``."""
        return max(self.letters.least_label, min(self.letters.label, row * 0.68))

    def name_size(self, size: float) -> float:
        """Return the font size of the name of a rank whose stage has font size ``size``."""
        return size if self.millimetres else 0.9 * size

    def row_height(self, rows: int) -> tuple[float, float]:
        """Return the height of a row and of the gap below it in a picture with ``rows`` rows."""
        return next((height, gap) for max_rows, height, gap in self.rows if rows <= max_rows)

    def with_rows(self, row: float) -> PictureStyle:
        """Return this style with rows of height ``row``, for any number of rows."""
        return replace(self, rows=((math.inf, row, max(row / 5, 1.0)),))


#: The default style, for a screen.
SCREEN = PictureStyle()


def style_of(view: View) -> PictureStyle:
    """Return the style that a view names, with the view's width and settings.

    The settings ``row``, ``height``, ``font``, ``labels`` and ``legend`` replace those of the named
    style.
    """
    name, settings = parse_style(view.style)
    style = _get_named_style(name, view.width_mm)
    if "row" in settings:
        style = style.with_rows(float(settings["row"]))
    if "height" in settings:
        per_mm = style.width / style.millimetres if style.millimetres else PX_PER_MM
        height = per_mm * parse_millimetres(settings["height"], "--style height", 1.0)
        style = replace(style, height=height)
    if "font" in settings:
        style = replace(style, font=f"{settings['font']}, {FONT}")
    if "labels" in settings:
        style = replace(style, names=settings["labels"] == "yes")
    return replace(style, legend=settings.get("legend") != "no")


def _get_named_style(name: str, width_mm: float | None) -> PictureStyle:
    """Return the style with a name and a physical width.

    The style ``screen`` has a physical width only if ``width_mm`` is given, and then the letters
    and rows of paper. The style ``paper`` is as wide as two columns if ``width_mm`` is None, and
    has no title, no notes and no names.
    """
    if name == "paper":
        width_mm = width_mm or TWO_COLUMNS_MM
    if width_mm is None:
        return SCREEN
    printed = PictureStyle(
        width=round(width_mm * _POINTS_PER_MM / POINTS * LETTERS, 2),
        millimetres=width_mm,
        margin=2.0,
        letters=_PAPER_LETTERS,
        rows=(*_PAPER_ROWS, (float("inf"), *_SMALLEST_PAPER_ROW)),
        line=0.6,
        dark=False,
    )
    if name == "paper":
        return replace(printed, titled=False, notes=False, names=False)
    return printed
