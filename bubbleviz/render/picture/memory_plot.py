"""Bubble ratio against memory: a dot an order, and the line of those that nothing dominates.

::

    bubble  ┤ o gpipe
            │      o 1f1b
            │ ───o zb-h1 ────┐
            │                └──o zb-h2
            ┼───────────────────────── memory of the fullest device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import NamedTuple

from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.page import Page, box, fitted, percent, px, text_width
from bubbleviz.render.picture.plots import LETTERS, Graph, steps

#: px: height of the plot, and what lies to its left, right and below.
_HEIGHT, _LEFT, _RIGHT, _BELOW = 330.0, 62.0, 96.0, 40.0
#: px: radius of a dot, size of letters, height of a line, and from a dot to its label.
_DOT, _SIZE, _LINE, _AWAY = 4.0, 10.5, 12.5, 4.0
#: Lines above and below a dot on which its label can stand.
_LINES = 24

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


def draw_memory_plot(plot: MemoryPlot) -> str:
    """Return the SVG document."""
    page = Page("bvm-")
    page.title = plot.title
    page.description = "One dot per order: its bubble ratio, and the memory of its fullest device."
    page.heading(page.title)
    page.y += 4
    if not plot.points:
        page.paragraph(plot.reason or "no order has both a ratio and a memory", 10.5)
        return page.svg()
    page.paragraph(
        "Lower left is better; the line joins the orders that no other beats in both.", 10.5
    )
    page.y += 26
    _draw(page, plot)
    return page.svg()


def _draw(page: Page, plot: MemoryPlot) -> None:
    """Draw axes, limit, line, dots and labels."""
    limits = [] if plot.limit is None else [plot.limit]
    amounts = [point.memory for point in plot.points] + limits
    least, most = 0.0, 1.05 * max(amounts) or 1.0
    highest = max(max(point.ratio for point in plot.points) * 1.1, 0.01)
    edges = page.left + _LEFT, page.right - _RIGHT, page.y
    graph = Graph(page, *edges, _HEIGHT, (least, most), (0.0, highest))
    text = memory_text if plot.in_bytes else "{:g}".format
    graph.axes(
        [(amount, text(amount)) for amount in steps(least, most, 7)],
        [(ratio, percent(ratio)) for ratio in steps(0.0, highest, 6)],
    )
    unit = "memory of the fullest device"
    if not plot.in_bytes:
        unit = "activations of the fullest device, microbatches of a stage"
    page.text(unit, graph.right, graph.bottom + 30, 10.5, text_anchor="end")
    page.text("bubble ratio", page.left, graph.top - 8, 10.5)
    for limit in limits:
        graph.line([(limit, 0.0), (limit, highest)], stroke_dasharray="4 3")
        x, _ = graph.at(limit, 0.0)
        look = {"ink": "quiet", "text_anchor": "middle"}
        page.text(f"limit {text(limit)}", x, graph.top - 4, LETTERS, **look)
    best = front(plot.points)
    corners = [(after.memory, before.ratio) for before, after in pairwise(best)]
    ends = [(point.memory, point.ratio) for point in best]
    stairs = [place for pair in zip_longest(ends, corners) for place in pair if place]
    graph.line(stairs, stroke_opacity=0.45)
    dots: dict[tuple[float, float], list[MemoryPoint]] = {}
    for point in _ordered(plot.points):
        x, y = graph.at(point.memory, max(point.ratio, 0.0))
        dots.setdefault((round(x), round(y)), []).append(point)
    taken = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    for (x, y), points in dots.items():
        fits = any(point.fits for point in points)
        graph.dot(x, y, _DOT, hollow=not fits)
        name = one_line(", ".join(point.name for point in points), 80)
        taken.append(_label(graph, name, (x, y), taken, "text" if fits else "quiet"))
    page.y = graph.bottom + _BELOW
    if hidden := sum(not point.fits for point in plot.points):
        than = "the limit" if limits else "the run's memory"
        page.paragraph(
            f"Filled: fits. Hollow: {counted(hidden, 'order')} beyond {than}, or with the model "
            "held twice.",
            9.5,
        )


def _label(
    graph: Graph, text: str, dot: tuple[float, float], taken: Sequence[_Box], ink: str
) -> _Box:
    """Write a label beside a dot where it covers nothing, with a line to one that is not beside it.

    Places above and below are tried in turn, the nearest first.
    """
    page, (x, y), away = graph.page, dot, _DOT + _AWAY
    text = fitted(text, _SIZE, graph.right - graph.left)
    width = text_width(text, _SIZE)
    places = [
        (left, y + (line - 0.5) * _LINE, left + width, y + (line + 0.5) * _LINE)
        for line in sorted(range(-_LINES, _LINES + 1), key=abs)
        for left in (x + away, x - away - width)
    ]
    inside = [
        place
        for place in places
        if place[0] >= graph.left
        and place[2] <= graph.right
        and place[3] < graph.bottom
        and place[1] >= graph.top - _LINE
    ]
    free = [place for place in inside if not any(_overlap(place, other) for other in taken)]
    place = (free or inside or places)[0]
    page.path(box(*place), fill=LIGHT.paper, class_="bv-paper")
    page.text(text, place[0], place[3] - 3, _SIZE, ink=ink)
    if abs(place[1] + _LINE / 2 - y) > _LINE / 2:
        near = min(max(x, place[0]), place[2])
        page.rule(f"M{px(x)} {px(y)}L{px(near)} {px(place[1] + _LINE / 2)}")
    return place


def front(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return the points that no other beats in both, by memory."""
    best: list[MemoryPoint] = []
    for point in _ordered(points):
        if not best or point.ratio < best[-1].ratio:
            best.append(point)
    return best


def _ordered(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    return sorted(points, key=lambda point: (point.memory, point.ratio, point.name))


def _overlap(box: _Box, other: _Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
