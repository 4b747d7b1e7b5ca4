"""By how many iterations one rank's capture begins later than another's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bubbleviz.align.pairing.histories import Histories, PassedOn
from bubbleviz.align.pairing.iteration_fits import nan_median
from bubbleviz.align.pairing.possible_shifts import shifts

MS = 1_000_000
#: An iteration: F down, F up, B up, B down, 10 ms each.
PERIOD = 40 * MS


def history(held: Sequence[range], stages: Sequence[int], off_ns: int) -> Histories:
    """Return two ranks that captured these of the run's iterations, one every ``PERIOD``.

    The second one's clock is off by ``off_ns``.
    """
    begun, ready, end = np.full((3, 5, 6), np.nan)
    for rank, (own, stage) in enumerate(zip(held, stages, strict=True)):
        at_ns = np.array(own) * PERIOD + rank * off_ns
        times = (((0, 30), (10, 40)), ((10, 20), (20, 30)))[stage]
        begun[rank, : len(own)] = at_ns + times[0][0] * MS
        for side in (0, 1):
            ready[2 * rank + side, : len(own)] = at_ns + times[0][side] * MS
            end[2 * rank + side, : len(own)] = at_ns + times[1][side] * MS
    ranks, sides = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    none = np.zeros(4, np.int64)
    passed_on = PassedOn(ranks, none, none, sides, np.array(stages)[ranks])
    length_ns, seen = np.full(2, float(PERIOD)), np.zeros(2, np.int64)
    return Histories(
        begun[:2], begun[:2], begun[:2], length_ns, (seen, seen), passed_on, ready, end
    )


@pytest.mark.parametrize(
    ("above", "below", "off_ns", "replicas", "expected"),
    [
        # Dependencies tell it.
        (range(5), range(5), 0, False, 0),
        (range(5), range(1, 5), 0, False, 1),
        (range(1, 5), range(5), 0, False, -1),
        (range(6), range(2, 6), 0, False, 2),
        (range(4), range(1, 5), 0, False, 1),
        # What breaks by less than a quarter of an iteration: equal counts stay in order.
        (range(4), range(4), -19 * MS, False, 0),
        # By more: another shift breaks nothing.
        (range(4), range(4), -30 * MS, False, -1),
        (range(0), range(3), 0, False, None),
        # Replicas pair by when their iterations start.
        (range(5), range(1, 5), 2 * MS, True, 1),
        # Between starts nothing tells, unless the counts agree.
        (range(5), range(5), PERIOD // 2, True, 0),
        (range(5), range(4), PERIOD // 2, True, None),
        (range(5), range(0), 0, True, None),
    ],
)
def test_one_clock_tells_the_shift(
    above: range, below: range, off_ns: int, replicas: bool, expected: int | None
) -> None:
    ranks = history((above, below), (0, 0 if replicas else 1), off_ns)
    pair = np.array([0]), np.array([1]), np.array([0])

    assert shifts(ranks, *pair, np.array([replicas])) == [expected]


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    values = np.array([[8.0, 1.0, np.nan, 4.0, 2.0], [3.0, np.nan, 7.0, np.nan, 5.0], [np.nan] * 5])

    assert np.array_equal(nan_median(values), [3.0, 5.0, np.nan], equal_nan=True)
