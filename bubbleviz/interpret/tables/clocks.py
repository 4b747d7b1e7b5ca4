"""Clocks of a table: what one table holds of several clocks becomes a recording of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.profile import ToldClock

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
