"""Memory of a plan: the peak of the activations of each device, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import MeasuredMemory, Plan
from bubbleviz.schedules.workload import Workload

#: Relative amount by which a peak, which is a sum of floats, may exceed its limit.
ROUNDING = 1e-9


def compute_peak_memory(
    plan: Plan, activation: Sequence[float], weight_activation: Sequence[float]
) -> tuple[float, ...]:
    """Return the peak memory of the activations of each device, in the unit of ``activation``.

    Args:
        plan: What each device runs.
        activation: Memory of one microbatch on each virtual stage from F to the end of B.
        weight_activation: The part of it that is kept until the end of W.
    """
    change = np.zeros((max(Phase) + 1, plan.virtual_stages))
    change[Phase.F] = np.array(activation)
    change[Phase.B] = np.array(weight_activation) - np.array(activation)
    change[Phase.W] = -np.array(weight_activation)
    change[Phase.BW] = -np.array(activation)
    peaks = []
    for order in plan.orders:
        phase = np.array([operation.phase for operation in order], np.int64)
        stage = np.array([operation.virtual_stage for operation in order], np.int64)
        peaks.append(float(np.cumsum(change[phase, stage]).max(initial=0.0)))
    return tuple(peaks)


def is_within(peak: float, limit: float) -> bool:
    """Return whether a peak fits a limit, in the same unit."""
    return peak <= limit * (1 + ROUNDING)


def fits(peaks: tuple[float, ...], limit: tuple[float, ...] | None) -> bool:
    """Return whether no device exceeds its limit; true if ``limit`` is None."""
    return limit is None or all(
        is_within(peak, most) for peak, most in zip(peaks, limit, strict=True)
    )


def set_memory(
    workload: Workload, memory: MeasuredMemory, limit_bytes: float | Sequence[float] | None
) -> Workload:
    """Return a workload with measured activation memory, and a limit, in bytes.

    The limit of the workload is what remains of ``limit_bytes`` after the resident memory.

    Args:
        workload: Workload with the same virtual stages.
        memory: Measured memory of the run.
        limit_bytes: Memory of a device, as one number for all devices or one for each device, or
            None if there is no limit.

    Raises:
        UsageError: The resident memory of a device exceeds the limit.
    """
    limit: tuple[float, ...] | None = None
    if limit_bytes is not None:
        sizes = (
            limit_bytes if isinstance(limit_bytes, Sequence) else (limit_bytes,) * workload.devices
        )
        limit = tuple(
            size - resident for size, resident in zip(sizes, memory.resident, strict=True)
        )
        if min(limit) < 0:
            device = limit.index(min(limit))
            raise UsageError(
                f"--memory-limit {format_memory(sizes[device])}: device {device} needs "
                f"{format_memory(memory.resident[device])} at all times; raise the limit"
            )
    return replace(
        workload,
        activation=memory.activation,
        weight_activation=memory.weight_activation,
        limit=limit,
    )
