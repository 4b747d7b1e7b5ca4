"""Clock steps: clocks that were set during the capture even though the bounds are consistent.

If a clock is moved by less than the distance between its bounds, the bounds over the whole capture
remain consistent. The interval is then too narrow and may not contain the true offset. However,
setting a clock moves both bounds at once, whereas a change in message delays does not::

    upper bound   ─ ─ ─ ┐               interval of the whole capture: between the lowest
                        └ ─ ─ ─         upper bound and the highest lower bound
    lower bound   ─ ─ ─ ┐
                        └ ─ ─ ─

1. Bound each clock pair in each iteration, and in 4 and 16 parts of each iteration. These parts
   are called cells (``_bound_cells``).
2. Fit the midpoints between the bounds of a clock pair with a line (the drift) plus a jump
   (``_fit_jumps``). A jump is accepted if it is much larger than the noise of the midpoints.
3. If any clock jumped, replace each clock pair's bounds with the hull of all its cells (smallest
   lower bound to largest upper bound). The hull is valid before and after the jump
   (``_widen_limits``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bubbleviz.align.clocks import offsets
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS, ProfileClock
from bubbleviz.model.columns import Bools, Floats, Ints, Table
from bubbleviz.model.grouping import Groups, find_distinct, group_rows, sort_rows
from bubbleviz.model.intervals import group_extents

#: Numbers of parts into which an iteration is divided. Each must be a divisor of the last one.
_PARTS = (1, 4, 16)
#: Maximum distance between a part's bounds, relative to the median over whole iterations.
_MAX_RELATIVE_WIDTH = 1.5
#: Minimum significance of clear and of doubtful jumps, in standard deviations of the noise.
_MIN_SIGNIFICANCE, _MIN_SIGNIFICANCE_IN_DOUBT = 7.0, 14.0
#: A jump is doubtful if it is based on fewer than ``_FEW_CELLS`` cells.
#: A jump is also doubtful if it is less than ``_SMALL_JUMP`` times the median width of the cells.
_FEW_CELLS, _SMALL_JUMP = 6, 0.3
#: Minimum and maximum number of cells to fit for a clock pair. If a pair has more cells than the
#: maximum, they are sampled evenly.
_MIN_CELLS, _MAX_CELLS = 3, 256
#: Number of drifts that are tried in a fit, from ``-DRIFT`` to ``DRIFT``.
_N_DRIFTS = 21
#: Maximum number of array elements computed at once.
_MAX_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class ClockStep:
    """A clock that was set, relative to another clock, during the capture.

    Attributes:
        first: Index of the first clock.
        second: Index of the second clock.
        by_ns: Size of the step: the increase of the second clock's correction relative to the
            correction of the first clock.
        last_before: Iteration that contains the last cell before the step.
        first_after: Iteration that contains the first cell after the step.
    """

    first: int
    second: int
    by_ns: int
    last_before: int
    first_after: int


@dataclass(frozen=True, eq=False, repr=False)
class _Cells(Table):
    """Bounds on the difference between two clocks in short time periods (cells).

    Attributes:
        pair: Index of the clock pair.
        begin_ns: Time of the first event of the cell, on the first clock.
        end_ns: Time of the last event of the cell, on the first clock.
        low_ns: Lower bound of the second clock's correction relative to the first clock.
        high_ns: Upper bound of the second clock's correction relative to the first clock.
        iteration: Common iteration that contains the cell.
    """

    pair: Ints
    begin_ns: Ints
    end_ns: Ints
    low_ns: Floats
    high_ns: Floats
    iteration: Ints

    @property
    def width_ns(self) -> Floats:
        """Width of the interval between the bounds of each cell."""
        return self.high_ns - self.low_ns


class _Jump(NamedTuple):
    """A jump in the midpoints between a clock pair's bounds.

    Jumps are compared by significance first. The other fields are the size of the jump, and the
    iterations that contain the last cell before it and the first cell after it.
    """

    significance: float
    by_ns: float
    last_before: int
    first_after: int


@dataclass(frozen=True)
class _Hulls:
    """The hull of each clock pair's cells: an interval that contains the interval of every cell.

    Attributes:
        low_ns: Smallest lower bound of any cell that is used, or infinity if no cell is used.
        high_ns: Largest upper bound of any cell that is used, or negative infinity if no cell is
            used.
        max_gap_ns: The longer of two times: the duration of the longest cell, and the longest time
            between the starts of consecutive cells that are bounded from both sides.
    """

    low_ns: Floats
    high_ns: Floats
    max_gap_ns: Ints


def find_clock_steps(
    precedences: offsets.Precedences, n_clocks: int, extents: tuple[Ints, Ints], reference: int = 0
) -> tuple[tuple[ClockStep, ...], tuple[ProfileClock, ...]]:
    """Find clocks that were set during the capture, as described at the top of this module.

    Steps are searched for only in precedences between operations. Precedences between collectives
    are used only to limit the corrections.

    Args:
        precedences: Precedences (pairs of events with a known order) between all clocks.
        n_clocks: Number of clocks.
        extents: Start and end of each clock's capture, in its uncorrected time.
        reference: Clock whose correction is 0.

    Returns:
        steps: The most significant step for each clock pair that has one, sorted by pair.
        corrections: Constant correction of each clock. The uncertainties cover the times before and
            after the steps. Empty if there are no steps.
    """
    low_clock = np.minimum(precedences.earlier_clock, precedences.later_clock)
    high_clock = np.maximum(precedences.earlier_clock, precedences.later_clock)
    pairs = group_rows(low_clock, high_clock)
    first, second = low_clock[pairs.first], high_clock[pairs.first]
    # The distance between the bounds from collectives varies, so they do not show jumps.
    is_operation = precedences.later_row >= 0
    levels = _bound_cells(precedences.take(is_operation), pairs.of_row[is_operation], first)
    jumps, hulls = _find_jumps(levels, len(first))
    steps = tuple(
        ClockStep(
            int(first[pair]),
            int(second[pair]),
            round(jump.by_ns),
            jump.last_before,
            jump.first_after,
        )
        for pair, jump in sorted(jumps.items())
    )
    if not steps:
        return (), ()
    limit, _ = offsets.find_tightest_limits(precedences, n_clocks)
    duration_ns = int(np.ptp(precedences.later_ns))
    limit = _widen_limits(limit, (first, second), hulls, steps, duration_ns)
    return steps, _compute_corrections(limit, precedences, extents, reference)


def _find_jumps(levels: list[_Cells], n_pairs: int) -> tuple[dict[int, _Jump], _Hulls]:
    """Find the most significant jump of each clock pair across all levels.

    Each level divides iterations into cells (time periods). Finer levels locate a jump more
    precisely, but their bounds are farther apart. Only cells that are bounded from both sides are
    used. In finer levels, cells are left out if they are wider than ``_MAX_RELATIVE_WIDTH`` times
    the pair's median width in the coarsest level, and wider than ``GRAIN_NS``.

    Args:
        levels: Cells of each level, coarsest level first.
        n_pairs: Number of clock pairs.

    Returns:
        jumps: The most significant jump for each pair that has one, keyed by pair.
        hulls: Hull of the cells used for each clock pair.
    """
    jumps: dict[int, _Jump] = {}
    low_ns, high_ns = np.full(n_pairs, np.inf), np.full(n_pairs, -np.inf)
    max_gap_ns = np.zeros(n_pairs, np.int64)
    max_width_ns = np.zeros(0)
    for level in levels:
        cells = _sort_bounded(level)
        np.maximum.at(max_gap_ns, level.pair, level.end_ns - level.begin_ns)
        follows = cells.pair[1:] == cells.pair[:-1]
        np.maximum.at(max_gap_ns, cells.pair[1:][follows], np.diff(cells.begin_ns)[follows])
        if len(max_width_ns):
            cells = cells.take(cells.width_ns <= max_width_ns[cells.pair])
        else:
            median_ns = _compute_medians(cells.pair, cells.width_ns, n_pairs)
            max_width_ns = np.maximum(_MAX_RELATIVE_WIDTH * median_ns, GRAIN_NS)
        for pair, jump in _fit_in_batches(cells):
            jumps[pair] = max(jump, jumps.get(pair, jump))
        np.minimum.at(low_ns, cells.pair, cells.low_ns)
        np.maximum.at(high_ns, cells.pair, cells.high_ns)
    return jumps, _Hulls(low_ns, high_ns, max_gap_ns)


def _sort_bounded(cells: _Cells) -> _Cells:
    """Return the cells that are bounded from both sides, sorted by (clock pair, start)."""
    bounded = np.flatnonzero(np.isfinite(cells.width_ns))
    order = sort_rows(cells.pair[bounded], cells.begin_ns[bounded])
    return cells.take(bounded[order])


def _widen_limits(
    limit: Floats,
    pairs: tuple[Ints, Ints],
    hulls: _Hulls,
    steps: tuple[ClockStep, ...],
    duration_ns: int,
) -> Floats:
    """Widen the limits between clocks so that they hold at every instant, despite the steps.

    A pair has a hull if any of its cells (short time periods) is bounded from both sides. The hull
    contains the bounds of all of these cells.

    - The limits of a pair with a hull become the ends of the hull, widened by the clock drift over
      the hull's ``max_gap_ns``.
    - The limits of all other pairs are widened by the sizes of all steps and by the drift over the
      whole capture.

    Args:
        limit: Tightest limits, indexed [later, earlier]. Not modified.
        pairs: First and second clock of each pair.
        hulls: Hulls of the pairs.
        steps: All steps.
        duration_ns: Time from the first to the last precedence.
    """
    first, second = pairs
    has_hull = np.isfinite(hulls.high_ns)
    total_steps_ns = sum(abs(step.by_ns) for step in steps)
    margin_ns = math.ceil(DRIFT * duration_ns) + total_steps_ns
    drift_ns = np.ceil(DRIFT * hulls.max_gap_ns)
    widened = limit.copy()
    upper, lower = hulls.high_ns + drift_ns, drift_ns - hulls.low_ns
    widened[first, second] = np.where(has_hull, upper, limit[first, second] + margin_ns)
    widened[second, first] = np.where(has_hull, lower, limit[second, first] + margin_ns)
    return widened


def _compute_corrections(
    limit: Floats,
    precedences: offsets.Precedences,
    extents: tuple[Ints, Ints],
    reference: int,
) -> tuple[ProfileClock, ...]:
    """Compute constant corrections that satisfy all limits.

    If no corrections satisfy all limits, the smallest sufficient slack is added to every limit, and
    twice the slack is added to the uncertainties. A clock's uncertainty also includes the drift
    before its first event and after its last one. The uncertainty is None if the reference does not
    bound the clock.

    Args:
        limit: Limits between all clocks, indexed [later, earlier].
        precedences: Precedences between all clocks.
        extents: Start and end of each clock's capture.
        reference: Clock whose correction is 0.
    """
    slack = offsets.round_up(offsets.find_worst_cycle(limit)[0])
    offset, half_width = offsets.compute_intervals(limit + slack, reference)
    clock = np.concatenate((precedences.earlier_clock, precedences.later_clock))
    event_ns = np.concatenate((precedences.earlier_ns, precedences.later_ns))
    first_ns, last_ns = group_extents(clock, len(limit), event_ns, event_ns)
    unbounded_ns = np.maximum(np.maximum(first_ns - extents[0], extents[1] - last_ns), 0)
    half_width += 2 * slack + 2 * DRIFT * unbounded_ns
    corrections = [
        ProfileClock(round(middle), math.ceil(width) + 1 if math.isfinite(width) else None)
        for middle, width in zip(offset.tolist(), half_width.tolist(), strict=True)
    ]
    corrections[reference] = ProfileClock(0, 0)
    return tuple(corrections)


def _bound_cells(precedences: offsets.Precedences, pair: Ints, first: Ints) -> list[_Cells]:
    """Bound the clock difference of each pair, per iteration and per part of an iteration.

    Iterations are divided into increasingly many parts.

    Args:
        precedences: Precedences between operations.
        pair: Clock pair of each precedence.
        first: First clock in each pair.

    Returns:
        One table of cells for each number of parts in ``_PARTS``. A bound is infinite if no
        precedence in the cell determines it.
    """
    is_upper = precedences.later_clock == first[pair]
    event_ns = np.where(is_upper, precedences.later_ns, precedences.earlier_ns)
    iterations = group_rows(pair, precedences.iteration)
    finest_part = _divide_iterations(iterations, event_ns)
    slack_ns = (precedences.later_ns - precedences.earlier_ns).astype(np.float64)
    levels = []
    for n_parts in _PARTS:
        cells = group_rows(iterations.of_row, finest_part * n_parts // _PARTS[-1])
        low_ns, high_ns = _find_bounds(cells, slack_ns, is_upper)
        first_ns, last_ns = group_extents(cells.of_row, len(cells), event_ns, event_ns)
        levels.append(
            _Cells(
                pair=pair[cells.first],
                begin_ns=first_ns,
                end_ns=last_ns,
                low_ns=low_ns,
                high_ns=high_ns,
                iteration=precedences.iteration[cells.first],
            )
        )
    return levels


def _divide_iterations(iterations: Groups, event_ns: Ints) -> Ints:
    """Divide the time of each iteration into ``_PARTS[-1]`` equal parts.

    An iteration lasts from its first event to its last event.

    Args:
        iterations: Events grouped by clock pair and iteration.
        event_ns: Time of each event.

    Returns:
        Zero-based index, within the iteration, of the part that contains each event.
    """
    begin_ns, end_ns = group_extents(iterations.of_row, len(iterations), event_ns, event_ns)
    length_ns = (end_ns - begin_ns + 1)[iterations.of_row]
    part: Ints = (event_ns - begin_ns[iterations.of_row]) * _PARTS[-1] // length_ns
    return part


def _find_bounds(cells: Groups, slack_ns: Floats, is_upper: Bools) -> tuple[Floats, Floats]:
    """Return the tightest lower and upper bounds on the second clock's correction in each cell.

    A bound is infinite if no precedence determines it.

    Args:
        cells: Precedences grouped by cell.
        slack_ns: Time from the earlier to the later event of each precedence constraint.
        is_upper: Mask of the precedences that determine upper bounds. All other precedences
            determine lower bounds.
    """
    low_ns, high_ns = np.full(len(cells), -np.inf), np.full(len(cells), np.inf)
    np.minimum.at(high_ns, cells.of_row[is_upper], slack_ns[is_upper])
    np.maximum.at(low_ns, cells.of_row[~is_upper], -slack_ns[~is_upper])
    return low_ns, high_ns


def _compute_medians(group: Ints, values: Floats, n_groups: int) -> Floats:
    """Return the median value of each group, or 0 for a group without values.

    Args:
        group: Group number of each value.
        values: Values, in any order.
        n_groups: Number of groups.
    """
    medians = np.zeros(n_groups)
    in_order = values[sort_rows(group, values)]
    count = np.bincount(group, minlength=n_groups)
    start = np.cumsum(count) - count
    nonempty = np.flatnonzero(count)
    lower = in_order[(start + (count - 1) // 2)[nonempty]]
    upper = in_order[(start + count // 2)[nonempty]]
    medians[nonempty] = (lower + upper) / 2
    return medians


def _fit_in_batches(cells: _Cells) -> Iterator[tuple[int, _Jump]]:
    """Yield (pair, jump) for each clock pair with a significant jump.

    Cells whose bounds contradict each other by more than ``GRAIN_NS`` are left out. Pairs with
    fewer than ``_MIN_CELLS`` remaining cells are skipped. Pairs with the same number of sampled
    cells are fitted together, in batches that limit memory use.

    Args:
        cells: Cells of one level that are bounded from both sides, sorted by (pair, time).
    """
    # A cell with contradicting bounds contains the jump, so it is neither before nor after it.
    cells = cells.take(cells.width_ns >= -GRAIN_NS)
    n_cells = np.bincount(cells.pair, minlength=1)
    start = np.cumsum(n_cells) - n_cells
    n_sampled = np.where(n_cells >= _MIN_CELLS, np.minimum(n_cells, _MAX_CELLS), 0)
    for size in find_distinct(n_sampled[n_sampled > 0]).tolist():
        pairs = np.flatnonzero(n_sampled == size)
        batch_size = max(1, _MAX_ELEMENTS // (size * _N_DRIFTS))
        for low in range(0, len(pairs), batch_size):
            batch = pairs[low : low + batch_size]
            sampled = np.arange(size) * n_cells[batch][:, None] // size
            yield from _fit_jumps(cells, batch, start[batch][:, None] + sampled)


def _fit_jumps(cells: _Cells, pairs: Ints, rows: Ints) -> Iterator[tuple[int, _Jump]]:
    """Yield (pair, jump) for each clock pair in which both bounds jump significantly.

    The jump is the best fit to the midpoints between the bounds (:func:`_fit_midpoints`). The jump
    is accepted if it is significant (:func:`_is_significant`) and if both bounds move by at least
    half of the jump (:func:`_moves_bounds`).

    Args:
        cells: Cells of one level.
        pairs: Clock pairs to fit.
        rows: Rows in ``cells`` of each pair, sorted by time, shape (pairs, cells per pair).
    """
    low, high = cells.low_ns[rows], cells.high_ns[rows]
    width = high - low
    cell_ns = (cells.begin_ns[rows] + cells.end_ns[rows]) / 2
    elapsed_ns = cell_ns - cell_ns[:, :1]
    fits = _fit_midpoints((low + high) / 2, width, elapsed_ns)
    for row in np.flatnonzero(_is_significant(fits, width)).tolist():
        significance, jump_ns = float(fits.significance[row]), float(fits.jump_ns[row])
        last_cell = int(fits.last_cell[row])
        drifted_ns = fits.drift[row] * elapsed_ns[row]
        if _moves_bounds((low[row], high[row]), drifted_ns, last_cell, jump_ns):
            iterations = cells.iteration[rows[row, last_cell : last_cell + 2]].tolist()
            yield int(pairs[row]), _Jump(significance, jump_ns, *iterations)


@dataclass(frozen=True, eq=False, repr=False)
class _Fits(Table):
    """The best-fitting line with a jump through the midpoints of each clock pair.

    Attributes:
        last_cell: Index of the last cell before the jump.
        drift: Slope of the line (dimensionless).
        jump_ns: Size of the jump.
        significance: ``sqrt(reduction) / noise``. The reduction is the amount by which the jump
            lowers the residual sum of squares of the best line. The noise is the standard deviation
            of the midpoints.
    """

    last_cell: Ints
    drift: Floats
    jump_ns: Floats
    significance: Floats


def _fit_midpoints(midpoint: Floats, width: Floats, elapsed_ns: Floats) -> _Fits:
    """Fit a line with a jump to the midpoints of each clock pair, by least squares.

    The slope is one of ``_N_DRIFTS`` evenly spaced drifts from ``-DRIFT`` to ``DRIFT``, and the
    jump may be between any two consecutive cells. The combination with the smallest residual sum of
    squares is used.

    Args:
        midpoint: Midpoint between the bounds of each cell, shape (pairs, cells).
        width: Upper minus lower bound of each cell, same shape as ``midpoint``.
        elapsed_ns: Time from the first cell of the pair to each cell, same shape as ``midpoint``.
    """
    drifts = np.linspace(-DRIFT, DRIFT, _N_DRIFTS)
    steps, step_sq = _make_step_functions(midpoint.shape[1])
    residual = midpoint[:, :, None] - elapsed_ns[:, :, None] * drifts
    residual = residual - residual.mean(axis=1)[:, None]
    jump_by_fit = steps.T @ residual / step_sq[:, None]
    without_jump = (residual**2).sum(axis=1)
    explained = jump_by_fit**2 * step_sq[:, None]
    with_jump = (without_jump[:, None] - explained).reshape(len(midpoint), -1)
    last_cell, drift_index = np.divmod(with_jump.argmin(axis=1), _N_DRIFTS)
    reduction = np.maximum(without_jump.min(axis=1) - with_jump.min(axis=1), 0.0)
    significance = np.sqrt(reduction) / _estimate_noise(midpoint, width)
    return _Fits(
        last_cell=last_cell,
        drift=drifts[drift_index],
        jump_ns=jump_by_fit[np.arange(len(midpoint)), last_cell, drift_index],
        significance=significance,
    )


def _moves_bounds(
    bounds: tuple[Floats, Floats], drifted_ns: Floats, last_cell: int, jump_ns: float
) -> bool:
    """Return whether both bounds of a clock pair move by at least half of a jump.

    A change in message delays moves only one bound, whereas setting a clock moves both.

    Args:
        bounds: Lower and upper bound of the pair in each cell.
        drifted_ns: Drift from the first cell to each cell, which is subtracted from the bounds.
        last_cell: Index of the last cell before the jump.
        jump_ns: Size of the jump.
    """
    steps, step_sq = _make_step_functions(len(drifted_ns))
    moved_ns = [steps[:, last_cell] @ (bound - drifted_ns) / step_sq[last_cell] for bound in bounds]
    return bool(min(moved / jump_ns for moved in moved_ns) >= 0.5)


def _make_step_functions(n_cells: int) -> tuple[Floats, Floats]:
    """Return one step function per possible jump. A jump may follow any cell except the last.

    The step function of a jump after cell ``i`` is 0 in cells 0 to ``i`` and 1 in all later cells,
    minus its mean.

    Returns:
        steps: Step functions, one per column, shape (cells, cells - 1).
        squares: Sum of squares of each step function, shape (cells - 1,).
    """
    steps = np.tril(np.ones((n_cells, n_cells)), -1)[:, :-1]
    steps = steps - steps.mean(axis=0)
    return steps, (steps**2).sum(axis=0)


def _estimate_noise(midpoint: Floats, width: Floats) -> Floats:
    """Estimate the standard deviation of the midpoints of each pair, excluding drift and jumps.

    The estimate is the largest of three values:

    - Half the standard deviation of the widths, excluding the narrowest cell, which may contain the
      jump.
    - The robust standard deviation (:func:`_estimate_deviation`) of the second differences of the
      midpoints, divided by sqrt(6).
    - The constant ``GRAIN_NS / 20``.

    Args:
        midpoint: Midpoint between the bounds of each cell, shape (pairs, cells).
        width: Upper minus lower bound of each cell, same shape as ``midpoint``.
    """
    width_noise = np.std(np.sort(width, axis=1)[:, 1:], axis=1) / 2
    midpoint_noise = _estimate_deviation(np.diff(midpoint, 2, axis=1)) / np.sqrt(6)
    noise = np.maximum(width_noise, np.maximum(midpoint_noise, GRAIN_NS / 20))
    return np.asarray(noise, np.float64)


def _is_significant(fits: _Fits, width: Floats) -> Bools:
    """Return a mask of the jumps that are sufficiently significant and large.

    A jump is small if it is less than ``_SMALL_JUMP`` times the median width. A jump is doubtful if
    it is small or based on fewer than ``_FEW_CELLS`` cells. A jump is accepted if all of the
    following conditions hold:

    - The significance is at least ``_MIN_SIGNIFICANCE``, or ``_MIN_SIGNIFICANCE_IN_DOUBT`` for a
      doubtful jump.
    - The size of the jump exceeds ``GRAIN_NS``, or four times ``GRAIN_NS`` for a small jump.
    - The jump is not small, or it is based on at least ``_FEW_CELLS`` cells.

    Args:
        fits: Best fit of each clock pair.
        width: Upper minus lower bound of each cell, shape (pairs, cells).
    """
    jump_ns = np.abs(fits.jump_ns)
    is_small = jump_ns < _SMALL_JUMP * np.median(width, axis=1)
    has_few_cells = width.shape[1] < _FEW_CELLS
    is_doubtful = is_small | has_few_cells
    min_significance = np.where(is_doubtful, _MIN_SIGNIFICANCE_IN_DOUBT, _MIN_SIGNIFICANCE)
    is_noticeable = jump_ns > GRAIN_NS * np.where(is_small, 4, 1)
    is_clear = (fits.significance >= min_significance) & is_noticeable
    return np.asarray(is_clear & ~(is_small & has_few_cells), bool)


def _estimate_deviation(values: Floats) -> Floats:
    """Robustly estimate the standard deviation of each row from the median absolute deviation."""
    deviation = np.abs(values - np.median(values, axis=1)[:, None])
    return np.asarray(1.4826 * np.median(deviation, axis=1), np.float64)
