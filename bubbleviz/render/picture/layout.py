"""The layout of a timeline: where its parts are on the page."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.render.picture.rows import LANE_GAP


@dataclass(frozen=True)
class Layout:
    """Positions of the parts of a timeline, in page units.

    Attributes:
        name_x: Left edge of the rank-name column.
        left: Left edge of the plot.
        right: Right edge of the plot.
        brackets: Upper edge of the first line of brackets.
        row: Row height.
        lane: Height of the communication lane below each row, or 0 if lanes are not drawn.
        size: Font size of the labels next to rows.
        step: Every ``step``-th row has a label. Greater than 1 if rows are not as tall as their
            labels.
        tops: Upper edge of each row.
        start_ns: Time at the left edge of the plot, in ns.
        span_ns: Time from the left edge to the right edge of the plot, in ns.
        strip: Height of the area below a row that shows the spread of its replicas, or 0 if no row
            has one.
    """

    name_x: float
    left: float
    right: float
    brackets: float
    row: float
    lane: float
    size: float
    step: int
    tops: tuple[float, ...]
    start_ns: int
    span_ns: int
    strip: float

    @property
    def width(self) -> float:
        """Width of the plot in page units."""
        return self.right - self.left

    @property
    def bottom(self) -> float:
        """Lower edge of the last row, including its communication lane and spread area."""
        lane = self.lane + LANE_GAP if self.lane else 0
        strip = self.strip + 2 if self.strip else 0
        return self.tops[-1] + self.row + (lane + strip)

    def x(self, time_ns: int) -> float:
        """Return the x coordinate of a time in ns, clipped to the plot."""
        fraction = (time_ns - self.start_ns) / self.span_ns
        return self.left + self.width * min(max(fraction, 0.0), 1.0)
