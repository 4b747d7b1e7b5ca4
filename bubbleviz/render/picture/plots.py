"""Elements of plots: graphs with two axes, and maps of shaded cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bubbleviz.model.columns import Floats
from bubbleviz.render.palette import FORWARD, LIGHT, get_heat_color
from bubbleviz.render.picture.drawing import box, px
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.numbers import round_step
from bubbleviz.render.picture.page import Page

#: Font size of axis labels, in page units.
LETTERS = 9.5
#: Number of different shades in a map.
SHADES = 11
#: Gap between cells, in page units. There are no gaps between small cells.
_GAP = 0.6


class Graph:
    """A graph with two axes on a page. It converts values to page coordinates.

    Args:
        page: The page.
        left: The x coordinate of the left edge.
        right: The x coordinate of the right edge.
        top: The y coordinate of the upper edge.
        height: Height of the graph, in page units.
        across: Values of the horizontal axis at the left and right edges.
        up: Values of the vertical axis at the lower and upper edges.
    """

    def __init__(
        self,
        page: Page,
        left: float,
        right: float,
        top: float,
        height: float,
        across: tuple[float, float],
        up: tuple[float, float],
    ) -> None:
        self.page, self.left, self.right, self.top = page, left, right, top
        self.bottom, self._across, self._up = top + height, across, up

    def x(self, value: float) -> float:
        """Return the x coordinate of a value on the horizontal axis."""
        start, end = self._across
        return self.left + (value - start) / (end - start) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value on the vertical axis."""
        start, end = self._up
        return self.bottom - (value - start) / (end - start) * (self.bottom - self.top)

    def axes(self, across: Iterable[tuple[float, str]], up: Iterable[tuple[float, str]]) -> None:
        """Draw both axes, with labeled ticks below the graph and labeled horizontal grid lines.

        Args:
            across: (value, label) of each tick on the horizontal axis.
            up: (value, label) of each grid line.
        """
        left, right, top, bottom = self.left, self.right, self.top, self.bottom
        lines = f"M{px(left)} {px(top)}V{px(bottom)}H{px(right)}"
        look = {"ink": "quiet", "text_anchor": "middle"}
        for value, label in across:
            x = self.x(value)
            lines += f"M{px(x)} {px(bottom)}v4"
            self.page.text(label, x, bottom + 15, LETTERS, **look)
        look["text_anchor"] = "end"
        for value, label in up:
            y = self.y(value)
            lines += f"M{px(left - 4)} {px(y)}H{px(right)}"
            self.page.text(label, left - 8, y + 3.5, LETTERS, **look)
        self.page.line(lines, "grid")

    def line(self, points: Iterable[tuple[float, float]], **look: str | float) -> None:
        """Draw a line through points given as (x, y) values rather than page coordinates."""
        places = (f"{px(self.x(x))} {px(self.y(y))}" for x, y in points)
        self.page.line("M" + "L".join(places), "mark", 1.2, **look)

    def dot(self, x: float, y: float, radius: float, *, hollow: bool = False) -> None:
        """Draw a dot at the given page coordinates (not axis values)."""
        if not hollow:
            self.page.circle(x, y, radius, fill=FORWARD)
            return
        look = {"fill": LIGHT.paper, "class_": "bv-paper", "stroke": FORWARD, "stroke_width": 1.2}
        self.page.circle(x, y, radius, **look)


def steps(low: float, high: float, max_steps: int) -> list[float]:
    """Return all multiples of a round step between ``low`` and ``high``, both inclusive.

    The step is the smallest of 1, 2, 2.5 or 5 times a power of ten that is at least
    ``(high - low) / max_steps``.
    """
    step = round_step((high - low) / max_steps, (1, 2, 2.5, 5, 10))
    first, last = int(-(-low // step)), int(high // step)
    return [number * step for number in range(first, last + 1)]


def draw_cells(page: Page, shade: Floats, left: float, width: float, height: float) -> None:
    """Draw a map of shaded cells below the page's cursor, and move the cursor below the map.

    Shades are clipped to [0, 1] and rounded to ``SHADES`` levels.

    Args:
        page: The page.
        shade: Shade of each cell from 0 (light) to 1 (dark), shape (rows, columns). A cell whose
            shade is NaN is left out.
        left: Left edge of the map.
        width: Width of a cell, including the gap to the next cell.
        height: Height of a cell, including the gap to the next cell.
    """
    gap = _GAP if min(width, height) > 12 * _GAP else 0.0
    shade_number = np.rint(np.clip(shade, 0, 1) * (SHADES - 1))
    for number in range(SHADES):
        path = ""
        for row, column in np.argwhere(shade_number == number).tolist():
            x, y = left + column * width, page.y + row * height
            path += box(x, y, x + width - gap, y + height - gap)
        page.path(path, fill=get_heat_color(number / (SHADES - 1)))
    page.y += len(shade) * height


def draw_names(page: Page, names: Sequence[str], left: float, width: float, size: float) -> None:
    """Draw a tick and a name below the center of each column, and move the cursor below the names.

    If the names would overlap, only every n-th column gets a tick and a name, where n is 1, 2 or 5
    times a power of ten.

    Args:
        page: The page, with its cursor at the lower edge of the columns.
        names: Name of each column.
        left: Left edge of the first column.
        width: Width of a column.
        size: Font size.
    """
    widest = max(text_width(name, size) for name in names)
    pitch = max(widest + 0.7 * size, width)
    look = {"ink": "quiet", "text_anchor": "middle"}
    path = ""
    for column in range(0, len(names), int(round_step(pitch / width))):
        x = left + width * (column + 0.5)
        path += f"M{px(x)} {px(page.y + 1)}v3"
        page.text(names[column], x, page.y + 4 + 0.9 * size, size, **look)
    page.rule(path)
    page.y += 4 + 1.2 * size
