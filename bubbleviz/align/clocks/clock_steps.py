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
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks import offsets
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS, ProfileClock
from bubbleviz.model.columns import Floats, Ints, Table
from bubbleviz.model.grouping import find_distinct, group_rows, sort_rows
from bubbleviz.model.intervals import group_extents

#: Parts of an iteration that are bounded each for itself.
_PARTS = (1, 4, 16)
#: A part leaves that much more open than most iterations do, at most.
_LOOSE = 1.5
#: A jump is so many times what the noise of the bounds explains; or so many, where there are few
#: parts, or it is so small a part of what messages leave open.
_JUMP, _JUMP_IN_DOUBT, _FEW, _SMALL = 7.0, 14.0, 6, 0.3
#: So many parts are looked at, at least and at most (evenly spread), and so many drifts.
_LEAST, _MOST, _SLOPES = 3, 256, 21
#: Numbers that are worked on at once.
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
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


@dataclass(frozen=True, eq=False, repr=False)
class _Cells(Table):
    """Bounds of the differences of pairs of clocks by stretch of time, in order.

    Attributes:
        pair: of clocks.
        begin_ns: when a stretch begins, on the first clock.
        end_ns: when it ends.
        low_ns: the least to add to the second clock.
        high_ns: the most.
        iteration: of each.
    """

    pair: Ints
    begin_ns: Ints
    end_ns: Ints
    low_ns: Floats
    high_ns: Floats
    iteration: Ints

    @property
    def width_ns(self) -> Floats:
        """What is left open in each."""
        return self.high_ns - self.low_ns


def clock_steps(
    precedences: offsets.Precedences, clocks: int, extents: tuple[Ints, Ints], reference: int = 0
) -> tuple[tuple[ClockStep, ...], tuple[ProfileClock, ...]]:
    """Return which clocks were set, and constant corrections that hold before and after.

    Args:
        precedences: what was not later than what.
        clocks: how many there are.
        extents: where each clock's capture starts and ends, on the clock itself.
        reference: the clock whose correction is 0.
    """
    pairs = group_rows(
        np.minimum(precedences.before, precedences.after),
        np.maximum(precedences.before, precedences.after),
    )
    both = precedences.before[pairs.first], precedences.after[pairs.first]
    first, second = np.minimum(*both), np.maximum(*both)
    # Collectives leave now more open, now less: they show no jump.
    shown = precedences.after_row >= 0
    clearest: dict[int, tuple[float, float, int, int]] = {}
    low_ns, high_ns = np.full(len(first), np.inf), np.full(len(first), -np.inf)
    length_ns = np.zeros(len(first), np.int64)
    usual_ns = np.zeros(0)
    for every in _levels(precedences.take(shown), pairs.of_row[shown], first):
        bounded = np.flatnonzero(np.isfinite(every.width_ns))
        cells = every.take(bounded[sort_rows(every.pair[bounded], every.begin_ns[bounded])])
        # The longest stretch, or from one to the next.
        np.maximum.at(length_ns, every.pair, every.end_ns - every.begin_ns)
        follows = cells.pair[1:] == cells.pair[:-1]
        np.maximum.at(length_ns, cells.pair[1:][follows], np.diff(cells.begin_ns)[follows])
        if len(usual_ns):
            cells = cells.take(cells.width_ns <= usual_ns[cells.pair])
        else:
            widths_ns = _medians(cells.pair, cells.width_ns, len(first))
            usual_ns = np.maximum(_LOOSE * widths_ns, GRAIN_NS)
        for pair, jump in _jumps(cells):
            clearest[pair] = max(jump, clearest.get(pair, jump))
        np.minimum.at(low_ns, cells.pair, cells.low_ns)
        np.maximum.at(high_ns, cells.pair, cells.high_ns)
    steps = tuple(
        ClockStep(int(first[pair]), int(second[pair]), round(by_ns), before, behind)
        for pair, (_, by_ns, before, behind) in sorted(clearest.items())
    )
    if not steps:
        return (), ()
    # Limits that hold at every instant, though a clock was set, and clocks drift. What is bounded
    # from one side alone gives by all there may be.
    limit, _ = offsets.tightest_limits(precedences, clocks)
    known = np.isfinite(high_ns)
    steps_ns = sum(abs(step.by_ns) for step in steps)
    all_ns = math.ceil(DRIFT * float(np.ptp(precedences.after_ns))) + steps_ns
    gap_ns = np.ceil(DRIFT * length_ns)
    limit[first, second] = np.where(known, high_ns + gap_ns, limit[first, second] + all_ns)
    limit[second, first] = np.where(known, gap_ns - low_ns, limit[second, first] + all_ns)
    return steps, _corrections(limit, precedences, extents, reference)


def _corrections(
    limit: Floats, precedences: offsets.Precedences, extents: tuple[Ints, Ints], reference: int
) -> tuple[ProfileClock, ...]:
    """Return constant corrections; where none satisfies all limits, each gives as the worst needs.

    Clocks may drift in their captures before and behind all that bounds them.
    """
    slack = offsets.rounded_up(offsets.needed_slack(limit)[0])
    offset, half = offsets.intervals(limit + slack, reference)
    clock = np.concatenate((precedences.before, precedences.after))
    at_ns = np.concatenate((precedences.before_ns, precedences.after_ns))
    first, last = group_extents(clock, len(limit), at_ns, at_ns)
    away_ns = np.maximum(np.maximum(first - extents[0], extents[1] - last), 0)
    half += 2 * slack + 2 * DRIFT * away_ns
    found = [
        ProfileClock(round(middle), math.ceil(open_ns) + 1 if math.isfinite(open_ns) else None)
        for middle, open_ns in zip(offset.tolist(), half.tolist(), strict=True)
    ]
    found[reference] = ProfileClock(0, 0)
    return tuple(found)


def _levels(precedences: offsets.Precedences, pair: Ints, first: Ints) -> list[_Cells]:
    """Return the bounds of pairs of clocks by iteration, and by parts of them, ever finer.

    Args:
        precedences: what was not later than what.
        pair: of clocks, of each.
        first: the first clock of each pair.
    """
    upper = precedences.after == first[pair]
    at_ns = np.where(upper, precedences.after_ns, precedences.before_ns)
    iterations = group_rows(pair, precedences.iteration)
    begin, end = group_extents(iterations.of_row, len(iterations), at_ns, at_ns)
    owner = iterations.of_row
    length_ns = (end - begin + 1)[owner]
    part = (at_ns - begin[owner]) * _PARTS[-1] // length_ns
    slack = (precedences.after_ns - precedences.before_ns).astype(np.float64)
    levels = []
    for parts in _PARTS:
        # Parts of parts are parts of the whole.
        cells = group_rows(owner, part * parts // _PARTS[-1])
        high, low = np.full(len(cells), np.inf), np.full(len(cells), -np.inf)
        np.minimum.at(high, cells.of_row[upper], slack[upper])
        np.maximum.at(low, cells.of_row[~upper], -slack[~upper])
        begins, ends = group_extents(cells.of_row, len(cells), at_ns, at_ns)
        row = cells.first
        levels.append(_Cells(pair[row], begins, ends, low, high, precedences.iteration[row]))
    return levels


def _medians(pair: Ints, values: Floats, pairs: int) -> Floats:
    """Return the median of the values of each pair; 0 where there are none."""
    medians = np.zeros(pairs)
    ordered = values[sort_rows(pair, values)]
    count = np.bincount(pair, minlength=pairs)
    begin = np.cumsum(count) - count
    some = np.flatnonzero(count)
    low, high = (begin[some] + middle[some] for middle in ((count - 1) // 2, count // 2))
    medians[some] = (ordered[low] + ordered[high]) / 2
    return medians


def _jumps(cells: _Cells) -> Iterator[tuple[int, tuple[float, float, int, int]]]:
    """Yield pairs of clocks whose bounds' middle jumps, and the jump as of :func:`_jumps_of`."""
    # In one that contradicts itself the clock was set: it shows neither side.
    cells = cells.take(cells.width_ns >= -GRAIN_NS)
    count = np.bincount(cells.pair, minlength=1)
    begin = np.cumsum(count) - count
    chosen = np.where(count >= _LEAST, np.minimum(count, _MOST), 0)
    for size in find_distinct(chosen[chosen > 0]).tolist():
        pairs = np.flatnonzero(chosen == size)
        at_once = max(1, _AT_ONCE // (size * _SLOPES))
        for low in range(0, len(pairs), at_once):
            some = pairs[low : low + at_once]
            spread = np.arange(size) * count[some][:, None] // size
            rows = begin[some][:, None] + spread
            yield from _jumps_of(cells, some, rows)


def _jumps_of(
    cells: _Cells, pairs: Ints, rows: Ints
) -> Iterator[tuple[int, tuple[float, float, int, int]]]:
    """Yield how surely middles of bounds jump, by how much, and between which iterations.

    The middles are fitted by a line, as clocks drift, and by a line with a jump at each place.

    Args:
        cells: of pairs of clocks.
        pairs: some of these.
        rows: of the cells of each, as many of one as of another.
    """
    low, high = cells.low_ns[rows], cells.high_ns[rows]
    at = (cells.begin_ns[rows] + cells.end_ns[rows]) / 2
    middle, width = (low + high) / 2, high - low
    # A width that shrinks once may hold the jump; one that varies is noise.
    width_noise = np.std(np.sort(width, axis=1)[:, 1:], axis=1) / 2
    middle_noise = _spread(np.diff(middle, 2, axis=1)) / np.sqrt(6)
    noise = np.maximum(width_noise, np.maximum(middle_noise, GRAIN_NS / 20))
    count = rows.shape[1]
    jumps = np.tril(np.ones((count, count)), -1)[:, :-1]
    shapes = jumps - jumps.mean(axis=0)
    squares = (shapes**2).sum(axis=0)
    slopes = np.linspace(-DRIFT, DRIFT, _SLOPES)
    elapsed = (at - at[:, :1])[:, :, None]
    rest = middle[:, :, None] - elapsed * slopes
    rest = rest - rest.mean(axis=1)[:, None]
    by = shapes.T @ rest / squares[:, None]
    without = (rest**2).sum(axis=1)
    explained = by**2 * squares[:, None]
    left = (without[:, None] - explained).reshape(len(pairs), -1)
    best, slope = np.divmod(left.argmin(axis=1), _SLOPES)
    sure = np.sqrt(np.maximum(without.min(axis=1) - left.min(axis=1), 0.0)) / noise
    jump = by[np.arange(len(pairs)), best, slope]
    small, few = np.abs(jump) < _SMALL * np.median(width, axis=1), count < _FEW
    found = sure >= np.where(small | few, _JUMP_IN_DOUBT, _JUMP)
    is_noticeable = np.abs(jump) > GRAIN_NS * np.where(small, 4, 1)
    found &= is_noticeable & ~(small & few)
    for row in np.flatnonzero(found).tolist():
        # What messages leave open moves one bound alone, a clock both.
        drifted = slopes[slope[row]] * (at[row] - at[row, 0])
        of_jump = shapes[:, best[row]]
        sides = [of_jump @ (side[row] - drifted) / squares[best[row]] for side in (low, high)]
        if min(side / jump[row] for side in sides) < 0.5:
            continue
        before, behind = cells.iteration[rows[row, best[row] : best[row] + 2]].tolist()
        yield int(pairs[row]), (float(sure[row]), float(jump[row]), before, behind)


def _spread(values: Floats) -> Floats:
    """Return the standard deviations of most values of rows, of a normal distribution."""
    away = np.abs(values - np.median(values, axis=1)[:, None])
    return np.asarray(1.4826 * np.median(away, axis=1), np.float64)
