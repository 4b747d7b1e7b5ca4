"""Inference of the shift between the iteration numbers of two ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bubbleviz.align.pairing.histories import Histories, PassedOn
from bubbleviz.align.pairing.iteration_fits import compute_median
from bubbleviz.align.pairing.possible_shifts import find_shifts

MS = 1_000_000
#: Length of an iteration:
#: F and B of two stages, 10 ms each.
PERIOD = 40 * MS


def build_history(captured: Sequence[range], stages: Sequence[int], offset_ns: int) -> Histories:
    """Build the histories of two ranks that recorded the given iterations of a run.

    An iteration starts every ``PERIOD``. The second rank's clock is ahead by ``offset_ns``.
    """
    start, ready, end = np.full((3, 5, 6), np.nan)
    for rank, (iterations, stage) in enumerate(zip(captured, stages, strict=True)):
        begin_ns = np.array(iterations) * PERIOD + rank * offset_ns
        n_iterations = len(iterations)
        ready_ms, end_ms = (((0, 30), (10, 40)), ((10, 20), (20, 30)))[stage]
        start[rank, :n_iterations] = begin_ns + ready_ms[0] * MS
        for is_backward in (0, 1):
            row = 2 * rank + is_backward
            ready[row, :n_iterations] = begin_ns + ready_ms[is_backward] * MS
            end[row, :n_iterations] = begin_ns + end_ms[is_backward] * MS
    ranks, is_backward_of_row = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    zeros = np.zeros(4, np.int64)
    passed_on = PassedOn(ranks, zeros, zeros, is_backward_of_row, np.array(stages)[ranks])
    length_ns, recorded_ns = np.full(2, float(PERIOD)), (np.zeros(2, np.int64),) * 2
    return Histories(start[:2], start[:2], start[:2], length_ns, recorded_ns, passed_on, ready, end)


@pytest.mark.parametrize(
    ("above", "below", "offset_ns", "replicas", "expected"),
    [
        # Data dependencies determine the shift.
        (range(5), range(5), 0, False, 0),
        (range(5), range(1, 5), 0, False, 1),
        (range(1, 5), range(5), 0, False, -1),
        (range(6), range(2, 6), 0, False, 2),
        (range(4), range(1, 5), 0, False, 1),
        # With equal counts, a violation below a quarter of an iteration leaves the shift at 0.
        (range(4), range(4), -19 * MS, False, 0),
        # If the violation is larger, a different shift without violations wins.
        (range(4), range(4), -30 * MS, False, -1),
        (range(0), range(3), 0, False, None),
        # Replicas are paired by the starts of their iterations.
        (range(5), range(1, 5), 2 * MS, True, 1),
        # An offset of half an iteration leaves the shift undecided unless the counts are equal.
        (range(5), range(5), PERIOD // 2, True, 0),
        (range(5), range(4), PERIOD // 2, True, None),
        (range(5), range(0), 0, True, None),
    ],
)
def test_the_shift_between_ranks_on_one_clock_is_found(
    above: range, below: range, offset_ns: int, replicas: bool, expected: int | None
) -> None:
    ranks = build_history((above, below), (0, 0 if replicas else 1), offset_ns)
    pair = np.array([0]), np.array([1]), np.array([0])

    assert find_shifts(ranks, *pair, np.array([replicas])) == [expected]


def test_the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() -> None:
    values = np.array([[8.0, 1.0, np.nan, 4.0, 2.0], [3.0, np.nan, 7.0, np.nan, 5.0], [np.nan] * 5])

    assert np.array_equal(compute_median(values), [3.0, 5.0, np.nan], equal_nan=True)
