"""Effects: the factors by which computes take longer than their norms, by what has them in common.

Slow hardware affects all computes of a rank, an uneven partition those of a stage, a long sequence
one microbatch on every stage, and a pause some operations of one rank. The time of a compute is
modelled as a product. Its factors are medians of ratios, calculated one after the other::

    time = norm of the kind  x  stage  x  rank  x  iteration  x  microbatch  x  pace  x  rest
                                 over      over     of all        on every      of a rank in
                                 stages    copies   ranks         stage         an iteration

Nothing is compared with itself: the norm of a rank is the median of the other ranks with the same
work, and the norm of a stage is the median of the other stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.slowdown.work import COMPUTING, Role, Work, median_rows, plays
from bubbleviz.explain.slowness import median_of_others
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, find_first_rows, group_rows, sort_rows

#: Minimum effect that is reported, as a relative difference, and in standard errors.
_LEAST, _SURE = 0.02, 4.0
#: Minimum time of a compute that paused, as a multiple of its usual time.
_PAUSED = 1.5
#: Minimum launch gaps of a compute that paused, as a multiple of their usual time.
_GAPS_PAUSED = 2
_TIMED = (*COMPUTING, Role.OPTIMIZER)
#: Minimum change of the logarithm of the pace over the run that counts as a trend.
_CHANGE = 0.03
#: Minimum number of iterations of a trend, and the minimum fraction of the variance that it must
#: explain: with this number of iterations, one more, and any more. Chance explains as much in about
#: one of a hundred runs (F test of a line).
_LEAST_ITERATIONS, _EXPLAINED = 6, np.array((0.84, 0.77, 0.7))
#: For a jump: the minimum number of iterations, the minimum number on each side, the minimum change
#: of the logarithm, and the minimum change as a multiple of the standard deviation that remains.
#: The last one is large because the best of many positions is chosen.
_LEAST_AROUND, _BESIDE, _JUMP, _TIMES = 8, 2, 0.05, 8.0
#: Minimum difference of the logarithm from both neighbours that marks a single point as an outlier,
#: which is ignored when trends and jumps are fitted.
_SPIKE = 0.2
#: Maximum sum of squares that is attributed to rounding.
_ROUNDED = 1e-18


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """Factors of the times of computes.

    Attributes:
        rows: Rows of computes in the work table, shape (computes,).
        gap_ns: Time without a kernel in each compute, as far as it is usual for its cell.
        time_ns: Time of each compute without ``gap_ns``.
        cells: Groups of computes with the same kind, virtual stage and rank.
        cell_ns: Median time of each cell, before its rank became slower.
        copies: Groups of cells with the same kind and virtual stage, which do the same work; one
            row per cell.
        rank_effect: Time of each cell divided by that of its other copies, or NaN if it has none.
        stage_of_compute: Index of the (kind, stage) pair of each compute.
        stage_kind: Kind of work of each (kind, stage) pair.
        stage_number: Stage of each (kind, stage) pair.
        stage_effect: Time of each pair divided by that on the other stages, or NaN without others.
        stage_share: Time of each pair divided by its time if all stages had equal work.
        iterations: Groups of computes of the same iteration.
        iteration_effect: Time of all ranks in each iteration divided by that in the others.
        trend: The part of ``iteration_effect`` that grows steadily over the run; 1 without trend.
        microbatches: Groups of computes with the same microbatch, iteration and replica.
        microbatch_effect: Factor by which each microbatch takes longer on every stage; 1 if only
            one stage shows it.
        paces: Groups of computes with the same rank and iteration.
        pace: Factor by which the rank is slower in the iteration, beyond the effect on all ranks.
        pace_number: Number of the iteration of each pace, from 0.
        pace_ranks: Groups of paces of the same rank.
        slope: Slope of the logarithm of each rank's pace over iterations.
        jump_begin: Number of the iteration at which each rank may have become slower at once.
        jump_change: Change of the logarithm of the rank's pace at that iteration.
        slowed: Ranks that became slower in a single jump rather than gradually, as a mask.
        drifts: Ranks that become slower gradually, as a mask.
        rest: Measured time of each compute as a multiple of the time that all factors explain.
        noise: Standard deviation of the logarithm of ``rest``.
    """

    rows: Ints
    gap_ns: Floats
    time_ns: Floats
    cells: Groups
    cell_ns: Floats
    copies: Groups
    rank_effect: Floats
    stage_of_compute: Ints
    stage_kind: Ints
    stage_number: Ints
    stage_effect: Floats
    stage_share: Floats
    iterations: Groups
    iteration_effect: Floats
    trend: Floats
    microbatches: Groups
    microbatch_effect: Floats
    paces: Groups
    pace: Floats
    pace_number: Ints
    pace_ranks: Groups
    slope: Floats
    jump_begin: Floats
    jump_change: Floats
    slowed: Bools
    drifts: Bools
    rest: Floats
    noise: float

    @property
    def paused(self) -> Floats:
        """Time of each compute that paused as a multiple of its usual time; 1 for all others."""
        has_paused = (self.rest > _PAUSED) & (np.log(self.rest) > 6 * self.noise)
        return np.where(has_paused, self.rest, 1.0)

    def usual(self, at: Ints, scale: Floats) -> Floats:
        """Return the remaining fraction of times whose usual part, without pauses, is scaled.

        Args:
            at: Indices of computes.
            scale: Factor of the usual part of each.
        """
        return self.with_gaps(at, 1 - (1 - scale) / self.paused[at])

    def with_gaps(self, at: Ints, scale: Floats) -> Floats:
        """Return the shares of some computes' times that are left where launch gaps stay.

        Args:
            at: of the computes.
            scale: what is left of each beside its gaps.
        """
        time_ns = self.time_ns[at]
        return np.asarray(1 - (1 - scale) * time_ns / (time_ns + self.gap_ns[at]), np.float64)

    def stands_out(self, effect: Floats, of: Ints, against: Floats | float = 1.0) -> Bools:
        """Tell which effects are larger than chance and small differences of like hardware.

        A median of n times is off by 1.25 deviations / sqrt(n), and so is what it is held against.

        Args:
            effect: the factors; NaN stands for none.
            of: how many times each is the median of.
            against: how many times as uncertain what they are held against is.
        """
        error = 1.25 * self.noise * np.sqrt((1 + against) / np.maximum(of, 1))
        return np.nan_to_num(np.log(effect)) > np.maximum(_LEAST, _SURE * error)


def effects_of(work: Work, gap_ns: Ints | None = None) -> Effects:
    """Return the effects of a run.

    Args:
        work: of all ranks, in the iterations that count.
        gap_ns: how long no kernel ran inside each row; None for no time.
    """
    length_ns = work.end_ns - work.start_ns
    rows = np.flatnonzero(plays(work.role, _TIMED) & (length_ns > 0))
    kind, stage, rank = work.kind[rows], work.stage[rows], work.rank[rows]
    iteration, microbatch = work.iteration[rows], work.microbatch[rows]

    cells = group_rows(kind, work.virtual_stage[rows], rank)
    # Hosts that launch slowly slow no hardware, and are no work of a stage.
    gaps_ns = np.zeros(len(rows)) if gap_ns is None else gap_ns[rows].astype(np.float64)
    usual_ns = group_medians(cells.of_row, len(cells), gaps_ns)[cells.of_row]
    gaps_ns = np.minimum(gaps_ns, _GAPS_PAUSED * usual_ns)
    time_ns = np.maximum(length_ns[rows] - gaps_ns, 1.0)
    cell_ns = group_medians(cells.of_row, len(cells), time_ns)
    left = time_ns / np.maximum(cell_ns[cells.of_row], 1)
    iterations, paces = group_rows(iteration), group_rows(rank, iteration)
    iteration_effect = _shared(iterations, paces, left)
    left = left / iteration_effect[iterations.of_row]
    microbatches = group_rows(iteration, work.replica[rows], microbatch)
    places = group_rows(microbatches.of_row, stage)
    several = np.bincount(microbatches.of_row[places.first], minlength=len(microbatches)) > 1
    microbatch_effect = np.where(
        (microbatch[microbatches.first] != NONE) & several, _shared(microbatches, places, left), 1.0
    )
    left = left / microbatch_effect[microbatches.of_row]
    pace = group_medians(paces.of_row, len(paces), left)
    rest = left / pace[paces.of_row]

    series = np.log(pace * iteration_effect[iterations.of_row[paces.first]])
    pace_ranks, pace_number = (
        group_rows(rank[paces.first]),
        group_rows(iteration[paces.first]).of_row,
    )
    own, number = pace_ranks.of_row, pace_number.astype(np.float64)
    series = without_spikes(own, number, series)
    slope, slope_explains = lines(own, number, series)
    begin, change, jump_explains, stands_out = jumps(own, number, series)
    slowed = stands_out & (jump_explains > slope_explains)
    drifts = rises(np.bincount(own), slope, slope_explains) & ~slowed
    # Ranks are held against others as they were before they slowed.
    risen = np.where(drifts[own], slope[own] * number, 0.0)
    risen = np.where(slowed[own] & (number >= begin[own]), change[own], risen)
    later = np.zeros(int(rank.max(initial=NONE)) + 1)
    later[rank[paces.first][pace_ranks.first]] = group_medians(own, len(pace_ranks), risen)
    cell_ns = cell_ns / np.exp(later[rank[cells.first]])
    copies = group_rows(*(c[cells.first] for c in (kind, work.virtual_stage[rows], stage)))
    # Where lengths vary, replicas get more or fewer tokens by chance.
    replica = work.replica[rows]
    more = _chance(replica, cells, copies, microbatches, microbatch_effect, cell_ns)
    cell_ns = cell_ns / more[replica[cells.first]]
    microbatch_effect = microbatch_effect * more[replica[microbatches.first]]

    copied = cells.first[copies.first]
    stages = group_rows(kind[copied], stage[copied])
    # Of copies the lower median counts: a slow one makes no slow stage. Chunks are added up.
    copy_ns = group_medians(copies.of_row, len(copies), cell_ns)
    stage_ns = np.bincount(stages.of_row, copy_ns, len(stages)).astype(np.float64)
    stage_kind = kind[copied[stages.first]]
    kinds = group_rows(stage_kind).of_row
    even_ns = np.bincount(kinds, stage_ns) / np.bincount(kinds)
    return Effects(
        rows=rows,
        gap_ns=gaps_ns,
        time_ns=time_ns,
        cells=cells,
        cell_ns=cell_ns,
        copies=copies,
        rank_effect=cell_ns / median_of_others(copies.of_row, cell_ns),
        stage_of_compute=stages.of_row[copies.of_row[cells.of_row]],
        stage_kind=stage_kind,
        stage_number=stage[copied[stages.first]],
        stage_effect=stage_ns / median_of_others(kinds, stage_ns),
        stage_share=stage_ns / even_ns[kinds],
        iterations=iterations,
        iteration_effect=iteration_effect,
        trend=_trend(np.log(iteration_effect)),
        microbatches=microbatches,
        microbatch_effect=microbatch_effect,
        paces=paces,
        pace=pace,
        pace_number=pace_number,
        pace_ranks=pace_ranks,
        slope=slope,
        jump_begin=begin,
        jump_change=change,
        slowed=slowed,
        drifts=drifts,
        rest=rest,
        noise=1.4826 * quantile_of(np.abs(np.log(rest)), 0.5) if len(rest) else 0.0,
    )


def _shared(groups: Groups, parts: Groups, values: Floats) -> Floats:
    """Return what the parts of each group share: the median of their medians.

    Of two in the middle that which is nearer to 1 counts, and 1 if it lies between them: what a
    single part does is not shared, and a part may be a forward and a backward, whose lower one
    is below 1 by chance.

    Args:
        groups: rows of one factor.
        parts: rows of one part of these.
        values: one a row.
    """
    of_part = np.clip(1.0, *_middle(parts.of_row, len(parts), values))
    group = groups.of_row[parts.first]
    low, high = _middle(group, len(groups), of_part)
    return np.asarray(np.clip(1.0, low, high), np.float64)


def _chance(
    replica: Ints,
    cells: Groups,
    copies: Groups,
    microbatches: Groups,
    effect: Floats,
    cell_ns: Floats,
) -> Floats:
    """Return how many times as many tokens as the mean each replica got, as far as chance goes.

    Its microbatches are so many draws of their lengths. What is more than they explain is slowness.

    Args:
        replica: of each compute.
        cells: computes of one kind, virtual stage and rank.
        copies: cells that do the same work.
        microbatches: computes of one microbatch.
        effect: of each of these.
        cell_ns: time of each cell.
    """
    own = replica[cells.first]
    count = np.bincount(replica[microbatches.first][replica[microbatches.first] >= 0])
    more = np.ones(len(count) + 1)
    if len(count) < 2 or not count.all() or (own < 0).any():
        return more
    spread = float(np.log(effect).std())
    error = 1.25 * spread * np.sqrt((1 + 1 / (len(count) - 1)) / count)
    low_ns, high_ns = _middle(copies.of_row, len(copies), cell_ns)
    against_ns = median_of_others(copies.of_row, cell_ns), ((low_ns + high_ns) / 2)[copies.of_row]
    against, level = (group_medians(own, len(count), cell_ns / than_ns) for than_ns in against_ns)
    by_chance = np.abs(np.log([against, level])) <= _SURE * error
    more[:-1] = np.where(by_chance.all(axis=0), level, 1.0)
    return more


def _trend(series: Floats) -> Floats:
    """Return the factors of a line through logarithms; 1 where they do not rise steadily."""
    number, group = np.arange(len(series), dtype=np.float64), np.zeros(len(series), np.int64)
    slope, explained = lines(group, number, without_spikes(group, number, series))
    if not rises(len(series), slope, explained).any():
        return np.ones(len(series))
    grown: Floats = np.exp(slope[0] * (number - number.mean()))
    return grown


# Medians of groups, and of the other members of each member's group.


def group_medians(group: Ints, groups: int, values: Floats) -> Floats:
    """Return the lower median of each group; NaN for one without values.

    Args:
        group: of each value, from 0.
        groups: number of groups.
        values: one a row.
    """
    rows = median_rows(group, groups, values)
    return np.append(values, np.nan)[rows]


def _middle(group: Ints, groups: int, values: Floats) -> tuple[Floats, Floats]:
    """Return the lower and the upper median of each group."""
    return group_medians(group, groups, values), -group_medians(group, groups, -values)


def quantile_of(values: Floats, share: float) -> float:
    """Return the value that a share of the others lies below, one of them."""
    return float(np.sort(values)[int(share * (len(values) - 1))])


# Trends: whether something grows over the iterations of a run, steadily or at once.


def without_spikes(group: Ints, x: Floats, y: Floats) -> Floats:
    """Return points, a slow one as those around it: it hides neither a line nor a jump.

    Args:
        group: of each point, from 0.
        x: of the points.
        y: likewise.
    """
    order = sort_rows(group, x)
    of, value, steady = group[order], y[order], y.copy()
    count = np.bincount(of)
    first = np.cumsum(count) - count
    middle = np.clip(np.arange(len(of)), (first + 1)[of], (first + count - 2)[of])
    around = np.sort([value.take(middle + i, mode="clip") for i in (-1, 0, 1)], axis=0)[1]
    spike = (count[of] >= _LEAST_ITERATIONS) & (np.abs(value - around) > _SPIKE)
    steady[order] = np.where(spike, around, value)
    return steady


def lines(group: Ints, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return slope and explained share of the variance of a line through each group's points.

    Args:
        group: of each point, from 0.
        x: of the points.
        y: likewise.
    """
    count = np.maximum(np.bincount(group), 1)
    mean_x, mean_y = np.bincount(group, x) / count, np.bincount(group, y) / count
    dx, dy = x - mean_x[group], y - mean_y[group]
    xx, xy, yy = (np.bincount(group, v) for v in (dx * dx, dx * dy, dy * dy))
    slope = np.divide(xy, xx, out=np.zeros(len(count)), where=xx > 0)
    explained = np.divide(xy * xy, xx * yy, out=np.zeros(len(count)), where=xx * yy > 0)
    return slope, explained


def rises(count: Ints | int, slope: Floats, explained: Floats) -> Bools:
    """Tell which lines rise enough, and steadily.

    Args:
        count: number of points of each.
        slope: of each, a logarithm by point.
        explained: share of the variance.
    """
    change = slope * (np.asarray(count) - 1)
    beyond = np.asarray(count) - _LEAST_ITERATIONS
    enough = (beyond >= 0) & (explained >= _EXPLAINED[np.clip(beyond, 0, len(_EXPLAINED) - 1)])
    return np.asarray(enough & (change >= _CHANGE), bool)


def jumps(group: Ints, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats, Bools]:
    """Return the jump of each group's points by which they are explained best.

    ::

        y              • • •      change
            • • • •               from the mean before to the mean behind
                     begin

    Args:
        group: of each point, from 0; each has some.
        x: of the points.
        y: likewise.

    Returns:
        Where the first point behind the jump is, the change of the mean, the share of the variance
        that this explains, and whether the jump is up, and more than chance.
    """
    order = sort_rows(group, x)
    of, value = group[order], y[order]
    count = np.bincount(of)
    first = np.cumsum(count) - count
    before = np.arange(len(of)) - first[of]
    behind = count[of] - before
    sums = np.cumsum(value) - value
    total = np.bincount(of, value)
    left = (sums - sums[first][of]) / np.maximum(before, 1)
    right = (total[of] - (sums - sums[first][of])) / behind
    change = right - left
    possible = (before >= _BESIDE) & (behind >= _BESIDE)
    between = np.where(possible, before * behind / count[of] * change**2, 0.0)
    best = find_first_rows(of, -between)
    variance = np.bincount(of, (value - (total / count)[of]) ** 2)
    left_over = np.sqrt(np.maximum(variance - between[best], 0.0) / np.maximum(count - 2, 1))
    enough = (count >= _LEAST_AROUND) & possible[best]
    explained = np.divide(
        between[best], variance, out=np.zeros(len(best)), where=variance > _ROUNDED
    )
    change = change[best]
    stands_out = enough & (change >= _JUMP) & (change >= _TIMES * left_over)
    return x[order][best], change, explained, stands_out
