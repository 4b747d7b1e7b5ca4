"""Told collectives: the collectives that a report writes into cells of its table of operations.

A cell is a JSON list of collectives. Each collective is a list with the columns of
:class:`ToldCollectives` from the name of its iteration on. It is in the row of the operation that
owns it, or else of the operation that started last before it on its rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
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
