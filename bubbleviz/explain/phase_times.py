"""Phase times: how long operations take by stage, chunk and phase, and which are stragglers.

A transfer (T_comm) is measured where an input was waited for: from when it was ready on the peer
until it was there (:mod:`bubbleviz.explain.transfers`). It stands under the phase of the receive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bubbleviz.explain.transfers import Gaps, Transfers
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: An operation is a straggler if it takes more than this many times the median of its kind.
STRAGGLES = 1.2
#: Most stragglers that are listed.
_LISTED = 10


@frozen
class PhaseTime:
    """How long the operations of one kind take, in nanoseconds of busy time (or of transfer).

    Attributes:
        stage: stage of the rank (smallest virtual stage); -1 unknown.
        chunk: model chunk; -1 none.
        virtual_stage: place of the chunk in the model's order; -1 unknown.
        phase: of the operations.
        n: how many there are, over all replicas of the stage and averaged iterations.
        median_ns: median.
        mean_ns: mean.
        std_ns: standard deviation (n - 1); None for a single one.
        min_ns: shortest.
        max_ns: longest.
        first_ns: median of those of the first microbatch.
        last_ns: median of those of the last one.
        gap_ns: median time between the operation before on the rank and one of these that waited
            for nothing; None where all waited.
    """

    stage: int
    chunk: int
    virtual_stage: int
    phase: Phase
    n: int
    median_ns: float
    mean_ns: float
    std_ns: float | None
    min_ns: int
    max_ns: int
    first_ns: float | None
    last_ns: float | None
    gap_ns: float | None = None


@frozen
class Straggler:
    """An operation that took long: its row, and how many times the median of its kind."""

    operation: int
    times: float


@frozen
class PhaseTimes:
    """How long operations take.

    Attributes:
        kinds: by virtual stage and phase, in the model's order.
        transfer_ns: median transfer of an input that was waited for; None if none was.
        imbalance: by phase, how much longer the slowest stage takes than the mean of all, as a
            share of that; medians of stages' chunks summed. Keys are printed phase names.
        stragglers: the worst, worst first.
        times_median: of every operation, how many times the median of its kind it took; 0 where
            that is not known. Shape (operations,).
    """

    kinds: tuple[PhaseTime, ...]
    transfer_ns: float | None
    imbalance: tuple[tuple[str, float], ...]
    stragglers: tuple[Straggler, ...]
    times_median: np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def phase_times_of(
    operations: Operations, stage: Ints, averaged: Bools, transfers: Transfers, gaps: Gaps
) -> PhaseTimes:
    """Return how long operations take.

    Args:
        operations: of all ranks.
        stage: of each rank; -1 unknown.
        averaged: of each iteration, whether it is averaged.
        transfers: of inputs of these operations.
        gaps: before these operations.
    """
    counted = np.isin(operations.phase, WORK) & (operations.has_span == 1)
    counted &= (operations.iteration >= 0) & (operations.cut == 0)
    # An operation that stands for several (a W of all remaining microbatches) has no kind.
    counted &= operations.microbatch >= 0
    counted &= np.append(averaged, False)[operations.iteration]
    rows = np.flatnonzero(counted)
    timed = _OperationTimes(rows, operations.phase[rows], operations.busy_ns[rows])
    times = np.zeros(len(operations), np.float64)
    gap_ns = np.full(len(operations), NONE, np.int64)
    gap_ns[gaps.operation] = gaps.gap_ns
    kinds = []
    for kind, places in _kinds(operations, stage, timed):
        of_kind = gap_ns[rows[places]]
        shown = of_kind[of_kind != NONE]
        kinds.append(replace(kind, gap_ns=float(np.median(shown))) if len(shown) else kind)
        if kind.median_ns > 0:
            times[rows[places]] = timed.time_ns[places] / kind.median_ns
    waited = transfers.take(counted[transfers.operation])
    forward = np.isin(operations.phase[waited.operation], (Phase.F, Phase.FB))
    phase = np.where(forward, Phase.RECV_F, Phase.RECV_B).astype(np.int64)
    inputs = _OperationTimes(waited.operation, phase, waited.transfer_ns)
    kinds += [kind for kind, _ in _kinds(operations, stage, inputs)]
    median_ns = float(np.median(waited.transfer_ns)) if len(waited) else None
    return PhaseTimes(tuple(kinds), median_ns, _imbalance(kinds), _stragglers(times), times)


@frozen
class _OperationTimes(Table):
    """Times of operations: their rows, the phases they stand under, and nanoseconds."""

    row: Ints
    phase: Ints
    time_ns: Ints


def _kinds(
    operations: Operations, stage: Ints, timed: _OperationTimes
) -> Iterator[tuple[PhaseTime, Ints]]:
    """Yield the kinds of operations, in the model's order, with the places of their times."""
    row = timed.row
    where = stage[operations.rank[row]]
    groups = groups_of(operations.virtual_stage[row], where, operations.chunk[row], timed.phase)
    order = sorted_rows(groups.of_row)
    ends = np.cumsum(np.bincount(groups.of_row, minlength=len(groups)))
    for places, first in zip(np.split(order, ends[:-1]), groups.first.tolist(), strict=False):
        yield _kind(operations, timed.take(places), int(where[first])), places


def _kind(operations: Operations, timed: _OperationTimes, stage: int) -> PhaseTime:
    time_ns, microbatch = timed.time_ns, operations.microbatch[timed.row]
    first = int(timed.row[0])

    def of(number: int) -> float | None:
        return float(np.median(time_ns[microbatch == number])) if number >= 0 else None

    return PhaseTime(
        stage=stage,
        chunk=int(operations.chunk[first]),
        virtual_stage=int(operations.virtual_stage[first]),
        phase=Phase(int(timed.phase[0])),
        n=len(timed),
        median_ns=float(np.median(time_ns)),
        mean_ns=float(time_ns.mean()),
        std_ns=float(time_ns.std(ddof=1)) if len(timed) > 1 else None,
        min_ns=int(time_ns.min()),
        max_ns=int(time_ns.max()),
        first_ns=of(int(microbatch.min())),
        last_ns=of(int(microbatch.max())),
    )


def _imbalance(kinds: list[PhaseTime]) -> tuple[tuple[str, float], ...]:
    """Return how far the slowest stage is above the mean, by phase."""
    imbalance = []
    for phase in WORK:
        by_stage: dict[int, float] = {}
        for kind in kinds:
            if kind.phase is phase and kind.stage >= 0:
                by_stage[kind.stage] = by_stage.get(kind.stage, 0.0) + kind.median_ns
        mean = sum(by_stage.values()) / len(by_stage) if by_stage else 0.0
        if mean > 0:
            imbalance.append((phase.label, max(by_stage.values()) / mean - 1))
    return tuple(imbalance)


def _stragglers(times: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[Straggler, ...]:
    """Return the operations that took longest against their kind's median."""
    slow = np.flatnonzero(times > STRAGGLES)
    worst = slow[sorted_rows(-times[slow])][:_LISTED]
    return tuple(Straggler(int(row), float(times[row])) for row in worst)
