"""Collectives that a table of operations contains in a column of its own.

Reports write such tables. Each cell of the column is a JSON list of collectives, and each
collective is a list with the columns of :class:`DeclaredCollectives`, starting with ``iteration``.
A collective is in the row of the operation that owns it, or else in the row of the operation that
started last before it on its rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class DeclaredCollectives(Table):
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
        is_owned: 1 where the operation of the row owns it, else 0.
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
    is_owned: Ints
    start_ns: Ints
    end_ns: Ints
    iterations: tuple[str, ...] = field(metadata={"shared": True})
    kinds: tuple[str, ...] = field(metadata={"shared": True})
    groups: tuple[str, ...] = field(metadata={"shared": True})
