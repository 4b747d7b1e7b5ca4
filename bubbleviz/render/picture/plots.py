"""Plots: graphs with two axes, and maps of shaded cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import drawsvg
import numpy as np

from bubbleviz.model.columns import Floats
from bubbleviz.render.document import round_step
from bubbleviz.render.palette import FORWARD, LIGHT, heat
from bubbleviz.render.picture.page import Page, box, px, text_width

#: Size of the letters along axes, units of the page.
LETTERS = 9.5
#: Shades of a map.
SHADES = 11
#: Between cells that are large enough, units of the page.
_GAP = 0.6


class Graph:
    """A graph on a page: from values to places.

    Args:
        page: the page.
        left: edge of the plot.
        right: likewise.
        top: likewise.
        height: of the plot.
        across: values at the left and at the right edge.
        up: values at the lower and at the upper edge.
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

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where two values lie."""
        (west, east), (low, high) = self._across, self._up
        return (
            self.left + (x - west) / (east - west) * (self.right - self.left),
            self.bottom - (y - low) / (high - low) * (self.bottom - self.top),
        )

    def axes(self, across: Iterable[tuple[float, str]], up: Iterable[tuple[float, str]]) -> None:
        """Draw values with their labels: ticks below, and lines from side to side."""
        lines = [f"M{px(self.left)} {px(self.top)}V{px(self.bottom)}H{px(self.right)}"]
        look = {"ink": "quiet", "text_anchor": "middle"}
        for value, label in across:
            x, _ = self.at(value, self._up[0])
            lines.append(f"M{px(x)} {px(self.bottom)}v4")
            self.page.text(label, x, self.bottom + 15, LETTERS, **look)
        look["text_anchor"] = "end"
        for value, label in up:
            _, y = self.at(self._across[0], value)
            lines.append(f"M{px(self.left - 4)} {px(y)}H{px(self.right)}")
            self.page.text(label, self.left - 8, y + 3.5, LETTERS, **look)
        self.page.line("".join(lines), "grid")

    def line(self, points: Iterable[tuple[float, float]], **look: str | float) -> None:
        """Draw a line through values."""
        places = (self.at(*point) for point in points)
        path = "".join(f"{'L' if n else 'M'}{px(x)} {px(y)}" for n, (x, y) in enumerate(places))
        self.page.line(path, "mark", 1.2, **look)

    def dot(self, x: float, y: float, radius: float, *, hollow: bool = False) -> None:
        """Draw a dot at a place on the page."""
        look = {"fill": LIGHT.paper, "class_": "bv-paper", "stroke": FORWARD, "stroke_width": 1.2}
        look = look if hollow else {"fill": FORWARD}
        self.page.elements.append(drawsvg.Circle(px(x), px(y), radius, **look))


def steps(low: float, high: float, most: int) -> list[float]:
    """Return round values from ``low`` to ``high``, about so many."""
    step = round_step((high - low) / most, (1, 2, 2.5, 5, 10))
    return [number * step for number in range(int(-(-low // step)), int(high // step) + 1)]


def draw_cells(page: Page, shade: Floats, left: float, width: float, height: float) -> None:
    """Draw cells below the page's cursor, which moves below them.

    Args:
        page: the page.
        shade: by row and column, from 0 (light) to 1 (dark); NaN for no cell.
        left: left edge.
        width: of a cell.
        height: of a cell.
    """
    # Where cells are large enough, a line of paper divides them.
    gap = _GAP if min(width, height) > 12 * _GAP else 0.0
    number = np.rint(np.clip(shade, 0, 1) * (SHADES - 1))
    for each in range(SHADES):
        boxes = [
            box(x, y, x + width - gap, y + height - gap)
            for row, column in np.argwhere(number == each).tolist()
            for x, y in [(left + column * width, page.y + row * height)]
        ]
        page.path("".join(boxes), fill=heat(each / (SHADES - 1)))
    page.y += len(shade) * height


def draw_names(page: Page, names: Sequence[str], left: float, width: float, size: float) -> None:
    """Write a name and a tick below the middle of every so many columns, as far as they fit."""
    step = int(round_step(max(max(text_width(n, size) for n in names) + 0.7 * size, width) / width))
    path = ""
    for place in range(0, len(names), step):
        x = left + width * (place + 0.5)
        path += f"M{px(x)} {px(page.y + 1)}v3"
        look = {"ink": "quiet", "text_anchor": "middle"}
        page.text(names[place], x, page.y + 4 + 0.9 * size, size, **look)
    page.rule(path)
    page.y += 4 + 1.2 * size
