"""Iteration fits: evidence for a shift between two ranks, based on how well their times agree.

Ranks that wait for each other have long and short iterations at the same time. If iterations are
paired correctly, the time from an event to the same event of the next iteration (a *step*) is
nearly equal on both ranks. If iterations are paired incorrectly, steps of the two ranks differ as
much as any two steps of one rank do::

    rank a   ├───────┤├─────────┤├──────┤├────────┤
    rank b       ├───────┤├─────────┤├──────┤├────────┤      shift 0: steps differ by microseconds
    rank b              ├───────┤├─────────┤├──────┤         shift 1: steps differ as iterations do

All shifts are tested at once:

1. Compute both ranks' steps, with the typical step subtracted (``_compute_steps``).
2. Compare every step of rank a with every step of rank b (``_compare_all``). Two steps differ by a
   mean over the events of the iteration (the *level*) and a variance (the *scatter*).
3. Read each shift's diagonal from the resulting matrix (``_select_diagonals``) and average the
   squares of its cells. The cell in row i and column j belongs to shift i - j::

                        steps of rank b
                         0    1    2    3
       steps of     0    0   -1   -2   -3
       rank a       1    1    0   -1   -2
                    2    2    1    0   -1
                    3    3    2    1    0

4. Compare each rank with itself in the same way (``_measure_null``). Under the null hypothesis, two
   ranks differ by as much as different iterations on one rank.
5. Compute the evidence for each shift with an F test (``_test_ratio``): how unlikely it is, under
   the null hypothesis, to find such a small mean square on the shift's diagonal.
6. Limit the evidence by a nonparametric test (``_match_surprisal``), because iteration times do not
   follow any known distribution.

Only durations are compared, and each duration is measured with a single clock, so the clocks of the
two ranks need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints

#: Resolution of timestamps in ns. Smaller differences between steps are not treated as evidence.
_GRAIN_NS = 200.0
#: A trimmed mean of at least ``_TRIM_ONE`` values leaves out the largest value.
#: A trimmed mean of at least ``_TRIM_TWO`` values leaves out the two largest.
_TRIM_ONE, _TRIM_TWO = 3, 6
#: Maximum degrees of freedom of the scatter (the variance of step differences over the events).
_MAX_SCATTER_DOF = 4
#: Penalty, in nats, for choosing the largest of several evidence values computed from the same
#: data.
_CHOICE_PENALTY = math.log(2)
#: Maximum evidence, in nats, from the distance between a step and its nearest neighbor.
_MAX_OUTLIER_EVIDENCE = 3.0
#: Maximum evidence for a shift, and maximum evidence of a single F test, in nats.
_MAX_EVIDENCE = 60.0
#: Means, and the number of values (or degrees of freedom) for each mean. The number is 0 if the
#: mean is unavailable.
_Means = tuple[Floats, Ints]


@dataclass(frozen=True)
class _Differences:
    """Differences between every step on rank a and every step on rank b.

    A step is the time from an event to the same event of the next iteration. Rank a and rank b may
    be the same rank.

    Attributes:
        level_ns: Mean difference over the events, shape (pairs, steps of a, steps of b). NaN if the
            two steps have too few events in common.
        scatter: Variance of the differences over the events, in ns², same shape as ``level_ns``.
    """

    level_ns: Floats
    scatter: Floats


@dataclass(frozen=True)
class _NullStatistics:
    """Mean square differences between steps on the same rank, shape (pairs, steps).

    Column 0 covers all pairs of different steps. Column k > 0 covers the pairs that are k
    iterations apart.

    Attributes:
        level_sq: Mean square of the levels (mean differences over the events) in ns², or infinity
            if no two steps can be compared.
        scatter: Mean scatter (variance over the events) in ns², or infinity if no two steps can be
            compared.
        dof: Degrees of freedom of ``level_sq``, or 0 if no two steps can be compared.
    """

    level_sq: Floats
    scatter: Floats
    dof: Ints


@dataclass(frozen=True)
class StepComparison:
    """How much the steps of the two ranks in each pair differ at each candidate shift.

    A step is the time from an event to the same event of the next iteration. The difference between
    two steps has a level (the mean over the events) and a scatter (the variance over the events).

    Attributes:
        levels: Mean squares of the levels and their degrees of freedom, each of shape
            (pairs, shifts), in four variants: with and without the largest values, and with clock
            drift added as noise or subtracted (:func:`_compute_mean_squares`).
        scatters: Means of the scatter and their numbers of values, each of shape (pairs, shifts),
            with and without the largest values. Empty if scatters are not compared.
        null: Statistics of the differences between different iterations on one rank.
        scatter_dof: Degrees of freedom of the scatter of one pair of steps.
        max_evidence: Upper bound on the evidence for each shift in nats, shape (pairs, shifts).
    """

    levels: tuple[_Means, ...]
    scatters: tuple[_Means, ...]
    null: _NullStatistics
    scatter_dof: int
    max_evidence: Floats

    def compute_evidence(self, lags: Ints | None = None, shift_index: Ints | None = None) -> Floats:
        """Compute, in nats, the evidence for each shift: how unlikely its agreement is by chance.

        The evidence is the negated logarithm of the probability that, under the null hypothesis,
        steps agree at least this well. The null hypothesis is that paired steps belong to different
        iterations, so they differ as much as two steps of one rank. If iterations repeat a pattern,
        steps that are a period apart are nearly equal. If ``lags`` is given, the null hypothesis
        therefore uses only steps that are ``lags`` iterations apart.

        1. Each variant of ``levels`` is tested against the null level. If ``scatter_dof`` is
           positive, it is also tested against the smaller of the null level and the null scatter,
           because with few iterations the scatter is a better measure of how much a step varies.
        2. Each variant of ``scatters`` is tested against the null scatter.
        3. The largest evidence from levels and the largest from scatters are each reduced by a
           penalty for choosing the largest (:func:`_choose_largest`). If both are available, their
           sum ``s`` becomes ``s - log(1 + s)``.
        4. The result is limited to ``max_evidence`` and ``_MAX_EVIDENCE``.

        Args:
            lags: Columns of the null statistics to test each shift against, shape (pairs, shifts):
                a distance in iterations, or 0 for any two different steps. By default, column 0
                is used for all shifts.
            shift_index: Index of the single shift to test for each pair, shape (pairs,). Column k
                of the result is then the evidence for this shift, tested against column k of
                ``lags``. By default, each shift is tested.

        Returns:
            Evidence in nats, shape (pairs, shifts), never negative. The evidence is 0 if no steps
            can be compared, or if there are no null statistics.
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
    """Select the means and counts for one shift per pair, each of shape (pairs, 1)."""
    index = shift_index[:, None]
    return tuple(
        (np.take_along_axis(mean, index, axis=1), np.take_along_axis(count, index, axis=1))
        for mean, count in means
    )


def compare_steps(
    a_ns: Floats, b_ns: Floats, shifts: Ints, bounds: tuple[Floats, Floats] | None = None
) -> list[StepComparison]:
    """Compare the steps of the ranks in each pair (a, b) for each candidate shift.

    A step is the time from an event to the same event of the next iteration. For each shift, step i
    of rank a is compared with step i - shift of rank b. The result contains statistics of these
    differences and of the differences between steps on the same rank.

    Args:
        a_ns: Event times in ns on the first rank in each pair, shape (pairs, iterations, events).
            NaN if missing.
        b_ns: Times of the same events on the second rank in each pair, same shape as ``a_ns``.
        shifts: Candidate shifts, shape (shifts,). Iteration i of rank a is paired with iteration
            i - shift of rank b.
        bounds: Lower and upper bounds on rank b's clock correction in ns, each of shape (pairs,
            shifts, iterations of a). An infinite value means no bound. By default, only event times
            are compared.

    Returns:
        A list that contains the comparison of the event times. If ``bounds`` is given, the list
        also contains a comparison of the bounds. The levels of this second comparison are the
        changes of the midpoint between the two bounds from one iteration to the next. The second
        comparison has no scatters, and the same null statistics as the first.
    """
    a_steps, b_steps, typical_ns = _compute_steps(a_ns, b_ns)
    scatter_dof = min(max(a_steps.shape[2] - 1, 0), _MAX_SCATTER_DOF)
    within_a, within_b = _compare_all(a_steps, a_steps), _compare_all(b_steps, b_steps)
    cross = _compare_all(a_steps, b_steps)

    within_sq = within_a.level_ns**2 + within_a.scatter, within_b.level_ns**2 + within_b.scatter
    cross_sq = _square_beyond_drift(cross.level_ns, typical_ns) + cross.scatter
    comparison = StepComparison(
        levels=_compute_mean_squares(_select_diagonals(cross.level_ns, shifts), typical_ns),
        scatters=_compute_means(_select_diagonals(cross.scatter, shifts)),
        null=_measure_null(within_a, within_b),
        scatter_dof=scatter_dof,
        max_evidence=_bound_evidence(cross_sq, within_sq, shifts, 1 + scatter_dof),
    )
    if bounds is None:
        return [comparison]
    levels, max_evidence = _compare_midpoints(
        bounds, (within_a.level_ns, within_b.level_ns), typical_ns, shifts
    )
    return [comparison, replace(comparison, levels=levels, scatters=(), max_evidence=max_evidence)]


def _compare_midpoints(
    bounds: tuple[Floats, Floats],
    within_level_ns: tuple[Floats, Floats],
    typical_ns: Floats,
    shifts: Ints,
) -> tuple[tuple[_Means, ...], Floats]:
    """Measure how steady the midpoint between the bounds on a clock correction is at each shift.

    If iterations are paired correctly, the midpoint hardly changes from one iteration to the next.

    Args:
        bounds: Lower and upper bounds on rank b's clock correction, each of shape (pairs, shifts,
            iterations of a).
        within_level_ns: Mean differences between the steps of rank a, and between the steps of
            rank b, each of shape (pairs, steps, steps).
        typical_ns: Median step of each pair in ns, shape (pairs,).
        shifts: Candidate shifts, shape (shifts,).

    Returns:
        levels: Mean squared changes of the midpoint, as in :class:`StepComparison`.
        max_evidence: Upper bound on the evidence for each shift in nats, shape (pairs, shifts).
    """
    changes_ns = _compute_midpoint_steps(bounds)
    cross_ns = _fill_diagonals(changes_ns, within_level_ns[0].shape, shifts)
    cross_sq = _square_beyond_drift(cross_ns, typical_ns)
    within_sq = within_level_ns[0] ** 2, within_level_ns[1] ** 2
    max_evidence = _bound_evidence(cross_sq, within_sq, shifts, 1)
    return _compute_mean_squares(changes_ns, typical_ns), max_evidence


def _compute_steps(a_ns: Floats, b_ns: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute the time from each event to the same event of the next iteration.

    The typical step of a pair (the median over all steps and events of both ranks) is subtracted,
    which keeps rounding errors small.

    Args:
        a_ns: Event times on the first rank in each pair, shape (pairs, iterations, events). NaN if
            missing.
        b_ns: Event times on the second rank in each pair.

    Returns:
        a_steps: Steps on the first rank in each pair minus the typical step, shape (pairs,
            iterations - 1, events).
        b_steps: Steps on the second rank in each pair minus the typical step.
        typical_ns: Typical step of each pair in ns, or 0 if the pair has no steps.
    """
    a_steps, b_steps = np.diff(a_ns, axis=1), np.diff(b_ns, axis=1)
    all_steps = [steps.reshape(len(steps), -1) for steps in (a_steps, b_steps)]
    typical_ns = np.nan_to_num(compute_median(np.concatenate(all_steps, axis=1)))
    subtracted = typical_ns[:, None, None]
    return a_steps - subtracted, b_steps - subtracted, typical_ns


def _compute_midpoint_steps(bounds: tuple[Floats, Floats]) -> Floats:
    """Compute how much the midpoint between two bounds changes from one iteration to the next.

    Args:
        bounds: Lower and upper bounds, each of shape (pairs, shifts, iterations).

    Returns:
        Midpoint of an iteration minus midpoint of the previous one, shape
        (pairs, shifts, iterations - 1). NaN unless both bounds are finite in both iterations.
    """
    is_bounded = np.isfinite(bounds[0]) & np.isfinite(bounds[1])
    lower, upper = (np.where(is_bounded, bound, np.nan) for bound in bounds)
    return np.diff((lower + upper) / 2, axis=2)


def _bound_evidence(
    cross_sq: Floats, within_sq: tuple[Floats, Floats], shifts: Ints, dof: int
) -> Floats:
    """Return an upper bound on the evidence for each shift, in nats, shape (pairs, shifts).

    The bound is the sum of the surprisals of the paired steps (how surprising it is that they are
    so similar). The surprisal of a pair of steps is computed relative to each of the two ranks
    (:func:`_match_surprisal`), and the smaller value is used. Pairs that cannot be compared add
    nothing.

    Args:
        cross_sq: Mean square difference between each step on rank a and each step on rank b, shape
            (pairs, steps of a, steps of b).
        within_sq: Mean square differences between the steps of rank a, and between the steps of
            rank b, each of shape (pairs, steps, steps).
        shifts: Candidate shifts, shape (shifts,).
        dof: Number of independent values per mean square.
    """
    of_a = _match_surprisal(cross_sq, within_sq[0], dof)
    of_b = _match_surprisal(cross_sq.swapaxes(1, 2), within_sq[1], dof).swapaxes(1, 2)
    surprisal = _select_diagonals(np.minimum(of_a, of_b), shifts)
    return np.asarray(np.nansum(surprisal, axis=2), np.float64)


def _square_beyond_drift(level_ns: Floats, typical_ns: Floats) -> Floats:
    """Return the squares of the levels after subtracting the maximum clock drift during one step.

    The maximum drift is ``DRIFT`` times the typical step. Levels that do not exceed this drift
    become 0.

    Args:
        level_ns: Mean differences between steps, shape (pairs, steps of a, steps of b).
        typical_ns: Typical (median) step of each pair in ns.
    """
    max_drift_ns = (DRIFT * typical_ns)[:, None, None]
    return np.asarray(np.maximum(np.abs(level_ns) - max_drift_ns, 0.0) ** 2, np.float64)


def _match_surprisal(cross_sq: Floats, within_sq: Floats, dof: int) -> Floats:
    """Return, in nats, how surprising it is that the steps of two ranks are this similar.

    The null hypothesis is that step j of the other rank is unrelated to step i of this rank. An
    empirical distribution is used, because iteration times do not follow any known distribution.
    For example, training iterations may agree to the nanosecond while an evaluation takes much
    longer. Therefore, step j is ranked among the n other steps on *this* rank by its distance from
    step i. The surprisal depends on the number of steps that are closer to step i than step j is
    (``n_closer``, including ties)::

        n_closer > 0    log((n + 1) / n_closer)
        n_closer == 0   log(n + 1) + volume term, which grows the closer j is to i

    The volume term is computed by :func:`_compute_volume_term`.

    Args:
        cross_sq: Mean square difference of step i of this rank and step j of the other rank, shape
            (pairs, n_i, n_j). NaN if unknown.
        within_sq: Mean square differences between steps of this rank, shape (pairs, n_i, n_i). The
            diagonal is ignored.
        dof: Number of independent values per mean square.

    Returns:
        Surprisal, same shape as ``cross_sq``. NaN where ``cross_sq`` is NaN, otherwise infinity for
        a step i that cannot be compared with any other step of this rank.
    """
    n_within = within_sq.shape[2]
    within_sq = np.where(np.eye(n_within, dtype=bool), np.nan, within_sq)
    n_comparable = _count(within_sq)[..., None]

    # The sort is stable and the differences within the rank come first, so ties are counted in
    # n_closer.
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
    """Return how much closer a step is to its match than to its neighbor, as a log volume ratio.

    A step's neighbor is the most similar other step on the same rank, and its match is the step on
    the other rank. In ``dof`` dimensions, the volume within a distance grows as distance ** dof.
    With the resolution of timestamps (``_GRAIN_NS``), the log ratio is::

        log((neighbor_sq + _GRAIN_NS**2) / (cross_sq + _GRAIN_NS**2)) * dof / 2

    An outlier's neighbor reveals little about how much similar steps vary, so the log ratio is
    limited to ``_MAX_OUTLIER_EVIDENCE``. The log ratio is also computed with the distance between
    the two closest steps of the rank in place of ``neighbor_sq``. The larger value is returned.

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
    """Compute the mean squared level for each shift in four variants.

    A drifting clock changes all steps on a rank by the same factor. The maximum drift is ``DRIFT``
    times the typical step. The variants are:

    1. The square of the maximum drift is added to the mean square, as noise.
    2. Same as variant 1, but without the largest values (:func:`_compute_means`).
    3. The median level, limited to the maximum drift, is subtracted from all levels. Subtracting
       the median costs one degree of freedom, and requires at least ``_TRIM_ONE`` levels.
    4. Same as variant 3, but without the largest values.

    Args:
        level_ns: Mean differences of paired steps, shape (pairs, shifts, steps).
        typical_ns: Typical (median) step of each pair in ns.

    Returns:
        Four tuples of means and their degrees of freedom, each array of shape (pairs, shifts). The
        degrees of freedom are 0 for a variant that is unavailable.
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
    """Measure, for each pair of ranks, how much the steps of one rank differ from one another.

    Both ranks of a pair are measured, for each lag (number of iterations between two steps). The
    smaller of their two means is used. Ranks that wait for each other vary together, so their
    differences are not independent. The degrees of freedom are therefore not added. The larger of
    the two ranks' numbers of differences is used, but no more than the number of steps on the first
    rank. Lags at which either rank has fewer than ``_TRIM_ONE`` differences get the degrees of
    freedom of column 0 (any two steps).

    Args:
        a: Differences between the steps of the first rank in each pair.
        b: Differences between the steps of the second rank in each pair.
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
    """Compute the mean squared differences between steps on one rank, for each lag.

    A lag is the number of iterations between two steps.

    Args:
        within: Differences between the steps of one rank, for each rank pair.

    Returns:
        level_sq: Trimmed mean square of the levels (mean differences between two steps), shape
            (pairs, steps). Column 0 covers all pairs of different steps. Column k > 0 covers the
            pairs that are k iterations apart. Columns with fewer than ``_TRIM_ONE`` values contain
            the mean of column 0, because few values do not show a repeating pattern.
        scatter: Trimmed mean of the scatter (variance of the differences between two steps), with
            the same shape and columns as ``level_sq``.
        count: Number of levels covered by each column, same shape as ``level_sq``.
    """
    n_steps = within.level_ns.shape[1]
    is_upper = np.triu(np.ones((n_steps, n_steps), bool), 1)
    lags = np.arange(1, n_steps)

    def compute_means(values: Floats) -> tuple[Floats, Ints]:
        """Return trimmed means and value counts, first for any two steps, then for each lag."""
        parts = values[:, None, is_upper], _select_diagonals(values, lags)
        count = np.concatenate([_count(part) for part in parts], axis=1)
        mean = np.concatenate([_compute_trimmed_mean(part) for part in parts], axis=1)
        return np.where(_is_sparse(count), mean[:, :1], mean), count

    level_sq, count = compute_means(within.level_ns**2)
    scatter, _ = compute_means(within.scatter)
    return level_sq, scatter, count


def _is_sparse(count: Ints) -> Bools:
    """Return a mask of the columns with fewer than ``_TRIM_ONE`` values. Column 0 is always False.

    Args:
        count: Number of values in each column, shape (pairs, steps).
    """
    is_sparse: Bools = count < _TRIM_ONE
    is_sparse[:, :1] = False
    return is_sparse


def _compare_all(a_steps: Floats, b_steps: Floats) -> _Differences:
    """Compare every step on one rank with every step on another, using matrix products.

    The level of two steps is the mean of ``a - b`` over their common events, and the scatter is the
    population variance of ``a - b``. Let n be the largest number of common events of any two steps
    of the pair. Two steps are compared only if they have at least ``max(n / 4, 1)`` common events.

    Args:
        a_steps: Steps of the first rank in each pair, shape (pairs, steps, events). NaN if missing.
        b_steps: Steps of the second rank in each pair, shape (pairs, steps, events).
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
    """Select each shift's diagonal from a matrix over the steps of two ranks.

    Args:
        matrix: Value for each step of rank a and each step of rank b, shape
            (pairs, steps of a, steps of b).
        shifts: For each diagonal, the row minus the column of its cells.

    Returns:
        Value for step i of rank a and step i - shift of rank b, shape (pairs, shifts, steps of a).
        NaN if rank b has no step i - shift.
    """
    row, column, exists = _index_diagonals(matrix.shape, shifts)
    return np.where(exists, matrix[:, row, column], np.nan)


def _fill_diagonals(values: Floats, shape: tuple[int, ...], shifts: Ints) -> Floats:
    """Build a matrix from its diagonals; the inverse of :func:`_select_diagonals`.

    All other cells of the matrix are NaN.

    Args:
        values: Values on the diagonals, shape (pairs, shifts, steps of a). Values whose column is
            outside the matrix are ignored.
        shape: Shape of the matrix, (pairs, steps of a, steps of b).
        shifts: For each diagonal, the row minus the column of its cells.
    """
    matrix = np.full(shape, np.nan)
    row, column, exists = _index_diagonals(shape, shifts)
    matrix[:, row[exists], column[exists]] = values[:, exists]
    return matrix


def _index_diagonals(shape: tuple[int, ...], shifts: Ints) -> tuple[Ints, Ints, Bools]:
    """Return the row and column of each cell on the diagonals, and whether the cell exists.

    All three arrays have shape (shifts, steps of a). The column is ``row - shift``, or 0 if this
    column is outside the matrix.

    Args:
        shape: Shape of the matrix, (pairs, steps of a, steps of b).
        shifts: For each diagonal, the row minus the column of its cells.
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
    """Return the median along the last axis, ignoring NaNs, or NaN if there are no values.

    Unlike ``numpy.nanmedian``, this function does not warn about empty slices.
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

    NaNs are ignored. Each mean is returned with the number of values that it averages. The second
    mean leaves out the largest value, or the two largest if there are ``_TRIM_TWO`` or more values.
    If a clock was set once, a single step is too long, and the second mean leaves it out. With
    fewer than ``_TRIM_ONE`` values, the second mean is unavailable and its count is 0.
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
    """Return the mean along the last axis without the largest values (see :func:`_compute_means`).

    With fewer than ``_TRIM_ONE`` values, the mean of all values is returned.
    """
    (mean, _), (trimmed_mean, n_used) = _compute_means(values)
    return np.where(n_used > 0, trimmed_mean, mean)


def _choose_largest(evidence: Iterable[Floats]) -> Floats:
    """Return ``max(evidence) - _CHOICE_PENALTY`` elementwise, with negative results set to 0."""
    largest = np.maximum.reduce(list(evidence))
    return np.asarray(np.maximum(largest - _CHOICE_PENALTY, 0.0), np.float64)


def _test_ratio(mean_sq: Floats, null_sq: Floats, dof: Ints, null_dof: Ints) -> Floats:
    """Return the surprisal, in nats, of a mean square this small under the null hypothesis.

    The surprisal is the negated logarithm of the lower tail of Fisher's F distribution, for the
    ratio of the two mean squares. The squared resolution of timestamps (``_GRAIN_NS``) is added to
    both mean squares first.

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
