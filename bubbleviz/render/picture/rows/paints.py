"""Paints of a selection's operations: by phase and, where there are several, by chunk."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COMMUNICATION as COMMUNICATION_PHASES
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.render.palette import (
    COMMUNICATION,
    MAX_SHADES,
    UNATTRIBUTED,
    Paint,
    number_colour,
    paint,
    shade_of,
)
from bubbleviz.render.picture.marks import UNATTRIBUTED_KIND
from bubbleviz.render.rows import Selection


class OperationPaints:
    """How operations are filled.

    Attributes:
        chunks: the model chunks that have work on the rows, ascending.
        shades: number of shades that distinguish them.
    """

    def __init__(self, operations: Operations, selection: Selection) -> None:
        self._operations = operations
        ranks = [rank.index for rank in selection.ranks]
        shown = np.isin(operations.rank, ranks) & np.isin(operations.phase, WORK)
        chunks = distinct(operations.chunk[shown], operations.second_chunk[shown])
        self.chunks: list[int] = chunks[chunks != NONE].tolist()
        self.shades = min(len(self.chunks), MAX_SHADES)

    def of(self, kind: int, operation: int) -> Paint:
        """Return the paint of a mark; that of its phase alone where it has no operation."""
        if kind in COMMUNICATION_PHASES:
            return Paint("communication", ((1.0, COMMUNICATION),), number_colour(COMMUNICATION))
        if kind == UNATTRIBUTED_KIND:
            return Paint("unattributed", ((1.0, UNATTRIBUTED),), number_colour(UNATTRIBUTED))
        if operation == NONE:
            return paint(Phase(kind))
        operations = self._operations
        second = int(operations.second_chunk[operation]) if kind == Phase.FB else NONE
        shade = self._shade(int(operations.chunk[operation]))
        return paint(Phase(kind), shade, self._shade(second), self.shades)

    def _shade(self, chunk: int) -> int:
        if chunk == NONE or chunk not in self.chunks:
            return NONE
        return shade_of(self.chunks.index(chunk), len(self.chunks))
