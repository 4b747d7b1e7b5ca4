"""Gathered recordings: the tables of many, each one table, as they travel and are merged.

What is gathered can be gathered again, so that readers gather what they have read, and whoever
merges gathers what they hand on: a tree, whose result does not depend on its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.layers import LayerTimes
from bubbleviz.interpret.memory import MemoryUse
from bubbleviz.interpret.operation_ranges import NameHints
from bubbleviz.interpret.recorded_collectives import ReplicaCollectives
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.model.columns import NONE, Codes, Ints, Joining, Table, TableT, joined
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operation_table import ToldPlace
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.profile import Device, Source
from bubbleviz.model.values import frozen

# Recording: what interpretation makes of one profile.
#
# No kernel is kept: what remains of a profile is small, its operations, their busy intervals, the
# compute that no operation explains, and counts.


@frozen
class LocalRank:
    """A (process, device) of one profile.

    Attributes:
        process: of the rank.
        device_id: device as the process numbers it.
        device: what the profile says of it.
        global_rank: number in the run; None unknown.
        place: the device in words, ``GPU 0``.
        world_size: how many ranks the run has; None unknown.
        told: what a table of operations tells of it; None of a profile's.
    """

    process: int
    device_id: int
    device: Device | None
    global_rank: int | None
    place: str
    world_size: int | None
    told: ToldPlace | None = None


@frozen
class Recording:
    """One profile, interpreted; times are the profile's own.

    ``operations.rank`` counts the profile's ranks and ``operations.iteration`` each rank's own
    iterations from 0; both get their final numbers when profiles are merged.

    Attributes:
        source: the profile.
        convention: the convention that leads.
        conventions: those that name forward or backward.
        ranks: the profile's ranks.
        operations: in order of (rank, host start).
        hints: what the operations' names give beyond their keys.
        busy: when operations kept their GPU busy.
        active: how long each rank computed and ran kernels, by iteration.
        running: how long kernels and copies ran in and between iterations.
        unattributed: when compute kernels ran outside operations.
        exposed: when only communication ran that is not between two ranks.
        overheads: when the profiler held a rank's process up.
        hosts: what launching threads did before late launches.
        replica_collectives: those that synchronise replicas.
        collectives: all that are kept, between more than two ranks.
        coverage: how many kernels, and how much GPU time, operations explain.
        start_ns: when the first kernel or call began.
        end_ns: when the last one ended.
        limitations: what could not be determined.
        pauses: when nothing of a rank was recorded, though it ran on.
        layers: how long kernels of layers ran; None where that was not asked for.
        memory: what operations hold; None where that was not asked for, or not recorded.
    """

    source: Source
    convention: str
    conventions: frozenset[str]
    ranks: tuple[LocalRank, ...]
    operations: RankOperations
    hints: NameHints
    busy: BusyIntervals
    active: ActiveTime
    running: RunningTimes
    unattributed: RankIntervals
    exposed: RankIntervals
    overheads: RankIntervals
    hosts: HostActivities
    replica_collectives: ReplicaCollectives
    collectives: CollectiveIntervals
    coverage: Coverage
    start_ns: int
    end_ns: int
    limitations: tuple[Limitation, ...]
    pauses: RankIntervals = field(default_factory=RankIntervals.none)
    layers: LayerTimes | None = None
    memory: MemoryUse | None = None


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


# Ranks side by side: several on one line of time, where they are worked out like a single one.
#
# What a rank takes beyond its kernels is a few hundred calls of numpy, whatever it ran: of ranks
# that
# ran little, many take them together::
#
#     rank 0   5 ├─ what it did ─┤ 95        line   0 ├─────┤ 90
#     rank 1   7 ├─ what it did ───┤ 99                      91 ├──────┤ 183


#: Kernels and copies of ranks that are worked out together, and room for their ranges, rank by
#: rank: as much as stays in the cache.
_TOGETHER, _ROOM = 1 << 15, 1 << 18
#: Before and behind everything that a single rank did.
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@frozen
class Line:
    """Where the times of some ranks of a profile lie on a line.

    Attributes:
        ranks: which, all that follow each other.
        packing: of them; None where the line of a single rank is time itself.
    """

    ranks: range
    packing: intervals.Packing | None = None

    @staticmethod
    def of(ranks: range, *times: tuple[Codes, Ints, Ints]) -> Line:
        """Return the line of ranks that did something at some times.

        Args:
            ranks: of a profile.
            times: their ranks, starts and ends.
        """
        if len(ranks) == 1:
            return Line(ranks)
        rank, low_ns, high_ns = (np.concatenate(columns) for columns in zip(*times, strict=True))
        order = np.argsort(rank, kind="stable")
        low_ns, high_ns = intervals.group_extents(
            rank[order] - ranks.start, len(ranks), low_ns[order], high_ns[order]
        )
        # What is behind everything that a rank did is on its stretch, too.
        return Line(ranks, intervals.Packing.of(low_ns, np.maximum(low_ns, high_ns) + 1))

    def place(self, rank: Codes, time_ns: Ints, unknown: int | None = None) -> Ints:
        """Return the places of times of ranks; what stands for an unknown one stays."""
        if self.packing is None:
            return time_ns
        place = self.packing.place(rank - self.ranks.start, time_ns)
        return place if unknown is None else np.where(time_ns == unknown, unknown, place)

    def time(self, rank: Codes, place: Ints) -> Ints:
        """Return the times of places; -1 stays."""
        if self.packing is None:
            return place
        time_ns = place - self.packing.shift_ns[rank - self.ranks.start]
        return np.where(place == NONE, NONE, time_ns)

    def begins(self, rank: Codes) -> Ints:
        """Return where the stretches of ranks begin: what is before is not theirs."""
        if self.packing is None:
            return np.broadcast_to(np.int64(_FIRST), len(rank))
        return self.packing.offset_ns[rank - self.ranks.start]

    def ends(self, rank: Codes) -> Ints:
        """Return the last places of ranks, behind everything that they did."""
        if self.packing is None:
            return np.broadcast_to(np.int64(_LAST), len(rank))
        return self.packing.offset_ns[rank - self.ranks.start + 1] - 1

    def owners(self, place: Ints) -> Ints:
        """Return the rank of each place."""
        if self.packing is None:
            return np.full(len(place), self.ranks.start, np.int64)
        return self.packing.groups(place) + self.ranks.start

    def of_ranks(self, places: intervals.Intervals) -> RankIntervals:
        """Return a set of places as times of ranks."""
        rank = self.owners(places[0])
        return RankIntervals(rank, self.time(rank, places[0]), self.time(rank, places[1]))

    def placed(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the places of times; -1 stays."""
        return self._with(table, columns, lambda time_ns: self.place(rank, time_ns, NONE))

    def in_time(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the times of places; -1 stays."""
        return self._with(table, columns, lambda place: self.time(rank, place))

    def _with(
        self, table: TableT, columns: Sequence[str], changed: Callable[[Ints], Ints]
    ) -> TableT:
        if self.packing is None:
            return table
        values: dict[str, Any] = {name: changed(getattr(table, name)) for name in columns}
        return replace(table, **values)


def together(kernels: Ints, ranges: int) -> Iterator[range]:
    """Yield ranks that are worked out together, all of them in order.

    Args:
        kernels: how many kernels and copies each rank ran.
        ranges: how many ranges the profile has, each of which may have run on any rank.
    """
    first, most = 0, max(1, _ROOM // (ranges + 1))
    while first < len(kernels):
        ran = np.cumsum(kernels[first : first + most])
        end = first + max(1, int(np.searchsorted(ran, _TOGETHER, side="right")))
        yield range(first, end)
        first = end
