"""Durations of tasks in a simulated program, by virtual stage."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.phases import Phase
from tests.planting.programs import Duration, Task


def make_durations(
    forward_ns: int | Sequence[int],
    backward_ns: int | Sequence[int],
    weight_ns: int | Sequence[int],
    optimizer_ns: int = 0,
) -> Duration:
    """Return a function from a task to its duration in ns. A BW takes as long as B plus W.

    Args:
        forward_ns: T_F, either one number or one number per virtual stage.
        backward_ns: T_B, the time of a backward pass that computes only the input gradient.
        weight_ns: T_W, the time of a backward pass that computes the weight gradients.
        optimizer_ns: Time of the optimizer on every device.
    """

    def at(times: int | Sequence[int], stage: int) -> int:
        return times if isinstance(times, int) else times[stage]

    def duration(task: Task) -> int:
        """Return the duration of a task, in nanoseconds."""
        stage, phase = task.operation.virtual_stage, task.operation.phase
        if phase is Phase.F:
            return at(forward_ns, stage)
        if phase is Phase.OPTIMIZER:
            return optimizer_ns
        is_fused = phase is Phase.BW
        total = at(backward_ns, stage) if is_fused or phase is Phase.B else 0
        return total + (at(weight_ns, stage) if is_fused or phase is Phase.W else 0)

    return duration
