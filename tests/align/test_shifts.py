"""By how many iterations one rank's capture begins later than another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bubbleviz.align.iteration_shifts import NTP_NS, OperationEnds, RankHistory, shift, shift_beside

MS = 1_000_000
#: An iteration: F down, F up, B up, B down, 10 ms each.
PERIOD = 40 * MS


def column(values: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.array(list(values), np.int64)


def track(
    iterations: Iterable[int], stage: int, off_ns: int = 0, period: int = PERIOD
) -> RankHistory:
    """Return a rank of a pipeline of two that captured these of the run's iterations.

    Its clock is off by ``off_ns``.
    """
    held = list(iterations)
    forward, backward = ((10, 40), (20, 30))[stage]
    events = OperationEnds(
        iteration=column(n for n in range(len(held)) for _ in range(2)),
        microbatch=column(0 for _ in range(2 * len(held))),
        virtual_stage=column(stage for _ in range(2 * len(held))),
        is_backward=column((0, 1) * len(held)),
        end_ns=column(k * period + end * MS + off_ns for k in held for end in (forward, backward)),
    )
    starts = column(k * period + (forward - 10) * MS + off_ns for k in held)
    return RankHistory(events, starts, period)


@pytest.mark.parametrize("one_clock", [True, False])
@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        (range(5), range(5), 0),
        (range(5), range(1, 5), 1),
        (range(1, 5), range(5), -1),
        (range(6), range(2, 6), 2),
        (range(4), range(1, 5), 1),
    ],
)
def test_dependencies_tell_the_shift(
    above: range, below: range, expected: int, one_clock: bool
) -> None:
    period = PERIOD if one_clock else 10 * NTP_NS

    found = shift(
        track(above, 0, period=period), track(below, 1, period=period), one_clock=one_clock
    )

    assert found == expected


def test_iterations_shorter_than_clocks_are_off_keep_equal_counts_in_order() -> None:
    above = track(range(6), 0)

    assert shift(above, track(range(6), 1, off_ns=90 * MS), one_clock=False) == 0
    # Of several shifts that clocks allow none is told where the counts differ.
    assert shift(above, track(range(1, 6), 1), one_clock=False) is None


def test_clocks_that_are_not_known_at_all_keep_equal_counts_in_order() -> None:
    hour = 3600 * 1000 * MS
    above = track(range(6), 0)

    assert shift(above, track(range(6), 1, off_ns=hour), one_clock=False) == 0
    assert shift(above, track(range(1, 6), 1, off_ns=hour), one_clock=False) is None


def test_without_a_microbatch_in_common_nothing_is_told() -> None:
    above, below = track(range(4), 0), track(range(4), 1)
    other = replace(below, ends=replace(below.ends, microbatch=below.ends.microbatch + 1))

    for one_clock in (True, False):
        assert shift(above, other, one_clock=one_clock) is None


def test_what_breaks_dependencies_on_one_clock_is_told_from_what_does_not() -> None:
    above, below = track(range(4), 0), track(range(4), 1)

    # By less than a quarter of an iteration: equal counts stay in order.
    assert shift(above, track(range(4), 1, off_ns=-19 * MS), one_clock=True) == 0
    # By more: another shift breaks nothing.
    assert shift(above, track(range(4), 1, off_ns=-30 * MS), one_clock=True) == -1
    assert shift(below, above, one_clock=True) == 0


def test_replicas_pair_by_when_their_iterations_start() -> None:
    long = 10 * NTP_NS
    one = track(range(5), 0, period=long)

    for one_clock in (True, False):
        other = track(range(1, 5), 0, off_ns=NTP_NS, period=long)
        assert shift_beside(one, other, one_clock=one_clock) == 1
    # Between starts nothing tells, unless the counts agree.
    half = track(range(5), 0, off_ns=long // 2, period=long)
    assert shift_beside(one, half, one_clock=True) == 0
    assert shift_beside(one, track(range(4), 0, long // 2, long), one_clock=True) is None
    # Iterations shorter than clocks of two machines are off tell nothing either.
    short = track(range(5), 0)
    assert shift_beside(short, track(range(1, 5), 0), one_clock=True) == 1
    assert shift_beside(short, track(range(1, 5), 0), one_clock=False) is None
    assert shift_beside(short, track(range(5), 0), one_clock=False) == 0


def test_a_rank_without_iterations_has_no_shift() -> None:
    none = track((), 0)

    assert shift(none, track(range(3), 1), one_clock=True) is None
    assert shift(none, track(range(3), 1), one_clock=False) is None
    assert shift_beside(none, track(range(3), 0), one_clock=True) is None
