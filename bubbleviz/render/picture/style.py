"""Styles: how a picture is set, on a screen or at the width of a column of a paper.

A unit of the page is a px on a screen. At a physical width it is 0.7 pt, so that letters of 10
units are 7 pt on paper::

    89 mm   =  252.3 pt  =  360.4 units     one column
    183 mm  =  518.7 pt  =  741.1 units     two columns
"""

from __future__ import annotations

from dataclasses import replace

from bubbleviz.model.values import frozen
from bubbleviz.report.view import View

#: Letters of a picture at a physical width, pt; and of numbers in narrow boxes at least.
POINTS, LEAST_POINTS = 7.0, 5.0
#: Height of these letters in units of the page.
LETTERS = 10.0
#: Width of a paper's two columns, mm: that of ``--style paper`` alone.
TWO_COLUMNS_MM = 183.0
_POINTS_PER_MM = 72 / 25.4
# Rows of a picture have the height of the first line that has room for them all:
# (rows at most, height of a row, gap below it), units.
_SCREEN_ROWS = ((4, 30.0, 7.0), (8, 26.0, 6.0), (16, 21.0, 5.0), (32, 16.0, 4.0), (64, 11.0, 3.0))
_PAPER_ROWS = ((4, 17.0, 4.0), (8, 14.0, 3.0), (16, 11.0, 2.0), (32, 7.0, 2.0), (64, 5.0, 1.5))
_SMALLEST_ROW = (7.0, 2.0)
_SMALLEST_PAPER_ROW = (3.5, 1.0)


@frozen
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


_SCREEN_LETTERS = Lettering(16, 11.5, 12.5, 11, 5.5, 10, 10.5, 9.5, 11, 5.5)
_PAPER_LETTERS = Lettering(
    heading=LETTERS,
    beside=LETTERS,
    panel=LETTERS,
    label=LETTERS,
    least_label=LETTERS,
    axis=LETTERS,
    legend=LETTERS,
    note=LETTERS,
    number=LETTERS,
    least_number=LETTERS * LEAST_POINTS / POINTS,
)


@frozen
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

    @property
    def points_per_unit(self) -> float:
        """Points of a unit of the page; a px is three quarters of a point."""
        if self.millimetres is None:
            return 0.75
        return self.millimetres * _POINTS_PER_MM / self.width

    def row_height(self, rows: int) -> tuple[float, float]:
        """Return the height of each of so many rows, and of the gap below it, units."""
        return next((height, gap) for most, height, gap in self.rows if rows <= most)


#: A picture for a screen.
SCREEN = PictureStyle()


def style_of(view: View) -> PictureStyle:
    """Return the style that a view names, at its width."""
    width_mm = view.width_mm
    if view.style == "paper":
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
    if view.style == "paper":
        return replace(sized, titled=False, notes=False, names=False)
    return sized
