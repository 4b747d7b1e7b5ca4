"""The shortest and longest window that clocks allow: by hand-computed numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bubbleviz.align.timebase import Timebase
from bubbleviz.count.ratios import Extents, RatioDefinition, ratio_definitions
from bubbleviz.count.window_bounds import WindowBounds, window_bounds

(SCHEDULE,) = (s for s in ratio_definitions() if s.name == "schedule")
(STEP,) = (s for s in ratio_definitions() if s.name == "step")


def column(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def bounds_of(
    spans: Sequence[tuple[int, int] | None],
    machine: Sequence[int],
    uncertainty_ns: Sequence[int],
    *,
    ratio: RatioDefinition = SCHEDULE,
    comparable: Sequence[bool] | None = None,
    contradicted: bool = False,
) -> WindowBounds:
    """Return the window bounds of one iteration in which ranks worked at these (start, end)."""
    first, last = (column(*(0 if s is None else s[i] for s in spans)) for i in (0, 1))
    extents = Extents(
        first_ns=first[None],
        last_ns=last[None],
        step_last_ns=last[None] + 7,
        present=np.array([[s is not None for s in spans]]),
    )
    known = [u >= 0 for u in uncertainty_ns] if comparable is None else comparable
    timebase = Timebase(
        clocks=(),
        machine=column(*machine),
        comparable=np.array(known),
        uncertainty_ns=column(*uncertainty_ns),
        contradicted=contradicted,
        limitations=(),
    )
    return window_bounds(ratio, extents, timebase)


def columns_of(bounds: WindowBounds) -> tuple[int, int, bool, bool, bool, bool]:
    """Return the only iteration's low, high, across, comparable, bounded and contradicted."""
    flags = bounds.across, bounds.comparable, bounds.bounded, bounds.contradicted
    across, comparable, bounded, contradicted = (bool(flag[0]) for flag in flags)
    return int(bounds.low_ns[0]), int(bounds.high_ns[0]), across, comparable, bounded, contradicted


def test_one_machine_is_exact_whatever_its_clock() -> None:
    bounds = bounds_of([(0, 100), (-20, 90)], [1, 1], [0, -1], contradicted=True)

    assert columns_of(bounds) == (120, 120, False, True, True, False)


def test_two_machines_move_by_what_both_can_be_off() -> None:
    # From the start on machine 0 to the end on machine 1: 150, give or take 30.
    assert columns_of(bounds_of([(0, 100), (50, 150)], [0, 1], [0, 30])) == (
        120,
        180,
        True,
        True,
        True,
        False,
    )
    # The same where the reference is neither of them, and off itself.
    bounds = bounds_of([(0, 100), (50, 150), None], [1, 2, 0], [0, 10, 20])
    assert columns_of(bounds) == (120, 180, True, True, True, False)


def test_a_machine_whose_own_window_is_longest_bounds_it_from_below() -> None:
    # Machine 0 alone takes 100; machine 1 can move out of it by 40 - 10 at either end.
    assert columns_of(bounds_of([(0, 100), (10, 90)], [0, 1], [0, 40])) == (
        100,
        130,
        True,
        True,
        True,
        False,
    )


def test_ranks_of_one_machine_do_not_move_against_each_other() -> None:
    bounds = bounds_of([(0, 10), (20, 100), (15, 95)], [0, 0, 1], [0, 5])

    assert columns_of(bounds) == (100, 100, True, True, True, False)


def test_the_step_ends_with_the_optimizer() -> None:
    bounds = bounds_of([(0, 100), (50, 150)], [0, 1], [0, 30], ratio=STEP)

    assert columns_of(bounds)[:2] == (127, 187)


def test_clocks_that_nothing_bounds_are_reported() -> None:
    spans, machine = [(0, 100), (50, 150)], [0, 1]

    assert columns_of(bounds_of(spans, machine, [0, -1]))[2:] == (True, False, False, False)
    # UTC is trusted, but its error is unknown.
    trusted = bounds_of(spans, machine, [0, -1], comparable=[True, True])
    assert columns_of(trusted)[2:] == (True, True, False, False)
    # A machine that takes no part plays none.
    apart = bounds_of([*spans, None], [*machine, 2], [0, 5, -1])
    assert columns_of(apart)[2:] == (True, True, True, False)


def test_a_contradiction_concerns_windows_over_several_machines() -> None:
    bounds = bounds_of([(0, 100), (50, 150)], [0, 1], [0, 30], contradicted=True)

    assert columns_of(bounds)[2:] == (True, True, True, True)


def test_an_iteration_of_nobody_has_no_window() -> None:
    assert columns_of(bounds_of([None, None], [0, 1], [0, 5])) == (0, 0, False, True, True, False)
