"""Phase times: how long operations take by stage, chunk and phase, and which are stragglers.

A transfer (T_comm) is measured where an input was waited for: from when it was ready on the peer
until it was there. It stands under the phase of the receive. A receive shows it that waited for
its input. Where receives are only seen to start, as in recordings without a profiler, an operation
shows it whose rank idled when the input was ready::

    peer    ██████ F3 ██████│ready
    rank    █████ F2 █████│        │██ F3
                            ├──────┤ transfer

A gap is between an operation whose input was there and the one before it on its rank: the host, a
launch, a framework at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.waits import NEVER, Arrivals
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.receives import Receives
from bubbleviz.model.columns import NONE, Bools, Codes, Floats, Ints, Table, joined
from bubbleviz.model.grouping import groups_of, looked_up, sorted_rows
from bubbleviz.model.intervals import last_before
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.values import frozen

#: A message may be as late by chance.
_LATE_NS = 500_000
_LONGEST = np.iinfo(np.int64).max
#: Virtual stage, stage and chunk of operations, and their phase.
KindKey = tuple[int, int, int, int]


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


@frozen(eq=False, shown=False)
class Samples:
    """Times of operations, kind by kind; within one in a fixed order.

    Attributes:
        kinds: of the samples.
        columns: of these, in as few bits as they need: of operations and transfers the row in the
            run, the microbatch, and the time; of gaps the time and the room.
    """

    kinds: Kinds
    columns: tuple[Codes, ...]


@frozen(eq=False, shown=False)
class PhaseSamples:
    """What phase times are worked out from, of one stretch.

    What cannot be a transfer or a gap in the whole run is left out already.

    Attributes:
        operations: their busy times.
        waited: transfers of receives that waited.
        started: transfers that operations may show which began once their input was there.
        gaps: before operations; the room is how long before the end of the one in front the input
            was ready (it was there if that is as long as any transfer of its edge), -1 where it
            takes nothing from another rank.
        least_ns: by edge, the least time between an input and its operation among ``started`` and
            ``uncounted``.
        longest_ns: by edge, the longest transfer of a receive that waited; -1 none.
        uncounted: edge and time of what would be in ``started`` if its iteration were averaged.
    """

    operations: Samples
    waited: Samples
    started: Samples
    gaps: Samples
    least_ns: Ints
    longest_ns: Ints
    uncounted: tuple[Ints, Ints]


def _counted(operations: Operations, averaged: Bools) -> Bools:
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
    receives: Receives,
    inputs: Inputs,
    known: Arrivals,
    first_row: int,
) -> PhaseSamples:
    """Return what phase times are worked out from.

    Args:
        operations: of the ranks of a stretch.
        stage: of each rank; -1 unknown.
        averaged: of each iteration, whether it is averaged.
        receives: of these operations.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
        first_row: their first row in the run.
    """
    counted = _counted(operations, averaged)
    is_forward = among(operations.phase, (Phase.F, Phase.FB))
    edge = edges_of(operations.virtual_stage, operations.phase)
    edges = int(operations.virtual_stage.max(initial=NONE)) * 2 + 4
    least_ns, longest_ns = np.full(edges, _LONGEST), np.full(edges, NONE, np.int64)

    def samples(row: Ints, phase: Ints, *columns: Ints) -> Samples:
        """Return the samples of some operations, with a phase each."""
        of_rank, chunk = stage[operations.rank[row]], operations.chunk[row]
        keys = operations.virtual_stage[row], of_rank, chunk, phase
        groups = groups_of(*keys)
        virtual_stage, of_rank, chunk, phase = (key[groups.first] for key in keys)
        count = np.bincount(groups.of_row, minlength=len(groups))
        kinds = Kinds(virtual_stage, of_rank, chunk, phase, count)
        order = sorted_rows(groups.of_row)
        return Samples(kinds, tuple(_narrowed(column[order]) for column in columns))

    def timed(row: Ints, phase: Ints, time_ns: Ints) -> Samples:
        return samples(row, phase, row + first_row, operations.microbatch[row], time_ns)

    def transfers(row: Ints, time_ns: Ints) -> Samples:
        phase = np.where(is_forward[row], Phase.RECV_F, Phase.RECV_B).astype(np.int64)
        return timed(row, phase, time_ns)

    waited = receives.take(receives.wait_ns > 0)
    waited_ns = waited.transfer_ns
    np.maximum.at(longest_ns, edge[waited.operation], waited_ns)
    started, started_ns = _after_idling(operations, inputs, known)
    np.minimum.at(least_ns, edge[started], started_ns)
    # Of all stretches the least may be less still.
    sent = _sent_at_once(edge[started], started_ns, least_ns)
    started, started_ns = started[sent], started_ns[sent]
    gaps, gap_ns, room_ns = _gaps(operations, inputs)
    shown = counted[gaps] & ((room_ns == NONE) | (room_ns >= longest_ns[edge[gaps]]))
    gaps, gap_ns, room_ns = gaps[shown], gap_ns[shown], room_ns[shown]
    rows, in_kind, has_kind = np.flatnonzero(counted), counted[waited.operation], counted[started]
    return PhaseSamples(
        operations=timed(rows, operations.phase[rows], operations.busy_ns[rows]),
        waited=transfers(waited.operation[in_kind], waited_ns[in_kind]),
        started=transfers(started[has_kind], started_ns[has_kind]),
        gaps=samples(gaps, operations.phase[gaps], gap_ns, room_ns),
        least_ns=least_ns,
        longest_ns=longest_ns,
        uncounted=(edge[started[~has_kind]], started_ns[~has_kind]),
    )


def _narrowed(column: Ints) -> Codes:
    """Return a column in 32 bits, if it fits."""
    most = max(int(column.max(initial=0)), -int(column.min(initial=0)))
    return column if most > np.iinfo(np.int32).max else column.astype(np.int32)


def edges_of(virtual_stage: Ints, phase: Ints) -> Ints:
    """Return a number of the virtual stage and the direction in which inputs come.

    Args:
        virtual_stage: of operations that take them; -1 unknown.
        phase: of these.
    """
    return 2 * (virtual_stage + 1) + among(phase, (Phase.F, Phase.FB))


def _sent_at_once(edge: Ints, took_ns: Ints, least_ns: Ints) -> Bools:
    """Return which inputs took little longer than the fastest of their edge and direction.

    Others were sent late: a forward that runs beside a backward is sent after both.

    Args:
        edge: of each input.
        took_ns: from when it was ready until its operation began.
        least_ns: by edge, the least of all that may be transfers.
    """
    return np.asarray(took_ns - _LATE_NS <= 2 * least_ns[edge], bool)


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
        work = np.flatnonzero(among(operations.phase, COMPUTE) & (operations.has_span == 1))
        last = last_before(
            operations.rank[work],
            operations.end_ns[work],
            operations.rank[rows],
            operations.start_ns[rows],
            or_at=True,
        )
        free_ns = np.where(last == NONE, NEVER, operations.end_ns[work][last])
        rows = rows[free_ns <= inputs.ready_ns[rows]]
    return rows, operations.start_ns[rows] - inputs.ready_ns[rows]


def _gaps(operations: Operations, inputs: Inputs) -> tuple[Ints, Ints, Ints]:
    """Return operations whose inputs were ready when the one before on their rank ended.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.

    Returns:
        Their rows, the gap before each, and the room as of :class:`PhaseSamples`.
    """
    computes = among(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(computes & (operations.iteration >= 0) & ~inputs.unknown)
    rank, start_ns = operations.rank[rows], operations.start_ns[rows]
    if not ((rank[1:] > rank[:-1]) | (start_ns[1:] >= start_ns[:-1])).all():
        rows = rows[sorted_rows(rank, start_ns)]
    before, row = rows[:-1], rows[1:]
    gap_ns = operations.start_ns[row] - operations.end_ns[before]
    shown = (operations.rank[before] == operations.rank[row]) & (gap_ns >= 0)
    shown &= operations.iteration[before] == operations.iteration[row]
    before, row, gap_ns = before[shown], row[shown], gap_ns[shown]
    ready_ns = inputs.ready_ns[row]
    local = ready_ns == NEVER
    room_ns = operations.end_ns[before] - np.where(local, 0, ready_ns)
    there = local | (room_ns >= 0)
    return row[there], gap_ns[there], np.where(local, NONE, room_ns)[there]


def _by_kind(parts: Sequence[Samples]) -> Iterator[tuple[KindKey, list[Ints]]]:
    """Yield the kinds that any part has, ascending, with the columns of their samples.

    Args:
        parts: samples of each stretch.
    """
    every = joined([part.kinds for part in parts])
    of_part = np.repeat(np.arange(len(parts)), [len(part.kinds) for part in parts]).tolist()
    end = np.concatenate([np.cumsum(part.kinds.count) for part in parts])
    begin, end = (end - every.count).tolist(), end.tolist()
    keys = every.virtual_stage, every.stage, every.chunk, every.phase
    groups = groups_of(*keys)
    bounds = np.cumsum(np.bincount(groups.of_row, minlength=len(groups)))
    places = np.split(sorted_rows(groups.of_row), bounds[:-1])
    for own, *key in zip(places, *(key[groups.first].tolist() for key in keys), strict=False):
        rows = [(parts[of_part[at]].columns, slice(begin[at], end[at])) for at in own.tolist()]
        of_parts = [[column[some] for column in columns] for columns, some in rows]
        columns = [np.concatenate(c).astype(np.int64) for c in zip(*of_parts, strict=True)]
        yield (key[0], key[1], key[2], key[3]), columns


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
    """

    kinds: tuple[PhaseTime, ...]
    transfer_ns: float | None
    imbalance: tuple[tuple[str, float], ...]
    stragglers: tuple[Straggler, ...]


def phase_times_of(parts: Sequence[PhaseSamples]) -> PhaseTimes:
    """Return how long operations take.

    Args:
        parts: samples of each stretch, at least one.
    """
    started, longest_ns = _sent(parts)
    gaps = {}
    for key, (gap_ns, room_ns) in _by_kind([part.gaps for part in parts]):
        # An input was there if it had been ready for the longest transfer of its edge; where none
        # shows, only operations that take nothing from other ranks show gaps.
        longest = longest_ns[edges_of(np.array(key[:1]), np.array(key[3:]))[0]]
        gaps[key] = gap_ns[(room_ns == NONE) | ((longest != NONE) & (room_ns >= longest))]
    kinds, slow = [], [(np.empty(0, np.int64), np.empty(0))]
    for key, (row, microbatch, time_ns) in _by_kind([part.operations for part in parts]):
        time = _phase_time(key, microbatch, time_ns, gaps.get(key))
        kinds.append(time)
        if time.median_ns > 0:
            times = time_ns / time.median_ns
            worst = times > STRAGGLES
            slow.append((row[worst], times[worst]))
    transfers = [*(part.waited for part in parts), *started]
    kinds += [
        _phase_time(key, microbatch, time_ns)
        for key, (_, microbatch, time_ns) in _by_kind(transfers)
    ]
    waited_ns = np.concatenate([part.columns[2] for part in transfers])
    row, times = (np.concatenate(columns) for columns in zip(*slow, strict=True))
    slowest = sorted_rows(-times, row)[:_LISTED].tolist()
    return PhaseTimes(
        tuple(kinds),
        float(np.median(waited_ns)) if len(waited_ns) else None,
        _imbalance(kinds),
        tuple(Straggler(int(row[at]), float(times[at])) for at in slowest),
    )


def _sent(parts: Sequence[PhaseSamples]) -> tuple[list[Samples], Ints]:
    """Return what was started without inputs sent late, and the longest transfer by edge."""
    edges = max(len(part.least_ns) for part in parts)
    least_ns, longest_ns = np.full(edges, _LONGEST), np.full(edges, NONE, np.int64)
    for part in parts:
        own = slice(len(part.least_ns))
        least_ns[own] = np.minimum(least_ns[own], part.least_ns)
        longest_ns[own] = np.maximum(longest_ns[own], part.longest_ns)
    sent = []
    for part in parts:
        kinds, columns = part.started.kinds, part.started.columns
        phase = np.where(kinds.phase == Phase.RECV_F, Phase.F, Phase.B)
        of_kind = np.repeat(np.arange(len(kinds)), kinds.count)
        edge = edges_of(kinds.virtual_stage, phase)[of_kind]
        time_ns = columns[2].astype(np.int64)
        shown = _sent_at_once(edge, time_ns, least_ns)
        np.maximum.at(longest_ns, edge[shown], time_ns[shown])
        others, others_ns = part.uncounted
        of_others = _sent_at_once(others, others_ns, least_ns)
        np.maximum.at(longest_ns, others[of_others], others_ns[of_others])
        if not shown.all():
            count = np.bincount(of_kind[shown], minlength=len(kinds))
            kinds = replace(kinds, count=count).take(count > 0)
            columns = tuple(column[shown] for column in columns)
        sent.append(Samples(kinds, columns))
    return sent, longest_ns


def _phase_time(
    key: KindKey, microbatch: Ints, time_ns: Ints, gap_ns: Ints | None = None
) -> PhaseTime:
    def of(number: int) -> float:
        return float(np.median(time_ns[microbatch == number]))

    return PhaseTime(
        virtual_stage=key[0],
        stage=key[1],
        chunk=key[2],
        phase=Phase(key[3]),
        n=len(time_ns),
        median_ns=float(np.median(time_ns)),
        mean_ns=float(time_ns.mean()),
        std_ns=float(time_ns.std(ddof=1)) if len(time_ns) > 1 else None,
        min_ns=int(time_ns.min()),
        max_ns=int(time_ns.max()),
        first_ns=of(int(microbatch.min())),
        last_ns=of(int(microbatch.max())),
        gap_ns=float(np.median(gap_ns)) if gap_ns is not None and len(gap_ns) else None,
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
    rows = np.flatnonzero(_counted(operations, averaged))
    table = np.array(
        [(k.virtual_stage, k.stage, k.chunk, k.phase) for k in kinds], np.int64
    ).reshape(-1, 4)
    own = (operations.virtual_stage, None, operations.chunk, operations.phase)
    wanted = [stage[operations.rank[rows]] if key is None else key[rows] for key in own]
    at = looked_up(tuple(table.T), np.arange(len(kinds)), wanted)
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
