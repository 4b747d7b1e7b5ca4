"""Phase times: how long operations take by stage, chunk and phase, and which are stragglers.

A transfer (T_comm) is measured if its input was waited for: from the time when it was ready on the
peer until it was there. It is listed under the phase of the receive. A receive shows the transfer
if it waited for its input. If only the starts of receives are known, as in recordings without a
profiler, an operation shows it if its rank was idle when the input was ready::

    peer    ██████ F3 ██████│ready
    rank    █████ F2 █████│        │██ F3
                            ├──────┤ transfer

A gap is the time between an operation whose input was there and the operation before it on its
rank, in which the host, a launch, or the framework was at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.count.statistics import compute_median
from bubbleviz.explain.communication_times import Receives
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.model import grouping, intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Floats, Ints, to_slice
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.schedules.plan import OperationTimes

#: A message may be as late by chance.
_LATE_NS = 500_000
_LONGEST = np.iinfo(np.int64).max
#: Virtual stage, stage and chunk of operations, and their phase; -1 for what is unknown.
KindKey = tuple[int, int, int, int]
#: Rows of operations in the run, and columns of what they show, in as few bits as they need.
Samples = tuple[Codes, ...]


def counted_operations(operations: Operations, averaged: Bools) -> Bools:
    """Return which operations have a kind, and lie in some iterations.

    Args:
        operations: of any ranks.
        averaged: of each iteration, whether it is wanted.
    """
    counted: Bools = mask_phases(operations.phase, WORK) & (operations.has_span == 1)
    counted &= (operations.iteration >= 0) & (operations.cut == 0)
    # An operation that stands for several (a W of all remaining microbatches) has no kind.
    counted &= operations.microbatch >= 0
    counted &= np.append(averaged, False)[operations.iteration]
    return counted


def phase_samples_of(
    operations: Operations, receives: Receives, inputs: Inputs, known: Arrivals, first_row: int
) -> tuple[Samples, Samples, Samples]:
    """Return what phase times are worked out from, beside the times of operations.

    Args:
        operations: of the ranks of a stretch.
        receives: of these operations.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
        first_row: their first row in the run.

    Returns:
        Transfers of receives that waited; those that operations may show which began once their
        input was there; and gaps before operations. Beside the gaps stands the room: how long
        before the end of the one in front the input was ready, -1 where an operation takes nothing
        from another rank.
    """
    waited = receives.take(receives.wait_ns > 0)
    samples = (
        (waited.operation, waited.transfer_ns),
        _after_idling(operations, inputs, known),
        _gaps(operations, inputs),
    )
    first, second, third = (
        tuple(_narrowed(column) for column in (row + first_row, *columns))
        for row, *columns in samples
    )
    return first, second, third


def _narrowed(column: Ints) -> Codes:
    """Return a column in 32 bits, if it fits."""
    most = max(int(column.max(initial=0)), -int(column.min(initial=0)))
    return column if most > np.iinfo(np.int32).max else column.astype(np.int32)


def _after_idling(operations: Operations, inputs: Inputs, known: Arrivals) -> tuple[Ints, Ints]:
    """Return operations that began once their inputs were there, and how long after these.

    Their rank ran nothing when the input was ready, and no end of their receive is recorded.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
    """
    shown: Bools = (known.exact_ns == NEVER) & (inputs.ready_ns != NEVER)
    shown &= (operations.has_span == 1) & (operations.start_ns >= inputs.ready_ns)
    # Where the host itself computes, it launches once the input is there.
    itself = operations.host_start_ns >= operations.start_ns
    shown &= itself | (operations.host_start_ns <= inputs.ready_ns)
    rows = np.flatnonzero(shown)
    if len(rows):
        computes = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1)
        work = to_slice(np.flatnonzero(computes))
        wanted = operations.rank[rows], operations.start_ns[rows]
        ended_ns = operations.end_ns[work]
        last = intervals.find_last_before(operations.rank[work], ended_ns, *wanted, or_at=True)
        rows = rows[(last == NONE) | (ended_ns[last] <= inputs.ready_ns[rows])]
    return rows, operations.start_ns[rows] - inputs.ready_ns[rows]


def _gaps(operations: Operations, inputs: Inputs) -> tuple[Ints, Ints, Ints]:
    """Return operations whose inputs were ready when the one before on their rank ended.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.

    Returns:
        Their rows, the gap before each, and the room as of :func:`phase_samples_of`.
    """
    computes = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(computes & (operations.iteration >= 0) & ~inputs.unknown)
    at = to_slice(rows)
    rank, start_ns = operations.rank[at], operations.start_ns[at]
    if not ((rank[1:] > rank[:-1]) | (start_ns[1:] >= start_ns[:-1])).all():
        at = rows = rows[grouping.sort_rows(rank, start_ns)]
        rank, start_ns = operations.rank[at], operations.start_ns[at]
    iteration, end_ns = operations.iteration[at], operations.end_ns[at]
    gap_ns = start_ns[1:] - end_ns[:-1]
    shown = (rank[1:] == rank[:-1]) & (gap_ns >= 0) & (iteration[1:] == iteration[:-1])
    ready_ns = inputs.ready_ns[at][1:]
    shown &= (ready_ns == NEVER) | (ready_ns <= end_ns[:-1])
    there = np.flatnonzero(shown)
    ready_ns = ready_ns[there]
    room_ns = np.where(ready_ns == NEVER, NONE, end_ns[there] - ready_ns)
    return rows[1:][there], gap_ns[there], room_ns


def _kinds_of(operations: Operations, stage: Ints) -> tuple[Codes, tuple[KindKey, ...]]:
    """Return the number of the kind of each operation, and the kinds.

    Args:
        operations: of the run.
        stage: of each rank; -1 unknown.
    """
    numbering, found = Numbering[KindKey](), []
    for part in grouping.split_by_owner(operations.rank):
        own = operations.take(part)
        keys = own.virtual_stage, stage[own.rank], own.chunk, own.phase
        groups = grouping.group_rows(*keys)
        kinds = zip(*(key[groups.first].tolist() for key in keys), strict=True)
        found.append(numbering.numbers(kinds).astype(np.int32)[groups.of_row])
    kind, few = np.concatenate(found), len(numbering) <= np.iinfo(np.int16).max
    return kind.astype(np.int16) if few else kind, numbering.values


def _by_kind(
    kinds: Sequence[KindKey], parts: Iterable[tuple[Codes, tuple[Codes, ...]]]
) -> Iterator[tuple[KindKey, list[Ints]]]:
    """Yield the kinds of some operations, ascending, with the rows of these in some columns.

    Args:
        kinds: by number.
        parts: the number of the kind of operations, and the columns.
    """
    held: dict[KindKey, list[list[Codes]]] = {}
    for number, columns in parts:
        counts = np.bincount(number, minlength=len(kinds))
        ordered = [
            np.split(c, np.cumsum(counts)[:-1])
            for c in grouping.sort_columns_by_group(number, columns)
        ]
        for own in np.flatnonzero(counts).tolist():
            held.setdefault(kinds[own], []).append([column[own] for column in ordered])
    for kind in sorted(held):
        columns_of_parts = zip(*held[kind], strict=True)
        yield kind, [np.concatenate(own).astype(np.int64) for own in columns_of_parts]


#: An operation is a straggler if it takes more than this many times the median of its kind.
STRAGGLES = 1.2
#: Most stragglers that are listed.
_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class PhaseTime(OperationTimes):
    """How long the operations of one kind take, in nanoseconds of busy time (or of transfer).

    Attributes:
        n: how many there are, over all replicas of the stage and averaged iterations.
        min_ns: shortest.
        max_ns: longest.
        first_ns: median of those of the first microbatch.
        last_ns: median of those of the last one.
    """

    n: int
    min_ns: int
    max_ns: int
    first_ns: float | None
    last_ns: float | None


@dataclass(frozen=True)
class PhaseTimes:
    """How long operations take.

    Attributes:
        kinds: by virtual stage and phase, in the model's order.
        transfer_ns: median transfer of an input that was waited for; None if none was.
        imbalance: by phase, how much longer the slowest stage takes than the mean of all, as a
            share of that; medians of stages' chunks summed. Keys are printed phase names.
        stragglers: of operations that took long, the row and how many times the median of their
            kind; the worst, worst first.
    """

    kinds: tuple[PhaseTime, ...]
    transfer_ns: float | None
    imbalance: tuple[tuple[str, float], ...]
    stragglers: tuple[tuple[int, float], ...]


def _moved(
    edge: Codes, waited: Iterable[Samples], started: Sequence[Samples]
) -> tuple[list[Samples], Ints]:
    """Return the samples that are transfers, with the longest of each edge; -1 where none shows.

    Args:
        edge: a number for the virtual stage of each operation and for whence its inputs come.
        waited: transfers of receives that waited.
        started: those that operations may show which began once their input was there.
    """
    edges = int(edge.max(initial=0)) + 1
    least_ns, longest_ns = np.full(edges, _LONGEST), np.full(edges, NONE, np.int64)
    for row, time_ns in started:
        np.minimum.at(least_ns, edge.take(row), time_ns.astype(np.int64, copy=False))
    moved = [*waited]
    for row, time_ns in started:
        # What took much longer than the fastest of its edge was sent late: a forward that runs
        # beside a backward is sent after both.
        sent = np.flatnonzero(time_ns - _LATE_NS <= 2 * least_ns[edge.take(row)])
        moved.append((row[sent], time_ns[sent]))
    for row, time_ns in moved:
        np.maximum.at(longest_ns, edge.take(row), time_ns.astype(np.int64, copy=False))
    return moved, longest_ns


def phase_times_of(
    operations: Operations,
    stage: Ints,
    averaged: Bools,
    parts: Sequence[tuple[Samples, Samples, Samples]],
) -> PhaseTimes:
    """Return how long operations take.

    Args:
        operations: of the run.
        stage: of each rank; -1 unknown.
        averaged: of each iteration, whether it is averaged.
        parts: samples of each stretch, at least one.
    """
    waited, started, gaps = zip(*parts, strict=True)
    kind, kinds = _kinds_of(operations, stage)
    # The kind of the receive of each kind's input, and whence that comes.
    received: list[KindKey] = [
        (*key[:3], Phase.RECV_F if key[3] in (Phase.F, Phase.FB) else Phase.RECV_B) for key in kinds
    ]
    receives = Numbering(received)
    receive_of = receives.numbers(received).astype(kind.dtype)
    edges = [(key[0], key[3]) for key in received]
    edge = Numbering(edges).numbers(edges).astype(kind.dtype)[kind]
    moved, longest_ns = _moved(edge, waited, started)
    counted = counted_operations(operations, averaged)

    def before_operations() -> Iterator[tuple[Codes, tuple[Codes]]]:
        """Yield the gaps before operations whose inputs were there.

        An input was there if it had been ready for the longest transfer of its edge; where none
        shows, only operations that take nothing from other ranks show gaps.
        """
        for row, gap_ns, room_ns in gaps:
            longest = longest_ns[edge.take(row)]
            shown = (room_ns == NONE) | ((longest != NONE) & (room_ns >= longest))
            shown = np.flatnonzero(shown & counted.take(row))
            yield kind.take(row[shown]), (gap_ns.take(shown),)

    def counted_rows() -> Iterator[tuple[Codes, tuple[Codes]]]:
        for part in grouping.split_by_owner(operations.rank):
            row = _narrowed(part.start + np.flatnonzero(counted[part]))
            yield kind.take(row), (row,)

    gap_of = {key: own for key, (own,) in _by_kind(kinds, before_operations())}
    times, slow = [], [(np.empty(0, np.int64), np.empty(0))]
    for key, (row,) in _by_kind(kinds, counted_rows()):
        time_ns = operations.busy_ns[row]
        time = _phase_time(key, operations.microbatch[row], time_ns, gap_of.get(key))
        times.append(time)
        if time.median_ns > 0:
            share = time_ns / time.median_ns
            worst = np.flatnonzero(share > STRAGGLES)
            slow.append((row[worst], share[worst]))
    moved = [(row[counted[row]], time_ns[counted[row]]) for row, time_ns in moved]
    transfers = ((receive_of[kind[row]], (row, time_ns)) for row, time_ns in moved)
    for key, (row, time_ns) in _by_kind(receives.values, transfers):
        # Of few, half may have been sent late: the lower one of two in the middle counts.
        low_ns = float(np.sort(time_ns)[(len(time_ns) - 1) // 2])
        times.append(
            replace(_phase_time(key, operations.microbatch[row], time_ns), median_ns=low_ns)
        )
    moved_ns = np.concatenate([time_ns for _, time_ns in moved])
    row, shares = (np.concatenate(columns) for columns in zip(*slow, strict=True))
    slowest = grouping.sort_rows(-shares, row)[:_LISTED].tolist()
    return PhaseTimes(
        tuple(times),
        compute_median(moved_ns) if len(moved_ns) else None,
        _imbalance(times),
        tuple((int(row[at]), float(shares[at])) for at in slowest),
    )


def _phase_time(
    key: KindKey, microbatch: Ints, time_ns: Ints, gap_ns: Ints | None = None
) -> PhaseTime:
    return PhaseTime(
        virtual_stage=key[0],
        stage=key[1],
        chunk=key[2],
        phase=Phase(key[3]),
        n=len(time_ns),
        median_ns=compute_median(time_ns),
        mean_ns=float(time_ns.mean()),
        std_ns=float(time_ns.std(ddof=1)) if len(time_ns) > 1 else None,
        min_ns=int(time_ns.min()),
        max_ns=int(time_ns.max()),
        first_ns=compute_median(time_ns[microbatch == microbatch.min()]),
        last_ns=compute_median(time_ns[microbatch == microbatch.max()]),
        gap_ns=compute_median(gap_ns) if gap_ns is not None and len(gap_ns) else None,
    )


def of_slowest_pipeline(
    kinds: tuple[PhaseTime, ...], operations: Operations, pipeline: Ints, iteration: int
) -> tuple[PhaseTime, ...]:
    """Return times with the means of the pipeline that takes longest in an iteration.

    Args:
        kinds: times over all pipelines.
        operations: of all ranks.
        pipeline: of each rank; -1 unknown.
        iteration: index of the typical one.
    """
    wanted = np.arange(int(operations.iteration.max(initial=NONE)) + 1) == iteration
    rows = np.flatnonzero(counted_operations(operations, wanted))
    groups = grouping.group_rows(pipeline[operations.rank[rows]])
    begin_ns, end_ns = intervals.group_extents(
        groups.of_row, len(groups), operations.start_ns[rows], operations.end_ns[rows]
    )
    if len(groups) > 1:
        rows = rows[groups.of_row == (end_ns - begin_ns).argmax()]
    keys = operations.virtual_stage[rows], operations.chunk[rows], operations.phase[rows]
    of_kind = grouping.group_rows(*keys)
    mean_ns = np.bincount(of_kind.of_row, operations.busy_ns[rows]) / np.bincount(of_kind.of_row)
    known = dict(
        zip(
            zip(*(key[of_kind.first].tolist() for key in keys), strict=True),
            mean_ns.tolist(),
            strict=True,
        )
    )
    return tuple(
        replace(kind, pipeline_ns=known.get((kind.virtual_stage, kind.chunk, kind.phase)))
        for kind in kinds
    )


def times_median_of(
    operations: Operations, stage: Ints, averaged: Bools, kinds: Sequence[PhaseTime]
) -> Floats:
    """Return how many times the median of its kind every operation took; 0 where it has none.

    Args:
        operations: of all ranks.
        stage: of each rank; -1 unknown.
        averaged: of each iteration, whether it is averaged.
        kinds: the phase times of the run.
    """
    times = np.zeros(len(operations), np.float64)
    rows = np.flatnonzero(counted_operations(operations, averaged))
    table = np.array(
        [(k.virtual_stage, k.stage, k.chunk, k.phase) for k in kinds], np.int64
    ).reshape(-1, 4)
    own = (operations.virtual_stage, None, operations.chunk, operations.phase)
    wanted = [stage[operations.rank[rows]] if key is None else key[rows] for key in own]
    at = grouping.lookup_values(tuple(table.T), np.arange(len(kinds)), wanted)
    median_ns = np.array([*(kind.median_ns for kind in kinds), 0.0])[at]
    some = median_ns > 0
    times[rows[some]] = operations.busy_ns[rows[some]] / median_ns[some]
    return times


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
