"""Compare the steps of a report on idle time with a step that was not profiled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bubbleviz.analyses.idle.report import IdleMeasurement, RankIdle
from bubbleviz.count.statistics import measure_spread
from bubbleviz.errors import InputError
from bubbleviz.report.profiling_cost import ProfilingCost, describe_cost_and_bounds

#: Name of the ratio that the comparison bounds.
IDLE_NOUN = "idle share"


def compare_steps(ranks: Sequence[RankIdle], unprofiled_ns: int) -> ProfilingCost:
    """Compare the named steps of devices with an unprofiled step.

    A step lasts until the next one on the same device begins. If a device has a single step, it
    lasts until its last work ends, or until its range ends if its last work is unknown. Recorded
    overhead is averaged over the span of a device.

    Args:
        ranks: Devices and hosts with their steps.
        unprofiled_ns: Length of a step without a profiler.

    Raises:
        InputError: No device has a named step.
    """
    lengths_ns = [length_ns for rank in ranks for length_ns in _list_step_lengths(rank)]
    if not lengths_ns:
        raise InputError(
            "--unprofiled-step: no ranges were recognized as steps; specify their name "
            "(--step NAME)"
        )
    spread = measure_spread(lengths_ns)
    mean_ns = spread.mean or 0.0
    shares = [rank.overhead_ns / rank.span_ns for rank in ranks if rank.span_ns]
    return ProfilingCost(
        unprofiled_ns=unprofiled_ns,
        profiled_ns=mean_ns,
        error_ns=spread.ci95 or 0.0,
        steps=len(lengths_ns),
        overhead_ns=mean_ns * max(shares, default=0.0),
    )


def _list_step_lengths(rank: RankIdle) -> list[float]:
    """Return the lengths of the named steps of a device, in ns."""
    steps = [step for step in rank.steps if step.start_ns is not None]
    starts_ns = [step.start_ns for step in steps if step.start_ns is not None]
    if len(starts_ns) > 2 and starts_ns[0] == rank.start_ns:
        # The first step is clipped to the device's first work.
        starts_ns = starts_ns[1:]
    periods_ns = [float(later_ns - start_ns) for start_ns, later_ns in pairwise(starts_ns)]
    lengths_ns = [step.parts.total_ns if step.parts else step.length_ns for step in steps]
    return periods_ns or [float(length_ns) for length_ns in lengths_ns if length_ns]


def describe_cost(measurement: IdleMeasurement) -> str:
    """Return sentences on the cost of profiling, or "" if no unprofiled step is given."""
    cost = measurement.profiling_cost
    if cost is None:
        return ""
    share = measurement.idle_ns / measurement.span_ns if measurement.span_ns else None
    return describe_cost_and_bounds(cost, share, cost.profiled_ns, IDLE_NOUN)
