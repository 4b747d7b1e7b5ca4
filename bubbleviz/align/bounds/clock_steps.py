"""Clock steps: clocks that were set during the capture, though no bound shows it by itself.

Bounds of a whole capture may be satisfied although a clock was set, if it was set by less than what
messages leave open. Then the interval that is left is too narrow, and may lie beside the truth.
But a clock that is set moves both bounds at once, and what messages leave open changes neither::

    upper bound   ─ ─ ─ ┐               what is left of the whole capture: between the lowest
                        └ ─ ─ ─         upper and the highest lower bound
    lower bound   ─ ─ ─ ┐
                        └ ─ ─ ─

So each pair of clocks is bounded iteration by iteration, and in parts of them. Where the middle
between the bounds jumps, each clock gets the hull of all these intervals: that holds before and
after.
"""

from __future__ import annotations

import math

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT, Floats
from bubbleviz.align.bounds.difference_constraints import (
    half_widths,
    middles,
    needed_slack,
    rounded_up,
    tightest_limits,
)
from bubbleviz.align.bounds.offsets import GRAIN_NS, Correction
from bubbleviz.align.bounds.precedences import Precedences
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: Parts of an iteration that are bounded each for itself.
_PARTS = (1, 4, 16)
#: A part leaves that much more open than most iterations do, at most.
_LOOSE = 1.5
#: A jump is so many times what the noise of the bounds explains; or so many, where there are few
#: parts, or it is so small a part of what messages leave open.
_JUMP, _JUMP_IN_DOUBT, _FEW, _SMALL = 7.0, 14.0, 6, 0.3
#: So many parts are looked at, at least and at most (evenly spread), and so many drifts.
_LEAST, _MOST, _SLOPES = 3, 256, 21


@frozen
class ClockStep:
    """A clock that was set against another one during the capture.

    Attributes:
        first: number of a clock.
        second: of the other one.
        by_ns: by how much the second then showed less against the first.
        before: the last iteration that shows the time before.
        behind: the first one that shows the time behind it.
    """

    first: int
    second: int
    by_ns: int
    before: int
    behind: int


@frozen
class _Cells:
    """Bounds of the difference of two clocks by stretch of time, in order.

    Attributes:
        at_ns: about when, on the first clock.
        low_ns: the least to add to the second clock.
        high_ns: the most.
        iteration: of each.
        length_ns: of the longest stretch, or from one to the next.
    """

    at_ns: Floats
    low_ns: Floats
    high_ns: Floats
    iteration: Ints
    length_ns: float


def clock_steps(precedences: Precedences, clocks: int) -> tuple[tuple[ClockStep, ...], Floats]:
    """Return which clocks were set, and the limits of differences that hold before and after.

    Args:
        precedences: what was not later than what.
        clocks: how many there are.

    Returns:
        The steps, and the limits as of :func:`tightest_limits`.
    """
    limit, _ = tightest_limits(precedences, clocks)
    low = np.minimum(precedences.before, precedences.after)
    high = np.maximum(precedences.before, precedences.after)
    pairs = groups_of(low, high)
    order = sorted_rows(pairs.of_row)
    bounds = np.searchsorted(pairs.of_row[order], np.arange(len(pairs) + 1))
    steps, hulls = [], []
    for number, row in enumerate(pairs.first.tolist()):
        first, second = int(low[row]), int(high[row])
        own = precedences.take(order[bounds[number] : bounds[number + 1]])
        # Collectives leave now more open, now less: they show no jump.
        own = own.take(own.after_row >= 0)
        levels = [cells for parts in _PARTS if (cells := _cells(own, first, parts)) is not None]
        step = _first_step(levels, first, second)
        if step is not None:
            steps.append(step)
        hulls.append((first, second, levels))
    if steps:
        _widen(limit, precedences, hulls, sum(abs(step.by_ns) for step in steps))
    return tuple(steps), limit


def _widen(
    limit: Floats,
    precedences: Precedences,
    hulls: list[tuple[int, int, list[_Cells]]],
    steps_ns: int,
) -> None:
    """Make limits hold at every instant, though a clock was set, and clocks drift.

    What is bounded from one side alone gives by all there may be.
    """
    drift_ns = DRIFT * float(np.ptp(precedences.after_ns))
    for first, second, levels in hulls:
        if levels:
            gap_ns = DRIFT * max(cells.length_ns for cells in levels)
            limit[first, second] = max(float(c.high_ns.max()) for c in levels) + gap_ns
            limit[second, first] = gap_ns - min(float(c.low_ns.min()) for c in levels)
        else:
            limit[first, second] += drift_ns + steps_ns
            limit[second, first] += drift_ns + steps_ns


def corrections_within(
    limit: Floats, precedences: Precedences, extents: tuple[Ints, Ints], reference: int = 0
) -> tuple[Correction, ...]:
    """Return constant corrections that hold wherever these limits hold.

    Where none satisfies all of them, every limit gives by as much as the worst needs.

    Args:
        limit: as :func:`clock_steps` returns it.
        precedences: what was not later than what; beyond them clocks may drift.
        extents: where each clock's capture starts and ends, on the clock itself.
        reference: the clock whose correction is 0.
    """
    needed = needed_slack(limit)[0]
    slack = rounded_up(needed)
    offset, known = middles(limit + slack, reference)
    half = half_widths(limit + slack, reference) + 2 * slack + _beyond(precedences, extents)
    return tuple(
        Correction(0, 0.0, 0, 0)
        if clock == reference
        else Correction(
            round(float(offset[clock])),
            0.0,
            0,
            math.ceil(half[clock]) + 1 if known[clock] else None,
        )
        for clock in range(len(limit))
    )


def _beyond(precedences: Precedences, extents: tuple[Ints, Ints]) -> Floats:
    """Return what clocks may drift in their captures before and behind all that bounds them."""
    clock = np.concatenate((precedences.before, precedences.after))
    at_ns = np.concatenate((precedences.before_ns, precedences.after_ns))
    first, last = group_extents(clock, len(extents[0]), at_ns, at_ns)
    away = np.maximum(np.maximum(first - extents[0], extents[1] - last), 0)
    return np.asarray(2 * DRIFT * away, np.float64)


def _cells(own: Precedences, first: int, parts: int) -> _Cells | None:
    """Return the bounds of one pair of clocks by part of each iteration; None without any."""
    if len(own) == 0:
        return None
    upper = own.after == first
    at_ns = np.where(upper, own.after_ns, own.before_ns)
    iterations = groups_of(own.iteration)
    begin, end = group_extents(iterations.of_row, len(iterations), at_ns, at_ns)
    begin, length = begin[iterations.of_row], (end - begin)[iterations.of_row] + 1
    part = (at_ns - begin) * parts // length
    cells = groups_of(own.iteration, part)
    slack = (own.after_ns - own.before_ns).astype(np.float64)
    highs, lows = np.full(len(cells), np.inf), np.full(len(cells), -np.inf)
    np.minimum.at(highs, cells.of_row[upper], slack[upper])
    np.maximum.at(lows, cells.of_row[~upper], -slack[~upper])
    begins, ends = group_extents(cells.of_row, len(cells), at_ns, at_ns)
    kept = np.flatnonzero(np.isfinite(highs) & np.isfinite(lows))
    kept = kept[sorted_rows(begins[kept])]
    if len(kept) == 0:
        return None
    return _Cells(
        ((begins + ends) / 2)[kept],
        lows[kept],
        highs[kept],
        own.iteration[cells.first][kept],
        float(max((ends - begins).max(), np.diff(np.sort(begins[kept])).max(initial=0))),
    )


def _first_step(levels: list[_Cells], first: int, second: int) -> ClockStep | None:
    """Return the clearest step, of whole iterations or of their parts; None for none.

    ``levels`` loses the parts that leave too much open to tell.
    """
    if not levels:
        return None
    usual_ns = float(np.median(levels[0].high_ns - levels[0].low_ns))
    for number, cells in enumerate(levels):
        tight = cells.high_ns - cells.low_ns <= max(_LOOSE * usual_ns, GRAIN_NS)
        kept = np.flatnonzero(tight | (number == 0))
        levels[number] = _Cells(
            cells.at_ns[kept],
            cells.low_ns[kept],
            cells.high_ns[kept],
            cells.iteration[kept],
            cells.length_ns,
        )
    levels[:] = [cells for cells in levels if len(cells.at_ns)]
    found = [jump for cells in levels if (jump := _jump(cells)) is not None]
    if not found:
        return None
    _, by_ns, before, behind = max(found)
    return ClockStep(first, second, round(by_ns), before, behind)


def _jump(cells: _Cells) -> tuple[float, float, int, int] | None:
    """Return how surely the middle of bounds jumps, by how much, and between which iterations.

    None if it does not.

    The middles are fitted by a line, as clocks drift, and by a line with a jump at each place.
    """
    # In one that contradicts itself the clock was set: it shows neither side.
    kept = np.flatnonzero(cells.high_ns - cells.low_ns >= -GRAIN_NS)
    count = len(kept)
    if count < _LEAST:
        return None
    chosen = kept[np.arange(min(count, _MOST)) * count // min(count, _MOST)]
    low, high, at = cells.low_ns[chosen], cells.high_ns[chosen], cells.at_ns[chosen]
    middle, width = (low + high) / 2, high - low
    # A width that shrinks once may hold the jump; one that varies is noise.
    noise = max(
        float(np.std(np.sort(width)[1:])) / 2,
        _spread(np.diff(middle, 2)) / np.sqrt(6),
        GRAIN_NS / 20,
    )
    jumps = np.tril(np.ones((len(at), len(at))), -1)[:, :-1]
    shapes = jumps - jumps.mean(axis=0)
    squares = (shapes**2).sum(axis=0)
    slopes = np.linspace(-DRIFT, DRIFT, _SLOPES)
    rest = middle[:, None] - np.outer(at - at[0], slopes)
    rest = rest - rest.mean(axis=0)
    by = shapes.T @ rest / squares[:, None]
    without = (rest**2).sum(axis=0)
    left = without - by**2 * squares[:, None]
    best, slope = np.unravel_index(int(left.argmin()), left.shape)
    sure = np.sqrt(max(float(without.min() - left.min()), 0.0)) / noise
    jump = float(by[best, slope])
    small, few = abs(jump) < _SMALL * float(np.median(width)), len(at) < _FEW
    if sure < (_JUMP_IN_DOUBT if small or few else _JUMP):
        return None
    if abs(jump) <= GRAIN_NS * (4 if small else 1) or (small and few):
        return None
    # What messages leave open moves one bound alone, a clock both.
    drifted = slopes[slope] * (at - at[0])
    sides = [shapes[:, best] @ (side - drifted) / squares[best] for side in (low, high)]
    if min(side / jump for side in sides) < 0.5:
        return None
    before, behind = cells.iteration[chosen[best : best + 2]].tolist()
    return float(sure), jump, before, behind


def _spread(values: Floats) -> float:
    """Return the standard deviation of most values, of a normal distribution."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0
