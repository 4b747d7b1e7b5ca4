"""Keys: what the rows of a table leave open of operations, by their order in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.iterations import HostOrder, constant_names, number_iterations, occurrences
from bubbleviz.interpret.operation_ranges import NameHints, fused_backward
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of, sorted_rows
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, TRANSFERS, WORK, Phase
from bubbleviz.model.profile import ToldClock
from bubbleviz.model.values import frozen


@frozen
class KeyedRows:
    """The operations of a table, with keys.

    Attributes:
        operations: in order of (rank, host start).
        hints: what the table gives beyond their keys.
        unnumbered: whose microbatch is counted by order.
    """

    operations: RankOperations
    hints: NameHints
    unnumbered: Bools


def in_host_order(table: OperationTable) -> Ints:
    """Return the rows of a table in order of (rank, host start)."""
    operations = table.operations
    return sorted_rows(operations.rank, operations.host_start_ns, operations.start_ns)


def keyed(table: OperationTable, order: Ints, numbers: Ints) -> KeyedRows:
    """Return a table's operations with keys.

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        numbers: of the table's iterations; -1 for one that is only told apart.
    """
    operations = table.operations.take(order)
    stage = _virtual_stages(table, operations, table.virtual_stage[order])
    rank, chunk = operations.rank, operations.chunk
    if "chunk" not in table.told:
        chunk = _counted(rank, stage)
    none = np.full(len(order), NONE, np.int64)
    phase = fused_backward(operations.phase, (rank, chunk, none, operations.microbatch))
    operations = operations.changed(phase=phase, chunk=chunk)
    timing = _host_order(operations)
    constant = constant_names(timing)
    told = "iteration" in table.told
    iteration = (
        _numbered(rank, operations.iteration) if told else number_iterations(timing, constant)
    )
    counted = among(phase, (Phase.F, Phase.B, Phase.BW, Phase.R))
    unnumbered = counted & (operations.microbatch < 0)
    if not told:
        unnumbered |= constant & among(phase, WORK)
    by_order = occurrences((rank, iteration, phase, chunk, operations.sequence))
    microbatch = np.where(unnumbered, by_order, operations.microbatch)
    key = rank, iteration, phase, chunk, operations.sequence, microbatch
    again = occurrences((*key, operations.second_microbatch, operations.second_chunk))
    mark = np.append(numbers, NONE)[operations.iteration] if table.paired else none
    return KeyedRows(
        operations.changed(
            iteration=iteration,
            microbatch=microbatch,
            occurrence=np.where(operations.occurrence >= 0, operations.occurrence, again),
        ),
        NameHints(stage=stage, iteration=mark),
        unnumbered,
    )


def _numbered(rank: Ints, name: Ints) -> Ints:
    """Return each rank's iterations, counted from 0 in the order of their first operations.

    Args:
        rank: of each operation, in order of (rank, host start).
        name: of its iteration; -1 none.
    """
    known = np.flatnonzero(name != NONE)
    groups = groups_of(rank[known], name[known])
    place = np.empty(len(groups), np.int64)
    place[np.argsort(groups.first)] = np.arange(len(groups))
    first = np.full(int(rank.max(initial=0)) + 1, len(groups))
    np.minimum.at(first, rank[known[groups.first]], place)
    result = np.full(len(rank), NONE, np.int64)
    result[known] = place[groups.of_row] - first[rank[known]]
    return result


def _host_order(operations: RankOperations) -> HostOrder:
    key = groups_of(operations.chunk, operations.sequence, operations.microbatch).of_row
    second = operations.second_microbatch, operations.second_chunk
    phase = operations.phase
    return HostOrder(
        rank=operations.rank.copy(),
        microbatch=operations.microbatch.copy(),
        key=key,
        whole_key=groups_of(key, phase, *second).of_row,
        mark=np.full(len(operations), NONE, np.int64),
        forward=among(phase, (Phase.F, Phase.FB)),
        counted=among(phase, COUNTED),
        transfer=among(phase, TRANSFERS),
        optimizer=phase == Phase.OPTIMIZER,
        post_validation=np.zeros(len(operations), bool),
    )


def _virtual_stages(table: OperationTable, operations: RankOperations, told: Ints) -> Ints:
    """Return the virtual stage of each operation, as far as the table gives it; -1 unknown.

    A rank's stage is that of its only chunk.
    """
    if "virtual_stage" in table.told:
        return told
    stage = np.array([NONE if p.stage is None else p.stage for p in table.places], np.int64)
    if (operations.chunk > 0).any():
        return np.full(len(operations), NONE, np.int64)
    return stage[operations.rank]


def _counted(rank: Ints, stage: Ints) -> Ints:
    """Return chunks for operations whose table names none: of each rank by its virtual stages.

    What has no stage, as optimizer steps mostly, adds no chunk.
    """
    known = np.flatnonzero(stage != NONE)
    held = groups_of(rank[known], stage[known])
    first = np.full(int(rank.max(initial=0)) + 1, len(held))
    np.minimum.at(first, rank[known], held.of_row)
    chunk = np.zeros(len(rank), np.int64)
    chunk[known] = held.of_row - first[rank[known]]
    return chunk


# Clocks of a table: what one table holds of several clocks becomes a recording of each.


TableT = TypeVar("TableT", bound=Table)


def by_clock(recording: Recording) -> tuple[Recording, ...]:
    """Return a recording as one a clock; a profile's, and a table's of one clock, as it is."""
    clocks = [rank.told.clock if rank.told else None for rank in recording.ranks]
    distinct = list(dict.fromkeys(clocks))
    if distinct == [None]:
        return (recording,)
    number = np.array([distinct.index(clock) for clock in clocks], np.int64)
    parts = [
        _part(recording, np.flatnonzero(number == place), clock)
        for place, clock in enumerate(distinct)
    ]
    return (parts[0], *(replace(part, limitations=()) for part in parts[1:]))


def _part(recording: Recording, ranks: Ints, clock: ToldClock | None) -> Recording:
    """Return what a recording holds of some ranks, which share a clock."""
    place = np.full(len(recording.ranks), NONE, np.int64)
    place[ranks] = np.arange(len(ranks))
    operations = recording.operations
    rows = np.flatnonzero(place[operations.rank] != NONE)
    row = np.full(len(operations), NONE, np.int64)
    row[rows] = np.arange(len(rows))
    own = operations.take(rows)
    busy = recording.busy.take(row[recording.busy.operation] != NONE)
    collectives = _of_ranks(recording.collectives, place)
    source = recording.source
    spanned = own.has_span == 1
    return replace(
        recording,
        source=source if clock is None else replace(source, host=clock.name, clock=clock),
        ranks=tuple(recording.ranks[rank] for rank in ranks.tolist()),
        operations=own.changed(rank=place[own.rank]),
        hints=recording.hints.take(rows),
        busy=replace(busy, operation=row[busy.operation]),
        active=_of_ranks(recording.active, place),
        running=_of_ranks(recording.running, place),
        unattributed=_of_ranks(recording.unattributed, place),
        exposed=_of_ranks(recording.exposed, place),
        overheads=_of_ranks(recording.overheads, place),
        pauses=_of_ranks(recording.pauses, place),
        collectives=collectives.changed(operation=np.append(row, NONE)[collectives.operation]),
        coverage=_coverage(recording.coverage, own.kernels, place.tolist()),
        start_ns=int(own.start_ns[spanned].min()) if spanned.any() else recording.start_ns,
        end_ns=int(own.end_ns[spanned].max()) if spanned.any() else recording.end_ns,
    )


def _of_ranks(table: TableT, place: Ints) -> TableT:
    """Return the rows of some ranks, which have other numbers now."""
    rank: Any = getattr(table, "rank")  # noqa: B009 - every such table has the column
    rows = np.flatnonzero(place[rank] != NONE)
    return replace(table.take(rows), rank=place[rank[rows]])  # type: ignore[call-arg]  # likewise


def _coverage(coverage: Coverage, kernels: Ints, place: Sequence[int]) -> Coverage:
    """Return the coverage of some ranks."""
    count = int(kernels.sum())
    return replace(
        coverage,
        kernels=count,
        linked_kernels=count,
        attributed_kernels=count,
        ranks=tuple(
            replace(rank, rank=place[rank.rank])
            for rank in coverage.ranks
            if place[rank.rank] != NONE
        ),
    )
