"""Compare the length of a profiled step with the length of a step that was not profiled.

Profilers slow down programs. If the length of a step without a profiler is known, the additional
time of a profiled step bounds what the profiler may have changed::

    without a profiler   ├──────── 29.39 s ────────┤
    profiled             ├──────── 29.39 s ────────┼─ 0.23 ─┼────── 4.98 s ──────┤
                                                    recorded      unexplained
                                                    overhead
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.durations import parse_duration
from bubbleviz.model.texts import format_percent

#: Bounds of the relative difference up to which steps count as equally long.
_NOISE = (0.01, 0.05)
#: Minimum and maximum of a profiled step, as a multiple of the unprofiled step. Values outside of
#: these bounds indicate a wrong unit or another step.
_MIN_RATIO, _MAX_RATIO = 0.5, 20.0
#: Minimum ratio that is shown without decimals.
_MIN_WHOLE_RATIO = 100.0


@dataclass(frozen=True)
class ProfilingCost:
    """How much longer profiled steps take than unprofiled ones. All times are in ns.

    Attributes:
        unprofiled_ns: Length of an unprofiled step, given by the user.
        profiled_ns: Mean length of the profiled steps.
        error_ns: Half-width of the 95 % confidence interval of ``profiled_ns``, or 0 if unknown.
        steps: Number of profiled steps.
        overhead_ns: Mean time per step during which the profiler recorded that it stopped a
            process, on the process that was stopped longest.
    """

    unprofiled_ns: int
    profiled_ns: float
    error_ns: float
    steps: int
    overhead_ns: float

    @property
    def ratio(self) -> float:
        """Length of a profiled step divided by the length of an unprofiled one."""
        return self.profiled_ns / self.unprofiled_ns

    @property
    def additional_ns(self) -> float:
        """Additional time of a profiled step. Negative if the profiled step is shorter."""
        return self.profiled_ns - self.unprofiled_ns

    @property
    def unexplained_ns(self) -> float:
        """Additional time that the recorded overhead does not explain, at least 0."""
        return max(self.additional_ns - self.overhead_ns, 0.0)

    @property
    def noise_ns(self) -> float:
        """Difference up to which the steps count as equally long.

        It is the uncertainty of the mean, but at least 1 % and at most 5 % of the unprofiled step,
        because the uncertainty of two or three steps is very large.
        """
        low_ns, high_ns = (share * self.unprofiled_ns for share in _NOISE)
        return min(max(self.error_ns, low_ns), high_ns)

    @property
    def is_equal(self) -> bool:
        """Whether the steps are equally long."""
        return abs(self.additional_ns) <= self.noise_ns

    @property
    def is_plausible(self) -> bool:
        """Whether both lengths can belong to the same kind of step."""
        return _MIN_RATIO <= self.ratio <= _MAX_RATIO

    def bound_ratio(self, ratio: float, window_ns: float) -> tuple[float, float] | None:
        """Return the bounds of a bubble ratio without the profiler.

        The lower bound assumes that all additional time is idle time, and the upper bound assumes
        that all additional time is work.

        Args:
            ratio: The ratio as measured.
            window_ns: Mean length of the ratio's window.

        Returns:
            Lower and upper bound, or None if the step is not longer or the window is too short.
        """
        left_ns = window_ns - self.additional_ns
        if self.additional_ns <= 0 or left_ns <= 0:
            return None
        idle_ns = ratio * window_ns
        return max(idle_ns - self.additional_ns, 0.0) / left_ns, min(idle_ns / left_ns, 1.0)


def parse_unprofiled_step(text: str) -> int:
    """Parse the length of an unprofiled step, such as ``29.39s``, and return it in ns.

    Raises:
        UsageError: The text is not a positive time with a unit.
    """
    return parse_duration(text, "--unprofiled-step")


def describe_profiling_cost(cost: ProfilingCost) -> str:
    """Return a sentence that says how much longer profiled steps take, and what explains this."""
    profiled, unprofiled = _format_seconds(cost.profiled_ns), _format_seconds(cost.unprofiled_ns)
    factor = f"{cost.ratio:,.0f}" if cost.ratio >= _MIN_WHOLE_RATIO else f"{cost.ratio:.3g}"
    compared = f"Profiled steps take {profiled}, {factor}x the unprofiled {unprofiled}"
    if not cost.is_plausible:
        return f"{compared}: check the unit and that both are the same step"
    if cost.is_equal:
        return f"{compared}: equal within the uncertainty of {_format_seconds(cost.noise_ns)}"
    if cost.additional_ns < 0:
        return (
            f"{compared}, so they are shorter: check that both ran the same model, batch size and "
            "number of GPUs"
        )
    additional = _format_seconds(cost.additional_ns)
    share = format_percent(cost.unexplained_ns / cost.profiled_ns)
    unexplained = f"{_format_seconds(cost.unexplained_ns)} ({share} of a profiled step)"
    if not cost.overhead_ns:
        return f"{compared}; no profiler overhead was recorded, so {unexplained} are unexplained"
    overhead = _format_seconds(min(cost.overhead_ns, cost.additional_ns))
    return (
        f"{compared}; recorded profiler overhead explains {overhead} of the additional "
        f"{additional}, and {unexplained} are unexplained"
    )


def describe_cost_and_bounds(
    cost: ProfilingCost, ratio: float | None, window_ns: float | None, noun: str = "ratio"
) -> str:
    """Return sentences on the cost of profiling and on the bounds of a ratio without the profiler.

    The bounds are left out if the steps are equally long, or if the bounds are unknown.

    Args:
        cost: The comparison of profiled and unprofiled steps.
        ratio: The ratio as measured, or None if unknown.
        window_ns: Mean length of the ratio's window, or None if unknown.
        noun: Name of the ratio.
    """
    text = describe_profiling_cost(cost)
    if cost.is_equal or not cost.is_plausible or ratio is None or window_ns is None:
        return text
    bounds = cost.bound_ratio(ratio, window_ns)
    if bounds is None:
        return text
    low, high = map(format_percent, bounds)
    return f"{text}. Without the profiler, the {noun} may be anything from {low} to {high}"


def _format_seconds(time_ns: float) -> str:
    """Format a time in s, ms or us, with three decimals."""
    if time_ns >= 1e9:
        return f"{time_ns / 1e9:,.3f} s"
    if time_ns >= 1e6:
        return f"{time_ns / 1e6:,.3f} ms"
    return f"{time_ns / 1e3:,.3f} us"
