"""Plots the bubble ratio against memory, with one dot per order and a line through the best ones.

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
from itertools import pairwise, product
from typing import NamedTuple

from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.drawing import box, px
from bubbleviz.render.picture.lettering import text_width, truncate_text
from bubbleviz.render.picture.numbers import percent
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.plots import LETTERS, Graph, steps

#: Plot height, and the space left of, right of and below the plot, in px.
_HEIGHT, _LEFT, _RIGHT, _BELOW = 330.0, 62.0, 96.0, 40.0
#: Dot radius, font size, line height, and gap between a dot and its label, in px.
_DOT, _SIZE, _LINE, _GAP = 4.0, 10.5, 12.5, 4.0
#: Maximum distance of a label from its dot, in lines above or below the dot.
_LINES = 24


class MemoryPoint(NamedTuple):
    """A dot in the plot, which represents one order of operations.

    Attributes:
        name: Name of the order, for example "1f1b".
        memory: Peak memory on the device that uses the most memory.
        ratio: Bubble ratio, as a fraction.
        fits: Whether the order's memory is within the limit.
    """

    name: str
    memory: float
    ratio: float
    fits: bool = True


@dataclass(frozen=True)
class MemoryPlot:
    """The content of a memory plot.

    Attributes:
        title: Title of the picture.
        points: One point per order of operations.
        in_bytes: Whether memory is in bytes rather than in microbatches of a stage.
        limit: Memory limit per device in the same unit, or None if there is no limit.
        reason: Reason why there are no points, or "" if there are points.
    """

    title: str
    points: tuple[MemoryPoint, ...]
    in_bytes: bool
    limit: float | None = None
    reason: str = ""

    def format_memory(self, amount: float) -> str:
        """Return an amount of memory as text, including the unit if it is in bytes."""
        return format_memory(amount) if self.in_bytes else f"{amount:g}"


class _Box(NamedTuple):
    """A rectangle on the page, in page units. The y axis points down."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        """Return whether two boxes overlap. Boxes that only touch do not overlap."""
        is_across = self.left < other.right and other.left < self.right
        return is_across and self.top < other.bottom and other.top < self.bottom


def draw_memory_plot(plot: MemoryPlot) -> str:
    """Return a memory plot as an SVG document.

    If there are no points, the document shows only the reason why there is nothing to plot.
    """
    page = Page("bvm-")
    page.title = plot.title
    page.description = "One dot per order: its bubble ratio, and the memory of its fullest device."
    page.heading(page.title)
    page.y += 4
    if not plot.points:
        page.paragraph(plot.reason or "no order has both a known ratio and a known memory", 10.5)
        return page.svg()
    page.paragraph(
        "Lower left is better; the line joins the orders that no other order beats in both.", 10.5
    )
    page.y += 26
    graph = _draw_axes(page, plot)
    _draw_front(graph, plot.points)
    _draw_points(graph, plot.points)
    page.y = graph.bottom + _BELOW
    if hidden := sum(not point.fits for point in plot.points):
        limit = "the run's memory" if plot.limit is None else "the limit"
        page.paragraph(
            f"Filled: fits. Hollow: {format_count(hidden, 'order')} that exceed {limit} or "
            "need two copies of the model.",
            9.5,
        )
    return page.svg()


def _draw_axes(page: Page, plot: MemoryPlot) -> Graph:
    """Draw the axes and the memory limit, and return the graph.

    Both axes start at 0. The memory axis ends 5 % above the largest memory or the limit. The ratio
    axis ends 10 % above the largest ratio, but never below 1 %.
    """
    amounts = [point.memory for point in plot.points]
    if plot.limit is not None:
        amounts.append(plot.limit)
    max_memory = 1.05 * max(amounts) or 1.0
    max_ratio = max(max(point.ratio for point in plot.points) * 1.1, 0.01)
    left, right = page.left + _LEFT, page.right - _RIGHT
    graph = Graph(page, left, right, page.y, _HEIGHT, (0.0, max_memory), (0.0, max_ratio))
    amounts = steps(0.0, max_memory, 7)
    memory_labels = [(amount, plot.format_memory(amount)) for amount in amounts]
    ratio_labels = [(ratio, percent(ratio)) for ratio in steps(0.0, max_ratio, 6)]
    graph.axes(memory_labels, ratio_labels)
    title = "memory of the fullest device"
    if not plot.in_bytes:
        title = "activations of the fullest device, in microbatches of a stage"
    page.text(title, graph.right, graph.bottom + 30, 10.5, text_anchor="end")
    page.text("bubble ratio", page.left, graph.top - 8, 10.5)
    if plot.limit is not None:
        graph.line([(plot.limit, 0.0), (plot.limit, max_ratio)], stroke_dasharray="4 3")
        text = f"limit {plot.format_memory(plot.limit)}"
        look = {"ink": "quiet", "text_anchor": "middle"}
        page.text(text, graph.x(plot.limit), graph.top - 4, LETTERS, **look)
    return graph


def _draw_front(graph: Graph, points: Sequence[MemoryPoint]) -> None:
    """Draw a step line through the points that no other point beats in both memory and ratio."""
    best = front(points)
    stairs = [(best[0].memory, best[0].ratio)]
    for before, after in pairwise(best):
        stairs.append((after.memory, before.ratio))
        stairs.append((after.memory, after.ratio))
    graph.line(stairs, stroke_opacity=0.45)


def _draw_points(graph: Graph, points: Sequence[MemoryPoint]) -> None:
    """Draw a dot and a label for each point.

    Points whose coordinates round to the same integers share one dot and label. A dot is filled if
    any of its points fits in memory, and hollow otherwise.
    """
    dots: dict[tuple[float, float], list[MemoryPoint]] = {}
    for point in _sort_by_memory(points):
        x, y = graph.x(point.memory), graph.y(max(point.ratio, 0.0))
        dots.setdefault((round(x), round(y)), []).append(point)
    occupied = [_Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    for (x, y), members in dots.items():
        fits = any(point.fits for point in members)
        graph.dot(x, y, _DOT, hollow=not fits)
        name = to_one_line(", ".join(point.name for point in members), 80)
        occupied.append(_draw_label(graph, name, (x, y), occupied, "text" if fits else "quiet"))


def _draw_label(
    graph: Graph, text: str, dot: tuple[float, float], occupied: Sequence[_Box], ink: str
) -> _Box:
    """Write a dot's label where there is free space.

    A thin line connects the label with the dot if they are not on the same line. A label that is
    wider than the graph is truncated.

    Args:
        graph: The graph that contains the dot.
        text: The label.
        dot: (x, y) coordinates of the dot's center.
        occupied: Boxes that the label should not cover.
        ink: Label color, as the name of an attribute of :class:`.Ink`.

    Returns:
        The box that the label occupies.
    """
    page, (x, y) = graph.page, dot
    text = truncate_text(text, _SIZE, graph.right - graph.left)
    label = _place_label(graph, text_width(text, _SIZE), dot, occupied)
    page.path(box(*label), fill=LIGHT.paper, class_="bv-paper")
    page.text(text, label.left, label.bottom - 3, _SIZE, ink=ink)
    middle = label.top + _LINE / 2
    if abs(middle - y) > _LINE / 2:
        nearest_x = min(max(x, label.left), label.right)
        page.rule(f"M{px(x)} {px(y)}L{px(nearest_x)} {px(middle)}")
    return label


def _place_label(
    graph: Graph, width: float, dot: tuple[float, float], occupied: Sequence[_Box]
) -> _Box:
    """Choose the box of a label: the nearest box that is inside the plot and overlaps no other box.

    Candidates are to the right and to the left of the dot, first on its line, then on the line
    above, the line below, the second line above, and so on, up to ``_LINES`` lines away. If every
    candidate inside the plot overlaps an occupied box, the first of them is chosen. If no candidate
    is inside the plot, the box to the right of the dot is chosen.

    Args:
        graph: The graph that contains the dot.
        width: Width of the label.
        dot: (x, y) coordinates of the dot's center.
        occupied: Boxes that the label should not cover.
    """
    x, y = dot
    lefts = x + _DOT + _GAP, x - _DOT - _GAP - width
    boxes = []
    for line, left in product(sorted(range(-_LINES, _LINES + 1), key=abs), lefts):
        top, bottom = y + (line - 0.5) * _LINE, y + (line + 0.5) * _LINE
        boxes.append(_Box(left, top, left + width, bottom))
    is_inside = [label for label in boxes if _is_inside(label, graph)]
    free = [label for label in is_inside if not any(map(label.overlaps, occupied))]
    return (free or is_inside or boxes)[0]


def _is_inside(label: _Box, graph: Graph) -> bool:
    """Return whether a label is inside the plot, or extends at most one line above it."""
    is_across = label.left >= graph.left and label.right <= graph.right
    return is_across and label.bottom < graph.bottom and label.top >= graph.top - _LINE


def front(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return the Pareto front of the points, sorted by memory in ascending order.

    A point is not on the front if another point has the same or less memory and the same or a
    smaller ratio. If several points have the same memory and ratio, only the alphabetically first
    name is kept.
    """
    best: list[MemoryPoint] = []
    for point in _sort_by_memory(points):
        if not best or point.ratio < best[-1].ratio:
            best.append(point)
    return best


def _sort_by_memory(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    return sorted(points, key=lambda point: (point.memory, point.ratio, point.name))
