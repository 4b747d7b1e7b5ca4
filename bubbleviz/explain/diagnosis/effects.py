"""Effects: the factors by which compute operations take longer than normal.

Slow hardware affects all compute operations of a rank. An uneven partition affects all compute
operations of a stage, a long sequence affects one microbatch on every stage, and a pause affects
single operations of one rank. The time of a compute operation is modeled as a product. The factors
of this product are medians of ratios, estimated one after the other::

    time = norm of the kind  x  stage  x  rank  x  iteration  x  microbatch  x  pace  x  residual
                                 over      over     of all        on every      of a rank in
                                 stages    copies   ranks         stage         an iteration

No rank or stage is compared with itself. The norm of a rank is the median of the other ranks that
do the same work. The norm of a stage is the median of the other stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.diagnosis.fits import (
    fit_jumps,
    fit_lines,
    fit_parabolas,
    is_rising,
    replace_spikes,
)
from bubbleviz.explain.slowdown.work import COMPUTING, Role, Work, group_medians, has_role
from bubbleviz.explain.slowness import compute_median_of_others
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, group_rows, sort_rows

#: Minimum logarithm of a reported effect, in absolute terms and in standard errors.
_MIN_EFFECT, _MIN_ERRORS = 0.02, 4.0
#: Minimum effect on ranks that drift or have slowed. The minimum is high because a fitted change
#: leaves a remainder.
MIN_CHANGED_EFFECT = 1.05
#: Minimum time of a compute operation that paused, as a multiple of its usual time.
_MIN_PAUSE = 1.5
#: Minimum logarithm of the factor of all microbatches of a slow replica, and their maximum spread.
#: Minimum number of these microbatches.
_MIN_REPLICA_SLOWNESS, _MIN_SLOW_MICROBATCHES = 0.05, 4
#: Launch gaps longer than this multiple of their usual length are treated as pauses.
_MAX_USUAL_GAPS = 2
_TIMED = (*COMPUTING, Role.OPTIMIZER)


@dataclass(frozen=True, eq=False, repr=False)
class Computes:
    """The compute operations and optimizers of a run that took time, one row per operation.

    Attributes:
        rows: Row of the operation in the work table.
        kind: Index of the kind of work.
        stage: Stage of the rank.
        virtual_stage: Position of the chunk in the model.
        rank: Rank that did the work.
        replica: Replica of the pipeline.
        iteration: Index of the iteration.
        microbatch: Number of the microbatch, or -1 if there is none.
        cells: Groups of compute operations with the same kind, virtual stage and rank.
        gap_ns: Time in the compute operation during which no kernel ran, capped at twice the lower
            median of its cell.
        time_ns: Duration of the compute operation minus ``gap_ns``, but at least 1 ns.
    """

    rows: Ints
    kind: Ints
    stage: Ints
    virtual_stage: Ints
    rank: Ints
    replica: Ints
    iteration: Ints
    microbatch: Ints
    cells: Groups
    gap_ns: Floats
    time_ns: Floats

    @property
    def kind_of_cell(self) -> Ints:
        """Index of the kind of work of each cell."""
        return self.kind[self.cells.first]

    @property
    def rank_of_cell(self) -> Ints:
        """Rank of each cell."""
        return self.rank[self.cells.first]

    @property
    def replica_of_cell(self) -> Ints:
        """Replica of each cell."""
        return self.replica[self.cells.first]


@dataclass(frozen=True, eq=False, repr=False)
class PaceChanges:
    """How each rank's pace changes during the run, one row per rank.

    Attributes:
        slope: Initial slope of the logarithmic pace of a drifting rank, per iteration.
        bend: Quadratic coefficient of the logarithmic pace of a drifting rank, per iteration
            squared.
        jump_begin: Zero-based number of the first iteration after the best-fitting jump. The jump
            may be insignificant.
        jump_change: Mean logarithmic pace after the best-fitting jump, minus the mean before it.
        is_slowed: Whether the rank became slower in a single jump.
        is_drifting: Whether the rank becomes slower gradually.
    """

    slope: Floats
    bend: Floats
    jump_begin: Floats
    jump_change: Floats
    is_slowed: Bools
    is_drifting: Bools

    @property
    def has_changed(self) -> Bools:
        """Whether the rank became slower during the run, gradually or in a jump."""
        return np.asarray(self.is_slowed | self.is_drifting, bool)

    def estimate_rise(self, rank_row: Ints, iteration: Ints) -> Floats:
        """Return how much the logarithmic pace of a rank has risen up to an iteration.

        - Drifting rank: ``slope * number + bend * number**2``, but at least 0.
        - Rank that became slower in a jump: 0 before ``jump_begin``, and ``jump_change`` from then
          on.
        - All other ranks: 0.

        Args:
            rank_row: For each query, the row of the rank in this table.
            iteration: For each query, the zero-based iteration number.
        """
        number = iteration.astype(np.float64)
        curve = self.slope[rank_row] * number + self.bend[rank_row] * number**2
        drift = np.where(self.is_drifting[rank_row], np.maximum(curve, 0.0), 0.0)
        has_jumped = self.is_slowed[rank_row] & (number >= self.jump_begin[rank_row])
        return np.asarray(np.where(has_jumped, self.jump_change[rank_row], drift), np.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Paces:
    """The pace of each rank in each iteration, one row per (rank, iteration) pair.

    Attributes:
        computes: Groups of compute operations with the same rank and iteration, one group per row.
        pace: How many times longer than usual the rank takes in the iteration. The effect that all
            ranks share in the iteration is divided out.
        iteration: Zero-based iteration number.
        ranks: Groups of rows with the same rank.
        changes: How the pace of each rank changes, one row per group of ``ranks``.
    """

    computes: Groups
    pace: Floats
    iteration: Ints
    ranks: Groups
    changes: PaceChanges


@dataclass(frozen=True, eq=False, repr=False)
class StageEffects:
    """Effects of stages, one row per (kind of work, stage) pair.

    Attributes:
        row_of_compute: For each compute operation, the row of this table that has its kind and
            stage.
        kind: Index of the kind of work.
        stage: Stage on which the work ran.
        effect: Time on the stage divided by the median of the other stages. NaN if the kind of work
            ran on no other stage.
        load: Time on the stage divided by the mean of all stages that ran this kind of work.
    """

    row_of_compute: Ints
    kind: Ints
    stage: Ints
    effect: Floats
    load: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """Factors of compute operation times.

    Attributes:
        computes: The compute operations. Indices of compute operations refer to rows of this table.
        cell_ns: Lower median time of each cell of ``computes.cells``, corrected for ranks that
            became slower and for replicas that happened to get longer sequences.
        copies: Groups of cells with the same kind, virtual stage and stage. The cells of a group
            are copies: they do the same work on different ranks.
        stages: Effects of the stages on each kind of work.
        iterations: Groups of compute operations in the same iteration.
        iteration_effect: How many times longer than usual each iteration takes on all ranks. The
            factor is 1 if only one of several ranks is slower.
        trend: The part of ``iteration_effect`` that grows steadily over the run, relative to the
            middle of the run. All values are 1 if there is no trend.
        microbatches: Groups of compute operations with the same microbatch, iteration and replica.
        microbatch_effect: How many times longer than usual each microbatch takes on all stages. The
            factor is 1 if only one of several stages is slower.
        paces: Pace of each rank in each iteration.
        residual: Time of each compute operation (``computes.time_ns``) divided by the product of
            all factors.
        noise: Standard deviation of ``log(residual)``.
    """

    computes: Computes
    cell_ns: Floats
    copies: Groups
    stages: StageEffects
    iterations: Groups
    iteration_effect: Floats
    trend: Floats
    microbatches: Groups
    microbatch_effect: Floats
    paces: Paces
    residual: Floats
    noise: float

    @property
    def rows(self) -> Ints:
        """Rows of the compute operations in the work table."""
        return self.computes.rows

    @property
    def paused(self) -> Floats:
        """Time of each compute operation as a multiple of its usual time if it paused, otherwise 1.

        A compute operation paused if its residual is greater than 1.5 and the logarithm of the
        residual is greater than 6 times :attr:`noise`.
        """
        has_paused = (self.residual > _MIN_PAUSE) & (np.log(self.residual) > 6 * self.noise)
        return np.where(has_paused, self.residual, 1.0)

    def scale_usual_time(self, compute: Ints, scale: Floats) -> Floats:
        """Scale the usual part of operation times, but keep their pauses and launch gaps.

        The usual time is :attr:`Computes.time_ns` divided by :attr:`paused`. The usual time
        contains no launch gaps.

        Args:
            compute: Indices of the compute operations to scale.
            scale: Factor for the usual time of each operation.

        Returns:
            Scaled time of each compute operation as a fraction of its measured time.
        """
        return self.scale_between_gaps(compute, 1 - (1 - scale) / self.paused[compute])

    def scale_between_gaps(self, compute: Ints, scale: Floats) -> Floats:
        """Scale operation times, but keep the launch gaps in them.

        The time outside launch gaps is :attr:`Computes.time_ns`.

        Args:
            compute: Indices of the compute operations to scale.
            scale: Factor for the time of each operation outside launch gaps.

        Returns:
            Scaled time of each compute operation as a fraction of its measured time.
        """
        time_ns = self.computes.time_ns[compute]
        measured_ns = time_ns + self.computes.gap_ns[compute]
        return np.asarray(1 - (1 - scale) * time_ns / measured_ns, np.float64)

    def is_significant(
        self, effect: Floats, n_times: Ints, norm_variance: Floats | float = 1.0
    ) -> Bools:
        """Return a mask of the effects that exceed both noise and hardware tolerances.

        The logarithm of a significant effect is greater than 0.02 and greater than four standard
        errors. The standard error is ``1.25 * noise * sqrt((1 + norm_variance) / n_times)``.

        Args:
            effect: The factors. NaN is never significant.
            n_times: For each factor, the number of measured times that it is the median of.
            norm_variance: Variance of the norm by which the factor was divided, as a multiple of
                the variance of that median.
        """
        error = 1.25 * self.noise * np.sqrt((1 + norm_variance) / np.maximum(n_times, 1))
        return np.nan_to_num(np.log(effect)) > np.maximum(_MIN_EFFECT, _MIN_ERRORS * error)


def measure_effects(work: Work, gap_ns: Ints | None = None) -> Effects:
    """Split the time of each compute operation into the factors of :class:`Effects`.

    1. Each time is divided by the lower median of its cell (kind, virtual stage and rank).
    2. Three factors are estimated from these ratios, one after the other: iteration, microbatch and
       pace. Each factor is divided out before the next one is estimated. What remains is the
       residual.
    3. The medians of the cells are corrected for ranks that became slower, and for replicas that
       happened to get longer sequences. Then the medians of different stages are compared.

    Args:
        work: Work table of all ranks in the replayed iterations.
        gap_ns: For each row, the time during which no kernel ran, or None to assume that there are
            no gaps.
    """
    computes = _select_computes(work, gap_ns)
    cell_ns = group_medians(computes.cells.of_row, len(computes.cells), computes.time_ns)

    # Divide by the factors in turn: iteration, microbatch, pace.
    ratio = computes.time_ns / np.maximum(cell_ns[computes.cells.of_row], 1)
    iterations = group_rows(computes.iteration)
    rank_iterations = group_rows(computes.rank, computes.iteration)
    iteration_effect = _compute_shared_factors(iterations, rank_iterations, ratio)
    ratio = ratio / iteration_effect[iterations.of_row]
    microbatches = group_rows(computes.iteration, computes.replica, computes.microbatch)
    microbatch_effect = _measure_microbatch_factors(computes, microbatches, ratio)
    ratio = ratio / microbatch_effect[microbatches.of_row]
    paces = _measure_paces(
        computes,
        rank_iterations,
        ratio,
        iteration_effect[iterations.of_row[rank_iterations.first]],
    )
    residual = ratio / paces.pace[rank_iterations.of_row]

    cell_ns = _measure_steady_cells(computes, paces)
    # If lengths vary, some replicas get more tokens than others by chance.
    copies = _group_copies(computes)
    length = _estimate_replica_lengths(computes, copies, microbatches, microbatch_effect, cell_ns)
    cell_ns = cell_ns / length[computes.replica_of_cell]
    microbatch_effect = microbatch_effect * length[computes.replica[microbatches.first]]

    return Effects(
        computes=computes,
        cell_ns=cell_ns,
        copies=copies,
        stages=measure_stage_effects(computes, copies, cell_ns),
        iterations=iterations,
        iteration_effect=iteration_effect,
        trend=_fit_trend(np.log(iteration_effect)),
        microbatches=microbatches,
        microbatch_effect=microbatch_effect,
        paces=paces,
        residual=residual,
        noise=estimate_deviation(np.log(residual)),
    )


def _select_computes(work: Work, gap_ns: Ints | None) -> Computes:
    """List the compute operations and optimizers that took time, and subtract their launch gaps.

    A host that launches slowly neither slows the hardware nor adds work to a stage, so gaps are not
    part of ``time_ns``. At most ``_MAX_USUAL_GAPS`` times the usual gap is subtracted. The usual
    gap is the lower median gap of the operations with the same kind and virtual stage on the rank.

    Args:
        work: Work table of all ranks.
        gap_ns: For each row, the time during which no kernel ran, or None to assume that there are
            no gaps.
    """
    length_ns = work.end_ns - work.start_ns
    rows = np.flatnonzero(has_role(work.role, _TIMED) & (length_ns > 0))
    kind, virtual_stage, rank = work.kind[rows], work.virtual_stage[rows], work.rank[rows]
    cells = group_rows(kind, virtual_stage, rank)
    gaps_ns = np.zeros(len(rows)) if gap_ns is None else gap_ns[rows].astype(np.float64)
    usual_ns = group_medians(cells.of_row, len(cells), gaps_ns)[cells.of_row]
    gaps_ns = np.minimum(gaps_ns, _MAX_USUAL_GAPS * usual_ns)
    return Computes(
        rows=rows,
        kind=kind,
        stage=work.stage[rows],
        virtual_stage=virtual_stage,
        rank=rank,
        replica=work.replica[rows],
        iteration=work.iteration[rows],
        microbatch=work.microbatch[rows],
        cells=cells,
        gap_ns=gaps_ns,
        time_ns=np.maximum(length_ns[rows] - gaps_ns, 1.0),
    )


def _measure_microbatch_factors(computes: Computes, microbatches: Groups, ratio: Floats) -> Floats:
    """Return, for each microbatch, how many times longer than usual it takes on all stages.

    The factor is 1 for operations that have no microbatch, and for microbatches that ran on a
    single stage only. It is also 1 for the microbatches of a replica that is slow as a whole.

    Args:
        computes: The compute operations of the run.
        microbatches: Groups of compute operations with the same microbatch, iteration and replica.
        ratio: Time of each compute operation, divided by the factors that were estimated before.
    """
    on_stages = group_rows(microbatches.of_row, computes.stage)
    n_stages = np.bincount(microbatches.of_row[on_stages.first], minlength=len(microbatches))
    has_number = computes.microbatch[microbatches.first] != NONE
    shared = _compute_shared_factors(microbatches, on_stages, ratio)
    factor = np.where(has_number & (n_stages > 1), shared, 1.0)
    is_slow_replica = _mask_slow_replicas(computes, microbatches, factor)
    return np.where(is_slow_replica, 1.0, factor)


def _mask_slow_replicas(computes: Computes, microbatches: Groups, factor: Floats) -> Bools:
    """Mark the microbatches that are slow only because their whole replica is slow.

    A replica is slow in an iteration if it has at least four microbatches there, and all of them
    are about equally slow.

    Args:
        computes: The compute operations of the run.
        microbatches: Groups of compute operations with the same microbatch, iteration and replica.
        factor: Factor of each microbatch.
    """
    has_number = np.flatnonzero(computes.microbatch[microbatches.first] != NONE)
    first = microbatches.first[has_number]
    parts = group_rows(computes.iteration[first], computes.replica[first])
    log_factor = np.log(factor[has_number])
    low, high = np.full(len(parts), np.inf), np.full(len(parts), -np.inf)
    np.minimum.at(low, parts.of_row, log_factor)
    np.maximum.at(high, parts.of_row, log_factor)
    is_slow = (low > _MIN_REPLICA_SLOWNESS) & (high - low < _MIN_REPLICA_SLOWNESS)
    is_slow &= np.bincount(parts.of_row, minlength=len(parts)) >= _MIN_SLOW_MICROBATCHES
    mask = np.zeros(len(microbatches), bool)
    mask[has_number] = is_slow[parts.of_row]
    return mask


def _measure_paces(
    computes: Computes, rank_iterations: Groups, ratio: Floats, iteration_effect: Floats
) -> Paces:
    """Measure the pace of each rank in each iteration, and how the pace changes during the run.

    The pace is the lower median of the ratios of the rank's compute operations in the iteration.
    For the changes, the effect of the iteration is multiplied back in, so that changes of all ranks
    are found as well.

    Args:
        computes: The compute operations of the run.
        rank_iterations: Groups of compute operations with the same rank and iteration.
        ratio: Time of each compute operation, divided by the factors that were estimated before.
        iteration_effect: Effect of each group's iteration.
    """
    first = rank_iterations.first
    pace = group_medians(rank_iterations.of_row, len(rank_iterations), ratio)
    ranks = group_rows(computes.rank[first])
    iteration = group_rows(computes.iteration[first]).of_row
    changes = _fit_pace_changes(ranks.of_row, iteration, np.log(pace * iteration_effect))
    return Paces(rank_iterations, pace, iteration, ranks, changes)


def _measure_steady_cells(computes: Computes, paces: Paces) -> Floats:
    """Return the lower median time of each cell in ns, at the speed before ranks became slower.

    Args:
        computes: The compute operations of the run.
        paces: Pace of each rank in each iteration.
    """
    rise = paces.changes.estimate_rise(paces.ranks.of_row, paces.iteration)
    steady_ns = computes.time_ns / np.exp(rise[paces.computes.of_row])
    return group_medians(computes.cells.of_row, len(computes.cells), steady_ns)


def _group_copies(computes: Computes) -> Groups:
    """Group the cells by kind, virtual stage and stage: the cells in a group do the same work."""
    columns = (computes.kind, computes.virtual_stage, computes.stage)
    return group_rows(*(column[computes.cells.first] for column in columns))


def _compute_shared_factors(groups: Groups, parts: Groups, ratio: Floats) -> Floats:
    """Return the factor that the parts of each group share, such as all ranks in an iteration.

    The shared factor is the median, over the parts, of the median ratio in each part. If the number
    of values is even, the median is the middle value that is nearer to 1, or 1 if it lies between
    the two middle values. So a factor that affects only one of two parts is not shared.

    Args:
        groups: Groups of rows, for example the compute operations of each iteration.
        parts: Groups of rows that subdivide ``groups``, for example by rank.
        ratio: Ratio of each row, such as its time divided by the usual time.
    """
    of_part = np.clip(1.0, *_compute_median_bounds(parts.of_row, len(parts), ratio))
    group_of_part = groups.of_row[parts.first]
    low, high = _compute_median_bounds(group_of_part, len(groups), of_part)
    return np.asarray(np.clip(1.0, low, high), np.float64)


def _estimate_replica_lengths(
    computes: Computes,
    copies: Groups,
    microbatches: Groups,
    effect: Floats,
    cell_ns: Floats,
) -> Floats:
    """Estimate how much longer each replica takes because it happened to get longer sequences.

    Microbatches have random lengths, so some replicas get more tokens than others by chance. The
    time of a replica is divided by two medians: over the other replicas, and over all replicas. If
    the logarithms of both ratios are at most four standard errors, chance explains the difference.
    The standard error is computed from the variance of ``effect`` and the number of microbatches.

    Args:
        computes: The compute operations of the run.
        copies: Groups of cells that do the same work. A cell is a combination of kind, virtual
            stage and rank.
        microbatches: Groups of compute operations that belong to the same microbatch.
        effect: How many times longer than usual each microbatch takes.
        cell_ns: Median time of each cell in ns.

    Returns:
        Time of each replica divided by the median of all replicas, or 1 if chance does not explain
        it. An extra last value of 1 makes index -1 (unknown replica) yield 1. All values are 1 if
        there is a single replica, or if any replica is unknown.
    """
    replica_of_cell = computes.replica_of_cell
    replica_of_microbatch = computes.replica[microbatches.first]
    n_drawn = np.bincount(replica_of_microbatch[replica_of_microbatch >= 0])
    length = np.ones(len(n_drawn) + 1)
    if len(n_drawn) < 2 or not n_drawn.all() or (replica_of_cell < 0).any():
        return length
    deviation = _estimate_length_deviation(computes.microbatch[microbatches.first], effect)
    error = 1.25 * deviation * np.sqrt((1 + 1 / (len(n_drawn) - 1)) / n_drawn)
    low_ns, high_ns = _compute_median_bounds(copies.of_row, len(copies), cell_ns)
    norms_ns = (
        compute_median_of_others(copies.of_row, cell_ns),
        ((low_ns + high_ns) / 2)[copies.of_row],
    )
    relative_to_others, relative_to_all = (
        group_medians(replica_of_cell, len(n_drawn), cell_ns / norm_ns) for norm_ns in norms_ns
    )
    is_chance = np.abs(np.log([relative_to_others, relative_to_all])) <= _MIN_ERRORS * error
    length[:-1] = np.where(is_chance.all(axis=0), relative_to_all, 1.0)
    return length


def _estimate_length_deviation(number: Ints, effect: Floats) -> float:
    """Return the standard deviation of the logarithmic microbatch lengths that is due to chance.

    A microbatch that is long in every replica and iteration does not differ by chance. So each
    length is divided by the median of the microbatches with the same number.

    Args:
        number: Number of each microbatch in its iteration and replica.
        effect: How many times longer than usual each microbatch takes.
    """
    numbers = group_rows(number)
    usual = group_medians(numbers.of_row, len(numbers), effect)[numbers.of_row]
    return float(np.log(effect / usual).std())


def measure_stage_effects(computes: Computes, copies: Groups, cell_ns: Floats) -> StageEffects:
    """Compare the time of each kind of work on a stage with its time on the other stages.

    The time of a stage is the sum over its chunks. The time of a chunk is the lower median of its
    copies, so that one slow copy does not make the stage slow.

    Args:
        computes: The compute operations of the run.
        copies: Groups of cells that do the same work. A cell is a combination of kind, virtual
            stage and rank.
        cell_ns: Median time of each cell in ns.
    """
    first_compute = computes.cells.first[copies.first]
    stages = group_rows(computes.kind[first_compute], computes.stage[first_compute])
    copy_ns = group_medians(copies.of_row, len(copies), cell_ns)
    stage_ns = np.bincount(stages.of_row, copy_ns, len(stages)).astype(np.float64)
    kind = computes.kind[first_compute[stages.first]]
    kinds = group_rows(kind).of_row
    mean_ns = np.bincount(kinds, stage_ns) / np.bincount(kinds)
    return StageEffects(
        row_of_compute=stages.of_row[copies.of_row[computes.cells.of_row]],
        kind=kind,
        stage=computes.stage[first_compute[stages.first]],
        effect=stage_ns / compute_median_of_others(kinds, stage_ns),
        load=stage_ns / mean_ns[kinds],
    )


def _fit_pace_changes(rank_row: Ints, iteration: Ints, log_pace: Floats) -> PaceChanges:
    """Determine whether each rank became slower during the run, gradually or in a jump.

    Isolated outliers are first replaced. Then a line and a jump are fitted to the paces of each
    rank:

    - If the jump is significant and explains more variance than the line, the rank became slower in
      a jump.
    - Otherwise, if the line is rising (:func:`is_rising`), the rank became slower gradually.

    Args:
        rank_row: Zero-based rank number of each pace.
        iteration: Zero-based iteration number of each pace.
        log_pace: Logarithm of each pace.
    """
    number = iteration.astype(np.float64)
    smooth = replace_spikes(rank_row, number, log_pace)
    slope, line_explains = fit_lines(rank_row, number, smooth)
    jumps = fit_jumps(rank_row, number, smooth)
    is_slowed = jumps.is_significant & (jumps.explained > line_explains)
    is_drifting = is_rising(np.bincount(rank_row), slope, line_explains) & ~is_slowed
    initial_slope, bend = fit_parabolas(rank_row, number, smooth)
    return PaceChanges(initial_slope, bend, jumps.position, jumps.change, is_slowed, is_drifting)


def mask_changed_cells(effects: Effects) -> Bools:
    """Return a mask of the cells on ranks that became slower during the run."""
    paces = effects.paces
    rank = effects.computes.rank[paces.computes.first][paces.ranks.first]
    return np.isin(effects.computes.rank_of_cell, rank[paces.changes.has_changed])


def _fit_trend(series: Floats) -> Floats:
    """Fit a line to the logarithms of factors, and return the factors that lie on the line.

    The returned factors are relative to the middle of the series, so the factor there is 1. If the
    line is not rising (:func:`is_rising`), all factors are 1.

    Args:
        series: Logarithm of each iteration's factor.
    """
    number, group = np.arange(len(series), dtype=np.float64), np.zeros(len(series), np.int64)
    slope, explained = fit_lines(group, number, replace_spikes(group, number, series))
    if not is_rising(len(series), slope, explained).any():
        return np.ones(len(series))
    growth: Floats = np.exp(slope[0] * (number - number.mean()))
    return growth


def estimate_deviation(values: Floats) -> float:
    """Estimate the standard deviation around 0 as 1.4826 times the median absolute value.

    The lower median is used. The result is 0 if there are no values.
    """
    return 1.4826 * compute_quantile(np.abs(values), 0.5) if len(values) else 0.0


def _compute_median_bounds(group: Ints, n_groups: int, values: Floats) -> tuple[Floats, Floats]:
    """Return the lower and the upper median of each group, which are equal for odd group sizes."""
    return group_medians(group, n_groups, values), -group_medians(group, n_groups, -values)


def compute_quantile(values: Floats, fraction: float) -> float:
    """Return a quantile of values like ``np.quantile`` with ``method="lower"``.

    Args:
        values: The values. Must not be empty.
        fraction: The quantile, between 0 and 1.
    """
    return float(np.sort(values)[int(fraction * (len(values) - 1))])


def order_by_loss(rank: Ints, loss: Floats) -> list[int]:
    """Return the ranks whose total loss is positive, sorted by loss, largest first.

    The lower rank comes first in ties.

    Args:
        rank: Rank of each row.
        loss: Time that each row loses.
    """
    total = np.bincount(rank, loss)
    order = sort_rows(-total)
    return [int(losing) for losing in order[total[order] > 0]]
