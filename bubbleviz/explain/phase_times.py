"""Phase times: how long operations take by stage, chunk and phase, and which are stragglers.

A transfer (T_comm) is measured where an input was waited for: from when it was ready on the peer
until it was there (:mod:`bubbleviz.explain.graph`). It stands under the phase of the receive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.explain.graph import Gaps, Transfers, edges_of, sent_at_once
from bubbleviz.model.columns import NONE, Bools, Codes, Floats, Ints, Table, joined
from bubbleviz.model.grouping import groups_of, looked_up, sorted_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.values import frozen

# Phase samples: how long the operations of a stretch took, kind by kind.
#
# Those of all stretches together are what :mod:`bubbleviz.explain.phase_times` works out medians
# from. What cannot be a transfer or a gap in the whole run is left out already.


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
        room_ns: as of :class:`~bubbleviz.explain.graph.Gaps`.
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


def phase_times_of(parts: Sequence[PhaseSamples], first_rows: Sequence[int]) -> PhaseTimes:
    """Return how long operations take.

    Args:
        parts: samples of each stretch, at least one.
        first_rows: of the operations of each stretch in the run.
    """
    parts, longest_ns = _sent(parts)
    kinds, slow = [], [(np.empty(0, np.int64), np.empty(0))]
    gaps = _gaps(parts, longest_ns)
    for kind in kinds_of([part.operations.kinds for part in parts]):
        samples = _samples([part.operations for part in parts], kind, first_rows)
        time = _phase_time(kind, samples)
        key = kind.virtual_stage, kind.stage, kind.chunk, kind.phase
        gap_ns = gaps.get(key, np.empty(0))
        kinds.append(replace(time, gap_ns=float(np.median(gap_ns))) if len(gap_ns) else time)
        if time.median_ns > 0:
            times = samples.time_ns / time.median_ns
            worst = times > STRAGGLES
            slow.append((samples.row[worst], times[worst]))
    transfers = [
        *(part.waited for part in parts),
        *(part.started for part in parts),
    ]
    kinds += [
        _phase_time(kind, _samples(transfers, kind, (*first_rows, *first_rows)))
        for kind in kinds_of([part.kinds for part in transfers])
    ]
    waited_ns = np.concatenate([part.samples.time_ns for part in transfers])
    return PhaseTimes(
        tuple(kinds),
        float(np.median(waited_ns)) if len(waited_ns) else None,
        _imbalance(kinds),
        _stragglers(*(np.concatenate(columns) for columns in zip(*slow, strict=True))),
    )


def _sent(parts: Sequence[PhaseSamples]) -> tuple[list[PhaseSamples], Ints]:
    """Return samples without inputs that were sent late, and the longest transfer by edge."""
    edges = max(len(part.least_ns) for part in parts)
    least_ns = np.full(edges, np.iinfo(np.int64).max)
    longest_ns = np.full(edges, NONE, np.int64)
    for part in parts:
        own = slice(len(part.least_ns))
        least_ns[own] = np.minimum(least_ns[own], part.least_ns)
        longest_ns[own] = np.maximum(longest_ns[own], part.longest_ns)
    sent = []
    for part in parts:
        kinds, samples = part.started.kinds, part.started.samples
        phase = np.where(kinds.phase == Phase.RECV_F, Phase.F, Phase.B)
        edge = np.repeat(edges_of(kinds.virtual_stage, phase), kinds.count)
        shown = sent_at_once(edge, samples.time_ns.astype(np.int64), least_ns)
        of_others = sent_at_once(*part.uncounted, least_ns)
        np.maximum.at(longest_ns, *(column[of_others] for column in part.uncounted))
        if not shown.all():
            of_kind = np.repeat(np.arange(len(kinds)), kinds.count)[shown]
            kinds = replace(kinds, count=np.bincount(of_kind, minlength=len(kinds)))
            some = np.flatnonzero(kinds.count)
            kinds, samples = kinds.take(some), samples.take(shown)
        if len(kinds):
            own_ns = np.maximum.reduceat(samples.time_ns, np.cumsum(kinds.count) - kinds.count)
            phase = np.where(kinds.phase == Phase.RECV_F, Phase.F, Phase.B)
            np.maximum.at(longest_ns, edges_of(kinds.virtual_stage, phase), own_ns)
        sent.append(replace(part, started=KindSamples(kinds, samples)))
    return sent, longest_ns


def _gaps(parts: Sequence[PhaseSamples], longest_ns: Ints) -> dict[tuple[int, int, int, int], Ints]:
    """Return the gaps before operations whose inputs were there, by kind.

    An input was there if it had been ready for the longest transfer of its edge; where none shows,
    only operations that take nothing from other ranks show gaps.
    """
    found = {}
    for kind in kinds_of([part.gap_kinds for part in parts]):
        gap_ns, room_ns = (
            np.concatenate([getattr(parts[at], column)[own] for at, own in kind.places])
            for column in ("gap_ns", "room_ns")
        )
        edge = edges_of(np.array([kind.virtual_stage]), np.array([kind.phase]))
        longest = int(longest_ns[edge[0]])
        shown = room_ns == NONE
        if longest != NONE:
            shown |= room_ns >= longest
        found[kind.virtual_stage, kind.stage, kind.chunk, kind.phase] = gap_ns[shown]
    return found


def _samples(parts: Sequence[KindSamples], kind: Kind, first_rows: Sequence[int]) -> Samples:
    """Return the samples of one kind, with the rows of the run."""
    own = [(parts[at].samples.take(rows), first_rows[at]) for at, rows in kind.places]
    return Samples(
        np.concatenate([part.row.astype(np.int64) + first for part, first in own]),
        np.concatenate([part.microbatch for part, _ in own]),
        np.concatenate([part.time_ns for part, _ in own]).astype(np.int64),
    )


def _phase_time(kind: Kind, samples: Samples) -> PhaseTime:
    time_ns, microbatch = samples.time_ns, samples.microbatch

    def of(number: int) -> float:
        return float(np.median(time_ns[microbatch == number]))

    return PhaseTime(
        stage=kind.stage,
        chunk=kind.chunk,
        virtual_stage=kind.virtual_stage,
        phase=Phase(kind.phase),
        n=len(samples),
        median_ns=float(np.median(time_ns)),
        mean_ns=float(time_ns.mean()),
        std_ns=float(time_ns.std(ddof=1)) if len(samples) > 1 else None,
        min_ns=int(time_ns.min()),
        max_ns=int(time_ns.max()),
        first_ns=of(int(microbatch.min())),
        last_ns=of(int(microbatch.max())),
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


def _stragglers(row: Ints, times: Floats) -> tuple[Straggler, ...]:
    """Return the operations that took longest against their kind's median.

    Args:
        row: of those that took long.
        times: how many times the median of its kind each took.
    """
    worst = sorted_rows(-times, row)[:_LISTED]
    return tuple(Straggler(int(row[at]), float(times[at])) for at in worst.tolist())
