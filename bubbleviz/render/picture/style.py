"""Picture styles: font sizes and row heights on a screen or on paper.

On a screen, a page unit is a pixel. In a picture with a physical width, a page unit is 0.7 pt, so a
font size of 10 units is 7 pt on paper::

    89 mm   =  252.3 pt  =  360.4 units     one column
    183 mm  =  518.7 pt  =  741.1 units     two columns
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bubbleviz.model.choices import parse_style
from bubbleviz.model.paper_lengths import parse_millimeters
from bubbleviz.render.picture.lettering import FONT
from bubbleviz.report.view import View

#: Usual and minimum font size, in pt, in a picture with a physical width.
POINTS, MIN_POINTS = 7.0, 6.0
#: Font size that corresponds to ``POINTS`` in page units.
LETTERS = 10.0
#: Width of two columns in a paper, in mm. It is the default width of ``--style paper``.
TWO_COLUMNS_MM = 183.0
PX_PER_MM = 96 / 25.4
_POINTS_PER_MM = 72 / 25.4
# Row heights: (maximum number of rows, height of a row, gap below a row). The first entry with a
# large enough maximum number of rows is used.
_SCREEN_ROWS = ((4, 30.0, 7.0), (8, 26.0, 6.0), (16, 21.0, 5.0), (32, 16.0, 4.0), (64, 11.0, 3.0))
_PAPER_ROWS = ((4, 17.0, 4.0), (8, 14.0, 3.0), (16, 11.0, 2.0), (32, 7.0, 2.0), (64, 5.0, 1.5))
_SMALLEST_ROW = (7.0, 2.0)
_SMALLEST_PAPER_ROW = (3.5, 1.0)


@dataclass(frozen=True)
class Lettering:
    """Font sizes in page units.

    Attributes:
        heading: Font size of the bold title.
        subtitle: Font size of the text below the title.
        panel: Font size of a panel's bold title.
        label: Maximum font size of labels next to rows.
        min_label: Minimum font size of labels next to rows.
        axis: Font size of tick labels and bracket texts.
        legend: Font size of the legend.
        note: Font size of the notes below the picture.
        number: Maximum font size of numbers in boxes.
        min_number: Minimum font size of numbers in boxes.
    """

    heading: float
    subtitle: float
    panel: float
    label: float
    min_label: float
    axis: float
    legend: float
    note: float
    number: float
    min_number: float


_SCREEN_LETTERS = Lettering(16, 11.5, 12.5, 11, 8, 10, 10.5, 9.5, 11, 8)
_PAPER_LETTERS = replace(Lettering(*[LETTERS] * 10), min_number=LETTERS * MIN_POINTS / POINTS)


@dataclass(frozen=True)
class PictureStyle:
    """Picture sizes, and which optional parts are drawn.

    Attributes:
        width: Width of the page in page units.
        millimeters: Physical width of the page in mm, or None if page units are pixels.
        margin: Width of the margin on all sides, in page units.
        letters: Font sizes.
        rows: Row heights: (maximum number of rows, height of a row, gap below a row), with
            ascending numbers of rows. The last number of rows is infinity.
        line: Line width relative to the screen style.
        titled: Whether a title is drawn, and also a bracket when there is only one iteration.
        notes: Whether notes, limitations and clock uncertainties are drawn.
        names: Whether rank names are drawn next to the stage of each row.
        dark: Whether the picture switches to dark colors on dark screens.
        font: Comma-separated font families.
        legend: Whether a legend is drawn.
        height: Height of the page in page units, or None to make it as tall as its content.
    """

    width: float = 1200.0
    millimeters: float | None = None
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
        """Minimum font size of legible labels in page units, which is 6 pt on paper."""
        return LETTERS * MIN_POINTS / POINTS if self.millimeters else self.letters.min_label

    @property
    def mm_per_unit(self) -> float:
        """Length of a page unit in mm. On a screen, a page unit is a CSS pixel (1/96 inch)."""
        return self.millimeters / self.width if self.millimeters else 1 / PX_PER_MM

    def label_size(self, row: float) -> float:
        """Return the font size of labels next to rows: 0.68 times the row height, within limits.

        The limits are ``letters.min_label`` and ``letters.label``.
        """
        return max(self.letters.min_label, min(self.letters.label, row * 0.68))

    def name_size(self, size: float) -> float:
        """Return the font size of rank names next to stage labels of font size ``size``."""
        return size if self.millimeters else 0.9 * size

    def row_height(self, rows: int) -> tuple[float, float]:
        """Return (height of a row, gap below a row) for a picture with ``rows`` rows."""
        return next((height, gap) for max_rows, height, gap in self.rows if rows <= max_rows)

    def with_rows(self, row: float) -> PictureStyle:
        """Return a copy of this style in which the row height is ``row``.

        The gap below each row is a fifth of the row height, but at least 1.
        """
        return replace(self, rows=((math.inf, row, max(row / 5, 1.0)),))


#: The default style, for a screen.
SCREEN = PictureStyle()


def choose_style(view: View) -> PictureStyle:
    """Return the style of a view: the named style, modified by the view's width and settings.

    The settings ``row``, ``height``, ``font``, ``labels`` and ``legend`` override the values of the
    named style.
    """
    name, settings = parse_style(view.style)
    style = _get_named_style(name, view.width_mm)
    if "row" in settings:
        style = style.with_rows(float(settings["row"]))
    if "height" in settings:
        per_mm = style.width / style.millimeters if style.millimeters else PX_PER_MM
        height = per_mm * parse_millimeters(settings["height"], "--style height", 1.0)
        style = replace(style, height=height)
    if "font" in settings:
        style = replace(style, font=f"{settings['font']}, {FONT}")
    if "labels" in settings:
        style = replace(style, names=settings["labels"] == "yes")
    return replace(style, legend=settings.get("legend") != "no")


def _get_named_style(name: str, width_mm: float | None) -> PictureStyle:
    """Return the style with the given name and physical width.

    The style ``paper`` has no title, no notes and no rank names, and its default width is
    ``TWO_COLUMNS_MM``. The style ``screen`` has no default width. If a width is given, ``screen``
    uses the font sizes and row heights of ``paper``.

    Args:
        name: ``screen`` or ``paper``.
        width_mm: Physical width of the page in mm, or None for the default width.
    """
    if name == "paper":
        width_mm = width_mm or TWO_COLUMNS_MM
    if width_mm is None:
        return SCREEN
    printed = PictureStyle(
        width=round(width_mm * _POINTS_PER_MM / POINTS * LETTERS, 2),
        millimeters=width_mm,
        margin=2.0,
        letters=_PAPER_LETTERS,
        rows=(*_PAPER_ROWS, (float("inf"), *_SMALLEST_PAPER_ROW)),
        line=0.6,
        dark=False,
    )
    if name == "paper":
        return replace(printed, titled=False, notes=False, names=False)
    return printed
