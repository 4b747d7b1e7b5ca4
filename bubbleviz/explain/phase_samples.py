"""Phase samples: how long the operations of a stretch took, kind by kind.

Those of all stretches together are what :mod:`bubbleviz.explain.phase_times` works out medians
from. What cannot be a transfer or a gap in the whole run is left out already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.explain.transfers import Gaps, Transfers, edges_of, sent_at_once
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen(shown=False)
class Kinds(Table):
    """Kinds of operations, and how many samples each has.

    Attributes:
        virtual_stage: place of the model chunk in the model's order; -1 unknown.
        stage: of the rank; -1 unknown.
        chunk: model chunk; -1 none.
        phase: of the operations; of transfers that of the receive.
        count: of samples.
    """

    virtual_stage: Ints
    stage: Ints
    chunk: Ints
    phase: Ints
    count: Ints


@frozen(shown=False)
class Samples(Table):
    """Times of operations, kind by kind; within one in a fixed order. In as few bits as they need.

    Attributes:
        row: of the operation, among those of its stretch.
        microbatch: of the operation.
        time_ns: how long it took, or its transfer.
    """

    row: Codes
    microbatch: Codes
    time_ns: Codes


@frozen(eq=False, shown=False)
class KindSamples:
    """Samples, and the kinds that they are of."""

    kinds: Kinds
    samples: Samples


@frozen(eq=False, shown=False)
class PhaseSamples:
    """What phase times are worked out from, of one stretch.

    Attributes:
        operations: their busy times.
        waited: transfers of receives that waited.
        started: transfers that operations may show which began once their input was there.
        gap_kinds: kinds of the operations with gaps, and how many of them there are.
        gap_ns: before operations, kind by kind.
        room_ns: as of :class:`~bubbleviz.explain.transfers.Gaps`.
        least_ns: by edge, the least time between an input and its operation among ``started`` and
            ``uncounted``.
        longest_ns: by edge, the longest transfer of a receive that waited; -1 none.
        uncounted: edge and time of what would be in ``started`` if its iteration were averaged.
    """

    operations: KindSamples
    waited: KindSamples
    started: KindSamples
    gap_kinds: Kinds
    gap_ns: Codes
    room_ns: Codes
    least_ns: Ints
    longest_ns: Ints
    uncounted: tuple[Ints, Ints]


def counted_operations(operations: Operations, averaged: Bools) -> Bools:
    """Return which operations have a kind, and lie in averaged iterations.

    Args:
        operations: of any ranks.
        averaged: of each iteration, whether it is averaged.
    """
    counted: Bools = among(operations.phase, WORK) & (operations.has_span == 1)
    counted &= (operations.iteration >= 0) & (operations.cut == 0)
    # An operation that stands for several (a W of all remaining microbatches) has no kind.
    counted &= operations.microbatch >= 0
    counted &= np.append(averaged, False)[operations.iteration]
    return counted


def phase_samples_of(
    operations: Operations,
    stage: Ints,
    averaged: Bools,
    waited: Transfers,
    started: Transfers,
    gaps: Gaps,
) -> PhaseSamples:
    """Return what phase times are worked out from.

    Args:
        operations: of the ranks of a stretch.
        stage: of each rank; -1 unknown.
        averaged: of each iteration, whether it is averaged.
        waited: transfers of receives that waited.
        started: those that operations may show which began once their input was there.
        gaps: before these operations.
    """
    counted = counted_operations(operations, averaged)
    rows = np.flatnonzero(counted)
    times = _by_kind(operations, stage, rows, operations.phase[rows], operations.busy_ns[rows])
    edges = int(operations.virtual_stage.max(initial=NONE)) * 2 + 4
    edge = _edges(operations, started)
    least_ns = np.full(edges, np.iinfo(np.int64).max)
    np.minimum.at(least_ns, edge, started.transfer_ns)
    longest_ns = np.full(edges, NONE, np.int64)
    np.maximum.at(longest_ns, _edges(operations, waited), waited.transfer_ns)
    # Of all stretches the least may be less still.
    started = started.take(sent_at_once(edge, started.transfer_ns, least_ns))
    in_kind = counted[started.operation]
    uncounted = started.take(~in_kind)
    gaps = gaps.take(counted[gaps.operation])
    local = gaps.room_ns == NONE
    gaps = gaps.take(local | (gaps.room_ns >= longest_ns[_edges(operations, gaps)]))
    gap_kinds, order = _ordered(operations, stage, gaps.operation, operations.phase[gaps.operation])
    return PhaseSamples(
        operations=times,
        waited=_of_transfers(operations, stage, waited.take(counted[waited.operation])),
        started=_of_transfers(operations, stage, started.take(in_kind)),
        gap_kinds=gap_kinds,
        gap_ns=_narrowed(gaps.gap_ns[order]),
        room_ns=_narrowed(gaps.room_ns[order]),
        least_ns=least_ns,
        longest_ns=longest_ns,
        uncounted=(_edges(operations, uncounted), uncounted.transfer_ns),
    )


def _edges(operations: Operations, table: Transfers | Gaps) -> Ints:
    row = table.operation
    return edges_of(operations.virtual_stage[row], operations.phase[row])


def _of_transfers(operations: Operations, stage: Ints, transfers: Transfers) -> KindSamples:
    """Return the samples of transfers, which stand under the phase of the receive."""
    forward = among(operations.phase[transfers.operation], (Phase.F, Phase.FB))
    phase = np.where(forward, Phase.RECV_F, Phase.RECV_B).astype(np.int64)
    return _by_kind(operations, stage, transfers.operation, phase, transfers.transfer_ns)


def _by_kind(
    operations: Operations, stage: Ints, row: Ints, phase: Ints, time_ns: Ints
) -> KindSamples:
    kinds, order = _ordered(operations, stage, row, phase)
    row = row[order]
    return KindSamples(
        kinds,
        Samples(_narrowed(row), _narrowed(operations.microbatch[row]), _narrowed(time_ns[order])),
    )


def _ordered(operations: Operations, stage: Ints, row: Ints, phase: Ints) -> tuple[Kinds, Ints]:
    """Return the kinds of operations, ascending, and the places of these kind by kind."""
    of_rank, virtual_stage = stage[operations.rank[row]], operations.virtual_stage[row]
    chunk = operations.chunk[row]
    groups = groups_of(virtual_stage, of_rank, chunk, phase)
    first = groups.first
    kinds = Kinds(
        virtual_stage[first],
        of_rank[first],
        chunk[first],
        phase[first],
        np.bincount(groups.of_row, minlength=len(groups)),
    )
    return kinds, sorted_rows(groups.of_row)


def _narrowed(column: Ints) -> Codes:
    """Return a column in 32 bits, if it fits."""
    most = max(int(column.max(initial=0)), -int(column.min(initial=0)))
    return column if most > np.iinfo(np.int32).max else column.astype(np.int32)


@frozen(eq=False)
class Kind:
    """One kind in several stretches.

    Attributes:
        virtual_stage: as of :class:`Kinds`.
        stage: likewise.
        chunk: likewise.
        phase: likewise.
        places: number of each stretch that has samples of it, and which of its rows these are.
    """

    virtual_stage: int
    stage: int
    chunk: int
    phase: int
    places: tuple[tuple[int, slice], ...]


def kinds_of(tables: Sequence[Kinds]) -> Iterator[Kind]:
    """Yield the kinds that any stretch has, ascending, with their samples in each.

    Args:
        tables: the kinds of each stretch.
    """
    every = joined(tables)
    stretch = np.repeat(np.arange(len(tables)), [len(table) for table in tables]).tolist()
    end = np.concatenate([np.cumsum(table.count) for table in tables]).tolist()
    count = every.count.tolist()
    groups = groups_of(every.virtual_stage, every.stage, every.chunk, every.phase)
    order = sorted_rows(groups.of_row)
    bounds = np.cumsum(np.bincount(groups.of_row, minlength=len(groups)))
    for places, first in zip(np.split(order, bounds[:-1]), groups.first.tolist(), strict=False):
        yield Kind(
            virtual_stage=int(every.virtual_stage[first]),
            stage=int(every.stage[first]),
            chunk=int(every.chunk[first]),
            phase=int(every.phase[first]),
            places=tuple(
                (stretch[at], slice(end[at] - count[at], end[at])) for at in places.tolist()
            ),
        )
