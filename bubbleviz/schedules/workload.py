"""Workloads: the times and memory of each virtual stage of a run, for one microbatch.

Times are whole nanoseconds. Memory may be in any unit, but the unit is the same for all stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Memory

#: Maximum total time of all operations, chosen such that every partial sum fits in 64 bits.
MAX_TOTAL_NS = 1 << 62


@dataclass(frozen=True)
class Workload:
    """Times and memory of the virtual stages of a run.

    All tuples except ``limit`` and ``lengths`` have one entry per virtual stage.

    Attributes:
        placement: Device index of each virtual stage.
        microbatches: Number of microbatches, m.
        forward_ns: Duration of the forward pass, T_F.
        backward_ns: Duration of the backward pass that computes the input gradient, T_B.
        weight_ns: Duration of the backward pass that computes the weight gradients, T_W.
        fused_ns: Duration of the whole backward pass as a single operation.
        down_ns: Time from the end of F to the arrival of its result at the next virtual stage. It
            is 0 if that stage is on the same device, and for the last virtual stage.
        up_ns: Time from the end of B to the arrival of its result at the previous virtual stage. It
            is 0 if that stage is on the same device, and for the first virtual stage.
        activation: Memory of one microbatch from F to the end of B.
        weight_activation: Part of ``activation`` that is kept until the end of W.
        limit: Maximum activation memory of each device, in the unit of ``activation``, or None if
            there is no limit.
        split: Whether B and W were measured separately. If not, B and W are each assumed to take
            half of the whole backward pass. W can then be moved only if the framework is changed to
            split the backward pass.
        lengths: Each microbatch's time divided by the mean over all microbatches, or empty if all
            microbatches take equally long.
    """

    placement: tuple[int, ...]
    microbatches: int
    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    weight_ns: tuple[int, ...]
    fused_ns: tuple[int, ...]
    down_ns: tuple[int, ...]
    up_ns: tuple[int, ...]
    activation: tuple[float, ...]
    weight_activation: tuple[float, ...]
    limit: tuple[float, ...] | None = None
    split: bool = True
    lengths: tuple[float, ...] = ()

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return max(self.placement, default=-1) + 1

    @property
    def virtual_stages(self) -> int:
        """Number of virtual stages."""
        return len(self.placement)

    @property
    def chunks(self) -> int:
        """Largest number of virtual stages on a device, v."""
        return max(self.placement.count(device) for device in range(self.devices))

    def scale_time(self, mean_ns: int, microbatch: int) -> int:
        """Return the time of one microbatch in whole ns, given the mean over all microbatches."""
        return round(mean_ns * self.lengths[microbatch]) if self.lengths else mean_ns

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the virtual stages that a device runs, in ascending order."""
        return tuple(stage for stage, home in enumerate(self.placement) if home == device)


def build_device_workload(
    placement: tuple[int, ...],
    microbatches: int,
    times_ns: Sequence[Sequence[int]],
    transfer_ns: int = 0,
    memory: Memory | None = None,
    replicas: int = 1,
) -> Workload:
    """Build a workload in which all chunks of a device have the same duration.

    Args:
        placement: Device index of each virtual stage.
        microbatches: Number of microbatches, m.
        times_ns: Three sequences, for F, B and W. Each sequence contains the time of one chunk on
            each device.
        transfer_ns: Time of a transfer between virtual stages on different devices.
        memory: Activation memory of one microbatch on a whole stage, divided equally among its
            chunks. If None, a microbatch takes up 1 unit until the end of W, and there is no limit.
        replicas: Number of pipelines. A stage takes equally long in every pipeline, even on
            different devices.
    """
    length, memory = len(placement) // replicas, memory or Memory()
    chunks = length // (max(placement) + 1)
    forward, backward, weight = (
        tuple(each[placement[s % length]] for s in range(len(placement))) for each in times_ns
    )
    crossed = tuple(transfer_ns if a != b else 0 for a, b in pairwise(placement))
    return Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=forward,
        backward_ns=backward,
        weight_ns=weight,
        fused_ns=tuple(map(sum, zip(backward, weight, strict=True))),
        down_ns=(*crossed, 0),
        up_ns=(0, *crossed),
        activation=(memory.backward / chunks,) * len(placement),
        weight_activation=(memory.weight / chunks,) * len(placement),
        limit=None if memory.limit is None else (memory.limit,) * (max(placement) + 1),
    )


def check_total(times_ns: Iterable[Iterable[int]], repeats: int) -> None:
    """Check that the sum of all times is small enough to simulate.

    Args:
        times_ns: Times of one microbatch: one sequence per kind of operation, with one entry per
            virtual stage or layer.
        repeats: The sum of all times is multiplied by this factor.

    Raises:
        MismatchError: The product exceeds ``MAX_TOTAL_NS``.
    """
    total_ns = sum(map(sum, times_ns)) * repeats
    if total_ns > MAX_TOTAL_NS:
        raise MismatchError(
            f"all operations together take {total_ns / 1e9:,.3g} s, but only "
            f"{MAX_TOTAL_NS / 1e9:,.3g} s can be simulated; check the measured times"
        )


def check_workload(workload: Workload) -> None:
    """Check that the total time of a workload is small enough to simulate.

    The total is the sum of the times of all phases and transfers, multiplied by the numbers of
    microbatches and chunks.

    Raises:
        MismatchError: The total exceeds ``MAX_TOTAL_NS``.
    """
    times_ns = (
        *get_phase_times(workload).values(),
        workload.down_ns,
        workload.up_ns,
    )
    # The time unit of simulations is 1/v ns.
    check_total(times_ns, workload.microbatches * workload.chunks)


def get_phase_times(workload: Workload) -> dict[Phase, tuple[int, ...]]:
    """Return the times of F, B, W and BW in ns, each a tuple with one time per virtual stage."""
    return {
        Phase.F: workload.forward_ns,
        Phase.B: workload.backward_ns,
        Phase.W: workload.weight_ns,
        Phase.BW: workload.fused_ns,
    }
