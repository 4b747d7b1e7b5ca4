"""Formats numbers for pictures: ratios, durations, and the ticks of a time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Text printed in place of an unknown number.
UNKNOWN = "\u2013"
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage with one decimal. None becomes a dash."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f}\u00a0%"


def duration(ns: float) -> str:
    """Format a duration with four significant digits, in the largest unit that gives 1 or more.

    Durations in nanoseconds have no decimals.
    """
    large_enough = ((n, unit) for n, unit in _UNITS if abs(ns) >= n)
    unit_ns, unit = next(large_enough, _UNITS[-1])
    value = ns / unit_ns
    integer_digits = int(math.log10(max(abs(value), 1)))
    digits = 0 if unit == "ns" else max(0, 3 - integer_digits)
    return f"{value:.{digits}f}\u00a0{unit}"


def round_step(minimum: float, steps: Sequence[float] = (1, 2, 5, 10)) -> float:
    """Return the smallest allowed axis step that is at least ``minimum``.

    Args:
        minimum: A positive number.
        steps: Allowed multiples of powers of ten, from 1 to 10 in ascending order.
    """
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(step * power for step in steps if step * power >= minimum * (1 - 1e-9))


def ticks(span_ns: int, max_steps: int) -> tuple[list[tuple[int, str]], str]:
    """Return the ticks of a time axis: the multiples of a round step from 0 to ``span_ns``.

    Labels use the largest unit that fits at least twice into the axis.

    Args:
        span_ns: Length of the axis in ns.
        max_steps: Maximum number of steps between ticks.

    Returns:
        The (time in ns, label without unit) of each tick, and the unit of the labels.
    """
    min_step = span_ns / max(max_steps, 1)
    step = int(round_step(max(min_step, 1)))
    small_enough = ((n, unit) for n, unit in _UNITS if span_ns >= 2 * n or n == 1)
    unit_ns, unit = next(small_enough)
    digits = max(0, math.ceil(math.log10(unit_ns / step)))
    times = range(0, span_ns + 1, step)
    return [(time, f"{time / unit_ns:.{digits}f}") for time in times], unit
