"""Collectives that a table of operations contains in one of its columns.

Tables that reports export have this column. Each cell is a JSON list of collectives. Each
collective is a list of values for the columns of :class:`DeclaredCollectives`, starting with
``iteration``. Each collective is listed in the row of the operation that owns it. A collective
without an owner is listed in the row of the last operation that started before it on the same rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class DeclaredCollectives(Table):
    """Collectives in a table of operations, one row for each rank in each collective.

    Unknown values are -1. ``order``, ``sequence`` and ``meeting`` mean the same as in
    :class:`~bubbleviz.model.collectives.CollectiveIntervals`.

    Attributes:
        row: Row in the operations table whose cell contains the collective.
        iteration: Index into ``iterations``.
        kind: Index into ``kinds``.
        group: Index into ``groups``.
        size: Number of group members, or 0 if unknown.
        order: Zero-based position among all collectives with the same rank, kind, group and
            iteration.
        sequence: Recorded sequence number of the collective within its group.
        meeting: Number of the collective, the same on all ranks that took part in it.
        is_owned: 1 if the operation in ``row`` owns the collective, else 0.
        start_ns: Time at which the rank entered the collective.
        end_ns: Time at which the rank left the collective.
        iterations: Names of the iterations.
        kinds: NCCL operation names, such as ``AllReduce``.
        groups: Distinct group names.
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
