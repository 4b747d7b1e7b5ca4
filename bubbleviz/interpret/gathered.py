"""Gathered recordings: the tables of many, each one table, as they travel and are merged.

What is gathered can be gathered again, so that readers gather what they have read, and whoever
merges gathers what they hand on: a tree, whose result does not depend on its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.interpret.keys import NameHints
from bubbleviz.interpret.recording import Recording
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.joining import Joining
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.process_groups import Group
from bubbleviz.model.values import frozen

#: The tables of a recording that are gathered.
TABLES = (
    "operations",
    "hints",
    "busy",
    "active",
    "running",
    "unattributed",
    "exposed",
    "overheads",
    "pauses",
    "hosts",
    "replica_collectives",
    "collectives",
)
#: Fields of tables that are no columns; they are gathered with these.
_SHARED = ("names", "kinds", "groups")


@frozen(eq=False, shown=False)
class GatheredRecordings:
    """The tables of recordings, one after the other; rows count as in each recording.

    Attributes:
        recordings: one a clock of a profile, in the order given, without the rows of these tables.
        rows: how many rows of each of ``TABLES`` each recording has, shape (recordings, tables).
        names: how many names of operations each has.
        operations: of all, with all their names; ``name_id`` counts each recording's own.
        hints: likewise of all.
        busy: of all, as are the tables that follow.
        active: how long ranks computed.
        running: how long kernels and copies ran.
        unattributed: compute outside operations.
        exposed: when only communication ran.
        overheads: when the profiler held ranks up.
        pauses: when nothing was recorded.
        hosts: what launching threads did.
        replica_collectives: those that synchronise replicas.
        collectives: all that are kept, with the kinds and groups of all.
    """

    recordings: tuple[Recording, ...]
    rows: Ints
    names: Ints
    operations: RankOperations
    hints: NameHints
    busy: BusyIntervals
    active: ActiveTime
    running: RunningTimes
    unattributed: RankIntervals
    exposed: RankIntervals
    overheads: RankIntervals
    pauses: RankIntervals
    hosts: HostActivities
    replica_collectives: ReplicaCollectives
    collectives: CollectiveIntervals

    def lengths(self, table: str) -> Ints:
        """Return how many rows of a table each recording has."""
        return self.rows[:, TABLES.index(table)]

    @property
    def busy_throughout(self) -> bool:
        """Whether every operation keeps its GPU busy from its start to its end."""
        return _are_throughout(self)


#: One recording, or some that are gathered.
Part: TypeAlias = "Recording | GatheredRecordings"


def gathered(parts: Sequence[Part]) -> GatheredRecordings:
    """Return recordings, gathered or not, as gathered ones (at least one)."""
    return taken_over(list(parts))


def taken_over(parts: list[Part]) -> GatheredRecordings:
    """Return the same, and empty the list, so that rows which nobody else needs are held once."""
    if len(parts) == 1 and isinstance(parts[0], GatheredRecordings):
        return parts[0]
    recordings = tuple(chain.from_iterable(_bare(part) for part in parts))
    rows = np.concatenate([_rows(part) for part in parts])
    names = np.concatenate([_names(part) for part in parts])
    operation_names = tuple(chain.from_iterable(part.operations.names for part in parts))
    collectives = _collectives([part.collectives for part in parts])
    apart = ("collectives", "busy") if all(map(_are_throughout, parts)) else ("collectives",)
    owner = np.concatenate([part.busy.operation for part in parts])
    joining: dict[str, Joining[Any]] = {
        name: Joining([getattr(part, name) for part in parts])
        for name in TABLES
        if name not in apart
    }
    parts.reverse()
    while parts:
        part = parts.pop()
        for name, table in joining.items():
            table.add(getattr(part, name))
    tables = {name: table.table() for name, table in joining.items()}
    operations = replace(tables.pop("operations"), names=operation_names)
    # Where busy intervals are those of the operations, these are shared.
    if "busy" in apart:
        tables["busy"] = BusyIntervals(owner, operations.start_ns, operations.end_ns)
    return GatheredRecordings(
        recordings=recordings,
        rows=rows,
        names=names,
        operations=operations,
        collectives=collectives,
        **tables,
    )


def _are_throughout(part: Part) -> bool:
    """Return whether every operation keeps its GPU busy from its start to its end."""
    busy, spans = part.busy, part.operations
    return busy.start_ns is spans.start_ns and busy.end_ns is spans.end_ns


def _bare(part: Part) -> tuple[Recording, ...]:
    """Return recordings without their rows; what stands for these is one for all."""
    if isinstance(part, GatheredRecordings):
        return part.recordings
    kinds: dict[str, type[Table]] = {name: type(getattr(part, name)) for name in TABLES}
    empty: dict[str, Any] = {name: _without_rows(kind) for name, kind in kinds.items()}
    return (replace(part, **empty),)


def _of_kind(kind: type[Table]) -> Table:
    columns: dict[str, Any] = {name: np.empty(0, np.int64) for name in kind.column_names()}
    shared = {name: () for name in _SHARED if name in kind.__dataclass_fields__}
    return kind(**columns, **shared)


#: A table of some kind without rows.
_without_rows: Callable[[Any], Table] = cache(_of_kind)


def _rows(part: Part) -> Ints:
    if isinstance(part, GatheredRecordings):
        return part.rows
    return np.array([[len(getattr(part, name)) for name in TABLES]], np.int64)


def _names(part: Part) -> Ints:
    if isinstance(part, GatheredRecordings):
        return part.names
    return np.array([len(part.operations.names)], np.int64)


def _collectives(tables: Sequence[CollectiveIntervals]) -> CollectiveIntervals:
    kinds: Numbering[str] = Numbering()
    groups: Numbering[Group] = Numbering()
    numbered = [CollectiveIntervals.none()]
    for table in tables:
        kind, group = kinds.numbers(table.kinds), groups.numbers(table.groups)
        if len(table):
            numbered.append(
                table.changed(
                    kind=np.append(kind, NONE)[table.kind],
                    group=np.append(group, NONE)[table.group],
                )
            )
    return replace(joined(numbered), kinds=kinds.values, groups=groups.values)
