"""Reductions before the optimizer: when each rank enters a reduction, and when it ends.

::

    rank 0   last B ├───── reduce-scatter ────────┤├─ gradient norm ─┤ Optimizer
    rank 1       last B ├─ late ─├─ moves ────────┤├─ gradient norm ─┤ Optimizer

The replicas of a device reduce gradients together. All devices take part in the gradient norm.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.planting.options import Planting

#: End of the work of each iteration on each device, keyed by (iteration, device).
Done = Mapping[tuple[int, int], int]


def compute_entry_ns(planting: Planting, done_ns: int, device: int) -> int:
    """Return the time at which a device enters its reduce-scatter."""
    delay_ns = planting.late_reduce_ns if device == find_late_device(planting) else 0
    return done_ns + delay_ns


def find_late_device(planting: Planting) -> int:
    """Return the simulated device of the rank that enters late, or -1 if there is none."""
    if planting.late_reducer < 0:
        return -1
    stage, pipeline = divmod(planting.late_reducer, planting.tensor * planting.replicas)
    return stage + planting.stages * (pipeline // planting.tensor)


def compute_reduced_ns(planting: Planting, iteration: int, device: int, done: Done) -> int | None:
    """Return when the reduce-scatter of a device ends, or None if a replica has not entered yet.

    The transfer starts when the last replica of the device enters. If no reduce-scatter is planted,
    the result is the end of the device's work.
    """
    devices = planting.stages * planting.replicas
    members = [d for d in range(devices) if d % planting.stages == device % planting.stages]
    if not planting.reduce_ns:
        members = [device]
    if any((iteration, member) not in done for member in members):
        return None
    if not planting.reduce_ns:
        return done[iteration, device]
    last = max(compute_entry_ns(planting, done[iteration, member], member) for member in members)
    return last + planting.reduce_ns


def is_idle(planting: Planting, iteration: int, device: int) -> bool:
    """Return whether a simulated device runs no forward or backward in an iteration."""
    is_idle_stage = device % planting.stages == planting.idle_stage
    return is_idle_stage and iteration in planting.idle_iterations


def compute_opening_ns(planting: Planting, iteration: int, device: int, done: Done) -> int | None:
    """Return when the optimizer of a device can start, or None if the time is still unknown.

    Without a barrier, the optimizer can start at the end of the device's reduce-scatter. With a
    barrier, it can start at the end of the gradient norm, which starts after the reduce-scatters of
    all devices that are not idle.
    """
    if not planting.barrier:
        return compute_reduced_ns(planting, iteration, device, done)
    end_ns = [
        compute_reduced_ns(planting, iteration, member, done)
        for member in range(planting.stages * planting.replicas)
        if not is_idle(planting, iteration, member)
    ]
    known_end_ns = [end for end in end_ns if end is not None]
    return max(known_end_ns) + planting.norm_ns if len(known_end_ns) == len(end_ns) else None
