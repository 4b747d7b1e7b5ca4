"""Reductions before the optimizer: when each member enters them, and when they end.

::

    rank 0   last B ├───── reduce-scatter ────────┤├─ gradient norm ─┤ Optimizer
    rank 1       last B ├─ late ─├─ moves ────────┤├─ gradient norm ─┤ Optimizer

The replicas of a device reduce together, and all devices take part in the norm.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.planting.options import Planting

#: When each device ended the work of an iteration, by iteration and device.
Done = Mapping[tuple[int, int], int]


def entered_ns(planting: Planting, done_ns: int, device: int) -> int:
    """Return when a device enters its reduce-scatter."""
    late = planting.late_reduce_ns if device == late_device(planting) else 0
    return done_ns + late


def late_device(planting: Planting) -> int:
    """Return the simulated device of the rank that enters late; -1 none."""
    if planting.late_reducer < 0:
        return -1
    stage, pipeline = divmod(planting.late_reducer, planting.tensor * planting.replicas)
    return stage + planting.stages * (pipeline // planting.tensor)


def reduced_ns(planting: Planting, iteration: int, device: int, done: Done) -> int | None:
    """Return when the reduce-scatter of a device ends; None where a member has not ended."""
    devices = planting.stages * planting.replicas
    members = [d for d in range(devices) if d % planting.stages == device % planting.stages]
    if not planting.reduce_ns:
        members = [device]
    if any((iteration, member) not in done for member in members):
        return None
    if not planting.reduce_ns:
        return done[iteration, device]
    last = max(entered_ns(planting, done[iteration, member], member) for member in members)
    return last + planting.reduce_ns


def is_idle(planting: Planting, iteration: int, device: int) -> bool:
    """Return whether a simulated device runs no forward or backward in an iteration."""
    is_idle_stage = device % planting.stages == planting.idle_stage
    return is_idle_stage and iteration in planting.idle_iterations


def opens_ns(planting: Planting, iteration: int, device: int, done: Done) -> int | None:
    """Return when the optimizer of a device can start; None where that is open yet."""
    if not planting.barrier:
        return reduced_ns(planting, iteration, device, done)
    ends = [
        reduced_ns(planting, iteration, member, done)
        for member in range(planting.stages * planting.replicas)
        if not is_idle(planting, iteration, member)
    ]
    known = [end for end in ends if end is not None]
    return max(known) + planting.norm_ns if len(known) == len(ends) else None
