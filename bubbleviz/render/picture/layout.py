"""Layout of a timeline: positions on the page."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.render.picture.rows import LANE_GAP


@dataclass(frozen=True)
class Layout:
    """Positions of the parts of a timeline, in page units.

    Attributes:
        name_x: Left edge of the column of names.
        left: Left edge of the plot.
        right: Right edge of the plot.
        brackets: Top of the brackets.
        row: Height of a row.
        lane: Height of the communication lane below a row, or 0 if there is none.
        size: Font size of the labels next to a row.
        step: Distance between rows with a label: 1, or more if rows are lower than letters.
        tops: Top of each row.
        start_ns: Time at the left edge of the plot.
        span_ns: Time from the left edge to the right edge.
        strip: Height of the area below a row of many replicas, or 0 if there is none.
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
        """Width of the plot."""
        return self.right - self.left

    @property
    def bottom(self) -> float:
        """Lower edge of the last row."""
        lane = self.lane + LANE_GAP if self.lane else 0
        strip = self.strip + 2 if self.strip else 0
        return self.tops[-1] + self.row + (lane + strip)

    def x(self, time_ns: int) -> float:
        """Return the x coordinate of a time, clipped to the plot."""
        fraction = (time_ns - self.start_ns) / self.span_ns
        return self.left + self.width * min(max(fraction, 0.0), 1.0)
