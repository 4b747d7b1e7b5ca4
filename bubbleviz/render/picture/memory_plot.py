"""Bubble ratio against memory: a dot an order, and the line of those that nothing dominates.

::

    bubble  ┤ o gpipe
            │      o 1f1b
            │ ───o zb-h1 ────┐
            │                └──o zb-h2
            ┼───────────────────────── memory of the fullest device
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import drawsvg

from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.document import round_step
from bubbleviz.render.palette import FORWARD, LIGHT, UNATTRIBUTED
from bubbleviz.render.picture.page import Page, fitted, percent, px, text_width
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: px: height of the plot, and what lies to its left, right and below.
_HEIGHT, _LEFT, _RIGHT, _BELOW = 330.0, 62.0, 96.0, 40.0
#: px: radius of a dot, size of letters, height of a line, and from a dot to its label.
_DOT, _SIZE, _LINE, _AWAY = 4.0, 10.5, 12.5, 4.0
#: Places of a label, the best first: rings around the dot, in px.
_RINGS = (0.0, 12.0, 26.0, 42.0, 60.0, 82.0, 108.0)
#: Steps of an axis, times a power of ten.
_STEPS = (1, 2, 2.5, 5, 10)
#: Dots closer than this in both directions are one.
_GRAIN = 1.0

_Box = tuple[float, float, float, float]


class MemoryPoint(NamedTuple):
    """An order in the plot.

    Attributes:
        name: of it.
        memory: of the fullest device.
        ratio: bubble ratio.
        fits: whether it is within the limit.
    """

    name: str
    memory: float
    ratio: float
    fits: bool = True


@dataclass(frozen=True)
class MemoryPlot:
    """What is plotted.

    Attributes:
        title: of the picture.
        points: the orders.
        in_bytes: whether memory is in bytes; else in microbatches of a stage.
        limit: of a device, in the same unit; None for none.
        reason: why there is nothing to plot; empty where there is.
    """

    title: str
    points: tuple[MemoryPoint, ...]
    in_bytes: bool
    limit: float | None = None
    reason: str = ""


def alternatives(report: Report, view: View) -> str:
    """Return bubble ratios of schedules against memory; without schedules it gives the reason."""
    del view
    others = report.alternatives
    rows = [] if others is None else [row for row in others.rows if row.name != "no-delay"]
    in_bytes = any(row.peak_bytes is not None for row in rows)
    ran = report.schedule.name if report.schedule is not None else None
    points = []
    for row in rows:
        memory = row.peak_bytes if in_bytes else row.peak_activations
        if memory is not None and row.bubble_ratio is not None:
            name = "as measured" if row.name == "measured" else row.name
            name += " (ran)" if row.name == ran else ""
            points.append(MemoryPoint(name, memory, row.bubble_ratio, bool(row.fits)))
    plot = MemoryPlot(
        "Bubble ratio of schedules against memory",
        tuple(points),
        in_bytes,
        limit=None if others is None else others.limit_bytes,
        reason=others.reason
        if others is not None
        else "other schedules were not simulated; give --what-if",
    )
    return draw_memory_plot(plot)


def draw_memory_plot(plot: MemoryPlot) -> str:
    """Return the SVG document."""
    page = Page("bvm-")
    page.title = plot.title
    page.description = "A dot an order: its bubble ratio, and the memory of its fullest device."
    page.heading(page.title)
    page.y += 4
    if not plot.points:
        page.paragraph(plot.reason or "no order has both a ratio and a memory", 10.5)
        return page.svg()
    page.paragraph(
        "Left and below is better; the line joins the orders that no other beats in both.", 10.5
    )
    page.y += 26
    _Plot(page, plot).draw()
    return page.svg()


class _Plot:
    """The plot on its page: from values to places."""

    def __init__(self, page: Page, plot: MemoryPlot) -> None:
        self.page, self.plot = page, plot
        self.left, self.right = page.left + _LEFT, page.right - _RIGHT
        self.top, self.bottom = page.y, page.y + _HEIGHT
        amounts = [point.memory for point in plot.points]
        amounts += [] if plot.limit is None else [plot.limit]
        spread = max(amounts) - min(amounts)
        self.least = max(min(amounts) - 0.15 * spread, 0.0) if spread else 0.0
        self.most = max(amounts) + 0.05 * (spread or max(amounts)) or 1.0
        self.highest = max(max(point.ratio for point in plot.points) * 1.1, 0.01)

    def place(self, memory: float, ratio: float) -> tuple[float, float]:
        """Return where a point lies."""
        share = (memory - self.least) / (self.most - self.least)
        x = self.left + share * (self.right - self.left)
        return x, self.bottom - max(ratio, 0.0) / self.highest * _HEIGHT

    def draw(self) -> None:
        """Draw axes, limit, line, dots and labels."""
        self._axes()
        lines = self._lines()
        dots: list[tuple[float, float, list[MemoryPoint]]] = []
        for point in _ordered(self.plot.points):
            x, y = self.place(point.memory, point.ratio)
            near = [d for d in dots if abs(d[0] - x) < _GRAIN and abs(d[1] - y) < _GRAIN]
            if near:
                near[0][2].append(point)
            else:
                dots.append((x, y, [point]))
        taken = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y, _ in dots]
        for x, y, points in dots:
            colour = FORWARD if any(point.fits for point in points) else UNATTRIBUTED
            circle = {"fill": colour, "stroke": LIGHT.paper, "stroke_width": 1}
            self.page.elements.append(drawsvg.Circle(px(x), px(y), _DOT, **circle))
        # Those in the thick of it have the least choice.
        crowd = {at: sum(abs(x - u) + abs(y - v) < 120 for u, v, _ in dots)
                 for at, (x, y, _) in enumerate(dots)}  # fmt: skip
        for at in sorted(crowd, key=lambda at: (-crowd[at], at)):
            x, y, points = dots[at]
            text = one_line(", ".join(point.name for point in points), 80)
            ink = "text" if any(point.fits for point in points) else "quiet"
            taken.append(self._label(text, (x, y), taken, lines, ink))
        self.page.y = self.bottom + _BELOW
        hidden = sum(not point.fits for point in self.plot.points)
        if hidden and self.plot.limit is not None:
            text = (
                f"Grey: {counted(hidden, 'order')} beyond the limit, or with the model held twice"
            )
            self.page.paragraph(text, 9.5)

    def _amount(self, value: float) -> str:
        return memory_text(value) if self.plot.in_bytes else f"{value:g}"

    def _axes(self) -> None:
        lines = [f"M{px(self.left)} {px(self.top)}V{px(self.bottom)}H{px(self.right)}"]
        step = round_step(self.highest / 6, _STEPS)
        for value in (number * step for number in range(int(self.highest / step) + 1)):
            _, y = self.place(0.0, value)
            lines.append(f"M{px(self.left - 4)} {px(y)}H{px(self.right)}")
            label = percent(value)
            self.page.text(label, self.left - 8, y + 3.5, 9.5, ink="quiet", text_anchor="end")
        step = round_step((self.most - self.least) / 7, _STEPS)
        for number in range(int(-(-self.least // step)), int(self.most // step) + 1):
            x, _ = self.place(number * step, 0.0)
            lines.append(f"M{px(x)} {px(self.bottom)}v4")
            label = self._amount(number * step)
            self.page.text(label, x, self.bottom + 15, 9.5, ink="quiet", text_anchor="middle")
        self.page.line("".join(lines), "grid")
        unit = "memory of the fullest device"
        if not self.plot.in_bytes:
            unit = "activations of the fullest device, microbatches of a stage"
        self.page.text(unit, self.right, self.bottom + 30, 10.5, text_anchor="end")
        self.page.text("bubble ratio", self.page.left, self.top - 8, 10.5)

    def _lines(self) -> list[_Box]:
        """Draw the limit, and the steps through what no other beats in both; return their boxes."""
        boxes: list[_Box] = []
        if (limit := self.plot.limit) is not None:
            x, _ = self.place(limit, 0.0)
            self.page.line(
                f"M{px(x)} {px(self.top)}V{px(self.bottom)}", "mark", stroke_dasharray="4 3"
            )
            label = f"limit {self._amount(limit)}"
            self.page.text(label, x, self.top - 4, 9.5, ink="quiet", text_anchor="middle")
            boxes.append((x - 1, self.top, x + 1, self.bottom))
        places = [self.place(point.memory, point.ratio) for point in front(self.plot.points)]
        steps = f"M{px(places[0][0])} {px(places[0][1])}"
        for (left, top), (x, y) in pairwise(places):
            steps += f"H{px(x)}V{px(y)}"
            boxes += [(left, top - 1, x, top + 1), (x - 1, top, x + 1, y)]
        line = {"stroke": FORWARD, "stroke_width": 1.2, "fill": "none", "stroke_opacity": 0.45}
        self.page.path(steps, **line)
        return boxes

    def _label(
        self,
        text: str,
        dot: tuple[float, float],
        taken: Sequence[_Box],
        lines: Sequence[_Box],
        ink: str,
    ) -> _Box:
        """Write a label where it covers nothing, with a line to a dot that is not beside it.

        A label that finds no such place covers a line rather than a dot or another label.
        """
        text = fitted(text, _SIZE, self.right - self.left)
        width = text_width(text, _SIZE)
        edges = self.left, self.top - _LINE, self.page.right, self.bottom - 1
        places = [box for box in _places(dot, width) if _inside(box, edges)]
        free = [box for box in places if not any(_overlap(box, other) for other in taken)]
        clear = [box for box in free if not any(_overlap(box, line) for line in lines)]
        box = (clear or free or places or list(_places(dot, width)))[0]
        self.page.text(text, box[0], box[3] - 3, _SIZE, ink=ink)
        x, y = dot
        near = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
        if abs(near[0] - x) + abs(near[1] - y) > 2 * _DOT + _AWAY:
            self.page.rule(f"M{px(x)} {px(y)}L{px(near[0])} {px(near[1])}")
        return box


def front(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return the points that no other beats in both, by memory."""
    best: list[MemoryPoint] = []
    for point in _ordered(points):
        if not best or point.ratio < best[-1].ratio:
            best.append(point)
    return best


def _ordered(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    return sorted(points, key=lambda point: (point.memory, point.ratio, point.name))


def _places(dot: tuple[float, float], width: float) -> Iterator[_Box]:
    """Yield places of a label around a dot, the nearest first."""
    x, y = dot
    gap = _DOT + _AWAY
    for ring in _RINGS:
        for right, middle in ((1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1), (0, 1)):
            left = (
                x + gap + ring if right > 0 else x - gap - ring - width if right else x - width / 2
            )
            top = y - _LINE / 2 + middle * (gap + ring / 2 + (_LINE / 2 if not right else 0))
            yield left, top, left + width, top + _LINE


def _inside(box: _Box, edges: _Box) -> bool:
    return box[0] >= edges[0] and box[1] >= edges[1] and box[2] <= edges[2] and box[3] <= edges[3]


def _overlap(box: _Box, other: _Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
