"""Hollow marks: one before each row that has operations without device time."""

from __future__ import annotations

from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COMPUTE
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.page import px
from bubbleviz.render.picture.rows.tooltips import Tooltips
from bubbleviz.render.selection import Selection

#: So many operations without device time are named on each row.
_NAMED = 8


class SpanlessOperations:
    """The operations of the drawn iterations and ranks that have no device time."""

    def __init__(self, operations: Operations, selection: Selection, tooltips: Tooltips) -> None:
        rows = selection.row_of_rank
        lacking = np.isin(operations.phase, COMPUTE) & (operations.has_span == 0)
        lacking &= selection.drawn(operations.iteration) & (operations.rank < len(rows))
        spanless = np.flatnonzero(lacking)
        row = rows[operations.rank[spanless]]
        spanless, row = spanless[row != NONE], row[row != NONE]
        self._tooltips = tooltips
        self._by_row = {place: spanless[row == place] for place in distinct(row).tolist()}

    def __len__(self) -> int:
        return sum(map(len, self._by_row.values()))

    def draw(self, group: Any, row: int, height: float) -> None:
        """Draw one hollow mark before a row of that height for all of its operations."""
        operations = self._by_row.get(row)
        if operations is None:
            return
        mark = drawsvg.Circle(
            -6,
            px(height / 2),
            2.6,
            fill="none",
            stroke=LIGHT.text,
            stroke_width=1,
            class_="bv-mark",
        )
        names = ", ".join(
            self._tooltips.label(operation) for operation in operations[:_NAMED].tolist()
        )
        more = f" and {len(operations) - _NAMED} more" if len(operations) > _NAMED else ""
        mark.append_title(f"without device time: {names}{more}")
        group.append(mark)
