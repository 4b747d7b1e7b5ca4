"""Evidence that two ranks are paired correctly: how well their iteration times agree for a shift.

Ranks that wait for each other lengthen and shorten their iterations together. If iterations are
paired correctly, the time from an event to the same event of the next iteration (a *step*) is
nearly equal on both ranks. If they are paired incorrectly, steps differ as much as two steps of one
rank do::

    rank a   ├───────┤├─────────┤├──────┤├────────┤
    rank b       ├───────┤├─────────┤├──────┤├────────┤      shift 0: steps differ by microseconds
    rank b              ├───────┤├─────────┤├──────┤         shift 1: steps differ as iterations do

All shifts are tested at once:

1. Compute the steps of both ranks, with the typical step subtracted (``_compute_steps``).
2. Compare every step of rank a with every step of rank b (``_compare_all``). The differences over
   the events of the iteration have a mean (the *level*) and a variance (the *scatter*).
3. Read the diagonal of each shift from this matrix (``_select_diagonals``) and average its
   squares. The cell in row i and column j belongs to shift i - j::

                        steps of rank b
                         0    1    2    3
       steps of     0    0   -1   -2   -3
       rank a       1    1    0   -1   -2
                    2    2    1    0   -1
                    3    3    2    1    0

4. Do the same for each rank with itself (``_measure_null``). This shows how much the steps of
   different iterations differ, which is the null hypothesis.
5. The evidence for a shift is how unlikely a mean square as small as the one on its diagonal is
   under the null hypothesis, by an F test (``_test_ratio``).
6. The evidence is limited by a nonparametric test (``_match_surprisal``), because iteration times
   follow no common law.

Only durations are compared, each measured with one clock. The clocks need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints

#: Resolution of timestamps. Smaller differences are no evidence.
_GRAIN_NS = 200.0
#: Minimum number of values for a trimmed mean without the largest, and without the two largest.
_TRIM_ONE, _TRIM_TWO = 3, 6
#: Maximum degrees of freedom of the scatter of the events within an iteration.
_MAX_SCATTER_DOF = 4
#: Penalty, in nats, for using the best of several ways to compare the same numbers.
_CHOICE_PENALTY = math.log(2)
#: Maximum evidence, in nats, from the nearest neighbor of one step that is unlike all others.
_MAX_OUTLIER_EVIDENCE = 3.0
#: Maximum evidence for a shift, and of each of its parts, in nats.
_MAX_EVIDENCE = 60.0
#: Mean squares, and the number of values in each, or 0 if the mean is not available.
_Means = tuple[Floats, Ints]


@dataclass(frozen=True)
class _Differences:
    """Differences between every step of one rank and every step of another, or of itself.

    Attributes:
        level_ns: Mean difference over the events, shape (pairs, steps of a, steps of b). NaN if the
            two steps have too few events in common.
        scatter: Variance of the differences over the events, in ns², same shape.
    """

    level_ns: Floats
    scatter: Floats


@dataclass(frozen=True)
class _NullStatistics:
    """Mean square differences between steps of one rank, shape (pairs, steps).

    Column 0 covers any two different steps, column k the steps that are k iterations apart.

    Attributes:
        level_sq: Mean square of the levels, or infinity if there is no pair of steps.
        scatter: Mean scatter, or infinity if there is no pair of steps.
        dof: Degrees of freedom of ``level_sq``, or 0 if there is no pair of steps.
    """

    level_sq: Floats
    scatter: Floats
    dof: Ints


@dataclass(frozen=True)
class StepComparison:
    """Statistics of one way to compare the steps of pairs of ranks, for all candidate shifts.

    Attributes:
        levels: Mean squares of the levels, shape (pairs, shifts), in four variants: with or without
            the largest values, and with drift counted as noise or subtracted.
        scatters: Mean scatter, with or without the largest values. Empty if not compared.
        null: The same statistics between different iterations of one rank.
        scatter_dof: Degrees of freedom of the scatter of one step.
        max_evidence: Upper bound of the evidence for each shift, shape (pairs, shifts).
    """

    levels: tuple[_Means, ...]
    scatters: tuple[_Means, ...]
    null: _NullStatistics
    scatter_dof: int
    max_evidence: Floats

    def compute_evidence(self, lags: Ints | None = None, shift_index: Ints | None = None) -> Floats:
        """Compute the evidence for each shift: how unlikely its agreement is by chance, in nats.

        The evidence is -log of the probability of steps that agree at least as well. Under the null
        hypothesis, paired steps belong to different iterations, so they differ as much as two steps
        of one rank. If iterations repeat a pattern, steps some distance apart are nearly equal;
        ``lags`` then compares only steps that far apart.

        The levels and the scatters each give the largest evidence over several variants, less a
        penalty for the choice. The sum s of the two counts as ``s - log(1 + s)``; without scatters,
        the levels alone count. The result is at most ``max_evidence`` and ``_MAX_EVIDENCE``. One
        variant of the levels replaces the null level by the scatter if the scatter is smaller. With
        few iterations, the scatter is the better estimate of how much a step varies.

        Args:
            lags: Distance of each shift from the correct one, shape (pairs, shifts). By default,
                any two different steps are the null hypothesis.
            shift_index: Index of one shift per pair. Every column of the evidence is then for this
                shift, tested against the lag of the column. By default, each shift is tested.

        Returns:
            Evidence, shape (pairs, shifts). It is at least 0, and 0 without common steps.
        """
        if lags is None:
            lags = np.zeros((len(self.null.dof), 1), np.int64)
        null_level = np.take_along_axis(self.null.level_sq, lags, axis=1)
        null_scatter = np.take_along_axis(self.null.scatter, lags, axis=1)
        null_dof = np.take_along_axis(self.null.dof, lags, axis=1)
        levels, scatters, max_evidence = self.levels, self.scatters, self.max_evidence
        if shift_index is not None:
            levels = _select_shift(levels, shift_index)
            scatters = _select_shift(scatters, shift_index)
            max_evidence = np.take_along_axis(max_evidence, shift_index[:, None], axis=1)

        scatter_dof = self.scatter_dof
        null_means = [(null_level, null_dof)]
        if scatter_dof:
            null_means.append((np.minimum(null_level, null_scatter), scatter_dof * null_dof))
        evidence = _choose_largest(
            _test_ratio(mean, null_mean, dof, dof_of_null)
            for mean, dof in levels
            for null_mean, dof_of_null in null_means
        )
        if scatter_dof and scatters:
            evidence = evidence + _choose_largest(
                _test_ratio(mean, null_scatter, scatter_dof * n, scatter_dof * null_dof)
                for mean, n in scatters
            )
            # The sum of two surprisals follows the distribution Gamma(2, 1).
            evidence = evidence - np.log1p(evidence)
        evidence = np.minimum(evidence, np.minimum(max_evidence, _MAX_EVIDENCE))
        return np.where((null_dof > 0) & (levels[0][1] > 0), evidence, 0.0)


def _select_shift(means: tuple[_Means, ...], shift_index: Ints) -> tuple[_Means, ...]:
    """Select the means and counts of one shift per pair, shape (pairs, 1)."""
    index = shift_index[:, None]
    return tuple(
        (np.take_along_axis(mean, index, axis=1), np.take_along_axis(count, index, axis=1))
        for mean, count in means
    )


def compare_steps(
    a_ns: Floats, b_ns: Floats, shifts: Ints, bounds: tuple[Floats, Floats] | None = None
) -> list[StepComparison]:
    """Compare the iterations of pairs of ranks for each shift.

    Args:
        a_ns: Times of the events of the first ranks, shape (pairs, iterations, events). NaN if
            missing.
        b_ns: Times of the same events of the second ranks.
        shifts: Candidate shifts: iteration i of a is paired with iteration i - shift of b.
        bounds: Lower and upper bounds of the correction of b's clock in each iteration, shape
            (pairs, shifts, iterations), or infinite where there is no bound.

    Returns:
        The comparison of the event times. If there are bounds, a second comparison uses the
        midpoint between them as the only event.
    """
    a_steps, b_steps, typical_ns = _compute_steps(a_ns, b_ns)
    scatter_dof = min(max(a_steps.shape[2] - 1, 0), _MAX_SCATTER_DOF)
    within_a, within_b = _compare_all(a_steps, a_steps), _compare_all(b_steps, b_steps)
    cross = _compare_all(a_steps, b_steps)
    null = _measure_null(within_a, within_b)

    within_sq = within_a.level_ns**2 + within_a.scatter, within_b.level_ns**2 + within_b.scatter
    cross_sq = _square_beyond_drift(cross.level_ns, typical_ns) + cross.scatter
    max_evidence = _bound_evidence(cross_sq, within_sq, shifts, 1 + scatter_dof)
    levels = _compute_mean_squares(_select_diagonals(cross.level_ns, shifts), typical_ns)
    scatters = _compute_means(_select_diagonals(cross.scatter, shifts))
    comparison = StepComparison(levels, scatters, null, scatter_dof, max_evidence)
    if bounds is None:
        return [comparison]
    within_level_ns = within_a.level_ns, within_b.level_ns
    levels, max_evidence = _compare_midpoints(bounds, within_level_ns, typical_ns, shifts)
    by_bounds = replace(comparison, levels=levels, scatters=(), max_evidence=max_evidence)
    return [comparison, by_bounds]


def _compare_midpoints(
    bounds: tuple[Floats, Floats],
    within_level_ns: tuple[Floats, Floats],
    typical_ns: Floats,
    shifts: Ints,
) -> tuple[tuple[_Means, ...], Floats]:
    """Compare the iterations of pairs of ranks by the midpoints of the bounds between their clocks.

    Args:
        bounds: Lower and upper bounds of the correction of b's clock in each iteration, shape
            (pairs, shifts, iterations).
        within_level_ns: Levels between the steps of a, and between the steps of b, each of shape
            (pairs, steps, steps).
        typical_ns: Typical step of each pair.
        shifts: Candidate shifts.

    Returns:
        levels: Mean squares of the changes of the midpoint, as in :class:`StepComparison`.
        max_evidence: Upper bound of the evidence for each shift, shape (pairs, shifts).
    """
    changes_ns = _compute_midpoint_steps(bounds)
    cross_ns = _fill_diagonals(changes_ns, within_level_ns[0].shape, shifts)
    cross_sq = _square_beyond_drift(cross_ns, typical_ns)
    within_sq = within_level_ns[0] ** 2, within_level_ns[1] ** 2
    max_evidence = _bound_evidence(cross_sq, within_sq, shifts, 1)
    return _compute_mean_squares(changes_ns, typical_ns), max_evidence


def _compute_steps(a_ns: Floats, b_ns: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute the time from each event to the same event of the next iteration.

    The typical step of a pair (the median over all events of both ranks) is subtracted, which keeps
    rounding errors small.

    Args:
        a_ns: Event times of the first ranks, shape (pairs, iterations, events). NaN if missing.
        b_ns: Event times of the second ranks.

    Returns:
        a_steps: Steps of the first ranks less the typical step, shape
            (pairs, iterations - 1, events).
        b_steps: Steps of the second ranks less the typical step.
        typical_ns: Typical step of each pair, or 0 if there is no step.
    """
    a_steps, b_steps = np.diff(a_ns, axis=1), np.diff(b_ns, axis=1)
    all_steps = [steps.reshape(len(steps), -1) for steps in (a_steps, b_steps)]
    typical_ns = np.nan_to_num(compute_median(np.concatenate(all_steps, axis=1)))
    subtracted = typical_ns[:, None, None]
    return a_steps - subtracted, b_steps - subtracted, typical_ns


def _compute_midpoint_steps(bounds: tuple[Floats, Floats]) -> Floats:
    """Compute by how much the midpoint between two bounds changes from iteration to iteration.

    Args:
        bounds: Lower and upper bounds, shape (pairs, shifts, iterations).

    Returns:
        Differences of the midpoints, shape (pairs, shifts, iterations - 1). NaN unless both bounds
        are finite in both iterations.
    """
    is_bounded = np.isfinite(bounds[0]) & np.isfinite(bounds[1])
    lower, upper = (np.where(is_bounded, bound, np.nan) for bound in bounds)
    return np.diff((lower + upper) / 2, axis=2)


def _bound_evidence(
    cross_sq: Floats, within_sq: tuple[Floats, Floats], shifts: Ints, dof: int
) -> Floats:
    """Return an upper bound of the evidence for each shift, in nats, shape (pairs, shifts).

    It is the sum of the surprisals of the paired steps. The surprisal of a pair of steps is the
    smaller of the surprisals relative to each of the two ranks (:func:`_match_surprisal`).

    Args:
        cross_sq: Mean square difference of each step of a and each step of b, shape
            (pairs, steps of a, steps of b).
        within_sq: Mean square differences between steps of a, and between steps of b.
        shifts: Candidate shifts.
        dof: Number of independent values per mean square.
    """
    of_a = _match_surprisal(cross_sq, within_sq[0], dof)
    of_b = _match_surprisal(cross_sq.swapaxes(1, 2), within_sq[1], dof).swapaxes(1, 2)
    surprisal = _select_diagonals(np.minimum(of_a, of_b), shifts)
    return np.asarray(np.nansum(surprisal, axis=2), np.float64)


def _square_beyond_drift(level_ns: Floats, typical_ns: Floats) -> Floats:
    """Return the squares of the levels, reduced by the drift that clocks may have in one step.

    Args:
        level_ns: Levels, shape (pairs, steps of a, steps of b).
        typical_ns: Typical step of each pair.
    """
    max_drift_ns = (DRIFT * typical_ns)[:, None, None]
    return np.asarray(np.maximum(np.abs(level_ns) - max_drift_ns, 0.0) ** 2, np.float64)


def _match_surprisal(cross_sq: Floats, within_sq: Floats, dof: int) -> Floats:
    """Return how surprising it is that two ranks have steps this similar, in nats.

    The null hypothesis is that step j of the other rank has nothing to do with step i of this rank.
    Its distribution is empirical, because iteration times follow no common law: training iterations
    may agree to the nanosecond while an evaluation takes much longer. Therefore j is ranked among
    the n other steps of *this* rank by its distance to i::

        n_closer > 0    log((n + 1) / n_closer)
        n_closer == 0   log(n + 1) + volume term, which grows the closer j is to i

    Args:
        cross_sq: Mean square difference of step i of this rank and step j of the other rank, shape
            (pairs, n_i, n_j). NaN if unknown.
        within_sq: Mean square differences between steps of this rank, shape (pairs, n_i, n_i). The
            diagonal is ignored.
        dof: Number of independent values per mean square.

    Returns:
        Surprisal, same shape as ``cross_sq``. NaN where the input is NaN, and infinity for a step
        that can be compared with no other step of its rank.
    """
    n_within = within_sq.shape[2]
    within_sq = np.where(np.eye(n_within, dtype=bool), np.nan, within_sq)
    n_comparable = _count(within_sq)[..., None]

    # The sort is stable and the differences within the rank come first, so ties count as closer.
    order = np.argsort(np.concatenate((within_sq, cross_sq), axis=2), axis=2, kind="stable")
    n_closer = np.empty(order.shape, np.int64)
    np.put_along_axis(n_closer, order, np.cumsum(order < n_within, axis=2), axis=2)
    n_closer = n_closer[..., n_within:]

    surprisal = np.log((n_comparable + 1) / np.maximum(n_closer, 1))
    volume_term = _compute_volume_term(cross_sq, within_sq, dof)
    surprisal = surprisal + np.where(n_closer > 0, 0.0, volume_term)
    surprisal = np.where(n_comparable > 0, surprisal, np.inf)
    return np.where(np.isnan(cross_sq), np.nan, surprisal)


def _compute_volume_term(cross_sq: Floats, within_sq: Floats, dof: int) -> Floats:
    """Return the log ratio of the volumes within two distances: to the neighbor, and to the match.

    The neighbor of a step is the most similar step of its own rank, and the match is the step of
    the other rank. In ``dof`` dimensions the volume grows as distance ** dof. The neighbor of an
    outlier says little about how steps like it vary, so it contributes at most
    ``_MAX_OUTLIER_EVIDENCE``, unless the match is closer than any two steps of the rank.

    Args:
        cross_sq: Mean square differences between the ranks, shape (pairs, n_i, n_j).
        within_sq: Mean square differences within the rank, shape (pairs, n_i, n_i), with a diagonal
            of NaN.
        dof: Number of independent values per mean square.

    Returns:
        Log ratio, same shape as ``cross_sq``. Infinite for a step without a neighbor.
    """
    nearest_sq = np.nanmin(within_sq, axis=2, initial=np.inf)[..., None] + _GRAIN_NS**2
    smallest_sq = nearest_sq.min(axis=1, keepdims=True, initial=np.inf)
    from_neighbor = np.log(nearest_sq / (cross_sq + _GRAIN_NS**2)) * dof / 2
    from_closest_pair = np.log(smallest_sq / (cross_sq + _GRAIN_NS**2)) * dof / 2
    limited = np.minimum(from_neighbor, _MAX_OUTLIER_EVIDENCE)
    return np.asarray(np.maximum(from_closest_pair, limited), np.float64)


def _compute_mean_squares(level_ns: Floats, typical_ns: Floats) -> tuple[_Means, ...]:
    """Compute mean squares of the levels of each shift, in four variants.

    A clock that drifts makes all steps of a rank longer. The first two means add the maximum drift
    as noise. The last two subtract the median level, limited to the maximum drift, which costs one
    degree of freedom. Each is computed with all values and without the largest
    (:func:`_compute_means`).

    Args:
        level_ns: Levels of paired steps, shape (pairs, shifts, steps).
        typical_ns: Typical step of each pair.

    Returns:
        Means and their degrees of freedom, each of shape (pairs, shifts).
    """
    max_drift_ns = (DRIFT * typical_ns)[:, None]
    drift_ns = np.clip(np.nan_to_num(compute_median(level_ns)), -max_drift_ns, max_drift_ns)
    has_enough = _count(level_ns) >= _TRIM_ONE
    with_noise = ((mean + max_drift_ns**2, count) for mean, count in _compute_means(level_ns**2))
    without_drift = (
        (mean, np.where(has_enough & (count > 0), count - 1, 0))
        for mean, count in _compute_means((level_ns - drift_ns[..., None]) ** 2)
    )
    return *with_noise, *without_drift


def _measure_null(a: _Differences, b: _Differences) -> _NullStatistics:
    """Measure, for each pair of ranks, how much steps of different iterations of one rank differ.

    Ranks that wait for each other vary together, so their differences are not independent. For each
    lag, the smaller value of the two ranks is used. Its degrees of freedom are the larger number of
    differences of the two ranks, but at most the number of steps. A lag with few differences has
    the values of any two steps (column 0).

    Args:
        a: Differences between the steps of the first rank of each pair.
        b: Differences between the steps of the second rank of each pair.
    """
    level_of_a, scatter_of_a, n_of_a = _measure_lags(a)
    level_of_b, scatter_of_b, n_of_b = _measure_lags(b)
    is_sparse = _is_sparse(n_of_a) | _is_sparse(n_of_b)
    n_steps = _count(a.level_ns.diagonal(axis1=1, axis2=2))[:, None]
    dof = np.minimum(np.maximum(n_of_a, n_of_b), n_steps)
    dof = np.where(is_sparse, dof[:, :1], dof)
    is_empty = dof == 0
    return _NullStatistics(
        np.where(is_empty, np.inf, np.minimum(level_of_a, level_of_b)),
        np.where(is_empty, np.inf, np.minimum(scatter_of_a, scatter_of_b)),
        dof,
    )


def _measure_lags(within: _Differences) -> tuple[Floats, Floats, Ints]:
    """Compute mean squares of the differences between steps of one rank, for each lag.

    A lag is the number of iterations between two steps.

    Returns:
        level_sq: Trimmed mean square of the levels, shape (pairs, steps). Column 0 covers any two
            different steps, column k > 0 the steps that are k apart. Lags with few values have the
            mean of column 0, because few values do not show a repeating pattern.
        scatter: Trimmed mean of the scatter, same shape and columns.
        count: Number of values of each column.
    """
    n_steps = within.level_ns.shape[1]
    is_upper = np.triu(np.ones((n_steps, n_steps), bool), 1)
    lags = np.arange(1, n_steps)

    def compute_means(values: Floats) -> tuple[Floats, Ints]:
        """Return the trimmed mean and the number of values of each column."""
        parts = values[:, None, is_upper], _select_diagonals(values, lags)
        count = np.concatenate([_count(part) for part in parts], axis=1)
        mean = np.concatenate([_compute_trimmed_mean(part) for part in parts], axis=1)
        return np.where(_is_sparse(count), mean[:, :1], mean), count

    level_sq, count = compute_means(within.level_ns**2)
    scatter, _ = compute_means(within.scatter)
    return level_sq, scatter, count


def _is_sparse(count: Ints) -> Bools:
    """Return a mask of the columns with fewer than ``_TRIM_ONE`` values; column 0 is always False.

    Args:
        count: Number of values of each column, shape (pairs, steps).
    """
    is_sparse: Bools = count < _TRIM_ONE
    is_sparse[:, :1] = False
    return is_sparse


def _compare_all(a_steps: Floats, b_steps: Floats) -> _Differences:
    """Compare every step of one rank with every step of another by matrix products.

    The level of two steps is the mean of ``a - b`` over their common events, and the scatter is the
    variance. Two steps are compared only if they have at least a quarter of the largest number of
    common events of any two steps.

    Args:
        a_steps: Steps of the first rank, shape (pairs, steps, events). NaN if missing.
        b_steps: Steps of the second rank.
    """
    b_steps = b_steps.swapaxes(1, 2)
    has_a, has_b = ((~np.isnan(steps)).astype(np.float64) for steps in (a_steps, b_steps))
    a, b = (np.where(np.isnan(steps), 0.0, steps) for steps in (a_steps, b_steps))
    count = has_a @ has_b
    total = a @ has_b - has_a @ b
    total_sq = (a**2) @ has_b + has_a @ (b**2) - 2 * a @ b
    level_ns = total / np.maximum(count, 1.0)
    scatter = np.maximum(total_sq / np.maximum(count, 1.0) - level_ns**2, 0.0)
    max_count = count.max(axis=(1, 2), keepdims=True, initial=0.0)
    is_valid = count >= np.maximum(max_count / 4, 1.0)
    return _Differences(np.where(is_valid, level_ns, np.nan), np.where(is_valid, scatter, np.nan))


def _select_diagonals(matrix: Floats, shifts: Ints) -> Floats:
    """Select the cells of each shift from a matrix of steps, shape (pairs, shifts, steps of a).

    Args:
        matrix: A value for each step of a and step of b, shape (pairs, steps of a, steps of b).
        shifts: Row minus column of the diagonals.

    Returns:
        Value of step i of a and step i - shift of b, or NaN if there is no such step.
    """
    row, column, exists = _index_diagonals(matrix.shape, shifts)
    return np.where(exists, matrix[:, row, column], np.nan)


def _fill_diagonals(values: Floats, shape: tuple[int, ...], shifts: Ints) -> Floats:
    """Return a matrix of steps with the given diagonals, the inverse of :func:`_select_diagonals`.

    Args:
        values: Values of the diagonals, shape (pairs, shifts, steps of a).
        shape: Shape of the matrix, (pairs, steps of a, steps of b).
        shifts: Row minus column of the diagonals.
    """
    matrix = np.full(shape, np.nan)
    row, column, exists = _index_diagonals(shape, shifts)
    matrix[:, row[exists], column[exists]] = values[:, exists]
    return matrix


def _index_diagonals(shape: tuple[int, ...], shifts: Ints) -> tuple[Ints, Ints, Bools]:
    """Return the row and column of each cell of the diagonals, and whether the cell exists.

    Each has shape (shifts, steps of a). The column of a cell that does not exist is 0.
    """
    _, n_rows, n_columns = shape
    row = np.broadcast_to(np.arange(n_rows), (len(shifts), n_rows))
    column = row - shifts[:, None]
    exists = (column >= 0) & (column < n_columns)
    return row, np.where(exists, column, 0), exists


def _count(values: Floats) -> Ints:
    """Count the values along the last axis that are not NaN."""
    return np.asarray(np.count_nonzero(~np.isnan(values), axis=-1), np.int64)


def compute_median(values: Floats) -> Floats:
    """Return the median along the last axis without NaNs, or NaN if there are no values.

    Unlike ``numpy.nanmedian``, it does not warn of empty slices.
    """
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    count = _count(values)
    middle = np.stack(((count - 1) // 2, count // 2), axis=-1)
    in_order = np.sort(values, axis=-1)
    middle_values = np.take_along_axis(in_order, np.maximum(middle, 0), axis=-1)
    return np.asarray(middle_values.sum(axis=-1) / 2, np.float64)


def _compute_means(values: Floats) -> tuple[_Means, _Means]:
    """Compute the mean along the last axis, and the mean without the largest values.

    The second one tolerates a clock that was set once, which makes a single step too long. It is
    without the largest value, or without the two largest if there are ``_TRIM_TWO`` or more. With
    fewer than ``_TRIM_ONE`` values it is not available and has count 0.
    """
    count = _count(values)
    n_trimmed = np.where(count < _TRIM_ONE, 0, np.where(count < _TRIM_TWO, 1, 2))
    n_used = count - n_trimmed
    total = np.where(np.isnan(values), 0.0, values).sum(axis=-1)
    is_used = np.arange(values.shape[-1]) < n_used[..., None]
    trimmed_total = np.where(is_used, np.sort(values, axis=-1), 0.0).sum(axis=-1)
    return (
        (total / np.maximum(count, 1), count),
        (trimmed_total / np.maximum(n_used, 1), np.where(n_used < count, n_used, 0)),
    )


def _compute_trimmed_mean(values: Floats) -> Floats:
    """Return the mean without the one or two largest values, or of all values if there are few.

    The values are averaged along the last axis (see :func:`_compute_means`).
    """
    (mean, _), (trimmed_mean, n_used) = _compute_means(values)
    return np.where(n_used > 0, trimmed_mean, mean)


def _choose_largest(evidence: Iterable[Floats]) -> Floats:
    """Return the largest of several arrays of evidence, less ``_CHOICE_PENALTY``; never below 0."""
    largest = np.maximum.reduce(list(evidence))
    return np.asarray(np.maximum(largest - _CHOICE_PENALTY, 0.0), np.float64)


def _test_ratio(mean_sq: Floats, null_sq: Floats, dof: Ints, null_dof: Ints) -> Floats:
    """Return how unlikely so small a mean square is under the null hypothesis, in nats.

    This is the negated logarithm of the lower tail of Fisher's F distribution, for the ratio of the
    two mean squares. The resolution of timestamps is added to both of them.

    Args:
        mean_sq: Mean square to test.
        null_sq: Mean square under the null hypothesis.
        dof: Degrees of freedom of ``mean_sq``.
        null_dof: Degrees of freedom of ``null_sq``.

    Returns:
        Negated logarithm of the probability, at most ``_MAX_EVIDENCE``, or negative infinity if
        either mean square has no degrees of freedom.
    """
    from scipy.special import betainc

    grain = _GRAIN_NS**2
    is_known = (dof > 0) & (null_dof > 0)
    dof, null_dof = np.where(is_known, dof, 1), np.where(is_known, null_dof, 1)
    ratio = dof * (np.where(is_known, mean_sq, 0.0) + grain)
    ratio = ratio / (null_dof * (np.where(is_known, null_sq, 0.0) + grain))
    probability = betainc(dof / 2, null_dof / 2, ratio / (1 + ratio))
    surprisal = np.minimum(-np.log(np.maximum(probability, 1e-300)), _MAX_EVIDENCE)
    return np.where(is_known, surprisal, -np.inf)
