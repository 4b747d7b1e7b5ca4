"""Layout: where rows, labels and brackets are on the page, and where times are on the axis."""

from __future__ import annotations

from bubbleviz.model.values import frozen
from bubbleviz.render.picture.rows.lane import LANE_GAP


@frozen
class Layout:
    """Positions on the page, in its units.

    Attributes:
        stage_x: left edge of the column of stages.
        name_x: left edge of the column of rank labels.
        left: left edge of the plot.
        right: right edge of the plot.
        brackets: top of the brackets.
        row: height of a row.
        pitch: height of a row and the gap below it.
        lane: height of the communication lane below it, 0 for none.
        size: font size of the labels beside a row.
        step: one row in so many has labels; the rows between are lower than letters.
        tops: top of every row.
        start_ns: the time at the left edge of the plot.
        span_ns: the time from the left edge to the right edge.
        strip: height of the area below a row of many copies, 0 where there is none.
    """

    stage_x: float
    name_x: float
    left: float
    right: float
    brackets: float
    row: float
    pitch: float
    lane: float
    size: float
    step: int
    tops: tuple[float, ...]
    start_ns: int
    span_ns: int
    strip: float = 0.0

    @property
    def width(self) -> float:
        """Width of the plot."""
        return self.right - self.left

    @property
    def bottom(self) -> float:
        """Lower edge of the last row."""
        below = (self.lane + LANE_GAP if self.lane else 0) + (self.strip + 2 if self.strip else 0)
        return self.tops[-1] + self.row + below

    def x(self, time_ns: int) -> float:
        """Return the x of a time; times outside the plot are at its edges."""
        share = (time_ns - self.start_ns) / self.span_ns
        return self.left + self.width * min(max(share, 0.0), 1.0)
