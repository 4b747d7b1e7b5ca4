"""Clock offsets: bounds that determine intervals, and bounds that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bubbleviz.align.clocks.clock_solver import Contradiction, solve_clocks
from bubbleviz.align.clocks.offsets import Precedences
from bubbleviz.align.profile_clocks import ProfileClock

#: (before clock, after clock, before_ns, after_ns).
Pair = tuple[int, int, int, int]


def make_precedences(pairs: Sequence[Pair]) -> Precedences:
    """Return the pairs as a table whose row numbers are their positions."""
    earlier, later, *times = np.array(pairs, np.int64).reshape(-1, 4).T
    position = np.arange(len(pairs), dtype=np.int64)
    rows = position, position.copy()
    return Precedences(earlier, later, times[0], times[1], *rows, np.zeros_like(position))


def solved(
    pairs: Sequence[Pair], clocks: int = 2, capture: int = 1_000
) -> tuple[tuple[ProfileClock, ...], Contradiction | None]:
    """Return the solution for clocks that all record [0, capture]."""
    zero = np.zeros(clocks, np.int64)
    return solve_clocks(make_precedences(pairs), zero, zero + capture)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        # Clock 1 may be shifted by at least -50 (its start) and at most 40 (its end).
        # The uncertainty is 45 plus the drift during the capture, rounded up.
        ([(0, 1, 100, 150), (1, 0, 360, 400)], [(0, 0), (-5, 46)]),
        # Clocks without a link to the reference agree with each other.
        ([(1, 2, 0, 110), (2, 1, 100, 10)], [(0, 0), (0, None), (-100, None)]),
        # Small contradictions are within the clock resolution.
        ([(0, 1, 100, 98), (1, 0, 402, 400)], [(0, 0), (0, 1)]),
    ],
)
def test_two_sided_bounds_give_intervals(
    pairs: list[Pair], expected: list[tuple[int, int | None]]
) -> None:
    offsets, contradiction = solved(pairs, clocks=len(expected))

    assert contradiction is None
    assert [(clock.offset_ns, clock.uncertainty_ns) for clock in offsets] == expected
    assert {clock.drift_ppm for clock in offsets} == {0.0}


@pytest.mark.parametrize(
    ("pairs", "clocks", "capture", "by_ns", "rows"),
    [
        (
            [(0, 1, 0, 1_000), (0, 1, 100_000, 70_000), (1, 0, 480_000, 450_000)],
            2,
            500_000,
            60_000,
            [1, 2],
        ),
        # The cycle with the largest contradiction is reported.
        (
            [
                (0, 1, 0, 100),
                (1, 0, 0, 100),
                (1, 2, 50_000, 30_000),
                (2, 1, 90_000, 80_000),
                (2, 3, 10_000, 1_000),
                (3, 2, 20_000, 19_000),
            ],
            4,
            100_000,
            30_000,
            [2, 3],
        ),
        (
            [(0, 1, 50_000, 30_000), (1, 2, 50_000, 30_000), (2, 0, 50_000, 30_000)],
            3,
            100_000,
            60_000,
            [0, 1, 2],
        ),
    ],
)
def test_bounds_that_do_not_overlap_are_a_contradiction(
    pairs: list[Pair], clocks: int, capture: int, by_ns: int, rows: list[int]
) -> None:
    offsets, contradiction = solved(pairs, clocks, capture)

    assert contradiction is not None
    assert (contradiction.by_ns, sorted(contradiction.rows)) == (by_ns, rows)
    if clocks == 2:  # The violation is smallest if both bounds move by half of it.
        assert offsets[1].offset_ns == 0
        assert (offsets[1].uncertainty_ns or 0) >= by_ns // 2
