"""Told collectives: those that a report writes into cells of its table of operations.

A cell is a JSON list of collectives, each a list with the columns of :class:`ToldCollectives` from
the name of its iteration on; they stand in the row of the operation that owns them, or that began
last on their rank.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.values import frozen


@frozen
class ToldCollectives(Table):
    """Collectives of a table's rows; -1 is "none" or "unknown".

    Attributes:
        row: of the table.
        iteration: row of ``iterations``.
        kind: row of ``kinds``.
        group: row of ``groups``.
        size: members of the group; 0 unknown.
        order: see :class:`~bubbleviz.model.collectives.CollectiveIntervals`, as all that follow.
        sequence: likewise.
        meeting: likewise.
        owned: 1 where the operation of the row owns it, else 0.
        start_ns: start.
        end_ns: end.
        iterations: their names.
        kinds: NCCL's names of operations.
        groups: names that only one group has each.
    """

    row: Ints
    iteration: Ints
    kind: Ints
    group: Ints
    size: Ints
    order: Ints
    sequence: Ints
    meeting: Ints
    owned: Ints
    start_ns: Ints
    end_ns: Ints
    iterations: tuple[str, ...] = field(metadata={"shared": True})
    kinds: tuple[str, ...] = field(metadata={"shared": True})
    groups: tuple[str, ...] = field(metadata={"shared": True})

    @classmethod
    def none(cls) -> ToldCollectives:
        """Return no collectives."""
        columns = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**columns, iterations=(), kinds=(), groups=())
