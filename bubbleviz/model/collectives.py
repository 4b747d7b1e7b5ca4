"""Collectives: when each rank was in which, and which rows of all ranks are one.

No member of a collective has its result before all have entered, so a kernel waits first and moves
data then::

    rank 0   ├─ waiting ──────┼─ moving ─┤
    rank 1        ├─ waiting ─┼─ moving ─┤
    rank 2                    ├─ moving ─┤      entered last: one meeting of three rows
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np

from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.process_groups import Group
from bubbleviz.model.values import frozen


@frozen(shown=False)
class CollectiveIntervals(Table):
    """When ranks were in collectives, in order of (rank, start); -1 is "none" or "unknown".

    A row is one kernel, or several that a profile records as one operation. Kept are the kernels
    that no forward or backward owns (what synchronises replicas, norms, parameters), and of those
    that one owns what ran while the rank was idle, and kinds of a group of which a rank ran at most
    64 an iteration (buckets of gradients). What tensor parallelism runs inside operations would be
    as many rows as kernels, and explains no idle time.

    Attributes:
        rank: the rank.
        iteration: its iteration.
        kind: row of ``kinds``: what it does.
        group: row of ``groups``: among whom.
        order: its place among the rank's collectives of this kind, group and iteration, from 0, in
            the order in which the host launched them; rows that are not kept count.
        sequence: its number among those of its group, as recorded.
        start_ns: when the rank entered.
        end_ns: when it left.
        late_ns: how long the rank ran nothing before, since the host had not launched it; 0 where
            it ran something, or that is unknown.
        operation: row of the operations that owns it.
        meeting: a number that the rows of all ranks share that are one collective. A rank has
            several rows of one where it ran in pieces.
        kinds: NCCL's names of operations (``AllReduce``); "" for what has none.
        groups: communicators and process groups; equal ones have the same members.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    group: Ints
    order: Ints
    sequence: Ints
    start_ns: Ints
    end_ns: Ints
    late_ns: Ints
    operation: Ints
    meeting: Ints
    kinds: tuple[str, ...] = field(metadata={"shared": True})
    groups: tuple[Group, ...] = field(metadata={"shared": True})

    @classmethod
    def none(cls) -> CollectiveIntervals:
        """Return the table without any rows."""
        columns: dict[str, Ints] = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**columns, kinds=(), groups=())

    def changed(self, **columns: Ints) -> CollectiveIntervals:
        """Return the collectives with some columns exchanged."""
        exchanged: dict[str, Any] = dict(columns)
        return replace(self, **exchanged)

    def moved(self, *, rank: int = 0, operation: int = 0) -> CollectiveIntervals:
        """Return the collectives with ranks and operations numbered from other numbers on."""
        return self.changed(
            rank=self.rank + rank,
            operation=np.where(self.operation == NONE, NONE, self.operation + operation),
        )
