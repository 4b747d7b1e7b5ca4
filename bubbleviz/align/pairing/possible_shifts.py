"""Possible shifts between two ranks' iterations, and the evidence for and against each shift.

Ranks of a pipeline wait for each other. Every F ends on the upstream rank before the input of the
downstream rank is available. Every B ends on the downstream rank before the input of the upstream
rank is available. Replicas of a stage run their iterations at the same time. Rank pairs are
processed in batches, as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.pairing.histories import CommonEvents, Histories, list_batches, shift_values
from bubbleviz.align.pairing.iteration_fits import compute_median
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS
from bubbleviz.model.columns import Bools, Floats, Ints

#: Typical error of UTC clocks in ns, and maximum evidence in nats against larger corrections. This
#: evidence is limited because clocks may be off by several seconds.
_UTC_NS, MAX_UTC_EVIDENCE = 1e8, 4.0
#: Evidence, in nats, that captures with equal numbers of iterations contain the same iterations.
#: The second number is added if no other shift needs a smaller clock correction.
_EQUAL_COUNT_EVIDENCE, _EQUAL_TIME_EVIDENCE = 3.0, 4.5
#: Evidence, in nats, against a shift that would require a clock to have been set during the
#: capture.
_CLOCK_STEP_PENALTY = 6.0
#: Evidence, in nats, against a shift that would require a running capture to have missed an
#: iteration.
_UNRECORDED_PENALTY = 15.0
#: Evidence, in nats, against a shift for each pair of iterations with different shapes.
#: The second number limits the total evidence over all pairs of iterations.
_SHAPE_PENALTY, _MAX_SHAPE_PENALTY = 5.0, 15.0
#: Maximum number of iterations by which captures are shifted relative to each other.
_MAX_SHIFT = 256
#: Minimum evidence, in nats, for the best shift against every other shift.
#: A shift with less evidence is undecided.
DECIDED = 7.0


@dataclass(frozen=True)
class Shift:
    """A possible pairing of two ranks' iterations, and the clock correction that it implies.

    Attributes:
        iterations: Iteration number on the first rank minus the number of the same iteration on the
            second rank.
        offset_ns: Correction in ns to add to the second rank's clock.
    """

    iterations: int
    offset_ns: float


def find_possible_shifts(
    histories: Histories,
    pair: tuple[Ints, Ints],
    timed: Bools,
    events: CommonEvents | None,
    shifts: Ints,
) -> tuple[Floats, Floats, Floats]:
    """Weigh candidate shifts using all evidence except the agreement of iteration times.

    Evidence for a shift includes:

    - The shift is 0, and both captures have equal numbers of iterations.
    - The shift pairs iterations with equal rare shapes (forward and backward counts).

    Evidence against a shift includes:

    - The shift needs a large correction of UTC clocks.
    - The shift would require a clock to have been set during the capture.
    - The shift pairs iterations with different shapes.
    - The shift would require a running capture to have missed an iteration.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank in each pair.
        timed: Mask of the rank pairs for which both UTC times are known.
        events: Common events of the pairs, or None for replicas.
        shifts: Candidate shifts, shape (shifts,).

    Returns:
        offset_ns: Correction to the second clock implied by each shift, shape (pairs, shifts).
        prior: Evidence for each shift minus evidence against it, in nats, shape (pairs, shifts).
            Negative infinity for a shift that is ruled out.
        utc_penalty: Evidence against each shift from UTC times, in nats, shape (pairs, shifts).
            This evidence is already subtracted in ``prior``.
    """
    starts = histories.start_ns[pair[0]], histories.start_ns[pair[1]]
    offset_ns, is_possible = _estimate_offsets(starts, events, shifts)
    utc_penalty = np.where(timed[:, None], np.log1p((offset_ns / _UTC_NS) ** 2), 0.0)
    utc_penalty = np.minimum(utc_penalty, MAX_UTC_EVIDENCE)

    penalty = np.zeros((len(timed), len(shifts)))
    if events is not None:
        penalty += _CLOCK_STEP_PENALTY * _is_clock_set(starts[0], *events.bounds(shifts))
    rarity, shape_penalty = _compare_shapes(histories, pair, shifts)
    penalty += shape_penalty
    n_unrecorded = _count_unrecorded(histories, *pair, shifts)
    n_unrecorded = n_unrecorded + _count_unrecorded(histories, *pair[::-1], -shifts)
    penalty += _UNRECORDED_PENALTY * n_unrecorded

    counts = histories.counts
    is_equal = is_possible & (shifts == 0) & (counts[pair[0]] == counts[pair[1]])[:, None]
    distance_ns = np.where(is_possible, np.abs(offset_ns), np.inf)
    prior = _weigh_equal_counts(is_equal, timed, distance_ns) + rarity - utc_penalty - penalty
    return offset_ns, np.where(is_possible, prior, -np.inf), utc_penalty


def _weigh_equal_counts(is_equal: Bools, timed: Bools, distance_ns: Floats) -> Floats:
    """Return the evidence from equal iteration counts: the captures probably match one to one.

    A shift in ``is_equal`` gets ``_EQUAL_COUNT_EVIDENCE``. If UTC is known and no other shift needs
    a smaller clock correction, ``_EQUAL_TIME_EVIDENCE`` is added. All other shifts get 0.

    Args:
        is_equal: Mask of the shifts that pair two captures with equal numbers of iterations from
            their first iterations on, shape (pairs, shifts).
        timed: Mask of the rank pairs for which both UTC times are known.
        distance_ns: Absolute correction of the second clock for each shift, or infinity if the
            shift is ruled out, shape (pairs, shifts).

    Returns:
        Evidence in nats, shape (pairs, shifts).
    """
    is_nearest = distance_ns == distance_ns.min(axis=1)[:, None]
    is_equal_in_time = timed[:, None] & is_equal & is_nearest
    evidence: Floats = _EQUAL_COUNT_EVIDENCE * is_equal + _EQUAL_TIME_EVIDENCE * is_equal_in_time
    return evidence


def _estimate_offsets(
    starts: tuple[Floats, Floats], events: CommonEvents | None, shifts: Ints
) -> tuple[Floats, Bools]:
    """Estimate the correction to the second clock for each shift.

    For replicas, the correction is the median difference of the iteration starts. For other pairs,
    it is the midpoint of the lower and the upper bound from data dependencies. If there is only one
    bound, the correction equals that bound. If there is no bound, the correction is 0.

    Args:
        starts: Iteration starts on the first and the second rank in each pair, each of shape
            (pairs, iterations).
        events: Common events of the pairs, or None for replicas.
        shifts: Candidate shifts, shape (shifts,).

    Returns:
        offset_ns: Correction in ns, shape (pairs, shifts). NaN for replicas without a common
            iteration.
        is_possible: Mask of the shifts with a common iteration (for replicas) or a common event.
    """
    if events is None:
        offset_ns = compute_median(starts[0][:, None] - shift_values(starts[1], shifts))
        return offset_ns, ~np.isnan(offset_ns)
    lower, upper = events.compute_loose_bounds(shifts)
    has_lower, has_upper = np.isfinite(lower), np.isfinite(upper)
    total = np.where(has_lower, lower, 0.0) + np.where(has_upper, upper, 0.0)
    n_bounds = has_lower.astype(np.int64) + has_upper
    return total / np.maximum(n_bounds, 1), has_lower | has_upper


def _compare_shapes(
    histories: Histories, pair: tuple[Ints, Ints], shifts: Ints
) -> tuple[Floats, Floats]:
    """Compare the shapes (forward and backward counts) of the iterations paired by a shift.

    Two iterations rarely have the same unusual shape by chance, for example the shape of an
    evaluation. Two equal shapes give the evidence ``-log(fraction)``, where ``fraction`` is the
    fraction of the first rank's iterations that have this shape. Iterations of unknown shape are
    ignored.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank in each pair.
        shifts: Candidate shifts, shape (shifts,).

    Returns:
        rarity: Evidence for each shift in nats, summed over paired iterations with equal shapes,
            shape (pairs, shifts).
        penalty: Evidence against each shift in nats, shape (pairs, shifts): ``_SHAPE_PENALTY`` per
            pair of iterations with different shapes, limited to ``_MAX_SHAPE_PENALTY``.
    """
    shapes = histories.shapes[pair[0]]
    paired = shift_values(histories.shapes[pair[1]], shifts)
    is_unequal = (shapes[:, None] != paired) & ~np.isnan(shapes[:, None]) & ~np.isnan(paired)
    n_unequal = np.count_nonzero(is_unequal, axis=2)
    penalty = np.minimum(_SHAPE_PENALTY * n_unequal, _MAX_SHAPE_PENALTY)

    n_equal = np.count_nonzero(shapes[:, :, None] == shapes[:, None], axis=2)
    n_shapes = np.count_nonzero(~np.isnan(shapes), axis=1)[:, None]
    rarity = np.log(np.maximum(n_shapes, 1) / np.maximum(n_equal, 1))
    evidence = np.where(shapes[:, None] == paired, rarity[:, None], 0.0).sum(axis=2)
    return evidence, penalty


def _is_clock_set(start_ns: Floats, lower: Floats, upper: Floats) -> Bools:
    """Return a mask of the shifts for which no offset satisfies the bounds from all iterations.

    Clocks may drift by ``DRIFT`` times the elapsed time. If a lower and an upper bound contradict
    each other by more than this drift plus ``GRAIN_NS``, the shift would require a clock to have
    been set during the capture.

    Args:
        start_ns: Start of each iteration on the first rank, shape (pairs, iterations).
        lower: Lower bound on the correction in each iteration, shape (pairs, shifts, iterations).
        upper: Upper bound on the correction in each iteration, same shape as ``lower``.

    Returns:
        Mask of the shifts that require a clock to have been set, shape (pairs, shifts).
    """
    elapsed_ns = np.fmax.accumulate(start_ns, axis=1) - start_ns[:, :1]
    drift_ns = DRIFT * elapsed_ns[:, None]
    lower = np.maximum.accumulate(lower + drift_ns, axis=2) - drift_ns
    upper = np.minimum.accumulate(upper - drift_ns, axis=2) + drift_ns
    return np.asarray((lower > upper + GRAIN_NS).any(axis=2), bool)


def _count_unrecorded(histories: Histories, a: Ints, b: Ints, shifts: Ints) -> Ints:
    """Count the iterations missing before rank b's first iteration and after its last iteration.

    The starts of these two iterations are predicted from rank a (:func:`_predict_starts`):

    - The iteration before b's first one is missing if b's capture began more than half an iteration
      before its predicted start.
    - The iteration after b's last one is missing if b's capture ended more than half an iteration
      after its predicted start.

    Args:
        histories: Iteration times of all ranks.
        a: One rank in each pair.
        b: The other rank in each pair.
        shifts: Candidate shifts of b relative to a, shape (shifts,).

    Returns:
        Number of missing iterations (0, 1 or 2), shape (pairs, shifts).
    """
    previous_ns, next_ns = _predict_starts(histories, a, b, shifts)
    margin_ns = histories.length_ns[a][:, None] / 2
    first_recorded_ns, last_recorded_ns = (times[b][:, None] for times in histories.recorded_ns)
    is_missing_before = (first_recorded_ns < previous_ns - margin_ns).astype(np.int64)
    is_missing_after = last_recorded_ns > next_ns + margin_ns
    return np.asarray(is_missing_before + is_missing_after, np.int64)


def _predict_starts(histories: Histories, a: Ints, b: Ints, shifts: Ints) -> tuple[Floats, Floats]:
    """Predict the start of the iteration before rank b's first one and of the one after its last.

    The time from one iteration to the next is taken from rank a, whose iteration ``i + shift`` is
    paired with iteration ``i`` of rank b. With ``last`` as the index of b's last iteration::

        previous_ns = b[0] - (a[shift] - a[shift - 1])
        next_ns = b[last] + (a[last + shift + 1] - a[last + shift])

    Args:
        histories: Iteration times of all ranks.
        a: One rank in each pair.
        b: The other rank in each pair.
        shifts: Candidate shifts of b relative to a, shape (shifts,).

    Returns:
        previous_ns: Start of the iteration before b's first one, shape (pairs, shifts). NaN if a
            did not record both of its iterations.
        next_ns: Start of the iteration after b's last one, shape (pairs, shifts). NaN if a did not
            record both of its iterations.
    """
    starts, last = histories.start_ns[b], histories.counts[b][:, None] - 1
    # Step k goes from iteration k - 1 of a to iteration k. NaN before the first and after the last.
    padding = ((0, 0), (1, 1))
    step_ns = np.pad(np.diff(histories.start_ns[a], axis=1), padding, constant_values=np.nan)
    row, last_step = np.arange(len(a))[:, None], step_ns.shape[1] - 1
    step_before_ns = step_ns[row, np.clip(shifts, 0, last_step)]
    step_after_ns = step_ns[row, np.clip(last + 1 + shifts, 0, last_step)]
    return starts[:, :1] - step_before_ns, starts[row, last] + step_after_ns


def find_shifts(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints, is_replica: Bools
) -> list[int | None]:
    """Find the shift between the iterations of the two ranks in each pair whose clocks agree.

    Every F of a microbatch ends on the upstream rank before it ends on the downstream rank, and
    every B ends on the downstream rank first. A shift's violation is the number of ns by which it
    breaks this order (:func:`_measure_violations`). Ends are compared because a span may begin with
    kernels that need no input. Replicas run their iterations at the same time, so their violation
    is the median difference of the iteration starts.

    The first applicable rule in this list determines the shift:

    1. Shift 0, if both ranks have equal numbers of iterations and the violation of shift 0 is at
       most a quarter of an iteration.
    2. The shift without violation. If there are several, the one closest to 0 wins.
    3. The shift with the smallest violation, if the violation is at most a quarter of an iteration
       and no other shift has the same violation.
    4. Shift 0, if both ranks have equal numbers of iterations (at least one), and they are replicas
       or shift 0 has the smallest violation.

    Args:
        histories: Iteration times of all ranks.
        first: One rank in each pair.
        second: The other rank in each pair, which exchanges microbatches with the first or is its
            replica.
        by_ns: For each pair, the correction in ns that converts the second rank's clock to the
            first rank's clock.
        is_replica: Mask of the replica pairs.

    Returns:
        For each pair, the iteration number on the first rank minus the number of the same iteration
        on the second rank, or None if no rule applies.
    """
    shift_of_pair: list[int | None] = [None] * len(first)
    candidates = list_shifts(histories)
    for pairs, events in list_batches(histories, first, second, by_ns, is_replica):
        a, b = first[pairs], second[pairs]
        shifts = _find_shifts_of_batch(histories, (a, b), by_ns[pairs], events, candidates)
        for pair, shift in zip(pairs.tolist(), shifts, strict=True):
            shift_of_pair[pair] = shift
    return shift_of_pair


def _find_shifts_of_batch(
    histories: Histories,
    pair: tuple[Ints, Ints],
    by_ns: Ints,
    events: CommonEvents | None,
    shifts: Ints,
) -> list[int | None]:
    """Find the shift for each pair in a batch, using the rules of :func:`find_shifts`.

    Args:
        histories: Iteration times of all ranks.
        pair: First and second rank in each pair.
        by_ns: For each pair, the correction in ns that converts the second rank's clock to the
            first rank's clock.
        events: Common events of the pairs, or None for replicas.
        shifts: Candidate shifts, closest to 0 first.
    """
    starts = histories.start_ns[pair[0]], histories.start_ns[pair[1]] + by_ns[:, None]
    max_cost_ns = histories.length_ns[pair[0]] // 4
    counts = histories.counts
    has_equal_counts = counts[pair[0]] == counts[pair[1]]
    # Shift 0 is usually correct, so it is tried first.
    cost_of_zero = _measure_violations(starts, events, np.zeros(1, np.int64))[:, 0]
    is_in_order = has_equal_counts & (cost_of_zero <= max_cost_ns)
    shift_of_pair: list[int | None] = [0] * len(is_in_order)
    remaining = np.flatnonzero(~is_in_order)
    if len(remaining) == 0:
        return shift_of_pair
    starts = starts[0][remaining], starts[1][remaining]
    costs = _measure_violations(starts, events and events.take(remaining), shifts)
    can_stay = has_equal_counts & (counts[pair[0]] > 0)
    for row, cost in zip(remaining.tolist(), costs, strict=True):
        shift_of_pair[row] = _choose_shift(
            shifts, cost, max_cost_ns[row], can_stay=can_stay[row], is_replica=events is None
        )
    return shift_of_pair


def _choose_shift(
    shifts: Ints, cost: Floats, max_cost: float, *, can_stay: bool, is_replica: bool
) -> int | None:
    """Choose a rank pair's shift with the smallest violation, or None if no shift qualifies.

    The rules are rules 2 to 4 of :func:`find_shifts`.

    Args:
        shifts: Candidate shifts, closest to 0 first.
        cost: Violation of each shift, or NaN if the pair has no dependencies under the shift.
        max_cost: Maximum violation that rule 3 allows.
        can_stay: Whether both ranks have the same number of iterations, which must be at least one.
            Shift 0 may then be used even if no shift qualifies otherwise.
        is_replica: Whether the ranks are replicas.
    """
    min_cost = np.nanmin(cost, initial=np.inf)
    cheapest = shifts[cost == min_cost]
    if min_cost == 0 or (len(cheapest) == 1 and min_cost <= max_cost):
        return int(cheapest[0])
    # Replicas are not shifted if their iterations do not start at the same time.
    return 0 if can_stay and (is_replica or 0 in cheapest) else None


def list_shifts(histories: Histories) -> Ints:
    """List the shifts at which two ranks can have common iterations, for example 0, -1, 1, -2, 2.

    The largest shift is ``_MAX_SHIFT``, or the maximum number of iterations minus 1 if that is
    smaller.
    """
    max_shift = min(histories.start_ns.shape[1] - 1, _MAX_SHIFT)
    shifts = np.arange(-max_shift, max_shift + 1)
    return shifts[np.argsort(np.abs(shifts), kind="stable")]


def _measure_violations(
    starts: tuple[Floats, Floats], events: CommonEvents | None, shifts: Ints
) -> Floats:
    """Measure by how many ns each shift violates the data dependencies, shape (pairs, shifts).

    The result is the size of the largest violation, or 0 if no dependency is violated. For replicas
    (``events`` is None), it is the median absolute difference of the iteration starts, rounded
    down. The result is NaN if the pair has no dependencies, or no common iteration, at this shift.

    Args:
        starts: Iteration starts on the first and the second rank in each pair, on one clock.
        events: Common events of the pairs, or None for replicas.
        shifts: Candidate shifts, shape (shifts,).
    """
    if events is None:
        return np.floor(
            compute_median(np.abs(starts[0][:, None] - shift_values(starts[1], shifts)))
        )
    lower, upper = events.compute_loose_bounds(shifts)
    is_bounded = np.isfinite(lower) | np.isfinite(upper)
    violation_ns = np.maximum(np.maximum(lower, -upper), 0.0)
    return np.where(is_bounded, violation_ns, np.nan)
