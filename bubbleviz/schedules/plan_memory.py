"""Peak activation memory of each device in a plan, and whether it is within a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import MeasuredMemory, Plan
from bubbleviz.schedules.workload import Workload

#: Relative tolerance for comparing a peak with its limit. A peak is a sum of floats.
ROUNDING = 1e-9


def compute_peak_memory(
    plan: Plan, activation: Sequence[float], weight_activation: Sequence[float]
) -> tuple[float, ...]:
    """Return the peak activation memory of each device, in the unit of ``activation``.

    F allocates ``activation``, B frees all but ``weight_activation``, and W frees the rest. BW
    frees everything.

    Args:
        plan: Operations of each device, in order.
        activation: Memory of one microbatch on each virtual stage from F to the end of B.
        weight_activation: Part of ``activation`` that is kept until the end of W.
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
    """Return whether a peak is within a limit, up to rounding errors. Both have the same unit."""
    return peak <= limit * (1 + ROUNDING)


def fits(peaks: tuple[float, ...], limit: tuple[float, ...] | None) -> bool:
    """Return whether every device stays within its limit, or True if ``limit`` is None."""
    return limit is None or all(
        is_within(peak, most) for peak, most in zip(peaks, limit, strict=True)
    )


def set_memory(
    workload: Workload, memory: MeasuredMemory, limit_bytes: float | Sequence[float] | None
) -> Workload:
    """Return a workload that has measured activation memory and a memory limit, both in bytes.

    The limit for the activations of a device is ``limit_bytes`` minus the resident memory of the
    device.

    Args:
        workload: A workload with the same virtual stages as ``memory``.
        memory: The run's measured memory use.
        limit_bytes: Memory limit in bytes, as one number for all devices or one number per device.
            None means no limit.

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
                f"--memory-limit {format_memory(sizes[device])}: too small; device {device} always "
                f"needs {format_memory(memory.resident[device])}"
            )
    return replace(
        workload,
        activation=memory.activation,
        weight_activation=memory.weight_activation,
        limit=limit,
    )
