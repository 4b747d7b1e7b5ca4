"""Memory use: a workload with the bytes that were measured, within the bytes of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bubbleviz.errors import UsageError
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from bubbleviz.schedules.workload import Workload


@frozen
class MeasuredMemory:
    """What the virtual stages of a run hold, in bytes.

    Attributes:
        held: by virtual stage: activations of one microbatch, from F to the end of B.
        kept: by virtual stage: the part of them that is held on to the end of W.
        resident: by device: what is taken beside activations, whatever the order: weights,
            gradients, states of the optimizer, and what an operation needs while it runs.
    """

    held: tuple[float, ...]
    kept: tuple[float, ...]
    resident: tuple[float, ...]


def with_memory(
    workload: Workload, memory: MeasuredMemory, limit_bytes: float | Sequence[float] | None
) -> Workload:
    """Return a workload whose activations, and limit, are in bytes.

    Args:
        workload: of the same virtual stages.
        memory: of the run.
        limit_bytes: what a device has, or each one; None for no limit.

    Raises:
        UsageError: the memory is of other stages, or what a device always holds exceeds it.
    """
    stages, devices = workload.virtual_stages, workload.devices
    if (len(memory.held), len(memory.kept)) != (stages, stages) or (
        len(memory.resident) != devices
    ):
        raise UsageError(
            f"memory of {len(memory.held)} virtual stages for a run of {stages}; measure both of "
            "one run"
        )
    limit: tuple[float, ...] | None = None
    if limit_bytes is not None:
        each = limit_bytes if isinstance(limit_bytes, Sequence) else (limit_bytes,) * devices
        limit = tuple(most - taken for most, taken in zip(each, memory.resident, strict=True))
        if min(limit) < 0:
            from bubbleviz.model.memory_sizes import memory_text

            device = limit.index(min(limit))
            raise UsageError(
                f"--memory-limit {memory_text(each[device])}: device {device} always holds "
                f"{memory_text(memory.resident[device])}; give more"
            )
    return replace(workload, activation=memory.held, kept=memory.kept, limit=limit)
