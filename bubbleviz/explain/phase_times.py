"""Measure how long operations take by stage, chunk and phase, and list stragglers.

The time of a transfer (T_comm) is the time from when the input was ready on the peer to its
arrival. A transfer is listed under the phase of its receive. A transfer time can be measured only
if the rank waited for the input:

- If the end of the receive is known, the receive must have started before the input was ready.
- If the end is unknown, as in recordings made without a profiler, the rank must have been idle when
  the input became ready.

::

    peer    ██████ F3 ██████│ready
    rank    █████ F2 █████│        │██ F3
                            ├──────┤ transfer

A gap is the time from the end of a rank's previous operation to the start of an operation whose
input had already arrived. Gaps are caused by the host, by launches, or by the framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

#: Maximum message delay that is attributed to chance, in ns.
_MAX_CHANCE_NS = 500_000
_MAX_NS = np.iinfo(np.int64).max
#: Minimum time of a straggler, as a multiple of the median of its kind.
STRAGGLES = 1.2
#: Maximum number of listed stragglers.
_MAX_STRAGGLERS = 10
#: Key of an operation kind: (virtual stage, stage, chunk, phase). Unknown numbers are -1.
KindKey = tuple[int, int, int, int]
#: Rows of operations in the run, followed by columns with measurements of those operations. Columns
#: are 32 bits wide if their values fit.
Samples = tuple[Codes, ...]


@dataclass(frozen=True, kw_only=True)
class PhaseTime(OperationTimes):
    """Time statistics of one kind of operation or receive, in ns.

    The time of an operation is its busy time. The time of a receive is its transfer time.

    Attributes:
        n: Number of operations or transfers, over all replicas of the stage and all averaged
            iterations.
        min_ns: Shortest time.
        max_ns: Longest time.
        first_ns: Median time of the operations of the first microbatch.
        last_ns: Median time of the operations of the last microbatch.
    """

    n: int
    min_ns: int
    max_ns: int
    first_ns: float | None
    last_ns: float | None


@dataclass(frozen=True)
class PhaseTimes:
    """Durations of operations and transfers, by kind.

    Attributes:
        kinds: Times of each kind of operation, followed by the times of each kind of receive.
            Operations and receives are each sorted by virtual stage, stage, chunk and phase.
        transfer_ns: Median of all measured transfer times, or None if there are none.
        imbalance: Pairs of a printed phase name and its imbalance: the time of the slowest stage
            divided by the mean of all stages, minus 1. The time of a stage is the sum of the
            medians of its chunks.
        stragglers: Operations that took much longer than the median of their kind: at most ten,
            slowest first. Each entry is a pair of the operation's row and its time as a multiple of
            this median.
    """

    kinds: tuple[PhaseTime, ...]
    transfer_ns: float | None
    imbalance: tuple[tuple[str, float], ...]
    stragglers: tuple[tuple[int, float], ...]


def mask_counted_operations(operations: Operations, is_included: Bools) -> Bools:
    """Return a mask of the operations whose times are included in statistics.

    These are the complete forwards and backwards of a single microbatch. For example, a W for all
    remaining microbatches is not included.

    Args:
        operations: Operations of any ranks.
        is_included: Mask of the iterations to include.
    """
    is_counted: Bools = mask_phases(operations.phase, WORK) & (operations.has_span == 1)
    is_counted &= (operations.iteration >= 0) & (operations.cut == 0)
    is_counted &= operations.microbatch >= 0
    is_counted &= np.append(is_included, False)[operations.iteration]
    return is_counted


def collect_phase_samples(
    operations: Operations, receives: Receives, inputs: Inputs, arrivals: Arrivals, first_row: int
) -> tuple[Samples, Samples, Samples]:
    """Collect the samples of a stretch that are used to measure transfers and gaps.

    Args:
        operations: Operations of a stretch.
        receives: Receives of those operations.
        inputs: Inputs that the operations received from other ranks.
        arrivals: Arrival times of the inputs, measured from receives.
        first_row: Row in the run of the stretch's first operation. This row number is added to all
            rows.

    Returns:
        waited: Receives that waited for their input: rows, and transfer times in ns.
        started: Operations whose rank was idle from when their input was ready to their start:
            rows, and this time in ns, which may be a transfer time.
        gaps: Operations with a gap before them: rows, the gap in ns, and the slack in ns. The slack
            is how long the input had been ready when the previous operation ended, or -1 if the
            operation has no input from another rank.
    """
    waiting = receives.take(receives.wait_ns > 0)
    samples = (
        (waiting.operation, waiting.transfer_ns),
        _find_starts_after_idling(operations, inputs, arrivals),
        _find_gaps(operations, inputs),
    )
    waited, started, gaps = (
        tuple(_convert_to_int32(column) for column in (row + first_row, *columns))
        for row, *columns in samples
    )
    return waited, started, gaps


def _convert_to_int32(column: Ints) -> Codes:
    """Convert a column to int32, or return it unchanged if a value does not fit."""
    largest = max(int(column.max(initial=0)), -int(column.min(initial=0)))
    return column if largest > np.iinfo(np.int32).max else column.astype(np.int32)


def _find_starts_after_idling(
    operations: Operations, inputs: Inputs, arrivals: Arrivals
) -> tuple[Ints, Ints]:
    """Find operations that started exactly when their input arrived, because their rank was idle.

    Three conditions must hold:

    - No end of a receive was recorded for the operation.
    - Its rank ran no other operation from the time the input was ready until the operation's start.
    - The host had begun the operation by the time the input was ready. Operations that the host
      itself computes are exempt from this condition.

    Args:
        operations: Operations of all ranks.
        inputs: Inputs that operations received from other ranks.
        arrivals: Arrival times of the inputs, measured from receives.

    Returns:
        Rows of the operations, and the time in ns from when each operation's input was ready to its
        start.
    """
    is_shown: Bools = (arrivals.exact_ns == NEVER) & (inputs.ready_ns != NEVER)
    is_shown &= (operations.has_span == 1) & (operations.start_ns >= inputs.ready_ns)
    # A host that does the computing itself launches an operation only once its input has arrived.
    is_host = operations.host_start_ns >= operations.start_ns
    is_shown &= is_host | (operations.host_start_ns <= inputs.ready_ns)
    rows = np.flatnonzero(is_shown)
    if len(rows):
        computes = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1)
        work = to_slice(np.flatnonzero(computes))
        end_ns = operations.end_ns[work]
        last = intervals.find_last_before(
            operations.rank[work],
            end_ns,
            operations.rank[rows],
            operations.start_ns[rows],
            or_at=True,
        )
        rows = rows[(last == NONE) | (end_ns[last] <= inputs.ready_ns[rows])]
    return rows, operations.start_ns[rows] - inputs.ready_ns[rows]


def _find_gaps(operations: Operations, inputs: Inputs) -> tuple[Ints, Ints, Ints]:
    """Find the gaps before operations whose input was ready when the previous operation ended.

    The previous operation must be on the same rank and in the same iteration. There is no gap
    between operations that overlap. Operations whose input may come from an unknown operation are
    left out.

    Args:
        operations: Operations of all ranks.
        inputs: Inputs that operations received from other ranks.

    Returns:
        Rows of the operations, the gap before each, and its slack; see
        :func:`collect_phase_samples`.
    """
    computes = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(computes & (operations.iteration >= 0) & ~inputs.unknown)
    selection = to_slice(rows)
    rank, start_ns = operations.rank[selection], operations.start_ns[selection]
    if not ((rank[1:] > rank[:-1]) | (start_ns[1:] >= start_ns[:-1])).all():
        selection = rows = rows[grouping.sort_rows(rank, start_ns)]
        rank, start_ns = operations.rank[selection], operations.start_ns[selection]
    iteration, end_ns = operations.iteration[selection], operations.end_ns[selection]
    gap_ns = start_ns[1:] - end_ns[:-1]
    follows = (rank[1:] == rank[:-1]) & (gap_ns >= 0) & (iteration[1:] == iteration[:-1])
    ready_ns = inputs.ready_ns[selection][1:]
    follows &= (ready_ns == NEVER) | (ready_ns <= end_ns[:-1])
    pair = np.flatnonzero(follows)
    ready_ns = ready_ns[pair]
    slack_ns = np.where(ready_ns == NEVER, NONE, end_ns[pair] - ready_ns)
    return rows[1:][pair], gap_ns[pair], slack_ns


def measure_phase_times(
    operations: Operations,
    stage: Ints,
    averaged: Bools,
    parts: Sequence[tuple[Samples, Samples, Samples]],
) -> PhaseTimes:
    """Measure how long the operations of a run take, by kind.

    Only the operations of :func:`mask_counted_operations` are included. Transfers are selected by
    :func:`_select_transfers`, and gaps by :func:`_select_gaps`.

    Args:
        operations: Operations of the run.
        stage: Stage of each rank, or -1 if unknown.
        averaged: Mask of the iterations that are averaged.
        parts: Samples of each stretch, for at least one stretch; see :func:`collect_phase_samples`.
    """
    waited, started, gaps = zip(*parts, strict=True)
    kind, keys = _number_kinds(operations, stage)
    edge = _number_edges(kind, keys)
    transfers, longest_ns = _select_transfers(edge, waited, started)
    is_counted = mask_counted_operations(operations, averaged)
    transfers = [(row[is_counted[row]], time_ns[is_counted[row]]) for row, time_ns in transfers]

    gap_of = {
        key: gap_ns
        for key, (gap_ns,) in _group_by_kind(
            keys, _select_gaps(gaps, kind, edge, longest_ns, is_counted)
        )
    }
    times, stragglers = _summarize_operations(operations, kind, keys, is_counted, gap_of)
    times += _summarize_transfers(operations.microbatch, transfers, kind, keys)
    return PhaseTimes(
        tuple(times),
        _compute_median_transfer(transfers),
        _measure_imbalance(times),
        stragglers,
    )


def _compute_median_transfer(transfers: Iterable[Samples]) -> float | None:
    """Return the median time of all transfers in ns, or None if there are none."""
    transfer_ns = np.concatenate([time_ns for _, time_ns in transfers])
    return compute_median(transfer_ns) if len(transfer_ns) else None


def _number_kinds(operations: Operations, stage: Ints) -> tuple[Codes, tuple[KindKey, ...]]:
    """Assign a kind to each operation: its virtual stage, stage, chunk and phase.

    Args:
        operations: Operations of the run.
        stage: Stage of each rank, or -1 if unknown.

    Returns:
        For each operation, the number of its kind. For each kind number, the key (virtual stage,
        stage, chunk, phase).
    """
    numbering, numbers = Numbering[KindKey](), []
    for part in grouping.split_by_owner(operations.rank):
        table = operations.take(part)
        columns = table.virtual_stage, stage[table.rank], table.chunk, table.phase
        groups = grouping.group_rows(*columns)
        keys = zip(*(column[groups.first].tolist() for column in columns), strict=True)
        numbers.append(numbering.numbers(keys).astype(np.int32)[groups.of_row])
    kind = np.concatenate(numbers)
    fits_16_bits = len(numbering) <= np.iinfo(np.int16).max
    return kind.astype(np.int16) if fits_16_bits else kind, numbering.values


def _number_edges(kind: Codes, keys: Sequence[KindKey]) -> Codes:
    """For each operation, return the number of the edge that delivers its input.

    Operations have the same edge if they have the same virtual stage and their inputs move in the
    same direction (forward or backward).

    Args:
        kind: For each operation, the number of its kind.
        keys: Key of each kind, indexed by kind number.
    """
    receive_keys = [_get_receive_key(key) for key in keys]
    edges = [(virtual_stage, phase) for virtual_stage, _, _, phase in receive_keys]
    return Numbering(edges).numbers(edges).astype(kind.dtype)[kind]


def _get_receive_key(key: KindKey) -> KindKey:
    """Return the key of the receives that deliver the inputs of the operations with this key."""
    return (*key[:3], Phase.RECV_F if key[3] in (Phase.F, Phase.FB) else Phase.RECV_B)


def _group_by_kind(
    keys: Sequence[KindKey], parts: Iterable[tuple[Codes, tuple[Codes, ...]]]
) -> Iterator[tuple[KindKey, list[Ints]]]:
    """Group the rows of several tables by kind, and concatenate the rows of each kind.

    Args:
        keys: Key of each kind, indexed by kind number.
        parts: One pair per table: the kind number of each row, and the columns of the table.

    Yields:
        Each key that has rows, in ascending order, and the columns of its rows in all tables.
    """
    parts_of_kind: dict[KindKey, list[list[Codes]]] = {}
    for number, columns in parts:
        counts = np.bincount(number, minlength=len(keys))
        bounds = np.cumsum(counts)[:-1]
        by_kind = [
            np.split(column, bounds) for column in grouping.sort_columns_by_group(number, columns)
        ]
        for kind in np.flatnonzero(counts).tolist():
            parts_of_kind.setdefault(keys[kind], []).append([column[kind] for column in by_kind])
    for key in sorted(parts_of_kind):
        columns_of_parts = zip(*parts_of_kind[key], strict=True)
        yield key, [np.concatenate(parts).astype(np.int64) for parts in columns_of_parts]


def _select_transfers(
    edge: Codes, waited: Iterable[Samples], started: Sequence[Samples]
) -> tuple[list[Samples], Ints]:
    """Select the samples that are real transfer times.

    All samples of ``waited`` are selected. A sample of ``started`` is selected if it is at most 0.5
    ms plus twice the shortest ``started`` sample of the same edge. In longer samples, the data was
    sent late. For example, if a forward overlaps with a backward, its result is sent only after
    both.

    Args:
        edge: For each operation, the number of the edge (virtual stage and direction) of its input.
        waited: Samples of the transfer times of receives that waited for their input.
        started: Samples of possible transfer times; see :func:`collect_phase_samples`.

    Returns:
        transfers: The selected samples.
        longest_ns: Longest selected transfer of each edge in ns, or -1 if it has none.
    """
    n_edges = int(edge.max(initial=0)) + 1
    shortest_ns, longest_ns = np.full(n_edges, _MAX_NS), np.full(n_edges, NONE, np.int64)
    for row, time_ns in started:
        np.minimum.at(shortest_ns, edge.take(row), time_ns.astype(np.int64, copy=False))
    transfers = [*waited]
    for row, time_ns in started:
        in_time = np.flatnonzero(time_ns - _MAX_CHANCE_NS <= 2 * shortest_ns[edge.take(row)])
        transfers.append((row[in_time], time_ns[in_time]))
    for row, time_ns in transfers:
        np.maximum.at(longest_ns, edge.take(row), time_ns.astype(np.int64, copy=False))
    return transfers, longest_ns


def _select_gaps(
    gaps: Iterable[Samples], kind: Codes, edge: Codes, longest_ns: Ints, is_counted: Bools
) -> Iterator[tuple[Codes, tuple[Codes]]]:
    """Select the gaps that were not caused by a late input, and yield them for each stretch.

    An input was not late if it had been ready for at least the longest transfer time of its edge
    when the gap began. If no transfer time of the edge is known, gaps before operations with inputs
    from other ranks are left out.

    Args:
        gaps: Gap samples of each stretch.
        kind: For each operation, the number of its kind.
        edge: For each operation, the number of the edge (virtual stage and direction) of its input.
        longest_ns: Longest transfer of each edge in ns, or -1 if it has none.
        is_counted: Mask of the operations whose gaps are included.

    Yields:
        For each stretch, the kinds of the operations after the selected gaps, and these gaps in ns.
    """
    for row, gap_ns, slack_ns in gaps:
        edge_ns = longest_ns[edge.take(row)]
        was_there = (slack_ns == NONE) | ((edge_ns != NONE) & (slack_ns >= edge_ns))
        selected = np.flatnonzero(was_there & is_counted.take(row))
        yield kind.take(row[selected]), (gap_ns.take(selected),)


def _list_counted_rows(
    operations: Operations, kind: Codes, is_counted: Bools
) -> Iterator[tuple[Codes, tuple[Codes]]]:
    """Yield the kinds and rows of the operations in ``is_counted``, a few ranks at a time."""
    for part in grouping.split_by_owner(operations.rank):
        row = _convert_to_int32(part.start + np.flatnonzero(is_counted[part]))
        yield kind.take(row), (row,)


def _summarize_operations(
    operations: Operations,
    kind: Codes,
    keys: Sequence[KindKey],
    is_counted: Bools,
    gap_of: Mapping[KindKey, Ints],
) -> tuple[list[PhaseTime], tuple[tuple[int, float], ...]]:
    """Return the times of each kind of operation, sorted by key, and the ten slowest stragglers.

    A straggler takes more than 1.2 times the median of its kind. Stragglers are pairs of a row and
    its time as a multiple of the median. The stragglers are sorted by this multiple, largest first,
    then by row.

    Args:
        operations: Operations of the run.
        kind: For each operation, the number of its kind.
        keys: Key of each kind, indexed by kind number.
        is_counted: Mask of the operations to include.
        gap_of: Gaps before operations in ns, keyed by kind.
    """
    times, straggler_rows, straggler_ratios = [], [np.empty(0, np.int64)], [np.empty(0)]
    for key, (row,) in _group_by_kind(keys, _list_counted_rows(operations, kind, is_counted)):
        time_ns = operations.busy_ns[row]
        time = _summarize_times(key, operations.microbatch[row], time_ns, gap_of.get(key))
        times.append(time)
        if time.median_ns > 0:
            ratio = time_ns / time.median_ns
            slow = np.flatnonzero(ratio > STRAGGLES)
            straggler_rows.append(row[slow])
            straggler_ratios.append(ratio[slow])
    row, ratio = np.concatenate(straggler_rows), np.concatenate(straggler_ratios)
    slowest = grouping.sort_rows(-ratio, row)[:_MAX_STRAGGLERS].tolist()
    return times, tuple((int(row[index]), float(ratio[index])) for index in slowest)


def _summarize_transfers(
    microbatch: Ints, transfers: Iterable[Samples], kind: Codes, keys: Sequence[KindKey]
) -> list[PhaseTime]:
    """Return the times of each kind of receive, sorted by key.

    The median is the lower median, because half of the transfers may have been sent late if there
    are only a few.

    Args:
        microbatch: Microbatch of each operation.
        transfers: Rows and times of the transfers.
        kind: For each operation, the number of its kind.
        keys: Key of each kind, indexed by kind number.
    """
    receive_keys = [_get_receive_key(key) for key in keys]
    numbering = Numbering(receive_keys)
    receive_of = numbering.numbers(receive_keys).astype(kind.dtype)
    parts = ((receive_of[kind[row]], (row, time_ns)) for row, time_ns in transfers)
    times = []
    for key, (row, time_ns) in _group_by_kind(numbering.values, parts):
        lower_median_ns = float(np.sort(time_ns)[(len(time_ns) - 1) // 2])
        time = _summarize_times(key, microbatch[row], time_ns)
        times.append(replace(time, median_ns=lower_median_ns))
    return times


def _summarize_times(
    key: KindKey, microbatch: Ints, time_ns: Ints, gap_ns: Ints | None = None
) -> PhaseTime:
    """Compute the time statistics of one kind of operation or receive.

    ``first_ns`` is the median over the lowest microbatch number, and ``last_ns`` is the median over
    the highest one.

    Args:
        key: Key of the kind.
        microbatch: Microbatch of each time.
        time_ns: The times. Must not be empty.
        gap_ns: Gaps before operations of the kind, or None if there are none.
    """
    virtual_stage, stage, chunk, phase = key
    return PhaseTime(
        virtual_stage=virtual_stage,
        stage=stage,
        chunk=chunk,
        phase=Phase(phase),
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


def add_slowest_pipeline(
    times: tuple[PhaseTime, ...], operations: Operations, pipeline: Ints, iteration: int
) -> tuple[PhaseTime, ...]:
    """Set ``pipeline_ns`` of phase times to the mean times of the slowest pipeline in an iteration.

    The slowest pipeline has the longest time from its first to its last operation. ``pipeline_ns``
    is None for kinds of operations that this pipeline did not run.

    Args:
        times: Phase times, measured over all pipelines.
        operations: Operations of all ranks.
        pipeline: Pipeline of each rank, or -1 if unknown.
        iteration: Index of the iteration.
    """
    is_included = np.arange(int(operations.iteration.max(initial=NONE)) + 1) == iteration
    rows = np.flatnonzero(mask_counted_operations(operations, is_included))
    groups = grouping.group_rows(pipeline[operations.rank[rows]])
    begin_ns, end_ns = intervals.group_extents(
        groups.of_row, len(groups), operations.start_ns[rows], operations.end_ns[rows]
    )
    if len(groups) > 1:
        rows = rows[groups.of_row == (end_ns - begin_ns).argmax()]
    columns = operations.virtual_stage[rows], operations.chunk[rows], operations.phase[rows]
    kinds = grouping.group_rows(*columns)
    mean_ns = np.bincount(kinds.of_row, operations.busy_ns[rows]) / np.bincount(kinds.of_row)
    keys = zip(*(column[kinds.first].tolist() for column in columns), strict=True)
    mean_of = dict(zip(keys, mean_ns.tolist(), strict=True))
    return tuple(
        replace(time, pipeline_ns=mean_of.get((time.virtual_stage, time.chunk, time.phase)))
        for time in times
    )


def compute_multiples_of_median(
    operations: Operations, stage: Ints, averaged: Bools, times: Sequence[PhaseTime]
) -> Floats:
    """Return the time of each operation as a multiple of the median of its kind.

    Args:
        operations: Operations of all ranks.
        stage: Stage of each rank, or -1 if unknown.
        averaged: Mask of the iterations that are averaged.
        times: Phase times of the run.

    Returns:
        One value per operation. The value is 0 if the operation is not included in the statistics
        (:func:`mask_counted_operations`) or if the median is 0.
    """
    rows = np.flatnonzero(mask_counted_operations(operations, averaged))
    keys = np.array(
        [(time.virtual_stage, time.stage, time.chunk, time.phase) for time in times], np.int64
    ).reshape(-1, 4)
    columns = (
        operations.virtual_stage[rows],
        stage[operations.rank[rows]],
        operations.chunk[rows],
        operations.phase[rows],
    )
    time_row = grouping.lookup_values(tuple(keys.T), np.arange(len(times)), columns)
    median_ns = np.array([*(time.median_ns for time in times), 0.0])[time_row]
    has_median = median_ns > 0
    multiples = np.zeros(len(operations), np.float64)
    multiples[rows[has_median]] = operations.busy_ns[rows[has_median]] / median_ns[has_median]
    return multiples


def _measure_imbalance(times: list[PhaseTime]) -> tuple[tuple[str, float], ...]:
    """For each phase, return its printed name and imbalance: slowest stage / mean of stages - 1.

    The time of a stage is the sum of the medians of its chunks in the phase. Unknown stages are
    ignored. Phases whose mean is 0, or that have no times, are left out.
    """
    imbalance = []
    for phase in WORK:
        by_stage: dict[int, float] = {}
        for time in times:
            if time.phase is phase and time.stage >= 0:
                by_stage[time.stage] = by_stage.get(time.stage, 0.0) + time.median_ns
        mean = sum(by_stage.values()) / len(by_stage) if by_stage else 0.0
        if mean > 0:
            imbalance.append((phase.label, max(by_stage.values()) / mean - 1))
    return tuple(imbalance)
