"""Divides the time from the start of each step on the host to the end of the step's last work.

A span begins with the first work, so it does not contain the time in which the host prepares the
first step. torch_npu calls this time *Preparing* (``TraceStepTimeDbParser`` in Ascend/pytorch)::

    host          [ProfilerStep#3                    ]
    device                  ██████   ████  ██████████████
                  preparing compute, communication, copies and idle
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.analyses.idle.gaps import Device
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.report.idle_summary import StepParts

#: Kinds of work that parts of a step are named after.
_KINDS = ("compute", "exposed_communication", "exposed_copy")


def divide_steps(
    steps: Steps,
    device: Device,
    times: Mapping[str, intervals.Intervals],
    launched_ns: Ints,
    end_ns: Ints,
    excluded_end_ns: int,
) -> tuple[StepParts | None, ...]:
    """Divide the time of each step on a device.

    The time of a step begins with its range, or with the end of all work that was launched before
    the range if that is later. It ends with the last work that was launched before the end of the
    range. The times of different steps therefore do not overlap.

    Args:
        steps: Steps of the device's process.
        device: The device.
        times: Times at which the device ran each kind of work; see :func:`.gaps.measure_times`.
        launched_ns: Launch time of all work of the device whose launch is known.
        end_ns: End of this work.
        excluded_end_ns: Latest end of the work that starts before the span of the device.

    Returns:
        The parts of each step, or None for a step that launched no work. The result is also None if
        the span excludes part of the work, because a window is selected.
    """
    order = np.argsort(launched_ns, kind="stable")
    launched_ns, latest_end_ns = launched_ns[order], np.maximum.accumulate(end_ns[order])
    # The time before all launches has no work.
    latest_end_ns = np.append(steps.start_ns.min(initial=0), latest_end_ns)
    previous_end_ns, last_end_ns = (
        latest_end_ns[np.searchsorted(launched_ns, bound_ns)]
        for bound_ns in (steps.start_ns, steps.end_ns)
    )
    begin_ns = np.maximum(steps.start_ns, previous_end_ns)
    has_work = last_end_ns > begin_ns
    last_end_ns = np.where(has_work, last_end_ns, begin_ns)
    kinds_ns = [intervals.measure_within(times[name], begin_ns, last_end_ns) for name in _KINDS]
    preparing_ns = _measure_preparing(times["busy"], begin_ns, last_end_ns)
    idle_ns = last_end_ns - begin_ns - preparing_ns - sum(kinds_ns)
    low_ns, high_ns = device.span_ns
    is_excluded = (begin_ns < min(low_ns, excluded_end_ns)) | (last_end_ns > high_ns)
    rows = zip(*(column.tolist() for column in (preparing_ns, *kinds_ns, idle_ns)), strict=True)
    return tuple(
        StepParts(*row) if is_measured else None
        for row, is_measured in zip(rows, (has_work & ~is_excluded).tolist(), strict=True)
    )


def _measure_preparing(busy: intervals.Intervals, begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return the time from the beginning of each step to the first work in it, in ns."""
    next_work = np.searchsorted(busy[1], begin_ns, side="right")
    start_ns = np.append(busy[0], np.iinfo(np.int64).max)[next_work]
    preparing_ns: Ints = np.clip(start_ns, begin_ns, end_ns) - begin_ns
    return preparing_ns
