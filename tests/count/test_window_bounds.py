"""The shortest and longest window that clocks allow: by hand-computed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

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


#: Two ranks, on machines 0 and 1 unless told: from the start on one to the end on the other 150.
APART = [(0, 100), (50, 150)]


@pytest.mark.parametrize(
    ("spans", "machine", "uncertainty_ns", "given", "expected"),
    [
        # One machine is exact whatever its clock.
        (
            [(0, 100), (-20, 90)],
            [1, 1],
            [0, -1],
            {"contradicted": True},
            (120, 120, False, True, True, False),
        ),
        # Two machines move by what both can be off, also where the reference is neither.
        (APART, [0, 1], [0, 30], {}, (120, 180, True, True, True, False)),
        ([*APART, None], [1, 2, 0], [0, 10, 20], {}, (120, 180, True, True, True, False)),
        # Machine 0 alone takes 100; machine 1 can move out of it by 40 - 10 at either end.
        ([(0, 100), (10, 90)], [0, 1], [0, 40], {}, (100, 130, True, True, True, False)),
        # Ranks of one machine do not move against each other.
        (
            [(0, 10), (20, 100), (15, 95)],
            [0, 0, 1],
            [0, 5],
            {},
            (100, 100, True, True, True, False),
        ),
        # The step ends with the optimizer, 7 later.
        (APART, [0, 1], [0, 30], {"ratio": STEP}, (127, 187, True, True, True, False)),
        # Clocks that nothing bounds; UTC is trusted, but its error is unknown.
        (APART, [0, 1], [0, -1], {}, (150, 150, True, False, False, False)),
        (
            APART,
            [0, 1],
            [0, -1],
            {"comparable": [True, True]},
            (150, 150, True, True, False, False),
        ),
        # A machine that takes no part plays none.
        ([*APART, None], [0, 1, 2], [0, 5, -1], {}, (145, 155, True, True, True, False)),
        (APART, [0, 1], [0, 30], {"contradicted": True}, (120, 180, True, True, True, True)),
        # An iteration of nobody has no window.
        ([None, None], [0, 1], [0, 5], {}, (0, 0, False, True, True, False)),
    ],
)
def test_what_clocks_allow(
    spans: Sequence[tuple[int, int] | None],
    machine: Sequence[int],
    uncertainty_ns: Sequence[int],
    given: dict[str, Any],
    expected: tuple[int, int, bool, bool, bool, bool],
) -> None:
    assert columns_of(bounds_of(spans, machine, uncertainty_ns, **given)) == expected
