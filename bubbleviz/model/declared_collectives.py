"""Collectives that a table of operations contains in one of its columns.

Reports export such tables. Each cell of the column is a JSON list of collectives, and each
collective is a list with the columns of :class:`DeclaredCollectives`, starting with ``iteration``.
A collective is in the row of the operation that owns the collective. If there is none, it is in the
row of the last operation that started before it on the same rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class DeclaredCollectives(Table):
    """Collectives of a table of operations, one row per rank in a collective.

    Unknown values are -1. ``order``, ``sequence`` and ``meeting`` are the columns of
    :class:`~bubbleviz.model.collectives.CollectiveIntervals` with these names.

    Attributes:
        row: Row of the table of operations that contains the collective.
        iteration: Index into ``iterations``.
        kind: Index into ``kinds``.
        group: Index into ``groups``.
        size: Number of members of the group, or 0 if unknown.
        order: Position among the rank's collectives of this kind, group and iteration.
        sequence: Recorded number of the collective within its group.
        meeting: Number that the rows of all ranks in one collective share.
        is_owned: 1 if the operation in the row owns the collective, else 0.
        start_ns: Time when the rank entered the collective.
        end_ns: Time when the rank left the collective.
        iterations: Names of the iterations.
        kinds: NCCL's names of operations, such as ``AllReduce``.
        groups: Distinct names of groups.
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
