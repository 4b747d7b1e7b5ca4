"""Recording of a table: its operations as those of a profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.recording import LocalRank, Recording
from bubbleviz.interpret.tables.collectives import collectives_of
from bubbleviz.interpret.tables.keys import KeyedRows, in_host_order, keyed
from bubbleviz.interpret.tables.limitations import limitations_of
from bubbleviz.interpret.tables.work import busy_of, of_ranks, times_of
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import places_in
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operation_table import OperationTable, RowIntervals, ToldPlace
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankCoverage,
    RankOperations,
)
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.sources.tables.keys import number_of_iteration


def recording_of(table: OperationTable) -> Recording:
    """Return the recording of a table.

    Raises:
        NothingToAnalyseError: it holds no forward or backward.
    """
    if not among(table.operations.phase, COUNTED).any():
        labels = ", ".join(phase.label for phase in COUNTED)
        raise NothingToAnalyseError(
            f"{table.source.path}: the {table.noun} holds no forward or backward ({labels}), so "
            "there is no bubble to measure; add them"
        )
    order = in_host_order(table)
    numbers = np.array([number_of_iteration(name) for name in table.iterations], np.int64)
    rows = keyed(table, order, numbers)
    busy = busy_of(rows.operations, _reordered(table.waits, order))
    busy_ns = group_sum(busy.operation, len(order), busy.end_ns - busy.start_ns)
    lighter = rows.operations.changed(busy_ns=busy_ns).lighter()
    rows = replace(rows, operations=lighter, hints=rows.hints.compacted())
    return _recording(table, order, rows, busy.sharing_with(lighter))


def _recording(
    table: OperationTable, order: Ints, rows: KeyedRows, busy: BusyIntervals
) -> Recording:
    """Return the recording of a table.

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        rows: these, with keys and busy times.
        busy: when they kept their GPU busy.
    """
    operations, rank, count = rows.operations, table.operations.rank, len(table.places)
    unattributed = of_ranks(table.unattributed, rank, count)
    exposed = of_ranks(table.exposed, rank, count)
    times = times_of(table, operations, busy, unattributed, exposed)
    start_ns, end_ns = _extent(operations)
    convention = table.noun.split(" ", 1)[0]
    return Recording(
        source=table.source,
        convention=convention,
        conventions=frozenset((convention,)),
        ranks=tuple(_local_rank(place) for place in table.places),
        operations=operations,
        hints=rows.hints,
        busy=busy,
        active=times.active,
        running=times.running,
        unattributed=unattributed,
        exposed=times.exposed,
        overheads=of_ranks(table.overheads, rank, count),
        hosts=HostActivities.none(),
        replica_collectives=ReplicaCollectives(*(np.empty(0, np.int64) for _ in range(5))),
        collectives=collectives_of(table, order, operations),
        coverage=_coverage(operations.kernels, times.coverage),
        start_ns=start_ns,
        end_ns=end_ns,
        limitations=limitations_of(table, rows),
        pauses=of_ranks(table.pauses, rank, count),
    )


def _extent(operations: RankOperations) -> tuple[int, int]:
    """Return the first start and the last end of operations."""
    spanned = operations.has_span == 1
    if not spanned.any():
        return 0, 0
    return int(operations.start_ns[spanned].min()), int(operations.end_ns[spanned].max())


def _reordered(times: RowIntervals, order: Ints) -> RowIntervals:
    """Return times of rows that stand in another order now."""
    return RowIntervals(places_in(order)[times.row], times.start_ns.copy(), times.end_ns.copy())


def _local_rank(place: ToldPlace) -> LocalRank:
    return LocalRank(
        process=place.number,
        device_id=0,
        device=None,
        global_rank=place.global_rank,
        place=f"rank {place.number}",
        world_size=place.world_size,
        told=place,
    )


def _coverage(kernels: Ints, ranks: tuple[RankCoverage, ...]) -> Coverage:
    """Return counts of kernels, which all belong to operations."""
    count = int(kernels.sum())
    return Coverage(
        kernels=count,
        linked_kernels=count,
        attributed_kernels=count,
        cross_thread_kernels=0,
        ambiguous_kernels=0,
        ranks=ranks,
        unattributed=(),
    )
